//! All behaviour of Mesh: requests, stages, deployments, membership. The outside is seen through [`ports`].

pub mod ports;
pub mod request;
