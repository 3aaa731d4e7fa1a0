//! A vocabulary of bytes.

use std::{fmt, path::Path, sync::Arc};

use async_trait::async_trait;
use mesh_proto::{MeshError, v1::ChatMessage};

use super::Gate;
use crate::ports::vocabulary::{Vocabulary, VocabularyLoader};

/// The token that ends generation.
pub const END: u32 = 0;

/// Tokens: [`END`], then one for each byte.
pub const BYTES_VOCABULARY: u32 = 257;

type TextHook = Arc<dyn Fn(&str) + Send + Sync>;
type TokenHook = Arc<dyn Fn(u32) + Send + Sync>;

/// Token `b + 1` is byte `b`. Hooks may block or panic.
#[derive(Clone, Default)]
pub struct ScriptedVocabulary {
    on_tokenize: Option<TextHook>,
    on_piece: Option<TokenHook>,
}

impl fmt::Debug for ScriptedVocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedVocabulary")
    }
}

impl ScriptedVocabulary {
    /// Texts of which `which` says so wait at the gate, which is closed, before they are tokenized.
    pub fn held(which: impl Fn(&str) -> bool + Send + Sync + 'static) -> (Self, Arc<Gate>) {
        let gate = Arc::new(Gate::closed());
        let held = gate.clone();
        let vocabulary = Self::default().on_tokenize(move |text| {
            if which(text) {
                held.pass();
            }
        });
        (vocabulary, gate)
    }

    /// Calls `hook` with every text before it is tokenized, on a thread of its own.
    #[must_use]
    pub fn on_tokenize(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_tokenize = Some(Arc::new(hook));
        self
    }

    /// Calls `hook` with every token before it becomes text, in the request's actor.
    #[must_use]
    pub fn on_piece(mut self, hook: impl Fn(u32) + Send + Sync + 'static) -> Self {
        self.on_piece = Some(Arc::new(hook));
        self
    }

    /// The tokens of a text.
    pub fn tokens(text: &str) -> Vec<u32> {
        text.bytes().map(|byte| u32::from(byte) + 1).collect()
    }
}

#[async_trait]
impl Vocabulary for ScriptedVocabulary {
    fn len(&self) -> usize {
        BYTES_VOCABULARY as usize
    }

    async fn tokenize_raw(&self, text: String, _: u32) -> Result<Vec<u32>, MeshError> {
        let tokens = Self::tokens(&text);
        if let Some(hook) = self.on_tokenize.clone() {
            let hooked = tokio::task::spawn_blocking(move || hook(&text)).await;
            assert!(hooked.is_ok(), "the hook panicked");
        }
        Ok(tokens)
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        Some(Self::tokens(text))
    }

    async fn tokenize_chat(&self, messages: Vec<ChatMessage>, context: u32) -> Result<Vec<u32>, MeshError> {
        let lines: Vec<String> = messages
            .iter()
            .map(|message| format!("{}:{}\n", message.role, message.content))
            .collect();
        self.tokenize_raw(lines.concat(), context).await
    }

    fn piece(&self, token: u32, out: &mut Vec<u8>) {
        if let Some(hook) = &self.on_piece {
            hook(token);
        }
        out.extend(token.checked_sub(1).and_then(|byte| u8::try_from(byte).ok()));
    }

    fn is_end_of_generation(&self, token: u32) -> bool {
        token == END
    }

    fn chat_template(&self) -> &str {
        "scripted"
    }
}

#[async_trait]
impl VocabularyLoader for ScriptedVocabulary {
    async fn load(&self, _path: &Path) -> Result<Arc<dyn Vocabulary>, MeshError> {
        Ok(Arc::new(self.clone()))
    }
}
