//! Which texts are tokenized, and on how much stack.
//!
//! Most pre-tokenizers of llama.cpp are regular expressions that `std::regex` matches by recursion, some frames for each
//! character of a match (`unicode_regex_split_stl` in `unicode.cpp`). How long a match can get depends on the text, so
//! the stack is made to measure, and what would need more than [`MAX_STRETCH`] is refused.

use std::{
    panic::resume_unwind,
    sync::{Mutex, PoisonError},
    thread,
};

use mesh_proto::{ErrorCode, MeshError};

/// Longest text that is tokenized, bytes: as much as the largest HTTP body.
pub const MAX_TEXT: usize = 8 << 20;

/// Longest stretch of a text that one match can cover, characters. Twice a million-token context of one-letter tokens;
/// it takes 1 GiB of stack at worst, which is reserved, and used only by such a text.
pub const MAX_STRETCH: usize = 1 << 21;

/// Stack for each character of a match, bytes: 320 and a reserve. Measured with every pre-tokenizer and class of
/// character on x86-64: `node/engine/tests/engine/pre_tokenizers.rs` fails where it is too little.
pub const STACK_PER_CHARACTER: usize = 512;

/// What is left on any thread that gets here, bytes: half of what Rust gives a thread.
const STACK_AT_HAND: usize = 1 << 20;

/// Texts with a stack of their own, one at a time: each may take a gigabyte.
static LONG_TEXT: Mutex<()> = Mutex::new(());

/// Runs `work`, which tokenizes `text`, on enough stack for it.
///
/// # Errors
///
/// [`ErrorCode::InvalidRequest`] for a text that would need too much, [`ErrorCode::InsufficientResources`] where the
/// system has no room for the stack.
pub(crate) fn on_stack_for<T: Send>(text: &str, work: impl FnOnce() -> T + Send) -> Result<T, MeshError> {
    let stretch = longest_match(text);
    if stretch > MAX_STRETCH {
        let message = format!(
            "a line of the text has {stretch} characters, and the tokenizer takes {MAX_STRETCH} at most; break it into \
             lines"
        );
        return Err(MeshError::new(ErrorCode::InvalidRequest, message));
    }
    let stack = stretch * STACK_PER_CHARACTER;
    if stack <= STACK_AT_HAND {
        return Ok(work());
    }
    let _one_at_a_time = LONG_TEXT.lock().unwrap_or_else(PoisonError::into_inner);
    on_stack(stack + STACK_AT_HAND, work)
}

/// Runs `work` on a thread with so much stack, bytes. Memory is taken as the stack grows, and given back at the end.
///
/// # Errors
///
/// [`ErrorCode::InsufficientResources`]: the system has no room for it.
pub(crate) fn on_stack<T: Send>(stack: usize, work: impl FnOnce() -> T + Send) -> Result<T, MeshError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("mesh-text".to_owned())
            .stack_size(stack)
            .spawn_scoped(scope, work);
        let thread = thread.map_err(|error| {
            let message = format!("no room for a stack of {stack} bytes: {error}; send a shorter text");
            MeshError::new(ErrorCode::InsufficientResources, message)
        })?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Most characters that one match of a pre-tokenizer can cover: none of their expressions matches a line's end followed
/// by anything but white space and slashes (`[\r\n/]*`), save as its first character.
fn longest_match(text: &str) -> usize {
    let (mut line, mut longest_line) = (0, 0);
    let (mut space, mut longest_space) = (0, 0);
    for character in text.chars() {
        line = if matches!(character, '\n' | '\r') { 0 } else { line + 1 };
        longest_line = longest_line.max(line);
        space = if character.is_whitespace() || character == '/' {
            space + 1
        } else {
            0
        };
        longest_space = longest_space.max(space);
    }
    longest_line + longest_space + 1
}

/// Refuses a text that is too long for anything.
pub(crate) fn check_length(text: &str) -> Result<(), MeshError> {
    if text.len() <= MAX_TEXT {
        return Ok(());
    }
    Err(MeshError::new(
        ErrorCode::ContextLengthExceeded,
        format!(
            "the text has {} bytes, more than the {MAX_TEXT} that are tokenized; send less",
            text.len()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_ends_with_its_line_and_the_space_after_it() {
        assert_eq!(longest_match(""), 1);
        assert_eq!(longest_match("abc\nde"), 3 + 1 + 1);
        assert_eq!(longest_match("a\n\n//\nb"), 2 + 5 + 1);
        assert_eq!(longest_match(&"漢".repeat(1000)), 1001);
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_and_the_same_text_in_lines_is_not() {
        let error = on_stack_for(&"x".repeat(MAX_STRETCH), || ()).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        assert!(error.message.contains("break it into lines"), "{error}");
        on_stack_for(&"xxxxxxx\n".repeat(MAX_TEXT / 8), || ()).unwrap();
    }

    #[test]
    fn stack_is_there_for_what_needs_it() {
        fn deep(levels: usize) -> usize {
            // With its copy and what the call itself takes, less than STACK_PER_CHARACTER, and far more in all than a
            // test's thread has.
            let frame = std::hint::black_box([0_u8; 128]);
            if levels == 0 {
                0
            } else {
                deep(levels - 1) + 1 + usize::from(std::hint::black_box(frame)[0])
            }
        }
        let text = "x".repeat(1 << 16);
        assert_eq!(on_stack_for(&text, || deep(1 << 16)).unwrap(), 1 << 16);
    }
}
