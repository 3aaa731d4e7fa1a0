//! A terminal's screen that is drawn again and again.

use console::Term;

use crate::{failure::Failure, output};

/// Another screen, no cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";

/// What was there before.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The alternate screen of the terminal on stdout, until it is dropped.
#[derive(Debug)]
pub(crate) struct LiveScreen {
    terminal: Term,
}

impl LiveScreen {
    /// Takes the screen.
    pub(crate) fn open() -> Result<Self, Failure> {
        output::print(ENTER)?;
        Ok(Self {
            terminal: Term::stdout(),
        })
    }

    /// Shows a text in place of the last one, as much as fits; `false` if nobody reads any more.
    pub(crate) fn draw(&mut self, text: &str) -> Result<bool, Failure> {
        let (rows, columns) = self.terminal.size();
        output::print_while_read(&frame(text, rows.into(), columns.into()))
    }
}

impl Drop for LiveScreen {
    fn drop(&mut self) {
        // The terminal has gone if it does not take this.
        let _ = output::print(LEAVE);
    }
}

/// From the top left corner: each line cut to the width and cleared to its end, then everything below. Nothing is
/// cleared before it is written, so nothing flickers.
fn frame(text: &str, rows: usize, columns: usize) -> String {
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| output::harmless(line).replace('\t', " "))
        .collect();
    if lines.len() > rows {
        let hidden = lines.len() - rows + 1;
        lines.truncate(rows.saturating_sub(1));
        lines.push(format!("… {hidden} more lines"));
    }
    let cut = |line: &String| format!("{}\x1b[K", line.chars().take(columns).collect::<String>());
    let lines: Vec<String> = lines.iter().map(cut).collect();
    format!("\x1b[H{}\x1b[J", lines.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_the_screen() {
        let text = "1234567\n2\n3\n4\n";
        assert_eq!(
            frame(text, 9, 5),
            "\x1b[H12345\x1b[K\r\n2\x1b[K\r\n3\x1b[K\r\n4\x1b[K\x1b[J"
        );
        assert_eq!(
            frame(text, 3, 80),
            "\x1b[H1234567\x1b[K\r\n2\x1b[K\r\n… 2 more lines\x1b[K\x1b[J"
        );
        assert_eq!(frame("a\x1bb", 1, 80), "\x1b[Ha\u{fffd}b\x1b[K\x1b[J");
    }
}
