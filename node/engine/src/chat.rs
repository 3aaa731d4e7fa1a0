//! Chat templates: Jinja as Hugging Face's `apply_chat_template` runs it, and named fallbacks.
//!
//! What templates count on (transformers, `utils/chat_template_utils.py`): trimmed blocks, loop controls, Python's
//! string, list and dict methods, `raise_exception`, `strftime_now`, a `tojson` that escapes nothing, `generation`
//! tags.
//!
//! A template is a program that came with a model. What one rendering may cost is bounded here: source, time and memory
//! ([`FUEL`]), recursion (minijinja's own limit), output. Some filters take memory before fuel is counted; a node renders
//! in a child process for those.

mod clock;
mod json;
mod output;
mod source;

use std::error::Error as _;

use self::output::Limited;
use crate::text_limits::{MAX_TEXT, on_stack};
use mesh_proto::{ErrorCode, MeshError, v1::ChatMessage};
use minijinja::{Environment, Error, ErrorKind, Value, context, syntax::SyntaxConfig};

/// Name of the one template in its environment.
const NAME: &str = "chat";

/// Longest source, bytes. The longest in use have 30 KiB; the depth of an expression, and the time that folding its
/// constants takes, grow with its length.
const MAX_SOURCE: usize = 64 << 10;

/// Stack for compiling the longest source, which parser, code generator and destructors walk by recursion: a chain of
/// operators of that length needs a tenth of it. Reserved, and taken as it grows.
const COMPILER_STACK: usize = 128 << 20;

/// What one rendering may cost: an instruction, or 64 bytes of data, each. That is a gigabyte at most, and a second or
/// two; the largest conversation that fits in a request, copied ten times, costs a tenth.
const FUEL: u64 = 1 << 24;

/// Longest message of a template's own that is passed on, characters.
const MAX_WORDS: usize = 1000;

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
        let Some(source) = facts.source.clone() else {
            return Self::fallback(facts, "the model brings no chat template");
        };
        match Self::compile(source, &facts) {
            Ok(template) => template,
            Err(why) => Self::fallback(facts, &format!("the model's does not work: {why}")),
        }
    }

    /// A template of ours, and why it is used.
    pub fn fallback(facts: TemplateFacts, why: &str) -> Self {
        let (kind, source) = if facts.has_chatml {
            ("chatml", CHATML)
        } else {
            ("plain", PLAIN)
        };
        tracing::warn!(fallback = kind, %why, "chat template");
        let mut environment = environment();
        // The built-in templates compile; a test holds that.
        let _ = environment.add_template_owned(NAME, source);
        Self {
            environment,
            name: format!("{kind} (fallback: {why})"),
            bos: facts.bos,
            eos: facts.eos,
        }
    }

    /// On a stack for the longest source, and tried once: unknown filters and functions show only when they are reached.
    fn compile(source: String, facts: &TemplateFacts) -> Result<Self, String> {
        if source.len() > MAX_SOURCE {
            return Err(format!("it has {} bytes, more than {MAX_SOURCE}", source.len()));
        }
        let compile = || {
            let mut environment = environment();
            environment.add_template_owned(NAME, source::without_generation_tags(&source))?;
            let template = Self {
                environment,
                name: "model".to_owned(),
                bos: facts.bos.clone(),
                eos: facts.eos.clone(),
            };
            let hello = ChatMessage {
                role: "user".to_owned(),
                content: "hello".to_owned(),
                name: None,
            };
            match template.run(&[hello]) {
                // A template may refuse this conversation.
                Err(error) if raised(&error).is_none() => Err(error),
                _ => Ok(template),
            }
        };
        let compiled = on_stack(COMPILER_STACK, || compile().map_err(|error| words(&error)));
        compiled.map_err(|error| error.message)?
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
                format!(
                    "the chat template cannot render this conversation: {}; change its messages",
                    words(&error)
                )
            });
            MeshError::new(ErrorCode::TemplateError, message).with_param("messages")
        })
    }

    fn run(&self, messages: &[ChatMessage]) -> Result<String, Error> {
        let messages: Vec<Value> = messages.iter().map(message_value).collect();
        let context = context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
        };
        let mut output = Limited::new(MAX_TEXT);
        let template = self.environment.get_template(NAME)?;
        template.render_captured_to(context, &mut output)?;
        output.into_text()
    }
}

/// An error in the words of minijinja, or in ours where those do not say what to do.
fn words(error: &Error) -> String {
    match error.kind() {
        ErrorKind::OutOfFuel => "it takes too much time or memory".to_owned(),
        ErrorKind::WriteFailure => format!("it gives more than {MAX_TEXT} bytes"),
        _ => error.to_string().chars().take(MAX_WORDS).collect(),
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
    environment.set_fuel(Some(FUEL));
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
            return Some(words.chars().take(MAX_WORDS).collect());
        }
        source = current.source();
    }
    None
}
