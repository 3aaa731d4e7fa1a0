//! Where the libraries are, and with which settings nodes load them.

use std::{
    env::consts::{DLL_PREFIX, DLL_SUFFIX},
    fmt, fs,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tempfile::TempDir;

use super::{PluginsArgs, situation::Loaded};
use crate::{failure::Failure, local_node::PluginSetting, path};

/// Longer than any generation: the proposer never finds anything.
const SILENT: &str = "min_ngram = 1000000\n";

/// Settings of the plugins that there are.
#[derive(Debug)]
pub(super) struct Libraries {
    event_log: Option<PluginSetting>,
    silent: Option<PluginSetting>,
    ngram: Option<PluginSetting>,
    late: Option<PluginSetting>,
    pub(super) left_out: Vec<LeftOut>,
    /// Configurations and states.
    _dir: TempDir,
}

/// A library that is not there.
#[derive(Debug, Serialize)]
pub(super) struct LeftOut {
    /// The flag that would name it.
    pub(super) library: &'static str,
    pub(super) path: PathBuf,
    /// The command that builds it.
    pub(super) build: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { library, path, build } = self;
        let path = path.display();
        write!(
            f,
            "left out, since {path} is not there: run `{build}`, or give --{library} PATH"
        )
    }
}

impl Libraries {
    /// Those given, and those beside this program.
    pub(super) fn find(args: &PluginsArgs) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new().prefix("mesh-bench-").tempdir();
        let dir = dir.map_err(|error| cannot("make a temporary directory", &error))?;
        let mut left_out = Vec::new();
        let event_log = find("event-log", args.event_log.as_deref(), "mesh_event_log", &mut left_out)?;
        let ngram = find("ngram", args.ngram.as_deref(), "mesh_ngram_proposer", &mut left_out)?;
        let silent = dir.path().join("silent.conf");
        fs::write(&silent, SILENT).map_err(|error| cannot("write a configuration", &error))?;
        Ok(Self {
            event_log: event_log.map(required).map(|plugin| PluginSetting {
                state: Some(dir.path().join("event-log")),
                ..plugin
            }),
            silent: ngram.clone().map(required).map(|plugin| PluginSetting {
                config: Some(silent),
                ..plugin
            }),
            ngram: ngram.map(required),
            late: match &args.late {
                Some(library) => Some(PluginSetting {
                    config: args.late_config.as_deref().map(there).transpose()?,
                    ..required(there(library)?)
                }),
                None => None,
            },
            left_out,
            _dir: dir,
        })
    }

    /// What these nodes load; `None` if it is not there.
    pub(super) fn of(&self, loaded: Loaded) -> Option<Vec<PluginSetting>> {
        let plugin = match loaded {
            Loaded::Nothing | Loaded::NothingRepeating | Loaded::NothingAgain => return Some(Vec::new()),
            Loaded::EventLog => &self.event_log,
            Loaded::Silent => &self.silent,
            Loaded::Ngram | Loaded::NgramRepeating => &self.ngram,
            Loaded::Late => &self.late,
        };
        plugin.clone().map(|plugin| vec![plugin])
    }
}

/// A plugin that is not loaded would be measured as if it were.
fn required(library: PathBuf) -> PluginSetting {
    PluginSetting {
        required: true,
        ..PluginSetting::new(library)
    }
}

/// The library that was given, or the one beside this program.
fn find(
    flag: &'static str,
    given: Option<&Path>,
    name: &str,
    left_out: &mut Vec<LeftOut>,
) -> Result<Option<PathBuf>, Failure> {
    if let Some(given) = given {
        return there(given).map(Some);
    }
    let program = std::env::current_exe().map_err(|error| cannot("find this program's file", &error))?;
    let dir = program.parent().unwrap_or(Path::new("."));
    let path = dir.join(format!("{DLL_PREFIX}{name}{DLL_SUFFIX}"));
    if path.is_file() {
        return Ok(Some(path));
    }
    let build = match flag {
        "event-log" => format!("make -C plugins/examples/event-log OUT={}", dir.display()),
        _ => "cargo build -p mesh-ngram-proposer".to_owned(),
    };
    left_out.push(LeftOut {
        library: flag,
        path,
        build,
    });
    Ok(None)
}

fn there(file: &Path) -> Result<PathBuf, Failure> {
    if file.is_file() {
        return path::absolute(file);
    }
    Err(Failure::usage(format!(
        "there is no file {}; check the path",
        file.display()
    )))
}

fn cannot(what: &str, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot {what}: {error}; check the disk and TMPDIR"))
}
