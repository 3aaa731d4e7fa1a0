//! The child's side: loads one vocabulary, then answers each question on a thread of its own. The node bounds how many
//! are under way.

use std::{
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{Arc, OnceLock},
    thread,
};

use mesh_engine::{LlamaVocabulary, LlamaVocabularyLoader, TemplateChoice};
use mesh_proto::{ErrorCode, MeshError};
use prost::Message as _;

use super::wire::{Answer, Load, Order, OrderKind, Question, Ready, Report, ReportKind, Text};
use crate::child::{ChildLimits, FrameSender, run_child};

/// Stack of a thread that loads or renders: values nested by a template as deep as its fuel allows are walked by
/// recursion. Reserved, and taken as it grows.
const STACK: usize = 128 << 20;

/// The child's side: answers until the node is gone.
///
/// # Errors
///
/// The limits cannot be set, or what came is no frame.
pub fn run_text(limits: ChildLimits) -> io::Result<()> {
    run_child(limits, |sender| {
        let desk = Arc::new(Desk {
            sender,
            vocabulary: OnceLock::new(),
        });
        move |frame: Vec<u8>| desk.clone().take(&frame)
    })
}

struct Desk {
    sender: FrameSender,
    vocabulary: OnceLock<LlamaVocabulary>,
}

impl Desk {
    fn take(self: Arc<Self>, frame: &[u8]) {
        match Order::decode(frame).map(|order| order.kind) {
            Ok(Some(OrderKind::Load(load))) => self.on_thread(None, move |desk| desk.load(load)),
            Ok(Some(OrderKind::Question(question))) => {
                let id = question.id;
                self.on_thread(Some(id), move |desk| desk.answer(question));
            }
            Ok(None) | Err(_) => eprintln!("the node sent an order that this child does not know"),
        }
    }

    /// A panic is an answer, too.
    fn on_thread(self: Arc<Self>, question: Option<u64>, work: impl FnOnce(&Self) -> ReportKind + Send + 'static) {
        let desk = self.clone();
        let work = move || {
            let done = catch_unwind(AssertUnwindSafe(|| work(&desk))).unwrap_or_else(|_| {
                let error = MeshError::internal("the tokenizer panicked on this prompt; see the node's log");
                failed(question, error)
            });
            desk.send(done);
        };
        let started = thread::Builder::new()
            .name("mesh-text".to_owned())
            .stack_size(STACK)
            .spawn(work);
        if let Err(error) = started {
            let message = format!("no thread for the tokenizer: {error}; check the limits of this user");
            self.send(failed(
                question,
                MeshError::new(ErrorCode::InsufficientResources, message),
            ));
        }
    }

    fn send(&self, kind: ReportKind) {
        self.sender.send(&Report { kind: Some(kind) }.encode_to_vec());
    }

    fn load(&self, load: Load) -> ReportKind {
        let path = PathBuf::from(OsString::from_vec(load.path));
        let choice = load.fallback.map_or(TemplateChoice::Model, TemplateChoice::Fallback);
        let works = || self.send(ReportKind::TokenizerWorks(true));
        match LlamaVocabularyLoader.load_stepwise(&path, choice, works) {
            Ok(vocabulary) => {
                let ready = ready(&vocabulary);
                // The node orders one load.
                let _ = self.vocabulary.set(vocabulary);
                ReportKind::Ready(ready)
            }
            Err(error) => ReportKind::Refused(error.into()),
        }
    }

    fn answer(&self, question: Question) -> ReportKind {
        let Question { id, context, text } = question;
        let not_loaded = || MeshError::internal("the vocabulary is not loaded");
        let outcome = match (self.vocabulary.get(), text) {
            (Some(vocabulary), Some(Text::Raw(text))) => vocabulary.tokenize_raw(&text, context),
            (Some(vocabulary), Some(Text::Encode(text))) => vocabulary.encode(&text),
            (Some(vocabulary), Some(Text::Chat(chat))) => vocabulary.render(&chat.messages).and_then(|rendered| {
                self.send(ReportKind::Rendered(id));
                vocabulary.tokenize_rendered(&rendered, context)
            }),
            (None, _) | (_, None) => Err(not_loaded()),
        };
        answer(id, outcome)
    }
}

fn failed(question: Option<u64>, error: MeshError) -> ReportKind {
    match question {
        Some(id) => answer(id, Err(error)),
        None => ReportKind::Refused(error.into()),
    }
}

fn answer(id: u64, outcome: Result<Vec<u32>, MeshError>) -> ReportKind {
    ReportKind::Answer(Answer {
        id,
        outcome: Some(outcome.into()),
    })
}

fn ready(vocabulary: &LlamaVocabulary) -> Ready {
    let tokens = 0..vocabulary.len() as u32;
    let mut pieces = Vec::new();
    let lengths = tokens
        .clone()
        .map(|token| {
            let before = pieces.len();
            vocabulary.piece(token, &mut pieces);
            (pieces.len() - before) as u32
        })
        .collect();
    Ready {
        pieces,
        lengths,
        ends: tokens.filter(|token| vocabulary.is_end_of_generation(*token)).collect(),
        template: vocabulary.chat_template().to_owned(),
    }
}
