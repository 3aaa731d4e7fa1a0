//! The native plugins of a node: loaded when it starts, each with an actor of its own, closed when it stops.
//!
//! ```text
//! configuration ─▶ load_plugins ─▶ Library (mesh-plugin-host) ─▶ NativeLibrary (port) ─▶ PluginActor
//!                                    refused: reported, or the node does not start
//! ```

mod instance;
mod library;
mod status;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use mesh_actors::{
    events::EventBus,
    plugin::{PluginHandle, spawn_plugin},
    ports::telemetry::Telemetry,
    root::RootHandle,
};
use mesh_plugin_host::{Library, LoadPhase, LoadWatch};
use mesh_proto::v1;
use tokio::sync::oneshot;

use self::library::NativeLibrary;
use crate::{NodeError, config::PluginSetting};

/// Constructors of a library run when it is loaded, and may hang.
const LOAD_LIMIT: Duration = Duration::from_secs(5);

/// All plugins together have this long when the node stops; what is stuck is left behind.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// Most plugins of a node: each has its threads and its mailbox.
const MAX_PLUGINS: usize = 32;

/// The plugins of a node.
#[derive(Clone, Default)]
pub struct Plugins {
    handles: Arc<[PluginHandle]>,
    /// In the order in which they were given: those that were loaded, by index, and those that were not.
    listed: Arc<[Listed]>,
}

enum Listed {
    Loaded(usize),
    Refused { path: PathBuf, reason: String },
}

impl Plugins {
    /// Loads all plugins of the configuration. Those that are refused are reported.
    ///
    /// # Errors
    ///
    /// A plugin that is required is refused, or there are too many.
    pub async fn load(
        settings: &[PluginSetting],
        telemetry: &Arc<dyn Telemetry>,
        events: &EventBus,
        root: &RootHandle,
    ) -> Result<Self, NodeError> {
        if settings.len() > MAX_PLUGINS {
            let message = format!("there are {} plugins; a node takes {MAX_PLUGINS}", settings.len());
            return Err(NodeError::Config(message));
        }
        let (mut handles, mut listed) = (Vec::<PluginHandle>::new(), Vec::new());
        for setting in settings {
            match load(setting, &handles, telemetry, events, root).await {
                Ok(handle) => {
                    listed.push(Listed::Loaded(handles.len()));
                    handles.push(handle);
                }
                Err(reason) if setting.required => {
                    let path = setting.path.display();
                    let message = format!("the plugin {path} is required and was not loaded: {reason}");
                    return Err(NodeError::Config(message));
                }
                Err(reason) => {
                    tracing::error!(path = %setting.path.display(), %reason, "plugin not loaded; the node goes on without it");
                    let path = setting.path.clone();
                    listed.push(Listed::Refused { path, reason });
                }
            }
        }
        Ok(Self {
            handles: handles.into(),
            listed: listed.into(),
        })
    }

    /// Those that were loaded.
    pub fn handles(&self) -> Arc<[PluginHandle]> {
        self.handles.clone()
    }

    /// As commands show them.
    pub fn status(&self) -> Vec<v1::Plugin> {
        let show = |listed: &Listed| match listed {
            Listed::Loaded(index) => status::loaded(&self.handles[*index].read()),
            Listed::Refused { path, reason } => status::refused(path, reason),
        };
        self.listed.iter().map(show).collect()
    }

    /// Tells what is left to tell and ends all instances, within a deadline for all of them.
    pub async fn close(&self) {
        let until = Instant::now() + CLOSE_LIMIT;
        join_all(self.handles.iter().map(|plugin| plugin.close(until))).await;
    }
}

async fn load(
    setting: &PluginSetting,
    others: &[PluginHandle],
    telemetry: &Arc<dyn Telemetry>,
    events: &EventBus,
    root: &RootHandle,
) -> Result<PluginHandle, String> {
    let state = setting.state.as_deref().map(make_state_dir).transpose()?;
    let config = setting.config.as_deref().map(check_config).transpose()?;
    let library = open(setting).await?;
    let plugin = NativeLibrary::new(library, config, state, setting.deadline.0);
    let name = plugin.name();
    if let Some(other) = others.iter().find(|other| other.facts().name == name) {
        let path = other.facts().path.display();
        return Err(format!(
            "a plugin named {name} is loaded already, from {path}; give each name once"
        ));
    }
    tracing::info!(%name, path = %setting.path.display(), deadline = ?setting.deadline.0, "plugin loaded");
    spawn_plugin(
        Arc::new(plugin),
        setting.options(),
        telemetry.clone(),
        events.clone(),
        root,
    )
    .await
    .map_err(|error| error.message)
}

/// Loads a library on a thread of its own, which is left behind if the library's entry hangs. If it hangs before that, in
/// a constructor, it holds the lock of the system's loader, without which no process runs on: the node ends, and says
/// which library it was.
async fn open(setting: &PluginSetting) -> Result<Library, String> {
    let (path, digest) = (setting.path.clone(), setting.digest.map(|digest| digest.0));
    let (loaded, on_loaded) = oneshot::channel();
    let watch = Arc::new(LoadWatch::default());
    let watched = watch.clone();
    let load = move || drop(loaded.send(Library::load_watched(&path, digest, &watched)));
    std::thread::Builder::new()
        .name("plugin-load".to_owned())
        .spawn(load)
        .map_err(|error| format!("the system gave no thread: {error}"))?;
    let seconds = LOAD_LIMIT.as_secs();
    match tokio::time::timeout(LOAD_LIMIT, on_loaded).await {
        Ok(Ok(loaded)) => loaded.map_err(|error| error.to_string()),
        Ok(Err(_)) => Err("loading it panicked; see the node's log".to_owned()),
        Err(_) => match watch.phase() {
            LoadPhase::Reading => Err(format!("it could not be read within {seconds} s; check the disk")),
            LoadPhase::Opened => Err(format!("its entry did not return within {seconds} s")),
            LoadPhase::Opening => mesh_plugin_host::end_process(&format!(
                "mesh: the plugin {} was not loaded within {seconds} s, and the system's loader is stuck in it: the node \
                 ends; start it without this plugin",
                setting.path.display(),
            )),
        },
    }
}

fn make_state_dir(path: &Path) -> Result<PathBuf, String> {
    if !path.is_absolute() {
        return Err(format!(
            "its state directory {} is relative; give an absolute path",
            path.display()
        ));
    }
    if path.exists() && !path.is_dir() {
        return Err(format!(
            "its state directory {} is not a directory; give another path",
            path.display()
        ));
    }
    std::fs::create_dir_all(path).map_err(|error| {
        format!(
            "its state directory {} cannot be made: {error}; check its parent and its permissions",
            path.display()
        )
    })?;
    Ok(path.to_owned())
}

fn check_config(path: &Path) -> Result<PathBuf, String> {
    if !path.is_absolute() {
        return Err(format!(
            "its configuration {} is relative; give an absolute path",
            path.display()
        ));
    }
    if path.exists() && !path.is_file() {
        return Err(format!(
            "its configuration {} is not a regular file; give a file",
            path.display()
        ));
    }
    if !path.is_file() {
        return Err(format!(
            "there is no configuration file {}; check the path",
            path.display()
        ));
    }
    Ok(path.to_owned())
}
