//! All behaviour of Mesh: requests, stages, deployments, membership. The outside is seen through [`ports`].

pub mod head;
pub mod link;
pub mod policy;
pub mod ports;
pub mod request;
pub mod stage;
