//! What a generate request must be, whoever sends it.

use mesh_proto::{
    ErrorCode, MeshError,
    sampling::{default_sampling, validate_sampling},
    v1::{ChatMessage, ChatPrompt, GenerateRequest, TokenPrompt, generate_request::Prompt},
};

use super::shorten;

/// As in the OpenAI API.
pub(crate) const MAX_STOP_STRINGS: usize = 4;

/// Text that could begin a stop string is held back, so its length bounds what is held back.
const MAX_STOP_BYTES: usize = 4096;

/// A role from a client is echoed up to here.
const ECHOED_ROLE: usize = 40;

/// Fills in defaults and folds synonyms, before [`check`].
pub(super) fn normalize(request: &mut GenerateRequest) {
    let sampling = request.sampling.get_or_insert_with(default_sampling);
    // The head counts them; a client's number would shift the penalties.
    sampling.prompt_tokens = 0;
    if let Some(Prompt::Chat(chat)) = &mut request.prompt {
        for message in chat.messages.iter_mut().filter(|message| message.role == "developer") {
            "system".clone_into(&mut message.role);
        }
    }
}

/// Refuses what cannot mean anything, naming the field.
pub(super) fn check(request: &GenerateRequest) -> Result<(), MeshError> {
    match &request.prompt {
        None => {
            return Err(MeshError::invalid(
                "prompt",
                "the request has no prompt; give a chat, a text or token ids",
            ));
        }
        Some(Prompt::Chat(chat)) => check_chat(chat)?,
        Some(Prompt::Text(_)) => {}
        Some(Prompt::Tokens(tokens)) => check_tokens(tokens)?,
    }
    if request.max_tokens == Some(0) {
        return Err(MeshError::invalid(
            "max_tokens",
            "max_tokens is 0; use at least 1, or leave it out",
        ));
    }
    check_stop(&request.stop)?;
    request.sampling.as_ref().map_or(Ok(()), validate_sampling)
}

fn check_chat(chat: &ChatPrompt) -> Result<(), MeshError> {
    if chat.messages.is_empty() {
        return Err(MeshError::invalid(
            "messages",
            "messages is empty; send at least one message",
        ));
    }
    chat.messages
        .iter()
        .enumerate()
        .try_for_each(|(index, message)| check_role(index, message))
}

fn check_role(index: usize, message: &ChatMessage) -> Result<(), MeshError> {
    let param = format!("messages[{index}].role");
    match message.role.as_str() {
        "system" | "user" | "assistant" => Ok(()),
        "tool" | "function" => {
            let message = format!(
                "tool messages are not supported yet; leave out the message with role `{}`",
                message.role
            );
            Err(MeshError::new(ErrorCode::Unsupported, message).with_param(param))
        }
        other => {
            let role = shorten(other, ECHOED_ROLE);
            let message = format!("the role `{role}` is unknown; use system, developer, user or assistant");
            Err(MeshError::invalid(param, message))
        }
    }
}

fn check_tokens(tokens: &TokenPrompt) -> Result<(), MeshError> {
    if tokens.ids.is_empty() {
        return Err(MeshError::invalid(
            "prompt",
            "the prompt has no tokens; send at least one",
        ));
    }
    Ok(())
}

fn check_stop(stop: &[String]) -> Result<(), MeshError> {
    if stop.len() > MAX_STOP_STRINGS {
        let message = format!("stop has more than {MAX_STOP_STRINGS} strings; use at most {MAX_STOP_STRINGS}");
        return Err(MeshError::invalid("stop", message));
    }
    if stop.iter().any(String::is_empty) {
        return Err(MeshError::invalid(
            "stop",
            "a stop string is empty; use non-empty strings",
        ));
    }
    if stop.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        let message = format!("a stop string is longer than {MAX_STOP_BYTES} bytes; use shorter ones");
        return Err(MeshError::invalid("stop", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mesh_proto::v1::Sampling;

    use super::*;

    fn text() -> GenerateRequest {
        GenerateRequest {
            prompt: Some(Prompt::Text("hi".into())),
            ..Default::default()
        }
    }

    fn param(mut request: GenerateRequest) -> Option<String> {
        normalize(&mut request);
        check(&request).err().and_then(|error| error.param)
    }

    #[test]
    fn each_fault_names_its_field() {
        let tokens = Some(Prompt::Tokens(TokenPrompt::default()));
        let chat = Some(Prompt::Chat(ChatPrompt::default()));
        let hot = Sampling {
            temperature: 9.0,
            ..default_sampling()
        };
        let cases = [
            (GenerateRequest { prompt: None, ..text() }, "prompt"),
            (
                GenerateRequest {
                    prompt: tokens,
                    ..text()
                },
                "prompt",
            ),
            (GenerateRequest { prompt: chat, ..text() }, "messages"),
            (
                GenerateRequest {
                    max_tokens: Some(0),
                    ..text()
                },
                "max_tokens",
            ),
            (
                GenerateRequest {
                    stop: vec!["a".into(); 5],
                    ..text()
                },
                "stop",
            ),
            (
                GenerateRequest {
                    stop: vec![String::new()],
                    ..text()
                },
                "stop",
            ),
            (
                GenerateRequest {
                    stop: vec!["a".repeat(MAX_STOP_BYTES + 1)],
                    ..text()
                },
                "stop",
            ),
            (
                GenerateRequest {
                    sampling: Some(hot),
                    ..text()
                },
                "temperature",
            ),
        ];
        for (request, field) in cases {
            assert_eq!(param(request).as_deref(), Some(field));
        }
        assert_eq!(param(text()), None);
    }

    #[test]
    fn developer_is_system_and_the_head_counts_the_prompt() {
        let message = ChatMessage {
            role: "developer".into(),
            content: "be brief".into(),
            name: None,
        };
        let mut request = GenerateRequest {
            prompt: Some(Prompt::Chat(ChatPrompt {
                messages: vec![message],
            })),
            sampling: Some(Sampling {
                prompt_tokens: 7,
                ..default_sampling()
            }),
            ..Default::default()
        };
        normalize(&mut request);
        assert_eq!(
            request.sampling.as_ref().map(|sampling| sampling.prompt_tokens),
            Some(0)
        );
        assert!(matches!(&request.prompt, Some(Prompt::Chat(chat)) if chat.messages[0].role == "system"));
        assert_eq!(check(&request), Ok(()));
    }
}
