//! The configuration file, as a layer of the settings.

use std::{io::ErrorKind, path::Path};

use figment::{
    Error, Metadata, Profile, Provider,
    value::{Dict, Map},
};

use crate::{NodeError, data_dir::read_text};

/// Settings of a TOML file. It is parsed here: what the parser itself prints shows the line at fault, and that may be the
/// one with the key.
pub(super) struct ConfigFile {
    metadata: Metadata,
    settings: Dict,
}

impl ConfigFile {
    /// Reads a file; one that does not exist has no settings.
    pub(super) fn read(path: &Path) -> Result<Self, NodeError> {
        let text = match read_text(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(NodeError::file("read", path)(error)),
        };
        let settings = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| {
                1 + text.get(..span.start).unwrap_or_default().matches('\n').count()
            });
            let reason = error.message().replace('\n', ", ");
            NodeError::Config(format!("configuration: {} line {line}: {reason}", path.display()))
        })?;
        Ok(Self {
            metadata: Metadata::from("TOML file", path),
            settings,
        })
    }
}

impl Provider for ConfigFile {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Profile::Default.collect(self.settings.clone()))
    }
}
