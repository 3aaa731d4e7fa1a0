//! A loaded library as the plugin actors see it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use mesh_actors::{
    ports::{
        plugin::{
            CallFault, CallFaultKind, Demotion, ModelFacts, NativePlugin, PluginAbilities, PluginFacts, PluginInstance,
            Wake,
        },
        vocabulary::Vocabulary,
    },
    request::MAX_CANDIDATES,
};
use mesh_plugin_host::{ActivationRequest, CallError, CallErrorKind, Capabilities, Library, Tokenizer, thread};

use super::instance::NativeInstance;

/// A library with what it is activated with.
#[derive(Debug)]
pub struct NativeLibrary {
    library: Library,
    facts: PluginFacts,
    config: Option<PathBuf>,
    state: Option<PathBuf>,
    deadline: Duration,
}

impl NativeLibrary {
    pub fn new(library: Library, config: Option<PathBuf>, state: Option<PathBuf>, deadline: Duration) -> Self {
        let description = library.description();
        let Capabilities {
            wants_commits,
            wants_token_ids,
            wants_reports,
            proposes,
            serial,
        } = description.capabilities;
        let facts = PluginFacts {
            name: printable(&description.name).into(),
            version: printable(&description.version),
            abi: description.abi,
            path: description.path.clone(),
            digest: description.digest_hex(),
            abilities: PluginAbilities {
                commits: wants_commits,
                token_ids: wants_token_ids,
                reports: wants_reports,
                proposes,
                serial,
            },
        };
        Self {
            library,
            facts,
            config,
            state,
            deadline,
        }
    }

    pub fn name(&self) -> Arc<str> {
        self.facts.name.clone()
    }
}

/// Names go into logs, labels and terminals.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

impl NativePlugin for NativeLibrary {
    fn facts(&self) -> &PluginFacts {
        &self.facts
    }

    fn activate(&self, model: &ModelFacts, wake: Wake) -> Result<Arc<dyn PluginInstance>, CallFault> {
        let digest = blake3::Hash::from_hex(&*model.model_id).map_err(|_| CallFault {
            kind: CallFaultKind::Error,
            message: "the model has no digest".to_owned(),
        })?;
        let request = ActivationRequest {
            model_id: &model.model,
            model_digest: digest.into(),
            tokenizer_id: &model.tokenizer_id,
            config_path: self.config.as_deref(),
            state_dir: self.state.as_deref(),
            proposal_budget: self.deadline,
            context_length: model.context,
            max_candidates: MAX_CANDIDATES,
        };
        let tokenizer = Arc::new(View(model.vocabulary.clone()));
        let instance = self.library.activate(&request, Some(tokenizer), wake).map_err(fault)?;
        Ok(Arc::new(NativeInstance::new(instance)))
    }

    fn demotion(&self) -> Option<Demotion> {
        let own = thread::current()?;
        Some(Box::new(move || {
            if !thread::demote(own) {
                tracing::debug!("a thread of a plugin that is stuck could not be demoted");
            }
        }))
    }
}

/// The model's tokenizer, as far as plugins see it.
struct View(Arc<dyn Vocabulary>);

impl Tokenizer for View {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, token: u32, out: &mut Vec<u8>) -> bool {
        let exists = (token as usize) < self.0.len();
        if exists {
            self.0.piece(token, out);
        }
        exists
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        self.0.encode(text)
    }
}

pub(super) fn fault(error: CallError) -> CallFault {
    let kind = match error.kind {
        CallErrorKind::Panicked => CallFaultKind::Panicked,
        CallErrorKind::Unknown(status) => CallFaultKind::UnknownStatus(status),
        // Busy is of shutdown alone: a call is still stuck in the instance.
        CallErrorKind::Error | CallErrorKind::Busy => CallFaultKind::Error,
    };
    CallFault {
        kind,
        message: error.message,
    }
}
