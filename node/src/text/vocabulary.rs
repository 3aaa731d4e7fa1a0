//! The port: vocabularies whose work is done by children.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use mesh_actors::ports::vocabulary::{Vocabulary, VocabularyLoader};
use mesh_proto::{ErrorCode, MeshError, v1::ChatMessage};
use tokio::sync::{mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    pieces::Pieces,
    start::Start,
    wire::{Chat, Text},
    worker::{Asked, Worker},
};
use crate::child::ChildProgram;

/// Questions between the askers and the worker, which takes them at once while it has room.
const DESK: usize = 16;

/// Starts a child for each vocabulary.
pub(crate) struct ChildVocabularies {
    pub program: ChildProgram,
    /// The node drains.
    pub draining: CancellationToken,
}

/// A vocabulary in a child, which ends with it.
struct ChildVocabulary {
    pieces: Pieces,
    template: String,
    desk: mpsc::Sender<Asked>,
    _worker: AbortOnDropHandle<()>,
}

#[async_trait]
impl VocabularyLoader for ChildVocabularies {
    async fn load(&self, path: &Path) -> Result<Arc<dyn Vocabulary>, MeshError> {
        let mut start = Start {
            program: self.program.clone(),
            path: path.to_owned(),
            fallback: None,
        };
        let (child, mut ready) = start.run().await?;
        let pieces = Pieces::new(&mut ready).ok_or_else(|| {
            let message = "the vocabulary does not fit together; convert or fetch the model again";
            MeshError::new(ErrorCode::ModelInvalid, message)
        })?;
        if ready.template != "model" {
            tracing::warn!(template = %ready.template, "chat template");
        }
        let (desk, questions) = mpsc::channel(DESK);
        let worker = Worker::new(start, child, pieces.len());
        let running = tokio::spawn(worker.run(questions, self.draining.clone()));
        Ok(Arc::new(ChildVocabulary {
            pieces,
            template: ready.template,
            desk,
            _worker: AbortOnDropHandle::new(running),
        }))
    }
}

impl ChildVocabulary {
    /// Dropping the future abandons the question.
    async fn ask(&self, text: Text, context: u32) -> Result<Vec<u32>, MeshError> {
        let (reply, answer) = oneshot::channel();
        let asked = Asked { text, context, reply };
        self.desk.send(asked).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

fn ended() -> MeshError {
    MeshError::new(ErrorCode::NotReady, "the model's tokenizer has ended; try again")
}

#[async_trait]
impl Vocabulary for ChildVocabulary {
    fn len(&self) -> usize {
        self.pieces.len()
    }

    async fn tokenize_raw(&self, text: String, context: u32) -> Result<Vec<u32>, MeshError> {
        self.ask(Text::Raw(text), context).await
    }

    /// For threads of plugins: these are not the runtime's.
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let (reply, answer) = oneshot::channel();
        let asked = Asked {
            text: Text::Encode(text.to_owned()),
            context: u32::MAX,
            reply,
        };
        self.desk.blocking_send(asked).ok()?;
        answer.blocking_recv().ok()?.ok()
    }

    async fn tokenize_chat(&self, messages: Vec<ChatMessage>, context: u32) -> Result<Vec<u32>, MeshError> {
        self.ask(Text::Chat(Chat { messages }), context).await
    }

    fn piece(&self, token: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(self.pieces.piece(token));
    }

    fn is_end_of_generation(&self, token: u32) -> bool {
        self.pieces.ends_generation(token)
    }

    fn chat_template(&self) -> &str {
        &self.template
    }
}
