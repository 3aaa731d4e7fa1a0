//! Templates' sources.

/// Replaces `{% generation %}` and `{% endgeneration %}`, which mark the assistant's words for training (transformers'
/// `AssistantTracker`), by an `if` that always holds: the control of white space around them stays.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end + 2) else {
            break;
        };
        result.push_str(&rest[..start]);
        let tag = &rest[start..end];
        let inner = &tag[2..tag.len() - 2];
        let sign = |text: Option<char>| {
            text.filter(|sign| matches!(sign, '-' | '+'))
                .map(String::from)
                .unwrap_or_default()
        };
        let statement = match inner.trim_matches(['-', '+']).trim() {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        match statement {
            Some(statement) => {
                let (left, right) = (sign(inner.chars().next()), sign(inner.chars().last()));
                result.push_str(&format!("{{%{left} {statement} {right}%}}"));
            }
            None => result.push_str(tag),
        }
        rest = &rest[end..];
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_keep_their_white_space_control() {
        let source = "{% if a %}{%- generation -%}x{% endgeneration %}{% endif %}{{ b }}{% unfinished";
        let expected = "{% if a %}{%- if true -%}x{% endif %}{% endif %}{{ b }}{% unfinished";
        assert_eq!(without_generation_tags(source), expected);
    }
}
