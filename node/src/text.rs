//! Tokenizer and chat template in a child process.

use std::io;

use crate::child::{ChildLimits, run_child};

/// The child's side: answers until the node is gone.
///
/// # Errors
///
/// The limits cannot be set, or what came is no frame.
pub fn run_text(limits: ChildLimits) -> io::Result<()> {
    run_child(limits, |sender| move |frame: Vec<u8>| sender.send(&frame))
}
