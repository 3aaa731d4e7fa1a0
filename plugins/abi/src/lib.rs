//! The Rust mirror of `include/mesh_plugin.h`: the same names, layouts and codes. The header is the truth and says what
//! everything means; `tests/layout.rs` compares both through a C compiler.

mod code;
mod passed;
mod table;

pub use code::*;
pub use passed::*;
pub use table::*;
