//! A deployment at its owner, the node that took `serve`: plan, cut, host, link, watch, arrange anew.
//!
//! ```text
//! serve ──▶ Owner ── spawns ──▶ DeploymentActor ── HostStage ──▶ hosts on the stages' nodes
//!             │                    │   ◀── loaded, connected, failed, gone ──
//!             └── stop ───────────▶│
//!                                  └── publishes every change ──▶ Directory ──▶ gateways of all nodes
//! ```
//!
//! Once it was ready, it is written down (`ports/desired.rs`) until it is stopped: when its node starts again, it is
//! prepared and arranged as before, in the background.
//!
//! Lives until it is stopped or its node ends. Losing a stage ends the epoch: not ready at once, every host of the
//! epoch is taken down, and the stages are arranged anew when all their nodes are up again.

mod actor;
mod caller;
mod epochs;
mod follow;
pub mod machine;
mod owner;
pub mod plan;
mod prepare;
mod restore;

pub use actor::DeploymentEnvironment;
pub use epochs::Epochs;
pub use owner::Owner;
