//! The last error of this thread, until the node asks for it.

use std::cell::RefCell;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the message of a call that failed. Does nothing on a thread that is ending.
pub(crate) fn set(message: &str) {
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.clear();
            last.push_str(message);
        }
    });
}

/// Copies as much of the message as fits, cut between characters, and returns its length.
pub(crate) fn copy(buffer: &mut [u8]) -> usize {
    LAST.try_with(|last| {
        let Ok(last) = last.try_borrow() else { return 0 };
        let mut length = last.len().min(buffer.len());
        while !last.is_char_boundary(length) {
            length -= 1;
        }
        buffer[..length].copy_from_slice(&last.as_bytes()[..length]);
        length
    })
    .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        set("ab\u{e9}");
        let mut buffer = [0_u8; 3];
        assert_eq!(copy(&mut buffer), 2);
        assert_eq!(&buffer[..2], b"ab");
        assert_eq!(copy(&mut [0_u8; 4]), 4);
        assert_eq!(copy(&mut []), 0);
    }

    #[test]
    fn each_thread_has_its_own_message() {
        set("mine");
        std::thread::spawn(|| assert_eq!(copy(&mut [0_u8; 8]), 0))
            .join()
            .unwrap();
        assert_eq!(copy(&mut [0_u8; 8]), 4);
    }
}
