//! A loaded plugin.

use std::path::Path;
use std::sync::Arc;

use crate::raw::{Handle, HostContext, Table, TextFault};
use crate::text::visible;
use crate::{
    ActivationRequest, CallError, CallErrorKind, Callback, Capabilities, Description, Instance, LoadError, LoadWatch,
    NAME_BYTES, Tokenizer, VERSION_BYTES, Wake, clock, file,
};

/// A plugin whose library is loaded, for as long as the process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Library {
    loaded: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    table: Table,
    description: Description,
}

impl Library {
    /// Loads the plugin at an absolute path, if a digest is given only a file that has it (BLAKE3).
    ///
    /// Reads the file twice, before and after the system loads it by its path, and refuses one that changed. That is no
    /// guard against somebody who may write to the directory: an initialiser of another file has run by then.
    ///
    /// A library that is refused after the system has loaded it stays loaded.
    pub fn load(path: &Path, digest: Option<[u8; 32]>) -> Result<Self, LoadError> {
        Self::load_watched(path, digest, &LoadWatch::default())
    }

    /// As [`Self::load`], for a caller who has another thread wait for this one, and wants to know where it hangs.
    pub fn load_watched(path: &Path, digest: Option<[u8; 32]>, watch: &LoadWatch) -> Result<Self, LoadError> {
        // The clock begins here, before any plugin looks at it.
        clock::now_ns();
        let digest = file::examine(path, digest)?;
        let table = Table::open(path, watch)?;
        file::same_as_before(path, digest)?;
        functions(&table, path)?;
        let description = Description {
            name: name(&table, path)?,
            version: version(&table, path)?,
            abi: table.version(),
            capabilities: Capabilities::from_bits(table.capabilities()),
            path: path.to_owned(),
            digest,
            table_size: table.size(),
        };
        Ok(Self {
            loaded: Arc::new(Loaded { table, description }),
        })
    }

    /// What it is.
    pub fn description(&self) -> &Description {
        &self.loaded.description
    }

    /// Whether a function is to be called: it is there, and the flags that it goes with are set.
    pub fn wants(&self, callback: Callback) -> bool {
        self.description().capabilities.allow(callback) && self.table().has(callback)
    }

    /// Tells the plugin that a model is ready. May take as long as the plugin likes.
    ///
    /// The plugin sees the tokenizer until this returns. `wake` may be called from within this call on, until the
    /// instance is shut down, disconnected or dropped, or this fails.
    pub fn activate(
        &self,
        request: &ActivationRequest<'_>,
        tokenizer: Option<Arc<dyn Tokenizer>>,
        wake: Wake,
    ) -> Result<Instance, CallError> {
        let host = HostContext::leak(tokenizer, wake);
        let answer = self.table().activate(request, host);
        host.take_tokenizer();
        // The loader saw to it that the function is there.
        let Some((status, handle)) = answer else {
            host.disconnect();
            return Err(CallError {
                callback: Callback::Activate,
                kind: CallErrorKind::Error,
                message: "the plugin has no such function".to_owned(),
            });
        };
        match CallErrorKind::of(status) {
            Ok(()) => Ok(Instance::new(self.clone(), handle, host)),
            Err(kind) => {
                host.disconnect();
                Err(self.failure(Callback::Activate, kind, None))
            }
        }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.loaded.table
    }

    /// The error of a call that just failed on this thread. The instance is None where there is none, or no more.
    pub(crate) fn failure(&self, callback: Callback, kind: CallErrorKind, instance: Option<Handle>) -> CallError {
        let message = match kind {
            CallErrorKind::Unknown(_) => "the function lists no such status; update the plugin or the node".to_owned(),
            CallErrorKind::Busy => "another call of the instance still runs; try again when it has returned".to_owned(),
            CallErrorKind::Error | CallErrorKind::Panicked => self.reason(instance),
        };
        CallError {
            callback,
            kind,
            message,
        }
    }

    /// What the plugin says of the call that just failed on this thread.
    pub(crate) fn reason(&self, instance: Option<Handle>) -> String {
        match visible(self.table().last_error(instance).trim_ascii()) {
            said if said.is_empty() => "the plugin gave no reason".to_owned(),
            said => said,
        }
    }
}

fn functions(table: &Table, path: &Path) -> Result<(), LoadError> {
    let missing = |functions: &[Callback]| functions.iter().copied().find(|function| !table.has(*function));
    if let Some(function) = missing(&[Callback::Activate, Callback::Shutdown]) {
        let path = path.to_owned();
        return Err(LoadError::MissingFunction { path, function });
    }
    if !Capabilities::from_bits(table.capabilities()).proposes {
        return Ok(());
    }
    match missing(&[Callback::Start, Callback::Poll, Callback::Cancel]) {
        Some(function) => Err(LoadError::CannotPropose {
            path: path.to_owned(),
            function,
        }),
        None => Ok(()),
    }
}

fn name(table: &Table, path: &Path) -> Result<String, LoadError> {
    let path = path.to_owned();
    let bytes = match table.name(NAME_BYTES) {
        Ok(bytes) if bytes.is_empty() => return Err(LoadError::NameEmpty { path }),
        Ok(bytes) => bytes,
        Err(TextFault::TooLong(length)) => return Err(LoadError::NameTooLong { path, length }),
        Err(TextFault::Null) => return Err(LoadError::NullText { path, field: "name" }),
    };
    String::from_utf8(bytes).map_err(|error| LoadError::NameNotUtf8 {
        path,
        shown: visible(error.as_bytes()),
    })
}

fn version(table: &Table, path: &Path) -> Result<String, LoadError> {
    let path = path.to_owned();
    let bytes = match table.version_text(VERSION_BYTES) {
        Ok(bytes) => bytes,
        Err(TextFault::TooLong(length)) => return Err(LoadError::VersionTooLong { path, length }),
        Err(TextFault::Null) => return Err(LoadError::NullText { path, field: "version" }),
    };
    String::from_utf8(bytes).map_err(|error| LoadError::VersionNotUtf8 {
        path,
        shown: visible(error.as_bytes()),
    })
}
