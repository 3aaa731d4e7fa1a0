//! The actor of a plugin: carries out what [`PluginMachine`] decides.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use mesh_proto::MeshError;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use super::{
    alarm::Alarm,
    call::{Call, InstanceKey, Job},
    handle::{PluginHandle, PluginShared},
    health::Health,
    ledger::PluginLedger,
    machine::{Effect, Input, PluginLimits, PluginMachine},
    permits::Permits,
    wakes::WakeBoard,
    worker::{Seated, Target, WorkerContext, WorkerDone, Workers},
};
use crate::{
    events::{EventBus, Lifecycle},
    policy::ActorKind,
    ports::{
        plugin::{ModelFacts, NativePlugin},
        telemetry::Telemetry,
    },
    root::RootHandle,
};

/// How a plugin is served.
#[derive(Debug, Clone)]
pub struct PluginOptions {
    /// Time that a proposal has.
    pub deadline: Duration,
    /// A model without it is not served.
    pub required: bool,
    /// Bounds.
    pub limits: PluginLimits,
}

pub(super) enum PluginMessage {
    Input(Input),
    Activate {
        model: Box<ModelFacts>,
        instance: InstanceKey,
        reply: oneshot::Sender<Result<(), String>>,
    },
    Done(WorkerDone),
    Close {
        until: Instant,
        reply: oneshot::Sender<()>,
    },
}

/// Starts the actor of a loaded plugin.
///
/// # Errors
///
/// The actor or its threads do not start.
pub async fn spawn_plugin(
    plugin: Arc<dyn NativePlugin>,
    options: PluginOptions,
    telemetry: Arc<dyn Telemetry>,
    events: EventBus,
    root: &RootHandle,
) -> Result<PluginHandle, MeshError> {
    let ledger = Arc::new(PluginLedger::default());
    let shared = Arc::new(PluginShared {
        facts: plugin.facts().clone(),
        permits: Permits::new(options.limits.queue, options.limits.reserve),
        slots: Permits::new(options.limits.generations, 0),
        keys: AtomicU64::new(0),
        ledger: ledger.clone(),
        options: options.clone(),
    });
    let start = Start {
        plugin,
        ledger,
        options,
        telemetry,
        events,
    };
    let (actor, _) = Actor::spawn_linked(None, PluginActor, start, root.cell())
        .await
        .map_err(|error| MeshError::internal(format!("the actor of a plugin did not start: {error}")))?;
    root.adopt(&actor.get_cell(), ActorKind::Plugin);
    Ok(PluginHandle { actor, shared })
}

struct Start {
    plugin: Arc<dyn NativePlugin>,
    ledger: Arc<PluginLedger>,
    options: PluginOptions,
    telemetry: Arc<dyn Telemetry>,
    events: EventBus,
}

struct State {
    machine: PluginMachine,
    plugin: Arc<dyn NativePlugin>,
    ledger: Arc<PluginLedger>,
    events: EventBus,
    /// `None` once the actor has stopped.
    workers: Option<Workers>,
    alarm: Alarm,
    models: HashMap<InstanceKey, (Box<ModelFacts>, Arc<WakeBoard>)>,
    instances: HashMap<InstanceKey, Seated>,
    activations: HashMap<InstanceKey, oneshot::Sender<Result<(), String>>>,
    closing: Vec<oneshot::Sender<()>>,
    effects: Vec<Effect>,
}

struct PluginActor;

impl Actor for PluginActor {
    type Msg = PluginMessage;
    type State = State;
    type Arguments = Start;

    async fn pre_start(&self, myself: ActorRef<PluginMessage>, start: Start) -> Result<State, ActorProcessingErr> {
        let Start {
            plugin,
            ledger,
            options,
            telemetry,
            events,
        } = start;
        let abilities = plugin.facts().abilities;
        let machine = PluginMachine::new(abilities, options.limits, ledger.clone(), Instant::now());
        let actor = myself.clone();
        let context = Arc::new(WorkerContext {
            plugin: plugin.clone(),
            ledger: ledger.clone(),
            telemetry,
            reply: Box::new(move |done| actor.cast(PluginMessage::Done(done)).is_ok()),
        });
        let workers = Workers::start(machine.threads(), &context)?;
        let alarm = Alarm::start(move || drop(myself.cast(PluginMessage::Input(Input::Tick))));
        Ok(State {
            machine,
            plugin,
            ledger,
            events,
            workers: Some(workers),
            alarm,
            models: HashMap::new(),
            instances: HashMap::new(),
            activations: HashMap::new(),
            closing: Vec::new(),
            effects: Vec::new(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<PluginMessage>,
        message: PluginMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let input = match message {
            PluginMessage::Input(input) => input,
            PluginMessage::Activate { model, instance, reply } => {
                state.prepare(*model, instance, reply, myself);
                Input::Activate(instance)
            }
            PluginMessage::Done(done) => state.done(done),
            PluginMessage::Close { until, reply } => {
                state.closing.push(reply);
                Input::Close(until)
            }
        };
        if matches!(input, Input::Tick) {
            state.alarm.fired();
        }
        state.machine.handle(input, Instant::now(), &mut state.effects);
        state.act();
        state.alarm.set(state.machine.next_alarm());
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<PluginMessage>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.workers = None;
        state.closing.clear();
        Ok(())
    }
}

impl Drop for State {
    /// Also when the actor panicked or was killed: a plugin that nobody tells anything is not shown as healthy.
    fn drop(&mut self) {
        self.ledger.ended();
    }
}

impl State {
    fn prepare(
        &mut self,
        model: ModelFacts,
        instance: InstanceKey,
        reply: oneshot::Sender<Result<(), String>>,
        myself: ActorRef<PluginMessage>,
    ) {
        let woken = move |key, operation| {
            drop(myself.cast(PluginMessage::Input(Input::Woken { key, operation })));
        };
        let board = WakeBoard::new(Box::new(woken), self.ledger.clone());
        self.models.insert(instance, (Box::new(model), Arc::new(board)));
        self.activations.insert(instance, reply);
    }

    fn done(&mut self, done: WorkerDone) -> Input {
        let WorkerDone { worker, result, made } = done;
        if let Some((key, instance)) = made
            && let Some((_, board)) = self.models.get(&key)
        {
            let board = board.clone();
            self.instances.insert(key, Seated { instance, board });
        }
        Input::Done { worker, result }
    }

    fn act(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Run(job) => self.run(job),
                Effect::Answer(reply, answer) => (reply.0)(answer),
                Effect::Activated(instance, result) => {
                    if let Some(reply) = self.activations.remove(&instance) {
                        let _ = reply.send(result);
                    }
                }
                Effect::Gone(instance) => {
                    self.instances.remove(&instance);
                    self.models.remove(&instance);
                    self.activations.remove(&instance);
                }
                Effect::GaveUp(worker) => {
                    if let Some(workers) = &self.workers {
                        workers.give_up(worker);
                    }
                }
                Effect::Health(health) => self.tell_health(health),
                Effect::Closed => {
                    for reply in self.closing.drain(..) {
                        let _ = reply.send(());
                    }
                }
            }
        }
    }

    fn run(&mut self, job: Job) {
        let target = match &job.call {
            Call::Activate => self
                .models
                .get(&job.instance)
                .map(|(model, board)| Target::Library(model.clone(), board.clone())),
            _ => self.instances.get(&job.instance).cloned().map(Target::Instance),
        };
        match (target, &self.workers) {
            (Some(target), Some(workers)) => workers.run(job, target),
            _ => tracing::error!(plugin = %self.plugin.facts().name, "a call has no instance"),
        }
    }

    fn tell_health(&self, health: Health) {
        let plugin = &self.plugin.facts().name;
        let reason = self.ledger.figures().reason;
        match health {
            Health::Healthy => tracing::info!(%plugin, "plugin is healthy again"),
            Health::Degraded => tracing::warn!(%plugin, %reason, "plugin is degraded"),
            Health::Quarantined => tracing::error!(
                %plugin,
                %reason,
                "plugin is quarantined until the node is started again; `mesh plugins show {plugin}` tells more"
            ),
            Health::Stopped => tracing::info!(%plugin, "plugin stopped"),
        }
        self.events.tell(|| Lifecycle::PluginHealthChanged {
            plugin: plugin.clone(),
            health,
            reason,
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        events::EventOptions,
        ports::telemetry::NoTelemetry,
        scripted::{ScriptedPlugin, ScriptedVocabulary, Told, eventually},
    };

    #[tokio::test]
    async fn a_plugin_whose_actor_died_is_not_shown_as_healthy() {
        let root = RootHandle::spawn(CancellationToken::new()).await.unwrap();
        let options = PluginOptions {
            deadline: Duration::from_millis(8),
            required: false,
            limits: PluginLimits::default(),
        };
        let plugin = Arc::new(ScriptedPlugin::new("p", |_, _| Told::Fine));
        let events = EventBus::new("a", 1, EventOptions::default(), Vec::new());
        let handle = spawn_plugin(plugin, options, Arc::new(NoTelemetry), events, &root)
            .await
            .unwrap();
        assert_eq!(handle.read().figures.health, Health::Healthy);
        handle.actor.kill();
        eventually("it is known", || handle.read().figures.health == Health::Stopped).await;
        assert!(handle.read().figures.reason.contains("actor has ended"));
        let model = ModelFacts {
            model: "m".into(),
            model_id: "m".into(),
            tokenizer_id: "t".into(),
            vocabulary: Arc::new(ScriptedVocabulary::default()),
            context: 16,
        };
        let refused = handle.activate(model).await.expect_err("nobody makes it");
        assert!(refused.message.contains("its actor has ended"), "{refused}");
        root.stop().await;
    }
}
