//! The objects of an answer, as the OpenAI API writes them
//! (<https://platform.openai.com/docs/api-reference/chat>, `.../completions`).

use mesh_proto::v1::{FinishReason, GenerateFinished, GenerateStarted};
use serde::Serialize;

/// Which of the two APIs an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What all objects of one answer have in common.
#[derive(Debug)]
pub(super) struct Answer {
    style: Style,
    id: String,
    created: u64,
    model: String,
}

/// `chat.completion`, `chat.completion.chunk` or `text_completion`.
#[derive(Debug, Serialize)]
pub(super) struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    /// Absent in chunks, unless usage was asked for: then null in all but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Debug, Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(flatten)]
    payload: Payload<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Payload<'a> {
    Text(&'a str),
    Message(Message<'a>),
    Delta(Delta<'a>),
}

#[derive(Debug, Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
}

#[derive(Debug, Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
}

impl Answer {
    pub(super) fn new(style: Style, model: String, started: &GenerateStarted) -> Self {
        let prefix = match style {
            Style::Chat => "chatcmpl",
            Style::Text => "cmpl",
        };
        Self {
            style,
            id: format!("{prefix}-{}", started.request_id),
            created: started.created,
            model,
        }
    }

    /// The whole answer.
    pub(super) fn whole<'a>(&'a self, text: &'a str, finished: &GenerateFinished) -> Object<'a> {
        let text = match self.style {
            Style::Chat => Payload::Message(Message {
                role: "assistant",
                content: text,
                refusal: None,
            }),
            Style::Text => Payload::Text(text),
        };
        let object = match self.style {
            Style::Chat => "chat.completion",
            Style::Text => "text_completion",
        };
        self.object(
            object,
            vec![choice(text, Some(reason(finished)))],
            Some(Some(usage(finished))),
        )
    }

    /// The chunk that opens a chat; a text completion has none.
    pub(super) fn opening(&self, usage: bool) -> Option<Object<'_>> {
        let delta = Delta {
            role: Some("assistant"),
            content: Some(""),
        };
        (self.style == Style::Chat).then(|| self.chunk(vec![choice(Payload::Delta(delta), None)], usage))
    }

    /// A chunk of text.
    pub(super) fn delta<'a>(&'a self, text: &'a str, usage: bool) -> Object<'a> {
        let text = match self.style {
            Style::Chat => Payload::Delta(Delta {
                role: None,
                content: Some(text),
            }),
            Style::Text => Payload::Text(text),
        };
        self.chunk(vec![choice(text, None)], usage)
    }

    /// The chunk that says why generation ended.
    pub(super) fn closing(&self, finished: &GenerateFinished, usage: bool) -> Object<'_> {
        let text = match self.style {
            Style::Chat => Payload::Delta(Delta::default()),
            Style::Text => Payload::Text(""),
        };
        self.chunk(vec![choice(text, Some(reason(finished)))], usage)
    }

    /// The chunk with the counts and no choices.
    pub(super) fn usage(&self, finished: &GenerateFinished) -> Object<'_> {
        let mut chunk = self.chunk(Vec::new(), true);
        chunk.usage = Some(Some(usage(finished)));
        chunk
    }

    fn chunk<'a>(&'a self, choices: Vec<Choice<'a>>, usage: bool) -> Object<'a> {
        let object = match self.style {
            Style::Chat => "chat.completion.chunk",
            Style::Text => "text_completion",
        };
        self.object(object, choices, usage.then_some(None))
    }

    fn object<'a>(
        &'a self,
        object: &'static str,
        choices: Vec<Choice<'a>>,
        usage: Option<Option<Usage>>,
    ) -> Object<'a> {
        Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
        }
    }
}

fn choice<'a>(payload: Payload<'a>, finish_reason: Option<&'static str>) -> Choice<'a> {
    Choice {
        index: 0,
        payload,
        logprobs: None,
        finish_reason,
    }
}

fn reason(finished: &GenerateFinished) -> &'static str {
    match finished.reason() {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Unspecified => "stop",
    }
}

fn usage(finished: &GenerateFinished) -> Usage {
    let (prompt_tokens, completion_tokens) = (finished.prompt_tokens, finished.completion_tokens);
    Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens: prompt_tokens.saturating_add(completion_tokens),
    }
}
