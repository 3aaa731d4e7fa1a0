//! Text to tokens and back, for the head of a deployment.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use mesh_proto::{MeshError, v1::ChatMessage};

/// Opens vocabularies.
#[async_trait]
pub trait VocabularyLoader: Send + Sync + 'static {
    /// Loads the vocabulary file of a model, and tries tokenizer and chat template once. Takes up to half a second;
    /// dropping the future ends it.
    async fn load(&self, path: &Path) -> Result<Arc<dyn Vocabulary>, MeshError>;
}

/// One model's tokenizer and chat template. Cheap to share.
///
/// What is asked of text that a stranger wrote is a future: dropping it abandons the work. `context` is the most tokens
/// that the caller can use: a text that must give more may be refused by its length, before it is tokenized.
#[async_trait]
pub trait Vocabulary: Send + Sync + 'static {
    /// Number of tokens.
    fn len(&self) -> usize;

    /// Never true for a model that loads.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Raw text to tokens, with special tokens parsed and BOS added where the model wants one and the text does not
    /// bring it.
    ///
    /// # Errors
    ///
    /// [`mesh_proto::ErrorCode::ContextLengthExceeded`] for a text that cannot fit,
    /// [`mesh_proto::ErrorCode::InvalidRequest`] for one that the tokenizer cannot take.
    async fn tokenize_raw(&self, text: String, context: u32) -> Result<Vec<u32>, MeshError>;

    /// A text as it stands: no BOS, nothing taken for a special token. `None` if the tokens do not give the text back;
    /// a space that the tokenizer puts before it does not count. Blocks for as long as the text is long; not for threads
    /// of the runtime.
    fn encode(&self, text: &str) -> Option<Vec<u32>>;

    /// Renders the chat template and tokenizes: specials of the template are control, the same spelling in chat
    /// content is text. No doubled BOS.
    ///
    /// # Errors
    ///
    /// [`mesh_proto::ErrorCode::TemplateError`] with the template's own words, and as [`Self::tokenize_raw`].
    async fn tokenize_chat(&self, messages: Vec<ChatMessage>, context: u32) -> Result<Vec<u32>, MeshError>;

    /// Appends the bytes of a token to `out`: control tokens give nothing. Bytes may end inside a UTF-8 character.
    fn piece(&self, token: u32, out: &mut Vec<u8>);

    /// The token ends generation (end of text, end of turn, …).
    fn is_end_of_generation(&self, token: u32) -> bool;

    /// Name of the chat template in use: `model`, or `chatml (fallback: why)` and the like.
    fn chat_template(&self) -> &str;
}
