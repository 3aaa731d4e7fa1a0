//! Cluster harness of the end-to-end tests.
//!
//! [`Cluster`] starts nodes inside the test's process, through the production entry; [`Processes`] starts real `mesh`
//! processes with their own data directories. Both serve through [`Api`]: HTTP as a client sees it, gRPC as the
//! command line does.

pub mod api;
pub mod cluster;
pub mod models;
pub mod processes;
pub mod text;
pub mod until;

pub use api::{Answer, Api, ChatCall};
pub use cluster::Cluster;
pub use processes::Processes;
pub use until::until;
