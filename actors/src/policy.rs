//! One table of what happens when an actor fails.

use std::fmt::Display;

/// Actors, by what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActorKind {
    /// One request at its head.
    Request,
    /// Lanes and queue of a deployment.
    Head,
    /// A stage with its engine.
    Stage,
    /// The sending end of a link.
    Link,
    /// A stage's host: files, loading, links.
    Host,
    /// A deployment at its owner.
    Deployment,
    /// The list of members.
    Membership,
    /// A native plugin.
    Plugin,
}

/// What its supervisor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The one thing it served ends with an error; nothing else notices.
    EndScope,
    /// The epoch of its deployment is over: requests end with `stage_lost`, the owner arranges the stages anew.
    EndEpoch,
    /// The node cannot go on: it drains and exits with an error.
    EndNode,
}

impl ActorKind {
    /// The table. Nothing is restarted in place: an actor's state is what its peers agreed on, and the scope around it
    /// is what can be built again.
    pub const fn policy(self) -> Policy {
        match self {
            Self::Request => Policy::EndScope,
            Self::Head | Self::Stage | Self::Link | Self::Host => Policy::EndEpoch,
            Self::Deployment | Self::Plugin => Policy::EndScope,
            Self::Membership => Policy::EndNode,
        }
    }
}

/// Logs a failure and says what follows.
pub fn on_failure(kind: ActorKind, error: &dyn Display) -> Policy {
    let policy = kind.policy();
    tracing::error!(actor = ?kind, %error, ?policy, "actor failed");
    policy
}
