//! `tojson` as transformers defines it: Python's `json.dumps(value, ensure_ascii=False, indent=…)`, nothing escaped for
//! HTML.

use std::fmt::Write as _;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

/// Deepest nesting.
const MAX_DEPTH: usize = 64;

struct Writer {
    indent: Option<usize>,
    separators: (String, String),
    sort_keys: bool,
    escape: bool,
    out: String,
}

/// The filter.
pub(super) fn tojson(value: &Value, arguments: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let separators: Option<Vec<String>> = arguments.get("separators")?;
    let between = if indent.is_some() { "," } else { ", " };
    let separators = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (between.to_owned(), ": ".to_owned()),
    };
    let sort_keys = arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let escape = arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    arguments.assert_all_used()?;
    let mut writer = Writer {
        indent,
        separators,
        sort_keys,
        escape,
        out: String::new(),
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                "the value is nested too deep for JSON",
            ));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&value.to_string()),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("a value of type {kind} is not JSON"),
                ));
            }
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut any = false;
        for item in value.try_iter()? {
            self.begin_item(any, depth + 1);
            any = true;
            self.value(&item, depth + 1)?;
        }
        self.end(any, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        let any = !keys.is_empty();
        for (index, key) in keys.iter().enumerate() {
            self.begin_item(index > 0, depth + 1);
            match key.as_str() {
                Some(text) => self.string(text),
                None => self.string(&key.to_string()),
            }
            self.out.push_str(&self.separators.1.clone());
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.end(any, depth, '}');
        Ok(())
    }

    fn begin_item(&mut self, follows: bool, depth: usize) {
        if follows {
            self.out.push_str(&self.separators.0.clone());
        }
        self.new_line(depth);
    }

    fn end(&mut self, any: bool, depth: usize, bracket: char) {
        if any {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    /// Python's escapes: short forms where JSON has them, `\u00XX` for other control characters.
    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                other if other < ' ' || (self.escape && !other.is_ascii()) => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }
}
