//! Cluster harness, fault injection, end-to-end tests and benches.
