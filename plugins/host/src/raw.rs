//! All that is unsafe: loading, calls into plugins, and calls of theirs into this process. What is here trusts a plugin
//! to follow the header with its pointers, since nothing can check them; it trusts no number, code or text.

mod context;
mod open;
mod pass;
pub(crate) mod process;
mod table;
pub(crate) mod thread;

pub(crate) use context::HostContext;
pub(crate) use table::{Handle, Table, TextFault};
