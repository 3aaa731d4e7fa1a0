//! What the configuration file says.

use std::path::{Path, PathBuf};

use mesh_plugin_sdk::Error;

/// Most lengths of n-grams that are looked up, since each costs memory and time with every token.
const MAX_LENGTHS: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Shortest n-gram that is looked up. One that no generation reaches makes a plugin that only follows.
    pub min_ngram: usize,
    /// Longest.
    pub max_ngram: usize,
    /// Most candidates of a proposal.
    pub max_tokens: usize,
    /// Where calls are logged.
    pub log: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_ngram: 2,
            max_ngram: 4,
            max_tokens: 16,
            log: None,
        }
    }
}

impl Config {
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::new(format!("cannot read {}: {error}", path.display())))?;
        Self::parse(&text).map_err(|error| Error::new(format!("{}: {error}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let mut config = Self::default();
        let mut max_ngram = None;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |problem: String| Error::new(format!("line {}: {problem}", index + 1));
            let (key, value) = line
                .split_once('=')
                .map(|(key, value)| (key.trim(), value.trim()))
                .ok_or_else(|| at("write `key = value`".to_owned()))?;
            match key {
                "min_ngram" => config.min_ngram = count(value).map_err(at)?,
                "max_ngram" => max_ngram = Some(count(value).map_err(at)?),
                "max_tokens" => config.max_tokens = count(value).map_err(at)?,
                "log" => config.log = Some(absolute(value).map_err(at)?),
                _ => {
                    return Err(at(format!(
                        "unknown key {key}: use min_ngram, max_ngram, max_tokens or log"
                    )));
                }
            }
        }
        config.max_ngram = max_ngram.unwrap_or(config.max_ngram.max(config.min_ngram));
        config.check()
    }

    fn check(self) -> Result<Self, Error> {
        if self.max_ngram < self.min_ngram {
            return Err(Error::new("max_ngram must not be less than min_ngram"));
        }
        if self.max_ngram - self.min_ngram >= MAX_LENGTHS {
            return Err(Error::new(format!(
                "at most {MAX_LENGTHS} lengths: bring max_ngram and min_ngram closer"
            )));
        }
        Ok(self)
    }
}

fn count(value: &str) -> Result<usize, String> {
    value
        .parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| format!("{value} is no number from 1"))
}

fn absolute(value: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(value);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("{value} is no absolute path"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text).unwrap_err().message().to_owned()
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Config::read(None).unwrap(), Config::default());
    }

    #[test]
    fn all_keys_are_read() {
        let config =
            Config::parse("# lengths\nmin_ngram=3\n max_ngram = 5\n\nmax_tokens = 8\nlog = /tmp/a b\n").unwrap();
        let log = Some(PathBuf::from("/tmp/a b"));
        assert_eq!(
            config,
            Config {
                min_ngram: 3,
                max_ngram: 5,
                max_tokens: 8,
                log
            }
        );
    }

    #[test]
    fn a_large_minimum_needs_no_maximum() {
        assert_eq!(Config::parse("min_ngram = 1000000").unwrap().max_ngram, 1_000_000);
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        assert_eq!(
            error("\nngram = 1"),
            "line 2: unknown key ngram: use min_ngram, max_ngram, max_tokens or log"
        );
        assert_eq!(error("min_ngram"), "line 1: write `key = value`");
        assert_eq!(error("max_tokens = 0"), "line 1: 0 is no number from 1");
        assert_eq!(error("log = here"), "line 1: here is no absolute path");
        assert_eq!(
            error("min_ngram = 5\nmax_ngram = 4"),
            "max_ngram must not be less than min_ngram"
        );
        assert_eq!(
            error("max_ngram = 18"),
            "at most 16 lengths: bring max_ngram and min_ngram closer"
        );
    }
}
