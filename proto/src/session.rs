//! Agent sessions: whose conversation a request belongs to, as the client's side names it.

use std::{fmt, str::FromStr, sync::Arc};

/// Longest agent session in bytes.
pub const MAX_AGENT_SESSION: usize = 512;

/// An agent session: 1 to 512 bytes without control characters or blanks around. It reaches events, receipts, plugins
/// and routing; it is neither the request id nor a cache key, and never a metric label. Clones share the text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentSession(Arc<str>);

/// Why a text is not an agent session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AgentSessionError {
    /// Nothing but blanks.
    #[error("it is empty; send 1 to {MAX_AGENT_SESSION} bytes, or leave the header out")]
    Empty,
    /// Longer than [`MAX_AGENT_SESSION`].
    #[error("it has {0} bytes; at most {MAX_AGENT_SESSION} are allowed")]
    TooLong(usize),
    /// A control character.
    #[error("it holds a control character; send printable text")]
    Control,
}

impl FromStr for AgentSession {
    type Err = AgentSessionError;

    fn from_str(text: &str) -> Result<Self, AgentSessionError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(AgentSessionError::Empty);
        }
        if text.len() > MAX_AGENT_SESSION {
            return Err(AgentSessionError::TooLong(text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err(AgentSessionError::Control);
        }
        Ok(Self(text.into()))
    }
}

impl AgentSession {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AgentSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AgentSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentSession({:?})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_trimmed_and_bounded() {
        assert_eq!(
            "  s 1\t".parse::<AgentSession>().map(|s| s.to_string()),
            Ok("s 1".into())
        );
        assert_eq!(" ".parse::<AgentSession>(), Err(AgentSessionError::Empty));
        assert_eq!("a\nb".parse::<AgentSession>(), Err(AgentSessionError::Control));
        assert_eq!("a\u{85}b".parse::<AgentSession>(), Err(AgentSessionError::Control));
        let longest = "ä".repeat(256);
        assert!(longest.parse::<AgentSession>().is_ok());
        assert_eq!(
            format!("{longest}a").parse::<AgentSession>(),
            Err(AgentSessionError::TooLong(513))
        );
    }
}
