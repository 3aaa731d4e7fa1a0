//! Text to tokens and back, on a vocabulary that the safe `llama-cpp-2` loads without weights.
//!
//! llama.cpp ends the process on some texts and on many damaged vocabularies, so a node has this in a child process.

use std::path::Path;

use llama_cpp_2::{
    model::{LlamaModel, params::LlamaModelParams},
    token::LlamaToken,
    token_type::LlamaTokenAttr,
    vocab::{LlamaVocab, VocabType},
};
use mesh_gguf::{Gguf, check_vocabulary};
use mesh_proto::{ErrorCode, MeshError, v1::ChatMessage};

use crate::{
    chat::{ChatTemplate, TemplateFacts},
    raw::{backend, log},
    special::{SpecialTokens, Unmarked, unused_character},
    text_limits::{check_length, on_stack_for},
};

/// Text of several scripts, with what no vocabulary has as a token of its own: a tokenizer that cannot take every text
/// fails on it.
const PROBE: &str = "The 3 quick brown foxes, isn't it?\r\n\t naïve Ωμέγα Привет שלום العربية हिन्दी ไทย 한국어 漢字かな 🙂👩‍👧 \
                     \u{0}\u{7f}\u{ad}\u{e000}\u{fffd}\u{10fffd}";

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
    longest: Option<usize>,
}

/// A conversation as its template gives it, with the places where messages spell control tokens.
#[derive(Debug)]
pub struct Rendered(Unmarked);

/// How the chat template of a model is treated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TemplateChoice {
    /// Used if it works.
    #[default]
    Model,
    /// Known not to work, and why.
    Fallback(String),
}

impl LlamaVocabularyLoader {
    /// Loads the tokenizer of a vocabulary file or of a whole model.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ModelInvalid`] with the last words of llama.cpp.
    pub fn load_vocabulary(&self, path: &Path) -> Result<LlamaVocabulary, MeshError> {
        self.load_stepwise(path, TemplateChoice::Model, || ())
    }

    /// The same, and calls `tokenizer_works` when the tokenizer has been tried and the chat template comes next.
    ///
    /// # Errors
    ///
    /// As [`Self::load_vocabulary`].
    pub fn load_stepwise(
        &self,
        path: &Path,
        template: TemplateChoice,
        tokenizer_works: impl FnOnce(),
    ) -> Result<LlamaVocabulary, MeshError> {
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
        let tokens = model.vocab().tokenize(PROBE.as_bytes(), false, true);
        if tokens
            .iter()
            .any(|token| token.0 < 0 || token.0 >= model.vocab().n_tokens())
        {
            return Err(refused(
                "its tokenizer gives tokens that it does not have; fetch the model again",
            ));
        }
        Ok(LlamaVocabulary::new(model, template, tokenizer_works))
    }
}

impl LlamaVocabulary {
    fn new(model: LlamaModel, choice: TemplateChoice, tokenizer_works: impl FnOnce()) -> Self {
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
        let longest = longest_spelling(&vocab);
        tokenizer_works();
        let template = match choice {
            TemplateChoice::Model => ChatTemplate::new(facts),
            TemplateChoice::Fallback(why) => ChatTemplate::fallback(facts, &why),
        };
        Self {
            size,
            wanted_bos,
            specials,
            template,
            longest,
            model,
        }
    }

    /// Refuses a text that cannot fit: `context` tokens spell no more than their number times the longest.
    fn check_fits(&self, text: &str, context: u32) -> Result<(), MeshError> {
        check_length(text)?;
        let (Some(longest), bytes) = (self.longest, text.len()) else {
            return Ok(());
        };
        if bytes <= longest.saturating_mul(context as usize) {
            return Ok(());
        }
        let message = format!(
            "the prompt has {bytes} bytes and the context is {context} tokens of {longest} bytes at most; shorten the \
             prompt or serve the model with a larger --context"
        );
        Err(MeshError::new(ErrorCode::ContextLengthExceeded, message).with_param("messages"))
    }

    /// Tokens of a text, with as much stack as it needs.
    fn tokens(&self, text: &str, parse_special: bool) -> Result<Vec<LlamaToken>, MeshError> {
        on_stack_for(text, || {
            // With room for a token for each byte, the first pass is enough.
            let mut tokens = Vec::with_capacity(text.len() + ROOM_FOR_PREFIX);
            let vocab = self.model.vocab();
            vocab.tokenize_into(text.as_bytes(), &mut tokens, false, parse_special);
            tokens.shrink_to_fit();
            tokens
        })
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

/// Tokens that a tokenizer puts before a text by itself.
const ROOM_FOR_PREFIX: usize = 8;

/// Most bytes that one token stands for, where every text is spelled by its tokens: each byte has one, and none takes
/// white space around it along.
fn longest_spelling(vocab: &LlamaVocab<'_>) -> Option<usize> {
    if !matches!(vocab.vocab_type(), VocabType::BPE | VocabType::SPM) {
        return None;
    }
    let mut bytes = [false; 256];
    let (mut longest, mut piece) = (0, Vec::new());
    for token in vocab.tokens() {
        let attributes = vocab.attr(token);
        if attributes.contains(LlamaTokenAttr::LStrip) || attributes.contains(LlamaTokenAttr::RStrip) {
            return None;
        }
        piece.clear();
        vocab.token_to_piece_into(token, &mut piece, true, None);
        if let [byte] = piece[..] {
            bytes[usize::from(byte)] = true;
        }
        let spelled = vocab.text(token).map_or(0, |text| text.count_bytes());
        longest = longest.max(piece.len()).max(spelled);
    }
    bytes.iter().all(|known| *known).then_some(longest)
}

impl LlamaVocabulary {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.size
    }

    /// Never true for a model that loads.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// As [`mesh_actors::ports::vocabulary::Vocabulary::tokenize_raw`].
    ///
    /// # Errors
    ///
    /// The text cannot fit in the context, or is too long for the tokenizer.
    pub fn tokenize_raw(&self, text: &str, context: u32) -> Result<Vec<u32>, MeshError> {
        self.check_fits(text, context)?;
        Ok(self.with_bos(self.tokens(text, true)?))
    }

    /// As [`mesh_actors::ports::vocabulary::Vocabulary::encode`].
    ///
    /// # Errors
    ///
    /// The tokens do not give the text back, or it is too long for the tokenizer.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, MeshError> {
        check_length(text)?;
        let tokens = self.tokens(text, false)?;
        let tokens: Vec<u32> = tokens.into_iter().map(|token| token.0.cast_unsigned()).collect();
        let mut joined = Vec::with_capacity(text.len() + 1);
        for token in &tokens {
            self.piece(*token, &mut joined);
        }
        let is_lossless = joined == text.as_bytes() || joined.strip_prefix(b" ") == Some(text.as_bytes());
        is_lossless
            .then_some(tokens)
            .ok_or_else(|| MeshError::invalid("text", "the tokens of the text do not give it back"))
    }

    /// As [`mesh_actors::ports::vocabulary::Vocabulary::tokenize_chat`].
    ///
    /// # Errors
    ///
    /// [`ErrorCode::TemplateError`], and as [`Self::tokenize_raw`].
    pub fn tokenize_chat(&self, messages: &[ChatMessage], context: u32) -> Result<Vec<u32>, MeshError> {
        self.tokenize_rendered(&self.render(messages)?, context)
    }

    /// The first half of [`Self::tokenize_chat`]: the chat template.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::TemplateError`], with the template's own words where it raises.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<Rendered, MeshError> {
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
        Ok(Rendered(
            self.specials.unmark(&self.template.render(&marked)?, sentinel),
        ))
    }

    /// The second half: the tokenizer.
    ///
    /// # Errors
    ///
    /// As [`Self::tokenize_raw`].
    pub fn tokenize_rendered(&self, rendered: &Rendered, context: u32) -> Result<Vec<u32>, MeshError> {
        self.check_fits(&rendered.0.text, context)?;
        let mut tokens = Vec::new();
        for stretch in self.specials.stretches(&rendered.0) {
            tokens.extend(self.tokens(stretch.text, stretch.parse_special)?);
        }
        Ok(self.with_bos(tokens))
    }

    /// Appends the bytes of a token to `out`: control tokens give nothing. Bytes may end inside a UTF-8 character.
    pub fn piece(&self, token: u32, out: &mut Vec<u8>) {
        if let Some(token) = self.token(token) {
            self.model.vocab().token_to_piece_into(token, out, false, None);
        }
    }

    /// The token ends generation.
    pub fn is_end_of_generation(&self, token: u32) -> bool {
        self.token(token).is_some_and(|token| self.model.vocab().is_eog(token))
    }

    /// `model`, or the fallback and why.
    pub fn chat_template(&self) -> &str {
        self.template.name()
    }
}
