//! What is measured, and against what.

use serde::Serialize;

/// One line of the report; the names are those of its JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Situation {
    None,
    NoneRepeating,
    Control,
    EventLog,
    Silent,
    NgramOther,
    NgramRepeating,
    AlwaysLate,
}

/// What the first node of a mesh loads. Each serves one situation alone: nodes that served both texts were measured
/// about 5 % slower with the other one (built-in model), probably since the KV cache is left in another state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loaded {
    Nothing,
    NothingRepeating,
    NothingAgain,
    EventLog,
    Silent,
    Ngram,
    NgramRepeating,
    Late,
}

/// What the model goes on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text {
    Other,
    Repeating,
}

impl Loaded {
    pub(super) const ALL: [Self; 8] = [
        Self::Nothing,
        Self::NothingRepeating,
        Self::NothingAgain,
        Self::EventLog,
        Self::Silent,
        Self::Ngram,
        Self::NgramRepeating,
        Self::Late,
    ];

    /// What is measured there.
    pub(super) fn situation(self) -> Situation {
        match self {
            Self::Nothing => Situation::None,
            Self::NothingRepeating => Situation::NoneRepeating,
            Self::NothingAgain => Situation::Control,
            Self::EventLog => Situation::EventLog,
            Self::Silent => Situation::Silent,
            Self::Ngram => Situation::NgramOther,
            Self::NgramRepeating => Situation::NgramRepeating,
            Self::Late => Situation::AlwaysLate,
        }
    }
}

impl Situation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NoneRepeating => "none_repeating",
            Self::Control => "control",
            Self::EventLog => "event_log",
            Self::Silent => "silent",
            Self::NgramOther => "ngram_other",
            Self::NgramRepeating => "ngram_repeating",
            Self::AlwaysLate => "always_late",
        }
    }

    pub(super) fn text(self) -> Text {
        match self {
            Self::NoneRepeating | Self::NgramRepeating => Text::Repeating,
            _ => Text::Other,
        }
    }

    /// Without a plugin, with the same text.
    pub(super) fn baseline(self) -> Self {
        match self.text() {
            Text::Other => Self::None,
            Text::Repeating => Self::NoneRepeating,
        }
    }
}
