//! One JSON object, built field by field.

use std::fmt::Write;

/// An object that is not closed yet.
#[derive(Debug)]
pub(crate) struct Line(String);

impl Line {
    /// A line about an event.
    pub(crate) fn of(event: &str) -> Self {
        Self("{".to_owned()).text("event", event)
    }

    pub(crate) fn text(mut self, name: &str, value: &str) -> Self {
        self.name(name);
        self.0.push('"');
        for character in value.chars() {
            match character {
                '"' | '\\' => self.0.extend(['\\', character]),
                '\0'..=' ' if character != ' ' => self.write(format_args!("\\u{:04x}", u32::from(character))),
                _ => self.0.push(character),
            }
        }
        self.0.push('"');
        self
    }

    pub(crate) fn number(mut self, name: &str, value: u64) -> Self {
        self.name(name);
        self.write(format_args!("{value}"));
        self
    }

    pub(crate) fn flag(mut self, name: &str, value: bool) -> Self {
        self.name(name);
        self.write(format_args!("{value}"));
        self
    }

    pub(crate) fn tokens(mut self, name: &str, tokens: &[i32]) -> Self {
        self.name(name);
        self.write(format_args!("{tokens:?}"));
        self
    }

    /// Closes the object, with its number.
    pub(crate) fn finish(self, sequence: u64) -> String {
        self.number("seq", sequence).0 + "}\n"
    }

    fn name(&mut self, name: &str) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        self.write(format_args!("{comma}\"{name}\":"));
    }

    fn write(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json_whatever_the_text() {
        let text = "quote \" slash \\ line \n bell \u{7} é";
        let line = Line::of("begin")
            .text("request", text)
            .tokens("tokens", &[1, -2])
            .tokens("none", &[])
            .flag("flag", true)
            .finish(7);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["event"], "begin");
        assert_eq!(value["request"], text);
        assert_eq!(value["tokens"], serde_json::json!([1, -2]));
        assert_eq!(value["none"], serde_json::json!([]));
        assert_eq!(value["flag"], true);
        assert_eq!(value["seq"], 7);
    }
}
