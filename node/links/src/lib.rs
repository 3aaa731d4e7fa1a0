//! iroh: the QUIC endpoint of a node, tickets, and the control and stage protocols.
//!
//! ```text
//! Endpoint ── accept ──▶ server ──▶ control streams (join, watch, host, generate, fetch, …) ──▶ actors
//!    │                     └──────▶ stage links in  ──▶ StageRegistry
//!    └── connect ──▶ Peers ──▶ control calls to other nodes
//!            └────▶ stage links out ◀── hosts
//! ```
//!
//! The one door to iroh: no type of it appears in the interface.

mod admission;
mod claim;
mod client;
mod client_key;
mod connections;
mod control;
mod convert;
mod door;
mod endpoint;
mod error;
mod follow;
mod lives;
mod message;
mod pause;
mod peers;
mod places;
pub mod protocol;
mod server;
mod stage_in;
mod stage_io;
mod stage_out;
mod subscribe;
mod ticket;

pub use claim::claim_key;
pub use client::{MeshHosts, copy_to_file, join, take_back_join};
pub use client_key::ClientKey;
pub use control::{ControlServices, FileSource};
pub use endpoint::{LinkOptions, NodeEndpoint};
pub use error::with_causes;
pub use follow::Followers;
pub use peers::Peers;
pub use server::Server;
pub use ticket::{TICKET_LIFE, Ticket, TicketError, TicketIssuer};
