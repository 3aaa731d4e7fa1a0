//! From the bytes of a body to a typed request, with errors that say where.

use mesh_proto::MeshError;
use serde::Deserialize;
use serde_json::error::Category;
use serde_path_to_error::{Segment, Track};

use super::field::Object;
use crate::{generate::shorten, identity};

/// Deepest nesting of a body. Real requests need 5; schemas of tools, which are only skipped here, some 20.
const MAX_DEPTH: usize = 64;

/// serde's messages quote the value at fault, which may be as large as the body.
const MAX_MESSAGE: usize = 300;

/// A body's type: a JSON object, with all its unknown fields refused by name.
///
/// # Errors
///
/// `invalid_request` with the place (byte, or line and column) and, once it is JSON, the field.
pub(super) fn decode<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, MeshError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        malformed(format!(
            "the body is not UTF-8 at byte {}; send JSON in UTF-8",
            error.valid_up_to()
        ))
    })?;
    check_depth(text)?;

    let mut track = Track::new();
    let mut unknown = None;
    let mut note = |path: serde_ignored::Path<'_>| {
        let field = field_name(&path);
        if !identity::is_reserved(&field) {
            _ = unknown.get_or_insert(field);
        }
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let decoded = Object::<T>::deserialize(serde_ignored::Deserializer::new(tracked, &mut note));
    let Object(decoded) = decoded.map_err(|error| explain(&error, &track.path()))?;
    json.end()
        .map_err(|error| malformed(format!("the body is not valid JSON: {error}")))?;
    match unknown {
        None => Ok(decoded),
        Some(field) => {
            let message = format!("the field `{field}` is unknown; check its spelling, or leave it out");
            Err(MeshError::invalid(field, message))
        }
    }
}

fn malformed(message: String) -> MeshError {
    MeshError::new(mesh_proto::ErrorCode::InvalidRequest, message)
}

/// serde_json itself stops at 128 levels, but not inside values that it skips.
fn check_depth(text: &str) -> Result<(), MeshError> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            let message = format!("the body nests deeper than {MAX_DEPTH} levels at byte {at}; send flatter JSON");
            return Err(malformed(message));
        }
    }
    Ok(())
}

fn explain(error: &serde_json::Error, path: &serde_path_to_error::Path) -> MeshError {
    let text = shorten(&error.to_string(), MAX_MESSAGE);
    let field = path.iter().fold(String::new(), |name, segment| match segment {
        Segment::Seq { index } => format!("{name}[{index}]"),
        Segment::Map { key } => join(name, &shorten(key, MAX_FIELD)),
        Segment::Enum { .. } | Segment::Unknown => name,
    });
    let message = match (error.classify(), field.as_str()) {
        (Category::Data, "") => text,
        (Category::Data, field) => format!("{field}: {text}"),
        (Category::Eof, _) => return malformed(format!("the body is not valid JSON: {text}")),
        // Also a number that no type can hold, such as 1e400.
        (Category::Syntax | Category::Io, _) => format!("the body is not valid JSON: {text}"),
    };
    if field.is_empty() {
        malformed(message)
    } else {
        MeshError::invalid(blame(field), message)
    }
}

/// Elements of `stop`, `prompt` and `logit_bias` have no name that a client would know; fields of messages do.
fn blame(field: String) -> String {
    if field.starts_with("messages[") {
        return field;
    }
    let end = if field.starts_with("logit_bias") {
        field.find(['[', '.'])
    } else {
        field.find('[')
    };
    end.map_or_else(|| field.clone(), |end| field[..end].to_owned())
}

/// An unknown field is echoed up to here.
const MAX_FIELD: usize = 80;

fn field_name(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", field_name(parent)),
        Path::Map { parent, key } => join(field_name(parent), &shorten(key, MAX_FIELD)),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => field_name(parent),
    }
}

fn join(parent: String, key: &str) -> String {
    if parent.is_empty() {
        key.to_owned()
    } else {
        format!("{parent}.{key}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parameters::Parameters;

    fn refusal(body: impl AsRef<[u8]>) -> MeshError {
        decode::<Parameters>(body.as_ref()).expect_err("refused")
    }

    #[test]
    fn broken_json_is_located() {
        assert!(refusal(b"{\"model\":\xff}").message.contains("byte 9"));
        assert!(refusal("{\"model\":\n nope}").message.contains("line 2 column"));
        assert!(refusal("{} x").message.contains("trailing characters"));
        assert!(refusal("").message.contains("EOF"));
        assert!(refusal("[]").message.contains("expected an object"));
        assert!(refusal(r#"{"model":"\ud800"}"#).message.contains("column"));
    }

    #[test]
    fn nesting_is_bounded_even_where_values_are_skipped() {
        let deep = |levels: usize| format!("{{\"metadata\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(decode::<Parameters>(deep(MAX_DEPTH - 1).as_bytes()).is_ok());
        assert!(refusal(deep(MAX_DEPTH)).message.contains("deeper than 64"));
        assert!(refusal("[".repeat(1 << 20)).message.contains("deeper than 64"));
        let brackets_in_text = format!("{{\"user\":\"\\\"{}\"}}", "[".repeat(500));
        assert!(decode::<Parameters>(brackets_in_text.as_bytes()).is_ok());
    }

    #[test]
    fn the_field_at_fault_is_named() {
        let cases = [
            (r#"{"temperature":"hot"}"#, "temperature"),
            (r#"{"temperature":1e999}"#, "temperature"),
            (r#"{"stop":[1]}"#, "stop"),
            (r#"{"logit_bias":{"5":"x"}}"#, "logit_bias"),
            (r#"{"logit_bias":{"x":1}}"#, "logit_bias"),
            (r#"{"messages":[{"role":7}]}"#, "messages[0].role"),
            (r#"{"messages":[["user","hi"]]}"#, "messages[0]"),
            (r#"{"messages":[{"content":7}]}"#, "messages[0].content"),
            (r#"{"prompt":[1,-1]}"#, "prompt"),
            (
                r#"{"stream_options":{"include_usage":1}}"#,
                "stream_options.include_usage",
            ),
            (r#"{"max_token":5}"#, "max_token"),
            (r#"{"messages":[{"role":"user","cotnent":"x"}]}"#, "messages[0].cotnent"),
        ];
        for (body, field) in cases {
            assert_eq!(refusal(body).param.as_deref(), Some(field), "{body}");
        }
    }

    #[test]
    fn a_huge_value_is_not_quoted_whole() {
        let error = refusal(format!("{{\"n\":\"{}\"}}", "a".repeat(1 << 20)));
        assert!(error.message.len() < 2 * MAX_MESSAGE);
    }
}
