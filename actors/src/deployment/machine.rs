//! The life of one epoch of a deployment: hosts load, then link, then take requests; one loss ends it.

use std::collections::BTreeSet;

use mesh_proto::{
    MeshError,
    wire::{HostLoaded, host_event::Event},
};

/// Where the epoch is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Stages load.
    Loading,
    /// Links open.
    Connecting,
    /// Stage 0 starts to take requests.
    Activating,
    /// Requests are taken.
    Ready,
    /// It is over.
    Over(MeshError),
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Every host: link to the next stage.
    ConnectAll,
    /// Stage 0: take requests.
    Activate,
    /// The phase changed: publish.
    Publish,
    /// Take every host of the epoch down.
    DropHosts,
}

/// One epoch.
#[derive(Debug)]
pub struct EpochMachine {
    phase: Phase,
    waiting: BTreeSet<u32>,
    stages: u32,
    loaded: Vec<Option<HostLoaded>>,
}

impl EpochMachine {
    /// Hosts were asked for all stages.
    pub fn new(stages: u32) -> Self {
        Self {
            phase: Phase::Loading,
            waiting: (0..stages).collect(),
            stages,
            loaded: vec![None; stages as usize],
        }
    }

    /// Where the epoch is.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// What each stage said when it had loaded.
    pub fn loaded(&self) -> &[Option<HostLoaded>] {
        &self.loaded
    }

    /// A host said something. Progress is not for this machine.
    pub fn event(&mut self, stage: u32, event: Event, effects: &mut Vec<Effect>) {
        match (event, &self.phase) {
            (_, Phase::Over(_)) | (Event::Progress(_), _) => {}
            (Event::Failed(refusal), _) => self.end(refusal.into(), effects),
            (Event::Loaded(facts), Phase::Loading) => {
                if let Some(place) = self.loaded.get_mut(stage as usize) {
                    *place = Some(facts);
                }
                self.arrived(stage, Phase::Connecting, Effect::ConnectAll, effects);
            }
            (Event::Connected(_), Phase::Connecting) => {
                self.arrived(stage, Phase::Activating, Effect::Activate, effects);
            }
            (Event::Activated(_), Phase::Activating) if stage == 0 => {
                self.phase = Phase::Ready;
                effects.push(Effect::Publish);
            }
            (event, phase) => {
                let message = format!("stage {stage} said {event:?} while {phase:?}");
                self.end(MeshError::new(mesh_proto::ErrorCode::Protocol, message), effects);
            }
        }
    }

    /// The epoch is over: a host is gone, or the owner ends it.
    pub fn end(&mut self, error: MeshError, effects: &mut Vec<Effect>) {
        if !matches!(self.phase, Phase::Over(_)) {
            self.phase = Phase::Over(error);
            // Not ready first, then the rest.
            effects.push(Effect::Publish);
            effects.push(Effect::DropHosts);
        }
    }

    fn arrived(&mut self, stage: u32, next: Phase, effect: Effect, effects: &mut Vec<Effect>) {
        self.waiting.remove(&stage);
        if self.waiting.is_empty() {
            self.phase = next;
            self.waiting = (0..self.stages).collect();
            effects.push(effect);
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_proto::{
        ErrorCode,
        wire::{HostActivated, HostConnected, Refusal},
    };
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ready_only_after_every_stage_acknowledged_every_step() {
        let mut machine = EpochMachine::new(2);
        let mut effects = Vec::new();
        machine.event(1, Event::Loaded(HostLoaded::default()), &mut effects);
        assert_eq!(effects, []);
        machine.event(0, Event::Loaded(HostLoaded::default()), &mut effects);
        machine.event(0, Event::Connected(HostConnected {}), &mut effects);
        assert_eq!(effects, [Effect::ConnectAll]);
        machine.event(1, Event::Connected(HostConnected {}), &mut effects);
        machine.event(0, Event::Activated(HostActivated {}), &mut effects);
        assert_eq!(effects, [Effect::ConnectAll, Effect::Activate, Effect::Publish]);
        assert_eq!(machine.phase(), &Phase::Ready);
    }

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => Just(Event::Loaded(HostLoaded::default())),
            4 => Just(Event::Connected(HostConnected {})),
            2 => Just(Event::Activated(HostActivated {})),
            1 => Just(Event::Failed(Refusal { code: ErrorCode::StageLost.name().into(), ..Refusal::default() })),
        ]
    }

    proptest! {
        /// However events come, hosts are dropped at most once, and nothing happens after that.
        #[test]
        fn an_epoch_ends_once(events in proptest::collection::vec((0u32..3, any_event()), 0..40)) {
            let mut machine = EpochMachine::new(3);
            let mut effects = Vec::new();
            for (stage, event) in events {
                let was_over = matches!(machine.phase(), Phase::Over(_));
                let before = effects.len();
                machine.event(stage, event, &mut effects);
                prop_assert!(!was_over || effects.len() == before);
            }
            let drops = effects.iter().filter(|effect| **effect == Effect::DropHosts).count();
            prop_assert_eq!(drops, usize::from(matches!(machine.phase(), Phase::Over(_))));
        }
    }
}
