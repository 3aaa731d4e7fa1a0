//! Settings of a node: defaults, then the TOML file, then `MESH_*`, then flags; checked at the end.

mod file;
mod list;
mod plugin;
mod secret;

use std::{
    env::VarError,
    net::{Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use figment::{
    Figment,
    providers::{Env, Serialized},
};
use mesh_actors::events::EventOptions;
use mesh_gateway::{ConnectionLimits, HostName, Hosts, Origin, SessionHeader};
use serde::{Deserialize, Serialize};

use file::ConfigFile;
pub use list::Listed;
pub use plugin::{FileDigest, PluginSetting, ProposalDeadline};
pub use secret::SecretSetting;

use crate::{NodeError, data_dir::default_data_dir, environment, receipts::ReceiptPolicy};

/// Sizes of the window of events: one batch of a reader, and what memory allows beside the limit in bytes.
const EVENT_WINDOWS: RangeInclusive<usize> = 256..=1_048_576;

/// Settings of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Name in the mesh; the hostname when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Keys, members and model parts.
    pub data_dir: PathBuf,
    /// OpenAI-compatible HTTP API.
    pub http: SocketAddr,
    /// gRPC, also for commands.
    pub grpc: SocketAddr,
    /// UDP address of the QUIC endpoint; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Most compute threads of a stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Memory that stages may use, bytes; what is free when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Exact mode.
    pub exact: bool,
    /// Layers to offload; all that the back end takes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_layers: Option<u32>,
    /// Key that inference needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretSetting>,
    /// Names under which HTTP may be asked, beside those of loopback and the address it listens on.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub allow_hosts: Listed<HostName>,
    /// Origins of web pages that may ask over HTTP.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub allow_origins: Listed<Origin>,
    /// Most connections from one address; a share of all when absent. Loopback is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_address: Option<usize>,
    /// Header that carries agent sessions; none when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_session_header: Option<String>,
    /// Lifecycle events are numbered, kept for a while and told to subscribers.
    pub events: bool,
    /// Events that are kept for subscribers who lag or come back; see [`EventOptions::window_events`].
    pub event_window: usize,
    /// Receipts are kept in files of the data directory.
    pub receipts: ReceiptPolicy,
    /// Those files hold token ids too: who reads them can have the answers.
    pub receipt_tokens: bool,
    /// Listen off loopback without a key.
    pub insecure: bool,
    /// Log filter.
    pub log: String,
    /// Native plugins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<PluginSetting>,
    /// The `mesh` program that the node's children run; that of this process when absent. No setting: for tests, whose
    /// process is another program.
    #[serde(skip)]
    pub program: Option<PathBuf>,
}

/// What the command line says.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConfigOverrides {
    /// Configuration file; `config.toml` in the data directory when absent.
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// See [`NodeConfig::name`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// See [`NodeConfig::data_dir`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// See [`NodeConfig::http`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<SocketAddr>,
    /// See [`NodeConfig::grpc`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<SocketAddr>,
    /// See [`NodeConfig::listen`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// See [`NodeConfig::threads`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// See [`NodeConfig::memory`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Turns exact mode off.
    #[serde(skip)]
    pub no_exact: bool,
    /// See [`NodeConfig::gpu_layers`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_layers: Option<u32>,
    /// See [`NodeConfig::allow_hosts`]; any at all take the place of those in the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_hosts: Vec<String>,
    /// See [`NodeConfig::allow_origins`]; any at all take the place of those in the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_origins: Vec<String>,
    /// See [`NodeConfig::connections_per_address`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_address: Option<usize>,
    /// See [`NodeConfig::agent_session_header`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_session_header: Option<String>,
    /// Turns [`NodeConfig::events`] off.
    #[serde(skip)]
    pub no_events: bool,
    /// See [`NodeConfig::receipts`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipts: Option<ReceiptPolicy>,
    /// Turns [`NodeConfig::receipt_tokens`] on.
    #[serde(skip)]
    pub receipt_tokens: bool,
    /// Turns [`NodeConfig::insecure`] on.
    #[serde(skip)]
    pub insecure: bool,
    /// See [`NodeConfig::log`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// See [`NodeConfig::plugins`]; any at all take the place of those in the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<PluginSetting>,
}

/// Settings whose variables are text even when they look like a number, and must not show in an error.
#[derive(Serialize)]
struct TextSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key: Option<String>,
}

impl TextSettings {
    fn from_environment() -> Result<Self, NodeError> {
        Ok(Self {
            name: variable(environment::NAME)?,
            api_key: variable(environment::API_KEY)?,
        })
    }
}

/// A variable's text. One that is no text must not count as unset: the node would run without its key.
fn variable(name: &str) -> Result<Option<String>, NodeError> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(NodeError::Config(format!("{name} is not UTF-8; set it to text"))),
    }
}

impl Default for NodeConfig {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            name: None,
            data_dir: default_data_dir(),
            http: loopback(9470),
            grpc: loopback(9471),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            threads: None,
            memory: None,
            exact: true,
            gpu_layers: None,
            api_key: None,
            allow_hosts: Listed::default(),
            allow_origins: Listed::default(),
            connections_per_address: None,
            agent_session_header: None,
            events: true,
            event_window: EventOptions::default().window_events,
            receipts: ReceiptPolicy::Off,
            receipt_tokens: false,
            insecure: false,
            log: "info".to_owned(),
            plugins: Vec::new(),
            program: None,
        }
    }
}

impl NodeConfig {
    /// Puts all layers together and checks the result.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, an unknown or wrong setting, or settings that contradict each other.
    pub fn load(overrides: ConfigOverrides) -> Result<Self, NodeError> {
        let data_dir = overrides.data_dir.clone().unwrap_or_else(default_data_dir);
        let file = match &overrides.config {
            Some(file) if !file.is_file() => {
                let message = format!("there is no configuration file {}; check --config", file.display());
                return Err(NodeError::Config(message));
            }
            Some(file) => file.clone(),
            None => data_dir.join("config.toml"),
        };
        // Other variables with the prefix, such as `MESH_HOME`, are not settings of a node.
        let environment = Env::prefixed(environment::PREFIX).only(environment::SETTINGS);
        let mut figment = Figment::from(Serialized::defaults(Self {
            data_dir,
            ..Self::default()
        }))
        .merge(ConfigFile::read(&file)?)
        .merge(environment)
        .merge(Serialized::defaults(TextSettings::from_environment()?))
        .merge(Serialized::defaults(&overrides));
        if overrides.no_exact {
            figment = figment.merge(("exact", false));
        }
        if overrides.no_events {
            figment = figment.merge(("events", false));
        }
        if overrides.receipt_tokens {
            figment = figment.merge(("receipt_tokens", true));
        }
        if overrides.insecure {
            figment = figment.merge(("insecure", true));
        }
        let config: Self = figment
            .extract()
            .map_err(|error| NodeError::Config(format!("configuration: {error}; see --print-config")))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), NodeError> {
        let refuse = |message: String| Err(NodeError::Config(message));
        if self.threads == Some(0) {
            return refuse("--threads is 0; use at least 1".to_owned());
        }
        if self.api_key.as_ref().is_some_and(|key| key.0.trim().is_empty()) {
            return refuse(format!("{} is empty; set a key or unset it", environment::API_KEY));
        }
        if !EVENT_WINDOWS.contains(&self.event_window) {
            let (least, most) = EVENT_WINDOWS.into_inner();
            return refuse(format!("event_window is {}; use {least} to {most}", self.event_window));
        }
        if self.connections_per_address == Some(0) {
            return refuse("connections_per_address is 0; use at least 1".to_owned());
        }
        self.session_header()?;
        for plugin in &self.plugins {
            plugin.check().map_err(NodeError::Config)?;
        }
        let open = |address: &SocketAddr| !address.ip().is_loopback();
        if (open(&self.http) || open(&self.grpc)) && self.api_key.is_none() && !self.insecure {
            return refuse(format!(
                "listening on {} and {} off loopback needs a key: set {}, or say --insecure",
                self.http,
                self.grpc,
                environment::API_KEY
            ));
        }
        Ok(())
    }

    /// The settings in force, as a configuration file, without secrets.
    pub fn to_toml_redacted(&self) -> String {
        let mut shown = self.clone();
        if let Some(key) = &mut shown.api_key {
            *key = SecretSetting("(set)".to_owned());
        }
        toml::to_string_pretty(&shown).unwrap_or_else(|error| format!("# cannot be printed: {error}\n"))
    }

    /// The header that carries agent sessions, checked.
    pub(crate) fn session_header(&self) -> Result<Option<SessionHeader>, NodeError> {
        let header = self.agent_session_header.as_deref().map(SessionHeader::new).transpose();
        header.map_err(|error| NodeError::Config(format!("agent_session_header: {error}")))
    }

    /// Names under which HTTP is asked, at this address. A node with a key takes every name, unless some are listed: the
    /// key is what a page with such a name lacks.
    pub(crate) fn hosts(&self, listen: SocketAddr) -> Hosts {
        if self.api_key.is_some() && self.allow_hosts.is_empty() {
            return Hosts::any();
        }
        Hosts::of(listen.ip(), self.allow_hosts.to_vec())
    }

    /// Connections of a process that may open so many files.
    pub(crate) fn connections(&self, files: u64) -> ConnectionLimits {
        let limits = ConnectionLimits::for_files(files);
        let per_address = self.connections_per_address.unwrap_or(limits.per_address);
        ConnectionLimits { per_address, ..limits }
    }

    /// Bounds of the event bus.
    pub(crate) fn event_options(&self) -> EventOptions {
        EventOptions {
            enabled: self.events,
            window_events: self.event_window,
            ..EventOptions::default()
        }
    }

    /// Where model parts are kept.
    pub(crate) fn models_dir(&self) -> PathBuf {
        Path::new(&self.data_dir).join("models")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(dir: &Path) -> ConfigOverrides {
        ConfigOverrides {
            data_dir: Some(dir.to_owned()),
            ..ConfigOverrides::default()
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.toml"), "name = \"from-file\"\nthreads = 3\n").unwrap();
        let config = NodeConfig::load(ConfigOverrides {
            threads: Some(5),
            ..overrides(dir.path())
        })
        .unwrap();
        assert_eq!((config.name.as_deref(), config.threads), (Some("from-file"), Some(5)));
        assert_eq!(config.http.port(), 9470);
    }

    #[test]
    fn an_unknown_setting_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.toml"), "colour = 1\n").unwrap();
        let error = NodeConfig::load(overrides(dir.path())).expect_err("unknown");
        assert!(error.to_string().contains("colour"), "{error}");
    }

    #[test]
    fn a_key_that_is_no_text_is_refused_without_showing_it() {
        let dir = tempfile::tempdir().unwrap();
        for key in [
            "123456789",
            "-123456789",
            "1234.56789",
            "12345678901234567890123",
            "123456789e999",
            "0x123456789",
            "true",
            "[\"123456789\"]",
            "[123456789]",
            "{ key = 123456789 }",
            "1979-05-27T12:34:56.789",
            "s123456789",
            "\"123456789",
            "'123456789",
            "\"123456789\" 123456789",
            "\"123456789\\q\"",
            "\"\"\"123456789\nx",
        ] {
            std::fs::write(
                dir.path().join("config.toml"),
                format!("threads = 1\napi_key = {key}\n"),
            )
            .unwrap();
            let error = NodeConfig::load(overrides(dir.path())).expect_err(key).to_string();
            for piece in ["12345", "56789", "1979", "true"] {
                assert!(!error.contains(piece), "{key}: {error}");
            }
            assert!(error.contains("api_key") || error.contains(" line "), "{key}: {error}");
        }
        std::fs::write(dir.path().join("config.toml"), "api_key = \"123456789\"\n").unwrap();
        let config = NodeConfig::load(overrides(dir.path())).unwrap();
        assert_eq!(config.api_key, Some(SecretSetting("123456789".to_owned())));
    }

    #[test]
    fn a_setting_of_the_wrong_type_is_named_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.toml"), "threads = \"many\"\n").unwrap();
        let error = NodeConfig::load(overrides(dir.path()))
            .expect_err("no number")
            .to_string();
        assert!(error.contains("threads") && error.contains("config.toml"), "{error}");
    }

    #[test]
    fn hosts_and_origins_are_lists_that_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let written = "allow_hosts = ['gpu-box.example']\nallow_origins = ['http://localhost:3000']\n";
        std::fs::write(dir.path().join("config.toml"), written).unwrap();
        let config = NodeConfig::load(overrides(dir.path())).unwrap();
        assert_eq!(
            config.allow_origins.to_vec(),
            ["http://localhost:3000".parse().unwrap()]
        );
        assert_eq!(config.allow_hosts.to_vec(), ["gpu-box.example".parse().unwrap()]);
        let flags = ConfigOverrides {
            allow_origins: vec!["https://chat.example".to_owned()],
            ..overrides(dir.path())
        };
        let config = NodeConfig::load(flags).unwrap();
        assert_eq!(config.allow_origins.to_vec(), ["https://chat.example".parse().unwrap()]);
        for origin in ["null", "*", "https://chat.example/"] {
            let flags = ConfigOverrides {
                allow_origins: vec![origin.to_owned()],
                ..overrides(dir.path())
            };
            let error = NodeConfig::load(flags).expect_err(origin).to_string();
            assert!(error.contains("no origin of a web page"), "{error}");
        }
    }

    #[test]
    fn a_node_with_a_key_is_asked_under_any_name_unless_some_are_listed() {
        let listen = NodeConfig::default().http;
        let key = Some(SecretSetting("key".to_owned()));
        let open = NodeConfig::default();
        assert_eq!(open.hosts(listen), Hosts::of(listen.ip(), Vec::new()));
        let keyed = NodeConfig { api_key: key, ..open };
        assert_eq!(keyed.hosts(listen), Hosts::any());
        let listed = NodeConfig {
            allow_hosts: Listed::new(vec!["x".to_owned()]).unwrap(),
            ..keyed
        };
        assert_eq!(listed.hosts(listen), Hosts::of(listen.ip(), vec!["x".parse().unwrap()]));
    }

    #[test]
    fn listening_off_loopback_needs_a_key_or_insecure() {
        let dir = tempfile::tempdir().unwrap();
        let open = ConfigOverrides {
            http: "0.0.0.0:9470".parse().ok(),
            ..overrides(dir.path())
        };
        assert!(NodeConfig::load(open.clone()).is_err());
        assert!(NodeConfig::load(ConfigOverrides { insecure: true, ..open }).is_ok());
    }

    #[test]
    fn a_printed_configuration_shows_no_secret_and_loads_again() {
        let config = NodeConfig {
            api_key: Some(SecretSetting("sesame".into())),
            ..NodeConfig::default()
        };
        let text = config.to_toml_redacted();
        assert!(!text.contains("sesame") && !format!("{config:?}").contains("sesame"));
        assert!(toml::from_str::<NodeConfig>(&text).is_ok());
    }
}
