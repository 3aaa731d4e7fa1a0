//! Model files and hosts for an owner of deployments: nothing is real but the owner.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{Node, NodeState},
    wire::{
        Artifact, HostActivated, HostCommand, HostConnected, HostEvent, HostLoaded, Refusal, StageSpec, host_command,
        host_event,
    },
};
use tokio::sync::mpsc;

use crate::ports::deployment::{
    HOST_COMMANDS, HOST_EVENTS, HostSession, Hosts, ModelFacts, ModelStore, Piece, Progress,
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A member that is up.
pub fn member(id: u8, name: &str) -> Node {
    Node {
        id: NodeId([id; 32]).to_string(),
        name: name.to_owned(),
        host_id: name.to_owned(),
        state: NodeState::Up.into(),
        cores: 4,
        memory_bytes: 8 << 30,
        exact: true,
        ..Node::default()
    }
}

/// A model of twelve layers that can be cut anywhere. `missing` cannot be described, `uncuttable` not be cut, and
/// cutting `slow` never ends.
#[derive(Debug, Default)]
pub struct ScriptedStore {
    cutting: Arc<AtomicUsize>,
    now: Mutex<&'static str>,
}

impl ScriptedStore {
    /// What has become of every file: `missing`, `other` than it was, or nothing.
    pub fn now(&self, state: &'static str) {
        *lock(&self.now) = state;
    }

    /// Cuts under way.
    pub fn cutting(&self) -> usize {
        self.cutting.load(Ordering::SeqCst)
    }
}

struct Cutting(Arc<AtomicUsize>);

impl Drop for Cutting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl ModelStore for ScriptedStore {
    async fn describe(&self, model: &str) -> Result<ModelFacts, MeshError> {
        let now = *lock(&self.now);
        if model == "missing" || now == "missing" {
            return Err(MeshError::new(ErrorCode::ModelInvalid, "there is no such file"));
        }
        Ok(ModelFacts {
            source_id: format!("{model}{now}"),
            architecture: "llama".to_owned(),
            label: model.to_owned(),
            stem: model.to_owned(),
            layers: 12,
            context: 512,
            n_embd: 4,
            n_vocab: 257,
            layer_bytes: vec![1 << 20; 12],
            kv_bytes_per_position: vec![64; 12],
            legal_cuts: (1..12).collect(),
            ..ModelFacts::default()
        })
    }

    async fn cut(&self, model: &str, piece: Piece, progress: Progress) -> Result<Artifact, MeshError> {
        self.cutting.fetch_add(1, Ordering::SeqCst);
        let _cutting = Cutting(self.cutting.clone());
        if model == "uncuttable" {
            return Err(MeshError::new(ErrorCode::ModelInvalid, "the disk is full"));
        }
        if model == "slow" {
            std::future::pending::<()>().await;
        }
        progress(1, 1);
        Ok(Artifact {
            digest: format!("{piece:?}"),
            bytes: 1 << 20,
            file_name: "stage".to_owned(),
        })
    }

    async fn obtain(&self, _artifact: &Artifact, _source: NodeId, _progress: Progress) -> Result<PathBuf, MeshError> {
        Err(MeshError::internal("an owner obtains nothing"))
    }
}

/// Hosts of all nodes, played by the test.
#[derive(Debug, Default)]
pub struct ScriptedHosts {
    opened: Mutex<Vec<Arc<ScriptedStage>>>,
    refusing: Mutex<Option<NodeId>>,
    manual: Mutex<bool>,
}

/// One stage that was asked for.
#[derive(Debug)]
pub struct ScriptedStage {
    /// As asked.
    pub spec: StageSpec,
    events: Mutex<Option<mpsc::Sender<HostEvent>>>,
    commands: Mutex<mpsc::Receiver<HostCommand>>,
}

impl ScriptedHosts {
    /// Hosts say nothing of their own from now on (otherwise they do what they are told at once).
    pub fn manual(&self) {
        *lock(&self.manual) = true;
    }

    /// Hosts answer of their own again.
    pub fn automatic(&self) {
        *lock(&self.manual) = false;
    }

    /// This node refuses to host.
    pub fn refuse(&self, node: Option<NodeId>) {
        *lock(&self.refusing) = node;
    }

    /// All stages asked for so far, in order.
    pub fn opened(&self) -> Vec<Arc<ScriptedStage>> {
        lock(&self.opened).clone()
    }

    /// Stages asked for in an epoch, stage 0 first.
    pub fn of_epoch(&self, epoch: u64) -> Vec<Arc<ScriptedStage>> {
        let mut stages: Vec<_> = self
            .opened()
            .into_iter()
            .filter(|stage| stage.spec.epoch == epoch)
            .collect();
        stages.sort_by_key(|stage| stage.spec.stage);
        stages
    }

    /// Stages that the owner still holds.
    pub fn held(&self) -> usize {
        self.opened().iter().filter(|stage| stage.is_held()).count()
    }
}

impl ScriptedStage {
    /// Says that the stage has loaded.
    pub fn loaded(&self) {
        self.say(host_event::Event::Loaded(HostLoaded {
            memory_bytes: 1,
            exact: true,
            chat_template: "scripted".to_owned(),
            threads: 1,
        }));
    }

    /// Says that it failed.
    pub fn failed(&self, message: &str) {
        let code = ErrorCode::EngineFailed.name().to_owned();
        self.say(host_event::Event::Failed(Refusal {
            code,
            message: message.to_owned(),
            ..Refusal::default()
        }));
    }

    /// Says something.
    pub fn say(&self, event: host_event::Event) {
        if let Some(events) = lock(&self.events).as_ref() {
            let _ = events.try_send(HostEvent { event: Some(event) });
        }
    }

    /// The owner has taken everything that was said.
    pub fn is_heard(&self) -> bool {
        lock(&self.events)
            .as_ref()
            .is_none_or(|events| events.capacity() == events.max_capacity())
    }

    /// The node is gone.
    pub fn vanish(&self) {
        *lock(&self.events) = None;
        lock(&self.commands).close();
    }

    /// The next command, if there is one.
    pub fn command(&self) -> Option<host_command::Command> {
        lock(&self.commands).try_recv().ok().and_then(|command| command.command)
    }

    /// The owner still holds the stage.
    pub fn is_held(&self) -> bool {
        !lock(&self.commands).is_closed()
    }
}

#[async_trait]
impl Hosts for ScriptedHosts {
    async fn host(&self, node: NodeId, spec: StageSpec) -> Result<HostSession, MeshError> {
        if *lock(&self.refusing) == Some(node) {
            return Err(MeshError::new(ErrorCode::Unreachable, "the node does not answer"));
        }
        let (commands, to_stage) = mpsc::channel(HOST_COMMANDS);
        let (from_stage, events) = mpsc::channel(HOST_EVENTS);
        let stage = ScriptedStage {
            spec,
            events: Mutex::new(Some(from_stage)),
            commands: Mutex::new(to_stage),
        };
        let stage = Arc::new(stage);
        lock(&self.opened).push(stage.clone());
        if !*lock(&self.manual) {
            tokio::spawn(obey(stage));
        }
        Ok(HostSession { commands, events })
    }
}

/// Does what the owner says, for as long as it holds the stage.
async fn obey(stage: Arc<ScriptedStage>) {
    stage.loaded();
    loop {
        let next = std::future::poll_fn(|context| lock(&stage.commands).poll_recv(context)).await;
        match next.map(|command| command.command) {
            Some(Some(host_command::Command::Connect(_))) => stage.say(host_event::Event::Connected(HostConnected {})),
            Some(Some(host_command::Command::Activate(_))) => stage.say(host_event::Event::Activated(HostActivated {})),
            Some(None) => {}
            None => return drop(lock(&stage.events).take()),
        }
    }
}
