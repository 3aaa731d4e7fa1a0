//! The functions of a plugin.

use std::fmt;

/// A function of the table, all but `last_error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Callback {
    /// A model is ready.
    Activate,
    /// The model is gone.
    Shutdown,
    /// A lane is held and work starts.
    Begin,
    /// Tokens became part of the output.
    Commit,
    /// The normal end of a generation.
    Finish,
    /// Any other end.
    Abort,
    /// Start looking for candidates.
    Start,
    /// How far that is.
    Poll,
    /// The host has lost interest.
    Cancel,
    /// A decision was verified.
    Report,
    /// A decision was not used.
    Discard,
}

impl Callback {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 11] = [
        Self::Activate,
        Self::Shutdown,
        Self::Begin,
        Self::Commit,
        Self::Finish,
        Self::Abort,
        Self::Start,
        Self::Poll,
        Self::Cancel,
        Self::Report,
        Self::Discard,
    ];

    /// Name of the field in `MeshPluginTable`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Activate => "activate",
            Self::Shutdown => "shutdown",
            Self::Begin => "begin_generation",
            Self::Commit => "commit_generation",
            Self::Finish => "finish_generation",
            Self::Abort => "abort_generation",
            Self::Start => "start_proposal",
            Self::Poll => "poll_proposal",
            Self::Cancel => "cancel_proposal",
            Self::Report => "report_proposal",
            Self::Discard => "discard_proposal",
        }
    }
}

impl fmt::Display for Callback {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_callback_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = Callback::ALL.into_iter().map(Callback::name).collect();
        assert_eq!(names.len(), 11);
    }
}
