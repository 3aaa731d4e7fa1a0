//! One plugin of a node, as a `[[plugins]]` table of the configuration file or as flags.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use mesh_actors::{
    plugin::{PluginLimits, PluginOptions},
    ports::plugin::PROPOSAL_DEADLINES,
};
use serde::{Deserialize, Serialize};

/// Settings of a plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginSetting {
    /// The library, absolute.
    pub path: PathBuf,
    /// Its configuration, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// A directory of its own, absolute; made if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PathBuf>,
    /// BLAKE3 that the file must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<FileDigest>,
    /// Time that a proposal has.
    #[serde(default)]
    pub deadline: ProposalDeadline,
    /// The node does not start without it, and serves no model without it.
    #[serde(default)]
    pub required: bool,
    /// Threads that serve its generations side by side.
    #[serde(default = "threads")]
    pub threads: usize,
    /// Places in its mailbox for begin, commits and queries.
    #[serde(default = "queue")]
    pub queue: usize,
    /// Places beside these for messages that end something.
    #[serde(default = "reserve")]
    pub reserve: usize,
    /// Proposals in a row that may go wrong until it is quarantined.
    #[serde(default = "faults")]
    pub faults: u32,
}

fn threads() -> usize {
    PluginLimits::default().threads
}

fn queue() -> usize {
    PluginLimits::default().queue
}

fn reserve() -> usize {
    PluginLimits::default().reserve
}

fn faults() -> u32 {
    PluginLimits::default().faults
}

impl PluginSetting {
    /// A library with default settings.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            config: None,
            state: None,
            digest: None,
            deadline: ProposalDeadline::default(),
            required: false,
            threads: threads(),
            queue: queue(),
            reserve: reserve(),
            faults: faults(),
        }
    }

    /// What is wrong with the numbers.
    pub(super) fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        let within = |name: &str, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(format!("plugin {path}: {name} is {value}; use {least} to {most}"))
        };
        within("threads", self.threads, 1, 64)?;
        within("queue", self.queue, 1, 65_536)?;
        within("reserve", self.reserve, 2, 4_096)?;
        within("faults", self.faults as usize, 1, 1_000_000)
    }

    /// For its actor.
    pub(crate) fn options(&self) -> PluginOptions {
        PluginOptions {
            deadline: self.deadline.0,
            required: self.required,
            limits: PluginLimits {
                threads: self.threads,
                queue: self.queue,
                reserve: self.reserve,
                faults: self.faults,
                ..PluginLimits::default()
            },
        }
    }
}

/// A time such as `8ms`, within [`PROPOSAL_DEADLINES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProposalDeadline(pub Duration);

impl Default for ProposalDeadline {
    /// A fraction of a step of the models that speculation is for.
    fn default() -> Self {
        Self(Duration::from_millis(8))
    }
}

impl FromStr for ProposalDeadline {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = PROPOSAL_DEADLINES.into_inner();
        let refuse = |what: &str| {
            let (least, most) = (humantime::format_duration(least), humantime::format_duration(most));
            Err(format!(
                "{text:?} {what}; write a time from {least} to {most}, such as 8ms"
            ))
        };
        match humantime::parse_duration(text) {
            Ok(time) if (least..=most).contains(&time) => Ok(Self(time)),
            Ok(_) => refuse("is out of range"),
            Err(_) => refuse("is no time"),
        }
    }
}

impl TryFrom<String> for ProposalDeadline {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ProposalDeadline> for String {
    fn from(deadline: ProposalDeadline) -> Self {
        humantime::format_duration(deadline.0).to_string()
    }
}

/// BLAKE3 of a file: 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileDigest(pub [u8; 32]);

impl FromStr for FileDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digest = blake3::Hash::from_hex(text);
        digest
            .map(|digest| Self(digest.into()))
            .map_err(|_| format!("{text:?} is no digest; write the 64 hexadecimal digits of `b3sum FILE`"))
    }
}

impl TryFrom<String> for FileDigest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<FileDigest> for String {
    fn from(digest: FileDigest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_of_nothing_and_of_minutes_are_refused() {
        for (text, ms) in [("8ms", 8), ("1ms", 1), ("1s", 1000), ("250ms", 250), ("2ms 500us", 2)] {
            assert_eq!(
                text.parse::<ProposalDeadline>().map(|it| it.0.as_millis()),
                Ok(ms),
                "{text}"
            );
        }
        for text in ["0ms", "0", "0s", "999us", "2s", "1h", "8", "-8ms", "", "soon"] {
            let error = text.parse::<ProposalDeadline>().expect_err(text);
            assert!(error.contains("such as 8ms"), "{error}");
        }
    }

    #[test]
    fn a_table_of_the_file_says_what_it_must_and_no_more() {
        let setting: PluginSetting = toml::from_str("path = '/p.so'\ndeadline = '20ms'\nrequired = true\n").unwrap();
        assert_eq!(setting.deadline.0, Duration::from_millis(20));
        assert!(setting.required && setting.check().is_ok());
        assert_eq!(
            toml::from_str::<PluginSetting>(&toml::to_string(&setting).unwrap()).unwrap(),
            setting
        );
        for text in [
            "path = '/p.so'\ndeadline = '0ms'",
            "path = '/p.so'\ndigest = 'ab'",
            "paths = '/p.so'",
            "",
        ] {
            assert!(toml::from_str::<PluginSetting>(text).is_err(), "{text}");
        }
        let wide = PluginSetting {
            threads: 0,
            ..PluginSetting::new("/p.so".into())
        };
        assert!(wide.check().unwrap_err().contains("threads"));
    }
}
