//! What commands print: text, tables and JSON on stdout; notes on stderr.

use std::io::{self, ErrorKind, Write as _};

use clap::ValueEnum;
use serde::Serialize;

use crate::{
    failure::Failure,
    local_node::terminal::{self, LONGEST_NAME, LONGEST_TEXT},
};

/// Form of a listing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    #[default]
    Table,
    /// For scripts.
    Json,
}

/// `--output`, for every command that lists.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct OutputArgs {
    /// Form of what is printed
    #[arg(long, short, value_enum, default_value_t)]
    pub(crate) output: OutputFormat,
}

impl OutputArgs {
    /// Prints `value` as JSON, or what `table` makes of it.
    pub(crate) fn print<T: Serialize>(self, value: &T, table: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        match self.output {
            OutputFormat::Table => print_lines(&table(value)).map(drop),
            OutputFormat::Json => {
                let json = serde_json::to_string_pretty(value);
                let json = json.map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
                print(&(json + "\n"))
            }
        }
    }
}

/// Writes to stdout at once. A reader that has read enough (`| head -1`) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_while_read(text).map(drop)
}

/// As [`print()`], for what has no end of its own: `false` if the reader has read enough.
pub(crate) fn print_while_read(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!(
            "cannot write to stdout: {error}; check the disk or the pipe"
        ))),
    }
}

/// Lines for people, which quote others: none of it reaches the terminal as a command. `false` if the reader has read
/// enough.
pub(crate) fn print_lines(text: &str) -> Result<bool, Failure> {
    print_while_read(&terminal::lines(text))
}

/// One object on one line; `false` if the reader has read enough.
pub(crate) fn print_json_line(value: &impl Serialize) -> Result<bool, Failure> {
    let json = serde_json::to_string(value);
    let json = json.map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
    print_while_read(&(json + "\n"))
}

/// A text of others with its own lines, without what would move the cursor or rename the window of a terminal.
pub(crate) fn harmless(text: &str) -> String {
    terminal::lines(text)
}

/// A name of others, on one line and short.
pub(crate) fn name(text: &str) -> String {
    terminal::one_line(text, LONGEST_NAME)
}

/// What others say, on one line.
pub(crate) fn sentence(text: &str) -> String {
    terminal::one_line(text, LONGEST_TEXT)
}

/// Writes a line to stderr, which may quote others. Nothing is lost but the note if stderr is closed.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", sentence(text));
}

/// Spaces between two columns.
const COLUMN_GAP: usize = 2;

/// Columns of text, as wide as their widest cell. Cells hold one short line each, whatever is put into them; the last of a
/// row may be a sentence, since it widens nothing.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.row(header.iter().map(|&cell| cell.to_owned()));
        table
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        let last = cells.len().saturating_sub(1);
        let fit = |(index, cell): (usize, &String)| if index == last { sentence(cell) } else { name(cell) };
        self.rows.push(cells.iter().enumerate().map(fit).collect());
    }

    /// A row of this program's own making, however long.
    pub(crate) fn whole_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// One line per row, each indented by `indent` spaces.
    pub(crate) fn render(&self, indent: usize) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        // What a row ends with needs no room beside it.
        let width = |column: usize| {
            let cells = self
                .rows
                .iter()
                .filter(|row| row.len() > column + 1)
                .map(|row| &row[column]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                let padding = width.saturating_sub(cell.chars().count()) + COLUMN_GAP;
                line.extend(std::iter::repeat_n(' ', padding));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Bytes for people: `98.2 MB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Microseconds for people: `1.2 ms`, `12.3 s`.
pub(crate) fn milliseconds(microseconds: u64) -> String {
    if microseconds < 10_000_000 {
        format!("{:.1} ms", microseconds as f64 / 1e3)
    } else {
        format!("{:.1} s", microseconds as f64 / 1e6)
    }
}

/// An RFC 3339 time to the millisecond, without the zone, which is UTC.
pub(crate) fn clock_time(time: &str) -> String {
    let time = time.trim_end_matches('Z');
    let (seconds, fraction) = time.split_once('.').unwrap_or((time, ""));
    format!("{seconds}.{:0<3}", fraction.get(..3).unwrap_or(fraction))
}

/// What the protocol leaves empty is absent.
pub(crate) fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// `yes` or `no`.
pub(crate) fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_short_for_people() {
        for (number, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_999, "1.0 MB"),
            (98_200_000, "98.2 MB"),
        ] {
            assert_eq!(bytes(number), text);
        }
        assert_eq!(bytes(u64::MAX), "18446744.1 TB");
    }

    #[test]
    fn a_cell_is_one_short_line_whatever_it_holds() {
        let mut table = Table::new(&["NAME", "STATE", "WHY"]);
        let long = "n".repeat(65_536);
        table.row([
            long.clone(),
            "up".to_owned(),
            "no\n\x1b[2Jmesh: done \u{202e}".to_owned(),
        ]);
        table.row(["b".to_owned(), "up".to_owned(), long]);
        let text = table.render(0);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            !text.contains(['\x1b', '\u{202e}']) && text.contains("no\\n\\u{1b}[2Jmesh: done"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() < LONGEST_TEXT + 200));
        assert!(text.contains("… (65536 characters)  up"), "{text}");
    }

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(clock_time("2026-12-01T02:03:04.123456789Z"), "2026-12-01T02:03:04.123");
        assert_eq!(clock_time("2026-12-01T02:03:04Z"), "2026-12-01T02:03:04.000");
        assert_eq!(
            (milliseconds(1234), milliseconds(12_300_000)),
            ("1.2 ms".into(), "12.3 s".into())
        );
    }

    #[test]
    fn a_table_aligns_its_columns_and_ends_lines_without_spaces() {
        let mut table = Table::new(&["NODE", "LAYERS"]);
        table.row(["a".to_owned(), "0-10".to_owned()]);
        assert_eq!(table.render(2), "  NODE  LAYERS\n  a     0-10\n");
    }
}
