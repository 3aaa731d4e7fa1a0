//! The plugin.

use std::sync::atomic::{AtomicU64, Ordering};

use mesh_plugin_sdk::{
    Abort, Activation, Candidates, Capabilities, Commit, DecisionId, Discard, Error, Finish, Operation, Outcome,
    Plugin, Poll, Query, Start,
};

use crate::answers::{Answer, Answers};
use crate::config::Config;
use crate::generations::Generations;
use crate::line::Line;
use crate::log::Log;

/// Decisions of the process, so that a log of many models tells them apart.
static DECISIONS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Proposer {
    config: Config,
    log: Log,
    generations: Generations,
    answers: Answers,
}

impl Plugin for Proposer {
    const NAME: &'static str = "ngram-proposer";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const CAPABILITIES: Capabilities = Capabilities::WANTS_COMMITS
        .with(Capabilities::WANTS_TOKEN_IDS)
        .with(Capabilities::WANTS_REPORTS)
        .with(Capabilities::PROPOSES);

    fn activate(activation: &Activation<'_>) -> Result<Self, Error> {
        let config = Config::read(activation.config_path)?;
        let log = Log::open(config.log.as_deref())?;
        log.write(|| Line::of("activate").text("model", activation.model_id))?;
        Ok(Self {
            config,
            log,
            generations: Generations::default(),
            answers: Answers::default(),
        })
    }

    fn shutdown(&self) -> Result<(), Error> {
        self.log.write(|| Line::of("shutdown"))
    }

    fn begin(&self, start: &Start<'_>) -> Result<(), Error> {
        self.generations.begin(start, &self.config)?;
        self.log.write(|| {
            Line::of("begin")
                .text("request", start.ids.request)
                .text("session", start.ids.session)
                .number("attempt", start.attempt.into())
                .number("prompt_count", start.prompt.count)
                .tokens("prompt", start.prompt.ids)
        })
    }

    fn commit(&self, commit: &Commit<'_>) -> Result<(), Error> {
        self.generations.commit(commit);
        self.log.write(|| {
            Line::of("commit")
                .text("request", commit.ids.request)
                .tokens("tokens", commit.tokens.ids)
                .number("count", commit.tokens.count)
                .number("total", commit.total)
        })
    }

    fn finish(&self, finish: &Finish<'_>) -> Result<(), Error> {
        self.end(finish.ids.request);
        self.log.write(|| {
            Line::of("finish")
                .text("request", finish.ids.request)
                .text("reason", finish.reason.as_str())
                .flag("incomplete", finish.incomplete)
                .number("prompt_count", finish.prompt_count)
                .number("generated_count", finish.generated.count)
                .tokens("generated", finish.generated.ids)
        })
    }

    fn abort(&self, abort: &Abort<'_>) -> Result<(), Error> {
        self.end(abort.ids.request);
        self.log.write(|| {
            Line::of("abort")
                .text("request", abort.ids.request)
                .text("reason", abort.reason.as_str())
                .flag("incomplete", abort.incomplete)
                .flag("after_failed_finish", abort.after_failed_finish)
                .number("committed_count", abort.committed_count)
        })
    }

    fn start_proposal(&self, query: &Query<'_>) -> Result<Operation, Error> {
        let candidates = self.generations.candidates(query, &self.config);
        let operation = self.answers.put(Answer {
            request: query.ids.request.to_owned(),
            position: query.position(),
            candidates,
        });
        // The operation is open: a log that cannot be written must not make the node believe that it is not.
        let _ = self.log.write(|| {
            Line::of("query")
                .text("request", query.ids.request)
                .number("operation", operation.0)
                .number("step", query.step)
                .number("prompt_count", query.prompt_count)
                .number("committed_count", query.committed_count)
                .number("max_tokens", query.max_tokens.into())
        });
        Ok(operation)
    }

    fn poll_proposal(&self, operation: Operation) -> Poll {
        let Some(answer) = self.answers.take(operation) else {
            return Poll::Failed(Error::new(format!("there is no operation {}", operation.0)));
        };
        // A log that cannot be written is told by the calls that carry no decision.
        let Some(tokens) = answer.candidates else {
            let _ = self.log.write(|| about("abstain", &answer.request, operation));
            return Poll::Abstain;
        };
        let candidates = Candidates {
            decision: DecisionId::from(DECISIONS.fetch_add(1, Ordering::Relaxed) + 1),
            base_position: answer.position,
            tokens,
        };
        let _ = self.log.write(|| {
            about("ready", &answer.request, operation)
                .text("decision", &text(candidates.decision.as_bytes()))
                .tokens("tokens", &candidates.tokens)
                .number("base_position", candidates.base_position)
        });
        Poll::Ready(candidates)
    }

    fn cancel_proposal(&self, operation: Operation) -> Result<(), Error> {
        let answer = self.answers.take(operation);
        let request = answer.map(|answer| answer.request).unwrap_or_default();
        self.log.write(|| about("cancel", &request, operation))
    }

    fn report(&self, outcome: &Outcome<'_>) -> Result<(), Error> {
        self.log.write(|| {
            Line::of("report")
                .text("request", outcome.ids.request)
                .text("decision", &text(outcome.decision))
                .text("disposition", outcome.disposition.as_str())
                .number("step", outcome.step)
                .number("proposed_count", outcome.proposed_count)
                .number("accepted_count", outcome.accepted_count)
                .tokens("committed", outcome.committed.ids)
                .tokens("predictions", outcome.predictions.ids)
                .number("base_position", outcome.base_position)
                .number("verified_position", outcome.verified_position)
                .number("canonical_position", outcome.canonical_position)
        })
    }

    fn discard(&self, discard: &Discard<'_>) -> Result<(), Error> {
        self.log.write(|| {
            Line::of("discard")
                .text("request", discard.ids.request)
                .text("decision", &text(discard.decision))
                .text("reason", discard.reason.as_str())
                .number("step", discard.step)
                .number("proposed_count", discard.proposed_count)
                .number("base_position", discard.base_position)
        })
    }
}

impl Proposer {
    fn end(&self, request: &str) {
        self.generations.end(request);
        self.answers.end(request);
    }
}

fn about(event: &str, request: &str, operation: Operation) -> Line {
    Line::of(event)
        .text("request", request)
        .number("operation", operation.0)
}

fn text(decision: &[u8]) -> String {
    String::from_utf8_lossy(decision).into_owned()
}

#[cfg(test)]
mod tests {
    use mesh_plugin_sdk::{Disposition, Ids, Tokens};

    use super::*;

    fn proposer(config: Config) -> Proposer {
        Proposer {
            log: Log::open(config.log.as_deref()).unwrap(),
            config,
            generations: Generations::default(),
            answers: Answers::default(),
        }
    }

    fn ids(request: &str) -> Ids<'_> {
        Ids {
            request,
            ..Ids::default()
        }
    }

    fn begin(plugin: &Proposer, request: &str, prompt: &[i32]) {
        let prompt = Tokens::from(prompt);
        plugin
            .begin(&Start {
                ids: ids(request),
                attempt: 1,
                prompt,
            })
            .unwrap();
    }

    fn commit(plugin: &Proposer, request: &str, tokens: &[i32], total: u64) {
        let tokens = Tokens::from(tokens);
        plugin
            .commit(&Commit {
                ids: ids(request),
                tokens,
                total,
            })
            .unwrap();
    }

    fn ask(plugin: &Proposer, request: &str, prompt_count: u64, committed_count: u64) -> Poll {
        let query = Query {
            ids: ids(request),
            max_tokens: 4,
            prompt_count,
            committed_count,
            ..Query::default()
        };
        plugin.poll_proposal(plugin.start_proposal(&query).unwrap())
    }

    fn tokens(poll: Poll) -> Vec<i32> {
        match poll {
            Poll::Ready(candidates) => candidates.tokens,
            other => panic!("no candidates: {other:?}"),
        }
    }

    #[test]
    fn prompt_and_output_are_one_history() {
        let plugin = proposer(Config::default());
        begin(&plugin, "a", &[1, 2, 3, 4, 9, 1]);
        assert_eq!(ask(&plugin, "a", 6, 0), Poll::Abstain);
        commit(&plugin, "a", &[2], 1);
        assert_eq!(tokens(ask(&plugin, "a", 6, 1)), [3, 4, 9, 1]);
    }

    #[test]
    fn generations_do_not_mix() {
        let plugin = proposer(Config::default());
        begin(&plugin, "a", &[1, 2, 3, 1, 2]);
        begin(&plugin, "b", &[1, 2]);
        assert_eq!(ask(&plugin, "b", 2, 0), Poll::Abstain);
        assert_eq!(tokens(ask(&plugin, "a", 5, 0))[0], 3);
    }

    #[test]
    fn its_own_limit_holds_too() {
        let plugin = proposer(Config {
            max_tokens: 2,
            ..Config::default()
        });
        begin(&plugin, "a", &[1, 2, 3, 4, 1, 2]);
        assert_eq!(tokens(ask(&plugin, "a", 6, 0)), [3, 4]);
    }

    #[test]
    fn a_gap_ends_the_proposals_of_its_generation() {
        let plugin = proposer(Config::default());
        begin(&plugin, "a", &[1, 2, 1, 2]);
        commit(&plugin, "a", &[1], 2);
        assert_eq!(ask(&plugin, "a", 4, 2), Poll::Abstain);
        commit(&plugin, "a", &[2], 3);
        assert_eq!(ask(&plugin, "a", 4, 3), Poll::Abstain);
    }

    #[test]
    fn another_position_than_known_is_not_answered() {
        let plugin = proposer(Config::default());
        begin(&plugin, "a", &[1, 2, 1, 2]);
        assert_eq!(ask(&plugin, "a", 4, 1), Poll::Abstain);
        assert_eq!(ask(&plugin, "other", 4, 0), Poll::Abstain);
    }

    #[test]
    fn nothing_stays_behind_an_end() {
        let plugin = proposer(Config::default());
        begin(&plugin, "a", &[1, 2, 1, 2]);
        let query = Query {
            ids: ids("a"),
            max_tokens: 4,
            prompt_count: 4,
            ..Query::default()
        };
        let operation = plugin.start_proposal(&query).unwrap();
        plugin
            .finish(&Finish {
                ids: ids("a"),
                ..Finish::default()
            })
            .unwrap();
        assert!(matches!(plugin.poll_proposal(operation), Poll::Failed(_)));
        assert_eq!(ask(&plugin, "a", 4, 0), Poll::Abstain);
        begin(&plugin, "b", &[1, 2, 1, 2]);
        plugin
            .abort(&Abort {
                ids: ids("b"),
                ..Abort::default()
            })
            .unwrap();
        assert_eq!(ask(&plugin, "b", 4, 0), Poll::Abstain);
    }

    #[test]
    fn a_cancelled_operation_is_forgotten() {
        let plugin = proposer(Config::default());
        begin(&plugin, "a", &[1, 2, 1, 2]);
        let query = Query {
            ids: ids("a"),
            max_tokens: 4,
            prompt_count: 4,
            ..Query::default()
        };
        let operation = plugin.start_proposal(&query).unwrap();
        plugin.cancel_proposal(operation).unwrap();
        assert!(matches!(plugin.poll_proposal(operation), Poll::Failed(_)));
    }

    #[test]
    fn each_decision_has_a_name_of_its_own() {
        let plugins = [proposer(Config::default()), proposer(Config::default())];
        let mut decisions = std::collections::HashSet::new();
        for plugin in &plugins {
            begin(plugin, "a", &[1, 2, 1, 2]);
            for _ in 0..3 {
                let Poll::Ready(candidates) = ask(plugin, "a", 4, 0) else {
                    panic!("no candidates");
                };
                assert!(decisions.insert(candidates.decision));
            }
        }
    }

    #[test]
    fn the_log_has_every_call_in_its_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calls.jsonl");
        let plugin = proposer(Config {
            log: Some(path.clone()),
            ..Config::default()
        });
        begin(&plugin, "a", &[1, 2, 1, 2]);
        let Poll::Ready(candidates) = ask(&plugin, "a", 4, 0) else {
            panic!("no candidates");
        };
        let outcome = Outcome {
            ids: ids("a"),
            disposition: Disposition::FullAccept,
            decision: candidates.decision.as_bytes(),
            accepted_count: 4,
            ..Outcome::default()
        };
        plugin.report(&outcome).unwrap();
        commit(&plugin, "a", &[1, 2, 1, 2, 5], 5);
        assert_eq!(ask(&plugin, "a", 4, 5), Poll::Abstain);
        plugin
            .discard(&Discard {
                ids: ids("a"),
                decision: b"x",
                ..Discard::default()
            })
            .unwrap();
        plugin
            .finish(&Finish {
                ids: ids("a"),
                ..Finish::default()
            })
            .unwrap();
        plugin.shutdown().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
        assert_eq!(
            events,
            [
                "begin", "query", "ready", "report", "commit", "query", "abstain", "discard", "finish", "shutdown"
            ]
        );
        assert!(lines.iter().zip(1..).all(|(line, sequence)| line["seq"] == sequence));
        assert_eq!(lines[2]["decision"], lines[3]["decision"]);
        assert_eq!(lines[3]["disposition"], "full_accept");
    }
}
