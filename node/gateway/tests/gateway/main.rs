//! The gateway over real sockets, in front of scripted ports: the tests drive what the mesh does, step by step.

// Clippy's exception for tests does not reach the functions beside them.
#![allow(clippy::unwrap_used)]

mod administration;
mod crowds;
mod drain;
mod faults;
mod grpc;
mod lifecycle;
mod pages;
mod parameters;
mod routes;
mod scripted;
mod server;
mod stream;
mod whole;
