//! One module per command.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod events;
pub(crate) mod internal;
pub(crate) mod models;
pub(crate) mod node;
pub(crate) mod plugins;
pub(crate) mod receipts;
pub(crate) mod requests;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod stop;
