//! OpenAI HTTP and gRPC front of a Mesh node.
//!
//! A [`Gateway`] owns nothing but the wire: it authenticates, parses, checks and streams. Everything else is behind
//! the ports [`Inference`](mesh_actors::ports::inference::Inference),
//! [`Administration`](mesh_actors::ports::inference::Administration) and
//! [`Lifecycles`](mesh_actors::ports::lifecycle::Lifecycles). The node's composition root makes one gateway
//! and runs [`Gateway::serve_http`] and [`Gateway::serve_grpc`] until shutdown; both drain together.
//!
//! ```text
//! HTTP/1 ──▶ http (routes, OpenAI JSON) ──┐                       ┌──▶ Inference (any head of the mesh)
//!                                         ├──▶ generate (checks) ─┘
//! HTTP/2 ──▶ grpc (mesh.v1 services) ─────┴──────────────────────────▶ Administration (this node), Lifecycles
//! ```
//!
//! Whatever runs is counted by `admission`, which is also how draining knows when it is done. Cancelling is dropping:
//! a client that goes away drops its handler or its body, and with it the
//! [`Generation`](mesh_actors::ports::inference::Generation).

mod access;
mod admission;
mod gateway;
mod generate;
mod grpc;
mod hosts;
mod http;
mod identity;
mod limits;
mod options;
mod origins;
mod request_id;
mod secret;
mod serve;

pub use gateway::Gateway;
pub use hosts::{HostName, HostNameError, Hosts};
pub use identity::{HeaderError, SessionHeader};
pub use limits::ConnectionLimits;
pub use options::GatewayOptions;
pub use origins::{Origin, OriginError};
pub use secret::{EmptySecret, Secret};
