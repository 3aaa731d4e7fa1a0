//! What `mesh bench plugins` found. Scripts rely on the names of the fields.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{counters::Counters, libraries::LeftOut, situation::Situation};
use crate::{
    commands::bench::report::median,
    failure::Failure,
    generate::Generated,
    output::{self, Table},
    plugin_view::PluginView,
};

/// Whole and split.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) max_tokens: u32,
    pub(super) whole: MeshReport,
    /// In three stages.
    pub(super) split: MeshReport,
    /// Libraries that were not there; their situations are missing.
    pub(super) left_out: Vec<LeftOut>,
}

/// One way to serve the model.
#[derive(Debug, Serialize)]
pub(super) struct MeshReport {
    pub(super) stages: usize,
    #[serde(flatten)]
    pub(super) situations: BTreeMap<Situation, SituationReport>,
}

/// Medians and sums over rounds, and the rounds.
#[derive(Debug, Serialize)]
pub(super) struct SituationReport {
    /// What it is compared with.
    pub(super) baseline: Situation,
    pub(super) decode_tps: f64,
    pub(super) ttft_ms: f64,
    /// Median of the rounds' ratios.
    pub(super) ratio: f64,
    /// All outputs were those of the baseline.
    pub(super) same_output: bool,
    #[serde(flatten)]
    pub(super) counters: Counters,
    /// Deadlines that were missed.
    pub(super) misses: u64,
    /// Of always_late: median of the time that decoding took longer than the baseline in the same round, over the misses
    /// of the round.
    pub(super) cost_per_miss_us: Option<f64>,
    /// Time that a proposal has.
    pub(super) deadline_us: Option<u64>,
    /// Of the plugin at the end, and why.
    pub(super) health: Option<&'static str>,
    pub(super) reason: Option<String>,
    pub(super) rounds: Vec<Round>,
}

/// One generation.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Round {
    pub(super) decode_tps: f64,
    pub(super) ttft_ms: f64,
    /// `decode_tps` over that of the baseline in the same round.
    pub(super) ratio: f64,
    /// Tokens decoded, the first one left out.
    pub(super) tokens: u32,
    pub(super) decode_us: u64,
    /// Sum over stages of the time that engines computed.
    pub(super) engine_us: u64,
    pub(super) engine_steps: u32,
    #[serde(flatten)]
    pub(super) counters: Counters,
    /// Of the plugin after it.
    pub(super) health: Option<&'static str>,
}

impl Round {
    pub(super) fn of(generated: &Generated, counters: Counters, health: Option<&'static str>) -> Result<Self, Failure> {
        let too_short = || Failure::failed("the model ended its answer at once; try another model");
        let timings = generated.timings();
        Ok(Self {
            decode_tps: generated.decode_tps().ok_or_else(too_short)?,
            ttft_ms: generated.ttft.as_secs_f64() * 1000.0,
            ratio: 1.0,
            tokens: generated.decoded(),
            decode_us: timings.decode_us,
            engine_us: timings.engine_us,
            engine_steps: timings.engine_steps,
            counters,
            health,
        })
    }
}

impl SituationReport {
    /// `baseline` has a measurement of each round.
    pub(super) fn new(
        situation: Situation,
        mut rounds: Vec<Round>,
        baseline: &[Round],
        plugin: Option<&PluginView>,
        same_output: bool,
    ) -> Self {
        let mut counters = Counters::default();
        let mut costs = Vec::new();
        for (round, none) in rounds.iter_mut().zip(baseline) {
            round.ratio = round.decode_tps / none.decode_tps;
            counters.add(&round.counters);
            let misses = round.counters.misses();
            if situation == Situation::AlwaysLate && misses > 0 {
                costs.push((round.decode_us as f64 - none.decode_us as f64) / misses as f64);
            }
        }
        let middle = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
        Self {
            baseline: situation.baseline(),
            decode_tps: middle(|round| round.decode_tps),
            ttft_ms: middle(|round| round.ttft_ms),
            ratio: middle(|round| round.ratio),
            same_output,
            misses: counters.misses(),
            counters,
            cost_per_miss_us: (!costs.is_empty()).then(|| median(costs)),
            deadline_us: plugin.map(|plugin| plugin.deadline_us),
            health: plugin.map(|plugin| plugin.health),
            reason: plugin.and_then(|plugin| plugin.reason.clone()),
            rounds,
        }
    }

    /// What would make the figures say something else than their name.
    pub(super) fn check(&self, situation: Situation) -> Result<(), Failure> {
        let wrong = match situation {
            Situation::Silent => self.counters.count("ready") > 0 || self.counters.count("abstained") == 0,
            Situation::AlwaysLate => self.counters.count("ready") > 0 || self.misses == 0,
            _ => false,
        };
        if !wrong {
            return Ok(());
        }
        let (name, counts) = (situation.name(), &self.counters.proposals);
        Err(Failure::failed(format!(
            "the plugin of {name} did not do what it is for: its proposals were {counts:?}; see its library and \
             configuration"
        )))
    }

    /// What went wrong, or was meant to.
    fn trouble(&self) -> impl Iterator<Item = String> {
        let cost = self.cost_per_miss_us.map(|cost| {
            let deadline = output::milliseconds(self.deadline_us.unwrap_or_default());
            let cost = output::milliseconds(cost.max(0.0) as u64);
            format!(
                "{} deadlines of {deadline} were missed, which cost {cost} each",
                self.misses
            )
        });
        let health = self.health.zip(self.reason.as_ref());
        let health = health.map(|(health, reason)| format!("{health} at the end, {reason}"));
        cost.into_iter().chain(health)
    }

    fn row(&self, name: &str, stages: &str) -> [String; 8] {
        let proposals = self.counters.proposals.iter();
        let proposals: Vec<String> = proposals.map(|(name, count)| format!("{name} {count}")).collect();
        let Counters {
            proposed_tokens,
            accepted_tokens,
            ..
        } = &self.counters;
        let ratios = || self.rounds.iter().map(|round| round.ratio * 100.0);
        let (least, most) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
        [
            name.to_owned(),
            stages.to_owned(),
            format!("{:.1} tokens/s", self.decode_tps),
            format!("{:.1} % ({least:.1}-{most:.1})", self.ratio * 100.0),
            format!("{accepted_tokens}/{proposed_tokens}"),
            proposals.join(", "),
            self.health.unwrap_or_default().to_owned(),
            output::yes_no(self.same_output).to_owned(),
        ]
    }
}

impl MeshReport {
    pub(super) fn new(stages: usize) -> Self {
        Self {
            stages,
            situations: BTreeMap::new(),
        }
    }
}

impl Report {
    /// For people.
    pub(super) fn describe(&self) -> String {
        let mut table = Table::new(&[
            "PLUGIN",
            "STAGES",
            "DECODE",
            "TO NONE (LEAST-MOST)",
            "ACCEPTED",
            "PROPOSALS",
            "HEALTH",
            "SAME OUTPUT",
        ]);
        let mut trouble = String::new();
        for mesh in [&self.whole, &self.split] {
            for (situation, found) in &mesh.situations {
                table.row(found.row(situation.name(), &mesh.stages.to_string()));
                for line in found.trouble() {
                    trouble += &format!("{} with {} stage(s): {line}\n", situation.name(), mesh.stages);
                }
            }
        }
        let rounds = self
            .whole
            .situations
            .values()
            .next()
            .map_or(0, |found| found.rounds.len());
        let left_out: String = self.left_out.iter().map(|left_out| format!("{left_out}\n")).collect();
        format!(
            "{}{trouble}medians of {rounds} rounds of up to {} tokens\n{left_out}",
            table.render(0),
            self.max_tokens
        )
    }

    /// Whether a plugin changed what was said.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        let meshes = [&self.whole, &self.split].into_iter();
        let different: Vec<String> = meshes
            .flat_map(|mesh| {
                mesh.situations
                    .iter()
                    .map(|(situation, found)| (mesh.stages, situation, found))
            })
            .filter(|(.., found)| !found.same_output)
            .map(|(stages, situation, _)| format!("{} with {stages} stage(s)", situation.name()))
            .collect();
        if different.is_empty() {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "the output was not that of none: {}; please report it with the model's name",
            different.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Situation; 8] = [
        Situation::None,
        Situation::NoneRepeating,
        Situation::Control,
        Situation::EventLog,
        Situation::Silent,
        Situation::NgramOther,
        Situation::NgramRepeating,
        Situation::AlwaysLate,
    ];

    fn round(decode_tps: f64, decode_us: u64, counts: &[(&str, u64)]) -> Round {
        Round {
            decode_tps,
            ttft_ms: 1.0,
            ratio: 1.0,
            tokens: 9,
            decode_us,
            engine_us: 1,
            engine_steps: 1,
            counters: Counters {
                proposals: counts
                    .iter()
                    .map(|(name, count)| ((*name).to_owned(), *count))
                    .collect(),
                proposed_tokens: 4,
                accepted_tokens: 3,
            },
            health: Some("healthy"),
        }
    }

    fn situation(situation: Situation, rounds: Vec<Round>, same_output: bool) -> SituationReport {
        let baseline = [round(100.0, 1_000, &[]), round(10.0, 10_000, &[])];
        SituationReport::new(situation, rounds, &baseline, None, same_output)
    }

    fn report(same_output: bool) -> Report {
        let mesh = |stages| MeshReport {
            stages,
            situations: ALL
                .map(|name| {
                    (
                        name,
                        situation(name, vec![round(200.0, 1, &[("ready", 2)])], same_output),
                    )
                })
                .into(),
        };
        Report {
            model: "m".to_owned(),
            max_tokens: 10,
            whole: mesh(1),
            split: mesh(3),
            left_out: vec![LeftOut {
                library: "ngram",
                path: "/n.so".into(),
                build: "make".to_owned(),
            }],
        }
    }

    #[test]
    fn ratios_are_of_rounds() {
        let rounds = vec![round(50.0, 1, &[]), round(20.0, 1, &[])];
        let found = situation(Situation::EventLog, rounds, true);
        assert_eq!(
            (found.rounds[0].ratio, found.rounds[1].ratio, found.ratio),
            (0.5, 2.0, 1.25)
        );
        assert_eq!((found.counters.proposed_tokens, found.cost_per_miss_us), (8, None));
    }

    #[test]
    fn a_miss_costs_what_decoding_took_longer_and_rounds_without_misses_do_not_count() {
        let rounds = vec![
            round(50.0, 9_000, &[("expired_in_plugin", 1), ("late", 1)]),
            round(10.0, 10_000, &[]),
        ];
        let found = situation(Situation::AlwaysLate, rounds, true);
        assert_eq!((found.misses, found.cost_per_miss_us), (2, Some(4_000.0)));
        assert!(found.check(Situation::AlwaysLate).is_ok());
    }

    #[test]
    fn a_silent_plugin_that_speaks_is_not_measured_as_silent() {
        let of = |counts| situation(Situation::Silent, vec![round(1.0, 1, counts)], true).check(Situation::Silent);
        assert!(of(&[("abstained", 3)]).is_ok());
        assert!(of(&[("abstained", 3), ("ready", 1)]).is_err() && of(&[]).is_err());
    }

    #[test]
    fn another_output_is_a_failure() {
        assert!(report(true).verdict().is_ok());
        assert!(
            report(false)
                .verdict()
                .unwrap_err()
                .to_string()
                .contains("ngram_other with 3 stage(s)")
        );
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_rely_on() {
        let json = serde_json::to_value(report(true)).unwrap();
        assert_eq!((&json["model"], &json["max_tokens"]), (&"m".into(), &10.into()));
        assert_eq!(json["left_out"][0]["library"], "ngram");
        for (mesh, stages) in [("whole", 1), ("split", 3)] {
            assert_eq!(json[mesh]["stages"], stages);
            for name in ALL.map(Situation::name) {
                let found = &json[mesh][name];
                assert_eq!(
                    (&found["decode_tps"], &found["ratio"]),
                    (&200.0.into(), &2.0.into()),
                    "{name}"
                );
                assert_eq!(
                    (&found["proposals"]["ready"], &found["same_output"]),
                    (&2.into(), &true.into())
                );
                assert_eq!(
                    (&found["proposed_tokens"], &found["accepted_tokens"]),
                    (&4.into(), &3.into())
                );
                for field in [
                    "baseline",
                    "ttft_ms",
                    "misses",
                    "cost_per_miss_us",
                    "deadline_us",
                    "health",
                    "reason",
                ] {
                    assert!(found.get(field).is_some(), "{name}.{field}");
                }
                let rounds = found["rounds"].as_array().unwrap();
                assert_eq!(rounds.len(), 1);
                for field in [
                    "decode_tps",
                    "ttft_ms",
                    "ratio",
                    "tokens",
                    "decode_us",
                    "engine_us",
                    "engine_steps",
                    "proposals",
                    "proposed_tokens",
                    "accepted_tokens",
                    "health",
                ] {
                    assert!(rounds[0].get(field).is_some(), "{name}.rounds[0].{field}");
                }
            }
        }
        assert_eq!(report(true).describe().lines().count(), 1 + 2 * ALL.len() + 2);
    }
}
