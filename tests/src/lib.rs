//! Cluster harness of the end-to-end tests.
//!
//! [`Cluster`] starts nodes inside the test's process, through the production entry; [`Processes`] starts real `mesh`
//! processes with their own data directories. Both have a [`Witness`], which subscribes to the lifecycle events of the
//! whole mesh and proves at the end what has to hold of them. Both serve through [`Api`]: HTTP as a client sees it, gRPC as the
//! command line does.

pub mod api;
pub mod checker;
pub mod cluster;
pub mod models;
pub mod processes;
pub mod text;
pub mod until;
pub mod weights;
pub mod witness;

pub use api::{Answer, Api, ChatCall};
pub use cluster::Cluster;
pub use processes::Processes;
pub use until::until;
pub use witness::{Ledger, Witness};
