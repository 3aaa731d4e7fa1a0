//! Chat templates: Jinja as Hugging Face's `apply_chat_template` runs it, and named fallbacks.
//!
//! What templates count on (transformers, `utils/chat_template_utils.py`): trimmed blocks, loop controls, Python's
//! string, list and dict methods, `raise_exception`, `strftime_now`, a `tojson` that escapes nothing, `generation`
//! tags.

mod clock;
mod json;
mod source;

use std::error::Error as _;

use mesh_proto::{ErrorCode, MeshError, v1::ChatMessage};
use minijinja::{Environment, Error, ErrorKind, Value, context, syntax::SyntaxConfig};

/// Name of the one template in its environment.
const NAME: &str = "chat";

/// The template of models that know ChatML's tokens and bring none that works.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + \
                      '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}\
                      {% endif %}";

/// The template of all others.
const PLAIN: &str = "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}\
                     {% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";

/// What a vocabulary says about chat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateFacts {
    /// The model's own template.
    pub source: Option<String>,
    /// Spelling of the token that begins a text, or empty.
    pub bos: String,
    /// Spelling of the token that ends a text, or empty.
    pub eos: String,
    /// `<|im_start|>` is a token.
    pub has_chatml: bool,
}

/// The chat template in use.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    name: String,
    bos: String,
    eos: String,
}

/// The template refused the conversation, in its own words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Takes the model's template, or, where there is none or it does not work, a fallback that its name tells.
    pub fn new(facts: TemplateFacts) -> Self {
        let TemplateFacts {
            source,
            bos,
            eos,
            has_chatml,
        } = facts;
        let why = match source {
            None => "the model brings no chat template".to_owned(),
            Some(source) => match Self::compile(source, "model".to_owned(), &bos, &eos) {
                Ok(template) => return template,
                Err(error) => format!("the model's does not work: {error}"),
            },
        };
        let (kind, source) = if has_chatml {
            ("chatml", CHATML)
        } else {
            ("plain", PLAIN)
        };
        tracing::warn!(fallback = kind, %why, "chat template");
        let name = format!("{kind} (fallback: {why})");
        let mut environment = environment();
        // The built-in templates compile; a test holds that.
        let _ = environment.add_template_owned(NAME, source);
        Self {
            environment,
            name,
            bos,
            eos,
        }
    }

    fn compile(source: String, name: String, bos: &str, eos: &str) -> Result<Self, Error> {
        let mut environment = environment();
        environment.add_template_owned(NAME, source::without_generation_tags(&source))?;
        let template = Self {
            environment,
            name,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        };
        // Unknown filters and functions show only when they are reached. A template may refuse this conversation.
        let hello = ChatMessage {
            role: "user".to_owned(),
            content: "hello".to_owned(),
            name: None,
        };
        match template.run(&[hello]) {
            Err(error) if raised(&error).is_none() => Err(error),
            _ => Ok(template),
        }
    }

    /// `model`, or the fallback and why.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renders a conversation, with the prompt for the next answer at its end.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::TemplateError`]: with the template's own words where it raises.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<String, MeshError> {
        self.run(messages).map_err(|error| {
            let message = raised(&error).unwrap_or_else(|| {
                format!("the chat template cannot render this conversation: {error}; change its messages")
            });
            MeshError::new(ErrorCode::TemplateError, message).with_param("messages")
        })
    }

    fn run(&self, messages: &[ChatMessage]) -> Result<String, Error> {
        let messages: Vec<Value> = messages.iter().map(message_value).collect();
        self.environment.get_template(NAME)?.render(context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
        })
    }
}

fn message_value(message: &ChatMessage) -> Value {
    let ChatMessage { role, content, name } = message;
    match name {
        Some(name) => context! { role => role.clone(), content => content.clone(), name => name.clone() },
        None => context! { role => role.clone(), content => content.clone() },
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Only delimiters are checked at building, and they are the defaults.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: String| clock::format_now(&format));
    environment
}

/// The template's own words, where it raised.
fn raised(error: &Error) -> Option<String> {
    let mut source = error.source();
    while let Some(current) = source {
        if let Some(Raised(words)) = current.downcast_ref() {
            return Some(words.clone());
        }
        source = current.source();
    }
    None
}
