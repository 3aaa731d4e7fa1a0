//! Plugins as commands show them.

use std::path::Path;

use mesh_actors::plugin::{PluginReading, TimesSummary};
use mesh_proto::v1::{CallTimes, Plugin, PluginCallback, PluginHealth};

pub fn loaded(reading: &PluginReading) -> Plugin {
    let PluginReading {
        facts,
        options,
        figures,
        queued,
        capacity,
    } = reading;
    let abilities = [
        ("commits", facts.abilities.commits),
        ("token_ids", facts.abilities.token_ids),
        ("reports", facts.abilities.reports),
        ("proposes", facts.abilities.proposes),
        ("serial", facts.abilities.serial),
    ];
    Plugin {
        name: facts.name.to_string(),
        version: facts.version.clone(),
        path: facts.path.display().to_string(),
        digest: facts.digest.clone(),
        health: PluginHealth::from(figures.health).into(),
        reason: figures.reason.clone(),
        last_error: figures.last_error.clone(),
        abilities: abilities
            .into_iter()
            .filter(|(_, has)| *has)
            .map(|(name, _)| name.to_owned())
            .collect(),
        abi: format!("{}.{}", facts.abi.0, facts.abi.1),
        deadline_us: u64::try_from(options.deadline.as_micros()).unwrap_or(u64::MAX),
        required: options.required,
        generations: figures.followed,
        queued: *queued as u64,
        queue_capacity: *capacity as u64,
        queue_wait: Some(times(figures.queue_wait)),
        proposals: figures
            .proposals
            .iter()
            .map(|(outcome, count)| (outcome.name().to_owned(), *count))
            .collect(),
        proposed_tokens: figures.proposed_tokens,
        accepted_tokens: figures.accepted_tokens,
        discarded: figures.discarded,
        lost: figures
            .losses
            .iter()
            .map(|(loss, count)| (loss.name().to_owned(), *count))
            .collect(),
        callbacks: figures
            .calls
            .iter()
            .map(|(callback, summary, errors)| PluginCallback {
                name: callback.name().to_owned(),
                errors: *errors,
                times: Some(times(*summary)),
            })
            .collect(),
        spurious_wakes: figures.spurious_wakes,
    }
}

pub fn refused(path: &Path, reason: &str) -> Plugin {
    Plugin {
        path: path.display().to_string(),
        health: PluginHealth::NotLoaded.into(),
        reason: reason.to_owned(),
        ..Plugin::default()
    }
}

fn times(summary: TimesSummary) -> CallTimes {
    CallTimes {
        count: summary.count,
        p50_us: summary.p50_us,
        p99_us: summary.p99_us,
        longest_us: summary.longest_us,
    }
}
