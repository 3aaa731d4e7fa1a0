//! What `mesh bench events` found. Scripts rely on the names of the fields.

use serde::Serialize;

use super::report::median;
use crate::output::Table;

/// All situations, each compared with "nobody".
#[derive(Debug, Serialize)]
pub(super) struct EventsReport {
    pub(super) model: String,
    /// Tokens decoded in each measurement, the first one left out.
    pub(super) tokens: u32,
    /// `--no-events`.
    pub(super) off: Situation,
    /// Nobody subscribes.
    pub(super) nobody: Situation,
    /// One subscriber, with ids and text.
    pub(super) one_subscriber: Situation,
    /// A hundred of those.
    pub(super) hundred_subscribers: Situation,
    /// One that never reads.
    pub(super) stalled_subscriber: Situation,
}

/// Medians over rounds, and the rounds.
#[derive(Debug, Default, Serialize)]
pub(super) struct Situation {
    pub(super) decode_tps: f64,
    pub(super) ttft_ms: f64,
    /// Median of `decode_tps` over that of "nobody" in the same round.
    pub(super) ratio: f64,
    /// Events that subscribers read, summed over rounds and subscribers.
    pub(super) events: u64,
    /// Events that they were told they had missed.
    pub(super) lagged: u64,
    pub(super) rounds: Vec<Measured>,
}

/// One generation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Measured {
    pub(super) decode_tps: f64,
    pub(super) ttft_ms: f64,
}

impl Situation {
    /// `nobody` has a measurement of each round.
    pub(super) fn new(rounds: Vec<Measured>, nobody: &[Measured], (events, lagged): (u64, u64)) -> Self {
        let pairs = rounds.iter().zip(nobody);
        let ratios = pairs.map(|(here, nobody)| here.decode_tps / nobody.decode_tps);
        Self {
            decode_tps: median(rounds.iter().map(|round| round.decode_tps).collect()),
            ttft_ms: median(rounds.iter().map(|round| round.ttft_ms).collect()),
            ratio: median(ratios.collect()),
            events,
            lagged,
            rounds,
        }
    }
}

impl EventsReport {
    /// For people.
    pub(super) fn describe(&self) -> String {
        let mut table = Table::new(&["EVENTS", "DECODE", "TO NOBODY", "TTFT", "READ", "LAGGED"]);
        for (name, situation) in [
            ("off", &self.off),
            ("nobody", &self.nobody),
            ("one subscriber", &self.one_subscriber),
            ("a hundred", &self.hundred_subscribers),
            ("one that never reads", &self.stalled_subscriber),
        ] {
            table.row([
                name.to_owned(),
                format!("{:.1} tokens/s", situation.decode_tps),
                format!("{:.2} %", situation.ratio * 100.0),
                format!("{:.1} ms", situation.ttft_ms),
                situation.events.to_string(),
                situation.lagged.to_string(),
            ]);
        }
        let rounds = self.nobody.rounds.len();
        format!(
            "{}medians of {rounds} rounds of {} tokens\n",
            table.render(0),
            self.tokens
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(rates: &[f64]) -> Vec<Measured> {
        let measured = |rate: &f64| Measured {
            decode_tps: *rate,
            ttft_ms: 1.0,
        };
        rates.iter().map(measured).collect()
    }

    #[test]
    fn ratios_are_of_rounds_not_of_medians() {
        let nobody = rounds(&[100.0, 10.0, 200.0]);
        let situation = Situation::new(rounds(&[50.0, 10.0, 100.0]), &nobody, (0, 0));
        assert_eq!((situation.ratio, situation.decode_tps), (0.5, 50.0));
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_rely_on() {
        let situation = || Situation::new(rounds(&[2.0]), &rounds(&[1.0]), (3, 4));
        let report = EventsReport {
            model: "m".to_owned(),
            tokens: 9,
            off: situation(),
            nobody: situation(),
            one_subscriber: situation(),
            hundred_subscribers: situation(),
            stalled_subscriber: situation(),
        };
        let json = serde_json::to_value(&report).unwrap();
        for name in [
            "off",
            "nobody",
            "one_subscriber",
            "hundred_subscribers",
            "stalled_subscriber",
        ] {
            assert_eq!(
                (&json[name]["decode_tps"], &json[name]["ratio"]),
                (&2.0.into(), &2.0.into())
            );
            assert_eq!((&json[name]["events"], &json[name]["lagged"]), (&3.into(), &4.into()));
            assert_eq!(json[name]["rounds"].as_array().unwrap().len(), 1);
        }
        assert_eq!(report.describe().lines().count(), 7);
    }
}
