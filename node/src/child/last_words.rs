//! What a child wrote to stderr before it ended.

use std::collections::VecDeque;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Lines that are kept: an assertion, or the message of a panic or of an exception, is one to three.
const KEPT_LINES: usize = 4;

/// Longest line that is kept, bytes.
const LINE_LIMIT: usize = 400;

/// Bytes of one read.
const CHUNK: usize = 4096;

#[derive(Default)]
struct Lines {
    kept: VecDeque<String>,
    line: Vec<u8>,
}

/// Reads to the end; gives the last lines, joined. Never holds more than those.
pub(super) async fn last_words(mut stderr: impl AsyncRead + Unpin) -> String {
    let mut lines = Lines::default();
    let mut chunk = [0; CHUNK];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        for byte in &chunk[..read] {
            lines.take(*byte);
        }
    }
    lines.end_line();
    Vec::from(lines.kept).join("; ")
}

impl Lines {
    fn take(&mut self, byte: u8) {
        match byte {
            b'\n' => self.end_line(),
            _ if self.line.len() < LINE_LIMIT => self.line.push(byte),
            _ => {}
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        let line = line.replace(char::is_control, " ").trim().to_owned();
        if line.is_empty() {
            return;
        }
        if self.kept.len() == KEPT_LINES {
            self.kept.pop_front();
        }
        self.kept.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_lines_are_kept_and_cut() {
        let log: String = (0..100).map(|line| format!("{line}\n\n")).collect();
        assert_eq!(last_words((log + "no\x1b end").as_bytes()).await, "97; 98; 99; no  end");
        let long = "x".repeat(1 << 20);
        assert_eq!(last_words(long.as_bytes()).await, "x".repeat(LINE_LIMIT));
    }
}
