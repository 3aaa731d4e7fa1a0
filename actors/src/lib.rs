//! All behaviour of Mesh: requests, stages, deployments, membership. The outside is seen through [`ports`].

pub mod deployment;
pub mod directory;
pub mod events;
pub mod head;
pub mod host;
pub mod link;
pub mod membership;
pub mod plugin;
pub mod policy;
pub mod ports;
pub mod request;
pub mod root;
#[cfg(any(test, feature = "scripted"))]
pub mod scripted;
pub mod stage;
