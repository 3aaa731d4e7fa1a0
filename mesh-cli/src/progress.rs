//! How far `mesh serve` is: a bar per stage on a terminal, a line per step elsewhere.

use std::{collections::BTreeMap, io::IsTerminal as _, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use mesh_proto::v1::ServeProgress;

use crate::output;

/// Bars that do not move still turn this often, so that one sees the command lives.
const TICK: Duration = Duration::from_millis(120);

/// Shows progress until it is finished or dropped.
#[derive(Debug)]
pub(crate) enum ServeDisplay {
    /// stderr is a terminal. Bars by stage.
    Bars(MultiProgress, BTreeMap<u32, ProgressBar>),
    /// stderr is a file or a pipe. The last step said of each stage.
    Lines(BTreeMap<u32, String>),
}

impl ServeDisplay {
    pub(crate) fn new() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Bars(MultiProgress::new(), BTreeMap::new())
        } else {
            Self::Lines(BTreeMap::new())
        }
    }

    pub(crate) fn show(&mut self, progress: &ServeProgress) {
        match self {
            Self::Bars(all, bars) => {
                let bar = bars.entry(progress.stage).or_insert_with(|| new_bar(all));
                bar.set_prefix(format!("stage {} on {}", progress.stage, output::name(&progress.node)));
                bar.set_message(step_words(&progress.step));
                bar.set_length(progress.total.max(1));
                bar.set_position(progress.done);
            }
            Self::Lines(said) => {
                let last = said.insert(progress.stage, progress.step.clone());
                if last.as_deref() != Some(&progress.step) {
                    let step = step_words(&progress.step);
                    output::note(&format!("stage {} on {}: {step}", progress.stage, progress.node));
                }
            }
        }
    }

    /// Takes the bars away.
    pub(crate) fn finish(&self) {
        if let Self::Bars(all, bars) = self {
            bars.values().for_each(ProgressBar::finish_and_clear);
            // Only the screen is wrong if the terminal is gone.
            let _ = all.clear();
        }
    }
}

impl Drop for ServeDisplay {
    fn drop(&mut self) {
        self.finish();
    }
}

fn new_bar(all: &MultiProgress) -> ProgressBar {
    let bar = all.add(ProgressBar::new(1));
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}: {msg:20} {bar:30} {percent:>3} %") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}

fn step_words(step: &str) -> String {
    match step {
        "cut" => "cutting its layers".to_owned(),
        "transfer" => "sending its layers".to_owned(),
        "load" => "loading".to_owned(),
        "connect" => "connecting".to_owned(),
        newer => output::name(newer),
    }
}
