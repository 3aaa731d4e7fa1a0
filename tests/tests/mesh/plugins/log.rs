//! What a plugin says that it was told, and proof from it: the order of each generation, and one word for each decision.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// One line of a plugin's log.
#[derive(Debug, Clone)]
pub struct Line(Value);

impl Line {
    pub fn event(&self) -> &str {
        self.0["event"].as_str().unwrap_or_default()
    }

    pub fn request(&self) -> &str {
        self.0["request"].as_str().unwrap_or_default()
    }

    pub fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    pub fn number(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap_or_default()
    }

    fn tokens(&self, field: &str) -> Vec<u64> {
        let tokens = self.0[field].as_array().into_iter().flatten();
        tokens.filter_map(Value::as_u64).collect()
    }
}

/// Reads a log; one that is not there yet has no lines.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().map(|line| {
        let value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        Ok(Line(value))
    });
    lines.collect()
}

/// What was proven.
#[derive(Debug, Default)]
pub struct Proof {
    /// Generations that finished.
    pub finished: usize,
    /// Of these, those that lost something on the way.
    pub incomplete: usize,
    /// Generations that were aborted.
    pub aborted: usize,
    /// Decisions, each of which was reported or discarded once.
    pub decisions: usize,
    /// Candidates that were accepted.
    pub accepted: u64,
}

/// Generations begin, are told of tokens without gaps, and end once; what was proposed is resolved once, before that.
///
/// # Errors
///
/// Says which line broke which rule.
pub fn prove(lines: &[Line]) -> Result<Proof> {
    let mut proof = Proof::default();
    let mut open: BTreeMap<&str, Generation> = BTreeMap::new();
    let (mut ended, mut told_of_failure) = (Vec::<&str>::new(), Vec::<&str>::new());
    for (index, line) in lines.iter().enumerate() {
        ensure!(line.number("seq") == index as u64 + 1, "a gap before {line:?}");
        let id = line.request();
        if id.is_empty() {
            continue;
        }
        let after_finish = line.event() == "abort" && line.number("flags") & 2 == 2;
        if after_finish {
            let at = ended.iter().position(|ended| *ended == id);
            ended.remove(at.with_context(|| format!("no finish failed before {line:?}"))?);
            told_of_failure.push(id);
            continue;
        }
        ensure!(
            !ended.contains(&id) && !told_of_failure.contains(&id),
            "after its end: {line:?}"
        );
        match line.event() {
            "begin" => {
                let began = open.insert(id, Generation::default());
                ensure!(began.is_none(), "begun twice: {line:?}");
            }
            "finish" | "abort" => {
                let generation = open.remove(id).with_context(|| format!("never begun: {line:?}"))?;
                generation.end(line, &mut proof)?;
                ended.push(id);
            }
            _ => open
                .get_mut(id)
                .with_context(|| format!("before begin: {line:?}"))?
                .see(line, &mut proof)?,
        }
    }
    ensure!(open.is_empty(), "no end for {:?}", open.keys());
    Ok(proof)
}

#[derive(Debug, Default)]
struct Generation {
    tokens: Vec<u64>,
    /// Decisions that wait for a word.
    open: Vec<String>,
    /// All decisions.
    decisions: Vec<String>,
}

impl Generation {
    fn see(&mut self, line: &Line, proof: &mut Proof) -> Result<()> {
        match line.event() {
            "commit" => {
                self.tokens.extend(line.tokens("tokens"));
                ensure!(line.number("total") == self.tokens.len() as u64, "a gap: {line:?}");
            }
            "ready" => {
                let decision = line.text("decision").to_owned();
                ensure!(!self.decisions.contains(&decision), "used twice: {line:?}");
                self.decisions.push(decision.clone());
                self.open.push(decision);
                proof.decisions += 1;
            }
            "report" | "discard" => {
                let decision = line.text("decision");
                let at = self.open.iter().position(|open| open == decision);
                self.open.remove(at.with_context(|| format!("not open: {line:?}"))?);
                proof.accepted += line.number("accepted_count");
            }
            "query" | "start" | "poll" | "abstain" | "cancel" | "hang" | "released" => {}
            other => bail!("{other:?} is unknown: {line:?}"),
        }
        Ok(())
    }

    fn end(self, line: &Line, proof: &mut Proof) -> Result<()> {
        ensure!(self.open.is_empty(), "{:?} got no word before {line:?}", self.open);
        if line.event() == "abort" {
            proof.aborted += 1;
            return Ok(());
        }
        // Told so, the plugin knows that something was lost to it.
        let incomplete = line.number("flags") & 1 == 1 || line.0["incomplete"] == true;
        ensure!(
            incomplete || line.tokens("generated") == self.tokens,
            "commits are not the receipt: {line:?}"
        );
        proof.incomplete += usize::from(incomplete);
        proof.finished += 1;
        Ok(())
    }
}
