//! Real hosts, stages, links and a head, joined in memory: one node for each stage.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use mesh_proto::{
    Epoch, ErrorCode, MeshError, NodeId,
    sampling::greedy_sampling,
    v1::{GenerateFinished, GenerateRequest, Sampling, generate_request::Prompt},
    wire::{Artifact, HostActivate, HostCommand, HostConnect, HostEvent, StageSpec, host_command, host_event},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{BYTES_VOCABULARY, Call, EventLog, Gate, ScriptedLoader, ScriptedVocabulary, Verdict, model};
use crate::{
    head::HeadHandle,
    host::{HostEnvironment, HostHandle, StageOwner, StageRegistry, spawn_host},
    link::memory::MemoryWriter,
    plugin::{PluginHandle, PluginOptions, spawn_plugin},
    ports::{
        deployment::{HOST_EVENTS, ModelFacts, ModelStore, Piece, Progress},
        inference::{Caller, GenerateEvent, Generation, JournalReader},
        link::{CreditGrant, FrameSink, FrameWriter, LinkAcceptor, LinkEvents, LinkFrame, LinkHello, StageLinks},
        plugin::NativePlugin,
        telemetry::NoTelemetry,
    },
    root::RootHandle,
};

/// How long plugins have to hear the ends of what they follow.
const PLUGINS_CLOSE: Duration = Duration::from_secs(5);

/// Name of the deployment of a [`Chain`].
const NAME: &str = "scripted";

/// What a chain is like.
#[derive(Debug, Clone)]
pub struct ChainOptions {
    /// Stages, each of two layers.
    pub stages: u32,
    /// Lanes.
    pub lanes: u32,
    /// Positions per lane.
    pub context: u32,
    /// Rows of a prefill chunk.
    pub chunk: u32,
    /// Frames under way on each link, at most [`LINK_CREDITS`](crate::link::LINK_CREDITS).
    pub credits: u32,
    /// All stages on one node, linked as hosts do it there.
    pub one_node: bool,
    /// Tokenizer.
    pub vocabulary: ScriptedVocabulary,
    /// Plugins on the head's node.
    pub plugins: Vec<(Arc<dyn NativePlugin>, PluginOptions)>,
}

impl Default for ChainOptions {
    fn default() -> Self {
        Self {
            stages: 3,
            lanes: 4,
            context: 256,
            chunk: 8,
            credits: crate::link::LINK_CREDITS,
            one_node: false,
            vocabulary: ScriptedVocabulary::default(),
            plugins: Vec::new(),
        }
    }
}

/// A deployment that takes requests.
pub struct Chain {
    /// The head.
    pub head: HeadHandle,
    /// Loads all engines.
    pub loader: ScriptedLoader,
    /// Lifecycle events.
    pub events: Arc<EventLog>,
    /// What the hosts tell their owner, stage by stage.
    pub said: Vec<mpsc::Receiver<HostEvent>>,
    /// The registry of stage 0's node.
    pub registry: Arc<StageRegistry>,
    /// Plugins of that node.
    pub plugins: Arc<[PluginHandle]>,
    hosts: Vec<HostHandle>,
    environments: Vec<Arc<HostEnvironment>>,
    specs: Vec<StageSpec>,
    options: ChainOptions,
    wires: Arc<Wires>,
    root: RootHandle,
}

/// A host that a test asked for beside those of the chain.
pub struct ExtraHost {
    /// The owner's hold on it.
    pub host: HostHandle,
    /// What it tells its owner.
    pub said: mpsc::Receiver<HostEvent>,
}

impl ExtraHost {
    /// The next thing that it says and that is no progress.
    ///
    /// # Panics
    ///
    /// It ends without.
    pub async fn says(&mut self) -> host_event::Event {
        loop {
            match self.said.recv().await.expect("the host lives").event.expect("an event") {
                host_event::Event::Progress(_) => {}
                event => return event,
            }
        }
    }
}

/// The owner of a [`Chain`].
pub fn chain_owner() -> StageOwner {
    StageOwner {
        node: NodeId([1; 32]),
        name: "node 0".to_owned(),
    }
}

impl Chain {
    /// Starts hosts, loads, links, activates.
    ///
    /// # Panics
    ///
    /// Something of that fails.
    pub async fn start(options: ChainOptions) -> Self {
        Self::start_with(options, ScriptedLoader::default()).await
    }

    /// A chain of three stages with so many lanes.
    ///
    /// # Panics
    ///
    /// As [`Self::start`].
    pub async fn with_lanes(lanes: u32) -> Self {
        Self::start(ChainOptions {
            lanes,
            ..ChainOptions::default()
        })
        .await
    }

    /// Calls of which `which` says so wait at the gate, which is closed, from now on.
    pub fn hold(&self, which: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static) -> Arc<Gate> {
        let gate = Arc::new(Gate::closed());
        let held = gate.clone();
        self.loader.script(move |call: &Call<'_>| {
            if which(call) {
                held.pass();
            }
            Verdict::Compute
        });
        gate
    }

    /// The same, with engines of `loader`.
    pub async fn start_with(options: ChainOptions, loader: ScriptedLoader) -> Self {
        let root = RootHandle::spawn(CancellationToken::new()).await.expect("root");
        let events = Arc::new(EventLog::default());
        let nodes: Vec<NodeId> = (0..options.stages)
            .map(|stage| NodeId([if options.one_node { 1 } else { 1 + stage as u8 }; 32]))
            .collect();
        let registries: Vec<Arc<StageRegistry>> = if options.one_node {
            vec![Arc::default(); 1]
                .into_iter()
                .cycle()
                .take(options.stages as usize)
                .collect()
        } else {
            nodes.iter().map(|_| Arc::default()).collect()
        };
        let wires = Arc::new(Wires {
            registries: nodes.iter().copied().zip(registries.iter().cloned()).collect(),
            credits: options.credits,
            ends: Mutex::default(),
            faults: Mutex::default(),
        });
        let mut starting = Starting {
            hosts: Vec::new(),
            said: Vec::new(),
        };
        let mut environments = Vec::new();
        let mut plugins = Vec::new();
        for (plugin, limits) in options.plugins.clone() {
            let handle = spawn_plugin(plugin, limits, Arc::new(NoTelemetry), events.bus().clone(), &root).await;
            plugins.push(handle.expect("a plugin's actor"));
        }
        let plugins: Arc<[PluginHandle]> = plugins.into();
        let specs: Vec<StageSpec> = (0..options.stages).map(|stage| spec(&options, stage, &nodes)).collect();
        for stage in 0..options.stages {
            let node = nodes[stage as usize];
            let environment = Arc::new(HostEnvironment {
                node,
                node_name: format!("node {stage}"),
                threads: 1,
                gpu_layers: None,
                exact: true,
                loader: Arc::new(loader.clone()),
                vocabularies: Arc::new(options.vocabulary.clone()),
                store: Arc::new(NoFiles),
                links: Arc::new(WiresOf {
                    from: node,
                    wires: wires.clone(),
                }),
                registry: registries[stage as usize].clone(),
                events: events.bus().clone(),
                telemetry: Arc::new(NoTelemetry),
                plugins: if stage == 0 { plugins.clone() } else { Arc::default() },
                root: root.clone(),
            });
            let ExtraHost { host, said } =
                start_host(chain_owner(), specs[stage as usize].clone(), environment.clone()).await;
            starting.hosts.push(host);
            starting.said.push(said);
            environments.push(environment);
        }
        let registry = registries[0].clone();
        starting
            .all_said("loaded", |event| matches!(event, host_event::Event::Loaded(_)))
            .await;
        starting.tell_all(host_command::Command::Connect(HostConnect {}));
        starting
            .all_said("connected", |event| matches!(event, host_event::Event::Connected(_)))
            .await;
        assert!(
            registry.head(NAME).is_none(),
            "it takes requests before it is activated"
        );
        starting.hosts[0].command(command(host_command::Command::Activate(HostActivate { exact: true })));
        expect(&mut starting.said[0], "activated", |event| {
            matches!(event, host_event::Event::Activated(_))
        })
        .await;
        let head = registry.head(NAME).expect("an active head");
        let (hosts, said) = (std::mem::take(&mut starting.hosts), std::mem::take(&mut starting.said));
        Self {
            head,
            loader,
            events,
            said,
            registry,
            plugins,
            hosts,
            environments,
            specs,
            options,
            wires,
            root,
        }
    }

    /// Asks the node of a stage to hold it for an owner in some epoch, beside the hosts of the chain.
    pub async fn ask_again(&self, stage: u32, owner: StageOwner, epoch: u64) -> ExtraHost {
        let stage = stage as usize;
        let spec = StageSpec {
            epoch,
            ..self.specs[stage].clone()
        };
        start_host(owner, spec, self.environments[stage].clone()).await
    }

    /// Layers of the model.
    pub fn layers(&self) -> u32 {
        self.options.stages * 2
    }

    /// Starts a request.
    pub async fn generate(&self, request: GenerateRequest) -> Result<Generation, MeshError> {
        self.head.generate(request, Caller::default()).await
    }

    /// What a request has to come to.
    pub fn expected(&self, request: &GenerateRequest) -> model::Expected {
        let Some(Prompt::Text(text)) = &request.prompt else {
            panic!("only text is expected")
        };
        let prompt = ScriptedVocabulary::tokens(text);
        let room = self.options.context as usize - prompt.len();
        let most = request.max_tokens.map_or(room, |most| room.min(most as usize));
        let sampling = request.sampling.clone().unwrap_or_else(greedy_sampling);
        model::expected(&prompt, &sampling, self.layers(), most)
    }

    /// Cuts the link from a stage: both ends hear of it.
    pub fn cut_link(&self, from_stage: u32) {
        let ends = lock(&self.wires.ends);
        let end = ends.iter().find(|end| end.from_stage == from_stage).expect("a link");
        let error = MeshError::new(ErrorCode::Unreachable, "the test cut the link");
        end.events.lost(error.clone());
        end.sink.lost(error);
    }

    /// Most frames that were under way on any link at once.
    pub fn most_in_flight(&self) -> u32 {
        lock(&self.wires.ends)
            .iter()
            .map(|end| end.meter.most.load(Ordering::SeqCst))
            .max()
            .unwrap_or(0)
    }

    /// Waits until no lane is held, here or on any stage, and checks that nothing was done that must not be.
    pub async fn quiet(&self) {
        super::eventually("all lanes free", || {
            let lanes = self.head.lanes();
            lanes.used == 0 && lanes.waiting == 0 && self.loader.open_sessions() == 0
        })
        .await;
        super::eventually("all requests ended", || self.events.unended() == 0).await;
        self.check();
    }

    /// Checks the contracts of engines, links and events.
    pub fn check(&self) {
        assert_eq!(self.loader.violations(), Vec::<String>::new());
        assert_eq!(*lock(&self.wires.faults), Vec::<String>::new());
        self.events.check();
    }

    /// Takes the hosts down without waiting for them.
    pub fn stop_soon(&self) {
        for host in &self.hosts {
            host.stop_soon();
        }
    }

    /// Takes everything down as a node does, and checks that all engines are gone.
    pub async fn stop(mut self) {
        drop(std::mem::take(&mut self.said));
        for host in &self.hosts {
            host.stop().await;
        }
        assert_eq!(self.loader.loaded(), 0, "an engine outlives its host");
        assert!(self.registry.head(NAME).is_none(), "a head outlives its host");
        for plugin in self.plugins.iter() {
            plugin.close(Instant::now() + PLUGINS_CLOSE).await;
        }
        self.root.stop().await;
    }
}

async fn start_host(owner: StageOwner, spec: StageSpec, environment: Arc<HostEnvironment>) -> ExtraHost {
    let (sender, said) = mpsc::channel(HOST_EVENTS);
    let host = spawn_host(owner, spec, environment, sender).await.expect("host");
    ExtraHost { host, said }
}

struct Starting {
    hosts: Vec<HostHandle>,
    said: Vec<mpsc::Receiver<HostEvent>>,
}

/// Who gives up starting takes the hosts down.
impl Drop for Starting {
    fn drop(&mut self) {
        for host in &self.hosts {
            host.stop_soon();
        }
    }
}

impl Starting {
    fn tell_all(&self, what: host_command::Command) {
        for host in &self.hosts {
            host.command(command(what));
        }
    }

    async fn all_said(&mut self, what: &str, is: impl Fn(&host_event::Event) -> bool) {
        for events in &mut self.said {
            expect(events, what, &is).await;
        }
    }
}

fn command(command: host_command::Command) -> HostCommand {
    HostCommand { command: Some(command) }
}

async fn expect(events: &mut mpsc::Receiver<HostEvent>, what: &str, is: impl Fn(&host_event::Event) -> bool) {
    while let Some(HostEvent { event: Some(event) }) = events.recv().await {
        if is(&event) {
            return;
        }
        assert!(
            matches!(event, host_event::Event::Progress(_)),
            "{event:?} instead of {what}"
        );
    }
    panic!("a host ended instead of being {what}");
}

fn spec(options: &ChainOptions, stage: u32, nodes: &[NodeId]) -> StageSpec {
    let file = Artifact {
        digest: "d".to_owned(),
        bytes: 1,
        file_name: "f".to_owned(),
    };
    StageSpec {
        deployment: NAME.to_owned(),
        epoch: 1,
        stage,
        stages: options.stages,
        layer_start: stage * 2,
        layer_end: stage * 2 + 2,
        layers: options.stages * 2,
        source_id: "source".to_owned(),
        n_embd: model::WIDTH as u32,
        n_vocab: BYTES_VOCABULARY,
        context: options.context,
        lanes: options.lanes,
        threads: 1,
        exact: true,
        prefill_chunk: options.chunk,
        file: Some(file.clone()),
        vocabulary: (stage == 0).then_some(file),
        source_node: nodes[0].to_string(),
        stage_nodes: nodes.iter().map(NodeId::to_string).collect(),
    }
}

/// A request for the answer to a text.
pub fn generate_text(text: &str, seed: u64, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        model: NAME.to_owned(),
        prompt: Some(Prompt::Text(text.to_owned())),
        sampling: Some(Sampling {
            seed: Some(seed),
            ..greedy_sampling()
        }),
        max_tokens: Some(max_tokens),
        ..GenerateRequest::default()
    }
}

/// Reads an answer to its end: the text, and the one terminal.
///
/// # Panics
///
/// Something comes after the terminal, or there is none.
pub async fn read_all(events: &mut JournalReader) -> (String, Result<GenerateFinished, MeshError>) {
    let mut all = String::new();
    let end = loop {
        match events.next().await.expect("a terminal") {
            GenerateEvent::Delta { text, .. } => all.push_str(&text),
            GenerateEvent::Finished(finished) => break Ok(finished),
            GenerateEvent::Failed(error) => break Err(error),
        }
    };
    assert_eq!(events.next().await, None, "something after the terminal");
    (all, end)
}

/// Files that nobody opens.
struct NoFiles;

#[async_trait]
impl ModelStore for NoFiles {
    async fn describe(&self, _model: &str) -> Result<ModelFacts, MeshError> {
        Err(MeshError::internal("hosts describe nothing"))
    }

    async fn cut(&self, _model: &str, _piece: Piece, _progress: Progress) -> Result<Artifact, MeshError> {
        Err(MeshError::internal("hosts cut nothing"))
    }

    async fn obtain(&self, artifact: &Artifact, _source: NodeId, progress: Progress) -> Result<PathBuf, MeshError> {
        progress(artifact.bytes, artifact.bytes);
        Ok(PathBuf::from(&artifact.file_name))
    }
}

/// All links of a chain.
struct Wires {
    registries: Vec<(NodeId, Arc<StageRegistry>)>,
    credits: u32,
    ends: Mutex<Vec<Wire>>,
    faults: Mutex<Vec<String>>,
}

struct Wire {
    from_stage: u32,
    meter: Arc<Meter>,
    sink: Arc<dyn FrameSink>,
    events: Arc<dyn LinkEvents>,
}

/// Counts frames under way.
#[derive(Default)]
struct Meter {
    now: AtomicU32,
    most: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct WiresOf {
    from: NodeId,
    wires: Arc<Wires>,
}

#[async_trait]
impl StageLinks for WiresOf {
    async fn connect(
        &self,
        to: NodeId,
        hello: LinkHello,
        events: Arc<dyn LinkEvents>,
    ) -> Result<Box<dyn FrameWriter>, MeshError> {
        assert_eq!(hello.epoch, Epoch(1));
        let (_, registry) = self
            .wires
            .registries
            .iter()
            .find(|(node, _)| *node == to)
            .expect("a node");
        let meter = Arc::new(Meter::default());
        let grant = MeteredGrant {
            meter: meter.clone(),
            events: events.clone(),
        };
        let accepted = registry.accept(self.from, &hello, Arc::new(grant))?;
        let credits = self.wires.credits.min(accepted.credits);
        let wires = self.wires.clone();
        let sink = Arc::new(MeteredSink {
            meter: meter.clone(),
            credits,
            sink: accepted.sink.clone(),
            wires,
        });
        let end = Wire {
            from_stage: hello.from_stage,
            meter,
            sink: accepted.sink,
            events: events.clone(),
        };
        lock(&self.wires.ends).push(end);
        events.credit(credits);
        Ok(Box::new(MemoryWriter::new(sink)))
    }
}

struct MeteredSink {
    meter: Arc<Meter>,
    credits: u32,
    sink: Arc<dyn FrameSink>,
    wires: Arc<Wires>,
}

impl FrameSink for MeteredSink {
    fn frame(&self, frame: LinkFrame) {
        let now = self.meter.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.meter.most.fetch_max(now, Ordering::SeqCst);
        if now > self.credits {
            lock(&self.wires.faults).push(format!("{now} frames with {} credits", self.credits));
        }
        self.sink.frame(frame);
    }

    fn lost(&self, error: MeshError) {
        self.sink.lost(error);
    }
}

struct MeteredGrant {
    meter: Arc<Meter>,
    events: Arc<dyn LinkEvents>,
}

impl CreditGrant for MeteredGrant {
    fn grant(&self, frames: u32) {
        self.meter.now.fetch_sub(frames, Ordering::SeqCst);
        self.events.credit(frames);
    }

    fn close(&self) {
        self.events
            .lost(MeshError::new(ErrorCode::StageLost, "the stage behind has ended"));
    }
}
