//! One request at its head.

pub mod journal;
