//! A deployment that was lost: when its stages are arranged anew.

use mesh_proto::v1::{self, NodeState};
use ractor::ActorRef;

use super::{Message, RETRY_FIRST, RETRY_LONGEST, State};
use crate::deployment::restore::member_came_up;

impl State {
    /// Waits until all nodes of the plan are up, and a pause, then arranges the stages anew. A node that is no member any
    /// more may never come back: that is told.
    pub(super) fn rearrange_later(&mut self, myself: &ActorRef<Message>) {
        if !self.served {
            return;
        }
        let pause = self.retry;
        self.retry = (pause * 2).min(RETRY_LONGEST);
        let myself = myself.clone();
        let mut members = self.environment.members.clone();
        let Some(prepared) = &self.prepared else {
            self.tasks.spawn(async move {
                // A node that comes up may be what was missing; a file that was is looked for after the pause.
                tokio::time::sleep(RETRY_FIRST).await;
                let _ = tokio::time::timeout(pause, member_came_up(&mut members)).await;
                let _ = myself.cast(Message::Rearrange);
            });
            return;
        };
        let stages = prepared.plan.stages.iter();
        let needed: Vec<(String, String)> = stages
            .map(|stage| (stage.node.id.clone(), stage.node.name.clone()))
            .collect();
        let epoch = self.epoch;
        self.tasks.spawn(async move {
            tokio::time::sleep(pause).await;
            let mut told = String::new();
            loop {
                let missing = match absent(&needed, &members.borrow_and_update()) {
                    Absent::None => return drop(myself.cast(Message::Rearrange)),
                    Absent::Down => String::new(),
                    Absent::Gone(nodes) => nodes,
                };
                if !missing.is_empty() && missing != told {
                    told = missing;
                    let nodes = told.clone();
                    let _ = myself.cast(Message::Missing { epoch, nodes });
                }
                if members.changed().await.is_err() {
                    return;
                }
            }
        });
    }
}

/// What keeps the stages of a plan from being arranged again.
enum Absent {
    None,
    /// They are members, and come back.
    Down,
    /// Their names: they are no members.
    Gone(String),
}

/// Of the ids and names of the nodes of a plan.
fn absent(needed: &[(String, String)], members: &[v1::Node]) -> Absent {
    let member = |id: &String| members.iter().find(|member| member.id == *id);
    let mut gone: Vec<String> = needed
        .iter()
        .filter(|(id, _)| member(id).is_none())
        .map(|(_, name)| format!("node {name}"))
        .collect();
    gone.dedup();
    if !gone.is_empty() {
        return Absent::Gone(gone.join(", "));
    }
    let is_up = |id: &String| member(id).is_some_and(|member| member.state == NodeState::Up as i32);
    if needed.iter().all(|(id, _)| is_up(id)) {
        Absent::None
    } else {
        Absent::Down
    }
}
