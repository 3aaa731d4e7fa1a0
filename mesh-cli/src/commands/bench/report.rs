//! What `mesh bench split` found. Scripts rely on the names of the fields.

use serde::Serialize;

use crate::{
    failure::Failure,
    generate::Generated,
    output::Table,
    status_view::{DeploymentView, StageView},
};

/// Both sides, compared.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    whole: SideReport,
    split: SideReport,
    /// Decode rate of the split over that of the whole.
    decode_ratio: f64,
    /// Wall time per token that no engine computed, per hop of the split.
    hop_overhead_ms: f64,
    /// Hops per token: one per stage, the return to the head counted.
    hops: u32,
    /// Both sides gave the same greedy text.
    same_text: bool,
}

/// One side: medians over its rounds, and the rounds.
#[derive(Debug, Serialize)]
pub(crate) struct SideReport {
    ttft_ms: f64,
    prompt_tps: f64,
    decode_tps: f64,
    /// Wall time per token that no engine computed.
    overhead_ms_per_token: f64,
    exact: bool,
    stages: Vec<StageView>,
    rounds: Vec<Sample>,
}

/// One round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    ttft_ms: f64,
    prompt_tps: f64,
    decode_tps: f64,
    overhead_ms_per_token: f64,
    prompt_tokens: u32,
    completion_tokens: u32,
    decode_us: u64,
    engine_us: u64,
    engine_steps: u32,
}

impl Sample {
    /// The figures of one generation.
    pub(crate) fn of(generated: &Generated) -> Result<Self, Failure> {
        let too_short = || {
            Failure::failed(
                "the model ended its answer at once, so there is nothing to measure; try another --prompt-tokens",
            )
        };
        let timings = generated.timings();
        let overhead_us = timings.decode_us.saturating_sub(timings.engine_us) as f64;
        Ok(Self {
            ttft_ms: generated.ttft.as_secs_f64() * 1000.0,
            prompt_tps: generated.prompt_tps().ok_or_else(too_short)?,
            decode_tps: generated.decode_tps().ok_or_else(too_short)?,
            overhead_ms_per_token: overhead_us / 1000.0 / f64::from(generated.decoded()),
            prompt_tokens: generated.finished.prompt_tokens,
            completion_tokens: generated.finished.completion_tokens,
            decode_us: timings.decode_us,
            engine_us: timings.engine_us,
            engine_steps: timings.engine_steps,
        })
    }
}

impl SideReport {
    pub(crate) fn new(rounds: Vec<Sample>, deployment: DeploymentView) -> Self {
        let middle = |figure: fn(&Sample) -> f64| median(rounds.iter().map(figure).collect());
        Self {
            ttft_ms: middle(|sample| sample.ttft_ms),
            prompt_tps: middle(|sample| sample.prompt_tps),
            decode_tps: middle(|sample| sample.decode_tps),
            overhead_ms_per_token: middle(|sample| sample.overhead_ms_per_token),
            exact: deployment.exact,
            stages: deployment.stages,
            rounds,
        }
    }
}

impl Report {
    pub(crate) fn new(whole: SideReport, split: SideReport, same_text: bool) -> Result<Self, Failure> {
        let hops = u32::try_from(split.stages.len()).unwrap_or(u32::MAX);
        if hops == 0 {
            return Err(Failure::failed(
                "the node did not say which stages it serves; see `mesh status`",
            ));
        }
        Ok(Self {
            decode_ratio: split.decode_tps / whole.decode_tps,
            hop_overhead_ms: split.overhead_ms_per_token / f64::from(hops),
            hops,
            same_text,
            whole,
            split,
        })
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let mut table = Table::new(&["", "TTFT", "PROMPT", "DECODE", "STAGES", "THREADS"]);
        for (name, side) in [("whole", &self.whole), ("split", &self.split)] {
            let threads: Vec<String> = side.stages.iter().map(|stage| stage.threads.to_string()).collect();
            table.row([
                name.to_owned(),
                format!("{:.1} ms", side.ttft_ms),
                format!("{:.1} tokens/s", side.prompt_tps),
                format!("{:.1} tokens/s", side.decode_tps),
                side.stages.len().to_string(),
                threads.join(", "),
            ]);
        }
        let same = if self.same_text {
            "the same text"
        } else {
            "different texts"
        };
        format!(
            "{}decoding at {:.1} % of the whole, {:.3} ms overhead per hop ({} hops), {same}\n",
            table.render(0),
            self.decode_ratio * 100.0,
            self.hop_overhead_ms,
            self.hops
        )
    }
}

/// The middle one, or the mean of the two in the middle; 0 of none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        None => 0.0,
        Some(upper) if values.len() % 2 == 1 => *upper,
        Some(upper) => (values[middle - 1] + upper) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mesh_proto::v1::{Deployment, GenerateFinished, RequestTimings, Stage};

    use super::*;

    /// 11 tokens; 10 of them decoded in `decode_us`, of which engines computed 8 ms.
    fn side(stages: usize, decode_us: u64) -> SideReport {
        let timings = RequestTimings {
            prefill_us: 1_000_000,
            decode_us,
            engine_us: 8_000,
            engine_steps: 10,
            queued_us: 0,
            stage_us: Vec::new(),
        };
        let finished = GenerateFinished {
            prompt_tokens: 100,
            completion_tokens: 11,
            timings: Some(timings),
            ..GenerateFinished::default()
        };
        let generated = Generated {
            text: String::new(),
            ttft: Duration::from_millis(5),
            finished,
        };
        let deployment = Deployment {
            stages: vec![Stage::default(); stages],
            ..Deployment::default()
        };
        SideReport::new(vec![Sample::of(&generated).unwrap()], deployment.into())
    }

    #[test]
    fn the_overhead_of_a_hop_is_what_no_engine_computed_over_tokens_and_hops() {
        let report = Report::new(side(1, 8_000), side(2, 10_000), true).unwrap();
        assert!(
            (report.hop_overhead_ms - 0.1).abs() < 1e-9,
            "{}",
            report.hop_overhead_ms
        );
        assert!((report.decode_ratio - 0.8).abs() < 1e-9, "{}", report.decode_ratio);
        assert_eq!(report.hops, 2);
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_rely_on() {
        let json = serde_json::to_value(Report::new(side(1, 8_000), side(3, 9_000), true).unwrap()).unwrap();
        for side in ["whole", "split"] {
            for field in ["ttft_ms", "prompt_tps", "decode_tps"] {
                assert!(json[side][field].is_f64(), "{side}.{field}");
            }
            assert_eq!(json[side]["rounds"].as_array().unwrap().len(), 1);
        }
        assert!(json["decode_ratio"].is_f64() && json["hop_overhead_ms"].is_f64());
    }

    #[test]
    fn an_answer_that_ends_at_once_is_a_failure_not_a_figure() {
        let finished = GenerateFinished {
            prompt_tokens: 1,
            completion_tokens: 1,
            ..GenerateFinished::default()
        };
        let generated = Generated {
            text: String::new(),
            ttft: Duration::ZERO,
            finished,
        };
        assert!(Sample::of(&generated).is_err());
    }

    #[test]
    fn medians_do_not_follow_outliers() {
        assert_eq!(median(vec![3.0, 1.0, 1000.0]), 3.0);
        assert_eq!(median(vec![4.0, 2.0]), 3.0);
        assert_eq!(median(vec![]), 0.0);
    }
}
