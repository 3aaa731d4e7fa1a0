//! Text to tokens and back, on a vocabulary that the safe `llama-cpp-2` loads without weights.

use std::{path::Path, sync::Arc};

use llama_cpp_2::{
    model::{LlamaModel, params::LlamaModelParams},
    token::LlamaToken,
    token_type::LlamaTokenAttr,
    vocab::LlamaVocab,
};
use mesh_actors::ports::vocabulary::{Vocabulary, VocabularyLoader};
use mesh_gguf::{Gguf, check_vocabulary};
use mesh_proto::{ErrorCode, MeshError, v1::ChatMessage};

use crate::{
    chat::{ChatTemplate, TemplateFacts},
    raw::{backend, log},
    special::{SpecialTokens, unused_character},
};

/// Opens vocabularies.
#[derive(Debug, Clone, Copy, Default)]
pub struct LlamaVocabularyLoader;

/// The vocabulary of one model. Reading it is safe from any thread: llama.cpp does not change it after loading.
pub struct LlamaVocabulary {
    model: LlamaModel,
    size: usize,
    /// The token that begins a text, where the model wants one.
    wanted_bos: Option<LlamaToken>,
    specials: SpecialTokens,
    template: ChatTemplate,
}

impl LlamaVocabularyLoader {
    /// Loads the tokenizer of a vocabulary file or of a whole model.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ModelInvalid`] with the last words of llama.cpp.
    pub fn load_vocabulary(&self, path: &Path) -> Result<LlamaVocabulary, MeshError> {
        let refused = |reason: &str| {
            let message = format!("cannot load the vocabulary {}: {reason}", path.display());
            MeshError::new(ErrorCode::ModelInvalid, message)
        };
        if !path.is_file() {
            return Err(refused("there is no such file; check the path"));
        }
        let gguf = Gguf::open(path).map_err(|error| refused(&error.to_string()))?;
        check_vocabulary(&gguf).map_err(|error| refused(&error.to_string()))?;
        let backend = backend::backend();
        log::clear();
        let params = LlamaModelParams::default().with_vocab_only(true);
        let model = LlamaModel::load_from_file(backend, path, &params)
            .map_err(|_| refused(&format!("{}; fetch the model again", log::last_words())))?;
        // Any question to a vocabulary without tokenizer would end the process.
        if model
            .meta_val_str("tokenizer.ggml.model")
            .map_or(true, |kind| kind == "none" || kind == "no_vocab")
        {
            return Err(refused(
                "it holds no tokenizer; use the vocabulary file of the model, not a stage",
            ));
        }
        Ok(LlamaVocabulary::new(model))
    }
}

impl VocabularyLoader for LlamaVocabularyLoader {
    fn load(&self, path: &Path) -> Result<Arc<dyn Vocabulary>, MeshError> {
        Ok(Arc::new(self.load_vocabulary(path)?))
    }
}

impl LlamaVocabulary {
    fn new(model: LlamaModel) -> Self {
        let vocab = model.vocab();
        let is_special = |token: &LlamaToken| {
            let attributes = vocab.attr(*token);
            attributes.contains(LlamaTokenAttr::Control) || attributes.contains(LlamaTokenAttr::Unknown)
        };
        let specials = SpecialTokens::new(vocab.tokens().filter(is_special).map(|token| spelling(&vocab, token)));
        let facts = TemplateFacts {
            source: model
                .chat_template(None)
                .ok()
                .and_then(|template| template.to_string().ok()),
            bos: spelling(&vocab, vocab.bos()),
            eos: spelling(&vocab, vocab.eos()),
            has_chatml: matches!(vocab.tokenize(b"<|im_start|>", false, true)[..], [_]),
        };
        let wanted_bos = Some(vocab.bos()).filter(|token| token.0 >= 0 && vocab.should_add_bos());
        let size = usize::try_from(vocab.n_tokens()).unwrap_or(0);
        let template = ChatTemplate::new(facts);
        Self {
            size,
            wanted_bos,
            specials,
            template,
            model,
        }
    }

    /// Puts BOS in front where the model wants one and the text did not bring it.
    fn with_bos(&self, tokens: Vec<LlamaToken>) -> Vec<u32> {
        let bos = self.wanted_bos.filter(|bos| tokens.first() != Some(bos));
        bos.into_iter()
            .chain(tokens)
            .map(|token| token.0.cast_unsigned())
            .collect()
    }

    /// The same message, with a sentinel wherever it spells a control token.
    fn marked(&self, message: &ChatMessage, sentinel: char) -> ChatMessage {
        let mark = |text: &str| self.specials.mark(text, sentinel).into_owned();
        ChatMessage {
            role: mark(&message.role),
            content: mark(&message.content),
            name: message.name.as_deref().map(mark),
        }
    }

    fn token(&self, token: u32) -> Option<LlamaToken> {
        ((token as usize) < self.size).then_some(LlamaToken(token.cast_signed()))
    }
}

/// Spelling of a token, or nothing where there is no such token.
fn spelling(vocab: &LlamaVocab<'_>, token: LlamaToken) -> String {
    if token.0 < 0 {
        return String::new();
    }
    vocab
        .text(token)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Longest text that llama.cpp takes in one piece, bytes: its lengths are `int32_t`, and so is the token count.
const TEXT_LIMIT: usize = 1 << 30;

fn check_length(text: &str) -> Result<(), MeshError> {
    if text.len() <= TEXT_LIMIT {
        return Ok(());
    }
    Err(MeshError::new(
        ErrorCode::ContextLengthExceeded,
        format!("the text has {} bytes; send less", text.len()),
    ))
}

impl Vocabulary for LlamaVocabulary {
    fn len(&self) -> usize {
        self.size
    }

    fn tokenize_raw(&self, text: &str) -> Result<Vec<u32>, MeshError> {
        check_length(text)?;
        Ok(self.with_bos(self.model.vocab().tokenize(text.as_bytes(), false, true)))
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        check_length(text).ok()?;
        let tokens = self.model.vocab().tokenize(text.as_bytes(), false, false);
        let tokens: Vec<u32> = tokens.into_iter().map(|token| token.0.cast_unsigned()).collect();
        let mut joined = Vec::with_capacity(text.len() + 1);
        for token in &tokens {
            self.piece(*token, &mut joined);
        }
        let is_lossless = joined == text.as_bytes() || joined.strip_prefix(b" ") == Some(text.as_bytes());
        is_lossless.then_some(tokens)
    }

    fn tokenize_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, MeshError> {
        let texts = messages.iter().flat_map(|message| {
            [
                Some(message.role.as_str()),
                Some(message.content.as_str()),
                message.name.as_deref(),
            ]
            .into_iter()
            .flatten()
        });
        let Some(sentinel) = unused_character(texts) else {
            return Err(MeshError::invalid(
                "messages",
                "the messages use all private characters; send fewer of them",
            ));
        };
        let marked: Vec<ChatMessage> = messages.iter().map(|message| self.marked(message, sentinel)).collect();
        let unmarked = self.specials.unmark(&self.template.render(&marked)?, sentinel);
        check_length(&unmarked.text)?;
        let vocab = self.model.vocab();
        let mut tokens = Vec::new();
        for stretch in self.specials.stretches(&unmarked) {
            tokens.extend(vocab.tokenize(stretch.text.as_bytes(), false, stretch.parse_special));
        }
        Ok(self.with_bos(tokens))
    }

    fn piece(&self, token: u32, out: &mut Vec<u8>) {
        if let Some(token) = self.token(token) {
            self.model.vocab().token_to_piece_into(token, out, false, None);
        }
    }

    fn is_end_of_generation(&self, token: u32) -> bool {
        self.token(token).is_some_and(|token| self.model.vocab().is_eog(token))
    }

    fn chat_template(&self) -> &str {
        self.template.name()
    }
}
