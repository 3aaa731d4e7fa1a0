//! `tojson` as transformers defines it: Python's `json.dumps(value, ensure_ascii=False, indent=…)`, nothing escaped for
//! HTML.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

use crate::text_limits::MAX_TEXT;

/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// Widest indent. Python has no limit; whoever reads JSON wants 2 or 4.
const MAX_INDENT: usize = 64;

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
    if indent.is_some_and(|width| width > MAX_INDENT) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson indents by {MAX_INDENT} at most"),
        ));
    }
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
            ValueKind::None => self.push("null")?,
            ValueKind::Bool => self.push(if value.is_true() { "true" } else { "false" })?,
            ValueKind::Number => self.push(&value.to_string())?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
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

    /// Values may hold another many times over: what is written is bounded, and with it the time.
    fn push(&mut self, text: &str) -> Result<(), Error> {
        if self.out.len() + text.len() > MAX_TEXT {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson gives more than {MAX_TEXT} bytes"),
            ));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.push("[")?;
        let mut any = false;
        for item in value.try_iter()? {
            self.begin_item(any, depth + 1)?;
            any = true;
            self.value(&item, depth + 1)?;
        }
        self.end(any, depth, "]")
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.push("{")?;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        let any = !keys.is_empty();
        for (index, key) in keys.iter().enumerate() {
            self.begin_item(index > 0, depth + 1)?;
            self.key(key)?;
            self.push(&self.separators.1.clone())?;
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.end(any, depth, "}")
    }

    /// Of the kinds that Python takes.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => self.string(&key.to_string()),
            kind => Err(Error::new(
                ErrorKind::BadSerialization,
                format!("a key of type {kind} is not JSON"),
            )),
        }
    }

    fn begin_item(&mut self, follows: bool, depth: usize) -> Result<(), Error> {
        if follows {
            self.push(&self.separators.0.clone())?;
        }
        self.new_line(depth)
    }

    fn end(&mut self, any: bool, depth: usize, bracket: &str) -> Result<(), Error> {
        if any {
            self.new_line(depth)?;
        }
        self.push(bracket)
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        match self.indent {
            Some(indent) => self.push(&format!("\n{}", " ".repeat(indent * depth))),
            None => Ok(()),
        }
    }

    /// Python's escapes: short forms where JSON has them, `\u00XX` for other control characters.
    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.push("\"")?;
        let mut plain = 0;
        for (at, character) in text.char_indices() {
            let Some(escaped) = self.escaped(character) else {
                continue;
            };
            self.push(&text[plain..at])?;
            self.push(&escaped)?;
            plain = at + character.len_utf8();
        }
        self.push(&text[plain..])?;
        self.push("\"")
    }

    fn escaped(&self, character: char) -> Option<String> {
        let escaped = match character {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            other if other < ' ' || (self.escape && !other.is_ascii()) => {
                let units = other.encode_utf16(&mut [0; 2]).to_vec();
                return Some(units.iter().map(|unit| format!("\\u{unit:04x}")).collect());
            }
            _ => return None,
        };
        Some(escaped.to_owned())
    }
}
