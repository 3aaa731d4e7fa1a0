//! Last lines that llama.cpp logged on this thread, for error messages and memory figures.
//!
//! llama.cpp logs on the thread that calls it. Every line is also forwarded to `tracing`.

use std::{
    cell::RefCell,
    collections::VecDeque,
    ffi::CStr,
    os::raw::{c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
};

use llama_cpp_sys_2 as sys;

/// Lines kept per thread: more than one load prints.
const KEPT_LINES: usize = 512;

/// Most trouble lines quoted in one error message.
const QUOTED_LINES: usize = 3;

/// Longest line that is kept, bytes.
const LINE_LIMIT: usize = 400;

struct Line {
    trouble: bool,
    text: String,
}

thread_local! {
    static LINES: RefCell<VecDeque<Line>> = const { RefCell::new(VecDeque::new()) };
}

/// Receives every line of llama.cpp and ggml.
pub(super) unsafe extern "C" fn on_line(level: sys::ggml_log_level, text: *const c_char, _data: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a string that ends with a zero and lives during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // A panic must not cross into C++.
    let _ = catch_unwind(AssertUnwindSafe(|| keep(level, text.trim())));
}

fn keep(level: sys::ggml_log_level, text: &str) {
    if text.is_empty() || level == sys::GGML_LOG_LEVEL_CONT {
        return;
    }
    if level == sys::GGML_LOG_LEVEL_DEBUG {
        // Hundreds of lines per context: they would push out those that count.
        tracing::trace!(target: "llama.cpp", "{text}");
        return;
    }
    let trouble = matches!(level, sys::GGML_LOG_LEVEL_WARN | sys::GGML_LOG_LEVEL_ERROR);
    if trouble {
        tracing::debug!(target: "llama.cpp", "{text}");
    } else {
        tracing::trace!(target: "llama.cpp", "{text}");
    }
    let _ = LINES.try_with(|lines| {
        let Ok(mut lines) = lines.try_borrow_mut() else { return };
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(Line {
            trouble,
            text: text.chars().take(LINE_LIMIT).collect(),
        });
    });
}

/// Forgets the lines of this thread: what follows belongs to the next step.
pub(crate) fn clear() {
    LINES.with(|lines| lines.borrow_mut().clear());
}

/// The last warnings and errors of this thread since [`clear`], oldest first.
pub(crate) fn last_words() -> String {
    LINES.with(|lines| {
        let lines = lines.borrow();
        let mut words: Vec<&str> = lines
            .iter()
            .rev()
            .filter(|line| line.trouble)
            .take(QUOTED_LINES)
            .map(|line| line.text.as_str())
            .collect();
        words.reverse();
        if words.is_empty() {
            "llama.cpp gave no reason".to_owned()
        } else {
            words.join("; ")
        }
    })
}

/// Sum of the sizes that lines like `… KV buffer size = 12.50 MiB` of this thread tell since [`clear`], in bytes.
pub(crate) fn sum_of_sizes(label: &str) -> u64 {
    LINES.with(|lines| {
        lines
            .borrow()
            .iter()
            .filter_map(|line| size_in(&line.text, label))
            .sum()
    })
}

fn size_in(line: &str, label: &str) -> Option<u64> {
    let (_, after) = line.split_once(label)?;
    let number = after
        .trim_start()
        .strip_prefix('=')?
        .trim_start()
        .strip_suffix("MiB")?
        .trim_end();
    let mebibytes: f64 = number.parse().ok()?;
    Some((mebibytes * 1_048_576.0).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_lines() {
        let line = "llama_kv_cache:        CPU KV buffer size =    12.50 MiB";
        assert_eq!(size_in(line, "KV buffer size"), Some(13_107_200));
        assert_eq!(size_in(line, "compute buffer size"), None);
    }

    #[test]
    fn last_words_are_trouble_only_and_in_order() {
        clear();
        assert_eq!(last_words(), "llama.cpp gave no reason");
        for (level, text) in [
            (sys::GGML_LOG_LEVEL_ERROR, "first"),
            (sys::GGML_LOG_LEVEL_INFO, "chatter"),
            (sys::GGML_LOG_LEVEL_ERROR, "second\n"),
            (sys::GGML_LOG_LEVEL_CONT, "."),
        ] {
            keep(level, text.trim());
        }
        assert_eq!(last_words(), "first; second");
    }
}
