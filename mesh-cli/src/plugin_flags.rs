//! Native plugins as flags of `mesh node start|join`: `--plugin PATH`, and what follows it is about that plugin.

use std::{
    collections::HashSet,
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, error::ErrorKind, value_parser};

use crate::{
    local_node::{FileDigest, PluginSetting, ProposalDeadline},
    path,
};

const PLUGIN: &str = "plugin";
const CONFIG: &str = "plugin-config";
const STATE: &str = "plugin-state";
const DEADLINE: &str = "plugin-deadline";
const DIGEST: &str = "plugin-digest";
const REQUIRED: &str = "plugin-required";

/// Plugins of the command line, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct PluginFlags(pub(crate) Vec<PluginSetting>);

impl Args for PluginFlags {
    fn augment_args(command: Command) -> Command {
        let flag = |name: &'static str, value: &'static str, help: &'static str| {
            let flag = Arg::new(name).long(name).value_name(value).help(help);
            flag.help_heading("Plugins").action(ArgAction::Append)
        };
        command
            .arg(
                flag(
                    PLUGIN,
                    "PATH",
                    "Native plugin to load, absolute; repeatable, and then in place of those of the file",
                )
                .value_parser(value_parser!(PathBuf)),
            )
            .arg(flag(CONFIG, "FILE", "Configuration of the plugin before it").value_parser(value_parser!(PathBuf)))
            .arg(
                flag(
                    STATE,
                    "DIR",
                    "Directory of its own for the plugin before it; made if it is not there",
                )
                .value_parser(value_parser!(PathBuf)),
            )
            .arg(
                flag(
                    DEADLINE,
                    "TIME",
                    "Time that its proposals have, from 1ms to 1s [default: 8ms]",
                )
                .value_parser(str::parse::<ProposalDeadline>),
            )
            .arg(flag(DIGEST, "HEX", "BLAKE3 that its file must have").value_parser(str::parse::<FileDigest>))
            .arg(
                flag(REQUIRED, "", "Do not start, and serve no model, without it")
                    .num_args(0)
                    .default_missing_value("true")
                    .value_parser(value_parser!(bool)),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PluginFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut plugins = Vec::new();
        for (index, path) in placed::<PathBuf>(matches, PLUGIN) {
            plugins.push((index, PluginSetting::new(path.clone())));
        }
        let mut flags = Flags {
            plugins,
            given: HashSet::new(),
        };
        flags.set(matches, CONFIG, |plugin, file: &PathBuf| {
            plugin.config = Some(absolute(file)?);
            Ok(())
        })?;
        flags.set(matches, STATE, |plugin, dir: &PathBuf| {
            plugin.state = Some(absolute(dir)?);
            Ok(())
        })?;
        flags.set(matches, DEADLINE, |plugin, deadline: &ProposalDeadline| {
            plugin.deadline = *deadline;
            Ok(())
        })?;
        flags.set(matches, DIGEST, |plugin, digest: &FileDigest| {
            plugin.digest = Some(*digest);
            Ok(())
        })?;
        flags.set(matches, REQUIRED, |plugin, required: &bool| {
            plugin.required = *required;
            Ok(())
        })?;
        Ok(Self(flags.plugins.into_iter().map(|(_, plugin)| plugin).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flags that say the same; threads, places and faults have no flags and stay what they are by default.
pub(crate) fn arguments(plugins: &[PluginSetting]) -> Vec<OsString> {
    let mut arguments = Vec::new();
    for plugin in plugins {
        let mut flag = |name: &str, value: OsString| arguments.extend([format!("--{name}").into(), value]);
        flag(PLUGIN, plugin.path.clone().into());
        for (name, path) in [(CONFIG, &plugin.config), (STATE, &plugin.state)] {
            if let Some(path) = path {
                flag(name, path.into());
            }
        }
        flag(DEADLINE, String::from(plugin.deadline).into());
        if let Some(digest) = plugin.digest {
            flag(DIGEST, digest.to_string().into());
        }
        if plugin.required {
            arguments.push(format!("--{REQUIRED}").into());
        }
    }
    arguments
}

/// Values of a flag with their places on the command line.
fn placed<'a, T: Clone + Send + Sync + 'static>(matches: &'a ArgMatches, name: &str) -> Vec<(usize, &'a T)> {
    let indices = matches.indices_of(name).into_iter().flatten();
    indices.zip(matches.get_many(name).into_iter().flatten()).collect()
}

struct Flags {
    plugins: Vec<(usize, PluginSetting)>,
    /// Which flags of which plugin have come.
    given: HashSet<(usize, String)>,
}

impl Flags {
    /// Gives each value of a flag to the plugin before it.
    fn set<T: Clone + Send + Sync + 'static>(
        &mut self,
        matches: &ArgMatches,
        name: &str,
        set: impl Fn(&mut PluginSetting, &T) -> Result<(), String>,
    ) -> Result<(), Error> {
        for (index, value) in placed::<T>(matches, name) {
            let before = self.plugins.iter_mut().rev().find(|(place, _)| *place < index);
            let (place, plugin) = before.ok_or_else(|| {
                let message =
                    format!("--{name} comes before any --plugin; put it behind the plugin that it is about\n");
                Error::raw(ErrorKind::MissingRequiredArgument, message)
            })?;
            let is_first = self.given.insert((*place, name.to_owned()));
            let twice = || Err("it is given twice; give it once".to_owned());
            let result = if is_first { set(plugin, value) } else { twice() };
            result.map_err(|reason| {
                let message = format!("--{name} of {}: {reason}\n", plugin.path.display());
                Error::raw(ErrorKind::ValueValidation, message)
            })?;
        }
        Ok(())
    }
}

fn absolute(given: &Path) -> Result<PathBuf, String> {
    path::absolute(given).map_err(|failure| failure.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(line: &str) -> Result<Vec<PluginSetting>, Error> {
        let matches = PluginFlags::augment_args(Command::new("mesh")).try_get_matches_from(line.split(' '))?;
        Ok(PluginFlags::from_arg_matches(&matches)?.0)
    }

    #[test]
    fn what_follows_a_plugin_is_about_it() {
        let plugins = parse(
            "mesh --plugin /a.so --plugin-required --plugin-deadline 20ms --plugin /b.so --plugin-config /b.conf \
             --plugin-state /b --plugin /c.so",
        )
        .unwrap();
        let [a, b, c] = plugins.as_slice() else {
            panic!("{plugins:?}")
        };
        assert!(a.required && !b.required && !c.required);
        assert_eq!(a.deadline.0, Duration::from_millis(20));
        assert_eq!(
            (b.config.clone(), b.state.clone()),
            (Some("/b.conf".into()), Some("/b".into()))
        );
        assert_eq!(*c, PluginSetting::new("/c.so".into()));
        assert!(parse("mesh").unwrap().is_empty());
    }

    #[test]
    fn flags_made_of_settings_give_the_settings() {
        let digest = "ab".repeat(32);
        let plugins = parse(&format!(
            "mesh --plugin /a.so --plugin-required --plugin-deadline 20ms --plugin-digest {digest} --plugin /b.so \
             --plugin-config /b.conf --plugin-state /b"
        ))
        .unwrap();
        let arguments = [OsString::from("mesh")].into_iter().chain(arguments(&plugins));
        let matches = PluginFlags::augment_args(Command::new("mesh")).try_get_matches_from(arguments);
        assert_eq!(PluginFlags::from_arg_matches(&matches.unwrap()).unwrap().0, plugins);
    }

    #[test]
    fn a_flag_about_no_plugin_or_given_twice_is_refused() {
        for line in [
            "mesh --plugin-required",
            "mesh --plugin-deadline 8ms --plugin /a.so",
            "mesh --plugin /a.so --plugin-config /x --plugin-config /y",
            "mesh --plugin /a.so --plugin-deadline 3ms --plugin-deadline 4ms",
            "mesh --plugin /a.so --plugin-deadline 0ms",
            "mesh --plugin /a.so --plugin-deadline 1h",
            "mesh --plugin /a.so --plugin-digest abc",
            "mesh --plugin",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
