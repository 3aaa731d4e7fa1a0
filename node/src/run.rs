//! The composition root: what a node is made of, from the data directory up, and how it ends.
//!
//! Start: data directory, listeners, QUIC endpoint, mesh (new, known or joined), model files, hosts, owner, servers.
//! Stop, under the deadlines of each part: gateway drains, own deployments end; then what `parts.rs` holds. That
//! is also the end of a start that fails or is called off.

use std::{net::SocketAddr, sync::Arc};

use axum::Router;
use mesh_actors::{
    deployment::{DeploymentEnvironment, Epochs, Owner},
    directory::Directory,
    events::{EndObserver, EventBus},
    host::{HostEnvironment, StageRegistry},
    membership::MembershipHandle,
    ports::telemetry::Telemetry,
    root::RootHandle,
};
use mesh_gateway::{Gateway, GatewayOptions, Secret};
use mesh_links::{
    ClientKey, ControlServices, Followers, LinkOptions, MeshHosts, NodeEndpoint, Peers, Server, Ticket, TicketIssuer,
};
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{Node as Member, NodeState},
};
use mesh_telemetry::{NodeTelemetry, Sources};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{
    NodeConfig, NodeError,
    administration::MeshAdministration,
    child::ChildProgram,
    data_dir::DataDir,
    desired::DesiredFile,
    enter::{Entrance, first_list},
    host_facts::{HostFacts, host_facts},
    inference::MeshInference,
    lifecycle::MeshLifecycles,
    members::MemberFile,
    parts::Parts,
    plugins::Plugins,
    process::raise_file_limit,
    proving::ProvingLoader,
    receipts::{ChainKey, ReceiptSink, SinkOptions},
    servers::Servers,
    store::DiskStore,
    text::ChildVocabularies,
};

/// Where a node listens, and who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name in the mesh.
    pub name: String,
    /// Id: 64 hexadecimal digits.
    pub id: String,
    /// HTTP address, with the port in use.
    pub http: SocketAddr,
    /// gRPC address, with the port in use.
    pub grpc: SocketAddr,
    /// Addresses of the QUIC endpoint.
    pub addresses: Vec<SocketAddr>,
}

/// A node that runs.
pub struct Node {
    facts: NodeFacts,
    parts: Parts,
    endpoint: NodeEndpoint,
    tickets: TicketIssuer,
    membership: MembershipHandle,
    issuer: Option<NodeId>,
    owner: Owner,
    expelled: watch::Receiver<Option<MeshError>>,
    gateway: Gateway,
    /// Served beside the gateway's routes.
    metrics: Router,
    http: TcpListener,
    grpc: TcpListener,
    end_node: CancellationToken,
    /// What waits for children gives up.
    draining: CancellationToken,
    /// Something failed that the node cannot do without.
    broken: CancellationToken,
}

impl Node {
    /// Starts a node: of the mesh that its data directory knows, of the ticket's mesh, or of a new one. Returns when
    /// it listens and, if it joins, is admitted.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with directory, ports, ticket or mesh; nothing half-made stays behind.
    pub async fn start(config: NodeConfig, ticket: Option<String>) -> Result<Self, NodeError> {
        Self::start_unless(config, ticket, std::future::pending()).await
    }

    /// As [`Self::start`], but gives up when `stop` resolves before the node has started: whatever runs by then is ended
    /// before this returns. Dropping the future ends it as well, in the background.
    ///
    /// # Errors
    ///
    /// As [`Self::start`], and [`NodeError::Interrupted`].
    pub async fn start_unless(
        config: NodeConfig,
        ticket: Option<String>,
        stop: impl Future<Output = ()>,
    ) -> Result<Self, NodeError> {
        let ticket = ticket
            .map(|text| text.parse::<Ticket>().map_err(MeshError::from))
            .transpose()?;
        let data = Arc::new(DataDir::open(&config.data_dir)?);
        let mut parts = Parts::new(data.clone());
        let started = tokio::select! {
            // A start that has failed says so, even when it is called off at the same moment.
            biased;
            started = Self::start_on(&mut parts, data, config, ticket) => started,
            () = stop => Err(NodeError::Interrupted),
        };
        if started.is_err() {
            parts.end().await;
        }
        started
    }

    async fn start_on(
        parts: &mut Parts,
        data: Arc<DataDir>,
        config: NodeConfig,
        ticket: Option<Ticket>,
    ) -> Result<Self, NodeError> {
        let joins = ticket.is_some();
        let http = listen("HTTP", config.http, "--http").await?;
        let grpc = listen("gRPC", config.grpc, "--grpc").await?;
        let endpoint = bind_endpoint(&data, config.listen).await?;
        parts.endpoint = Some(endpoint.clone());
        let host = host_facts();
        let id = endpoint.id();
        let name = data.claim(config.name.as_deref(), &id.to_string(), &host.hostname)?;
        let run = run_number();
        let own = own_entry(&config, &host, &endpoint, &name, run);
        let key = ClientKey::new(config.api_key.as_ref().map(|key| key.0.as_str()));

        let end_node = CancellationToken::new();
        let draining = CancellationToken::new();
        let broken = CancellationToken::new();
        let root = RootHandle::spawn(broken.clone()).await?;
        parts.root = Some(root.clone());
        let member_file = Arc::new(MemberFile::new(data.file("members.json")));
        let entrance = Entrance {
            endpoint: &endpoint,
            root: &root,
            file: &member_file,
            key: &key,
            is_new: data.is_new(),
        };
        let (membership, issuer) = entrance.enter(parts, own.clone(), ticket).await?;
        let own = Member {
            issuer: issuer.is_none(),
            ..own
        };

        let directory = Directory::default();
        let registry = Arc::new(StageRegistry::default());
        let peers = Peers::new(endpoint.clone(), membership.nodes(), key);
        let store = Arc::new(DiskStore::open(config.models_dir(), peers.clone())?);
        let telemetry = NodeTelemetry::start(id, &name);
        let recorder = telemetry.recorder();
        parts.receipts = ReceiptSink::start(sink_options(&config, &data, &name))?;
        let mut observers: Vec<Arc<dyn EndObserver>> = vec![recorder.clone()];
        observers.extend(parts.receipts.iter().map(ReceiptSink::observer));
        let events = EventBus::new(&name, run, config.event_options(), observers);
        let measured: Arc<dyn Telemetry> = recorder.clone();
        let plugins = Plugins::load(&config.plugins, &measured, &events, &root).await?;
        parts.plugins = plugins.clone();
        telemetry.observe(&Sources {
            events: events.clone(),
            registry: registry.clone(),
            plugins: plugins.handles(),
            receipts: parts.receipts.as_ref().map(ReceiptSink::figures),
        });
        let metrics = telemetry.routes();
        parts.telemetry = Some(telemetry);
        let hosts = Arc::new(HostEnvironment {
            node: id,
            node_name: name.clone(),
            threads: config.threads.unwrap_or(host.cores),
            gpu_layers: config.gpu_layers,
            exact: own.exact,
            loader: Arc::new(ProvingLoader::new(&data.file("proven.json"), child_program(&config)?)),
            vocabularies: Arc::new(ChildVocabularies {
                program: child_program(&config)?,
                draining: draining.clone(),
            }),
            store: store.clone(),
            links: Arc::new(peers.clone()),
            registry: registry.clone(),
            events: events.clone(),
            telemetry: recorder.clone(),
            plugins: plugins.handles(),
            root: root.clone(),
        });
        let mesh_hosts = Arc::new(MeshHosts::new(peers.clone(), id));
        mesh_hosts.set_local(hosts.clone());
        let desired = Arc::new(DesiredFile::open(data.file("deployments.json"))?);
        let epochs = Epochs::take(desired.clone())?;
        let deployments = DeploymentEnvironment {
            node: id,
            node_name: name.clone(),
            store: store.clone(),
            hosts: mesh_hosts,
            members: membership.nodes(),
            directory: directory.clone(),
            desired: desired.clone(),
            root: root.clone(),
        };
        let owner = Owner::new(Arc::new(deployments), epochs);

        let tickets = TicketIssuer::new(&data.key);
        let services = Arc::new(ControlServices {
            membership: membership.clone(),
            directory: directory.clone(),
            owner: owner.clone(),
            registry: registry.clone(),
            hosts,
            events: events.clone(),
            files: store,
            tickets: tickets.clone(),
            peers: peers.clone(),
        });
        parts.server = Some(Server::start(endpoint.clone(), services));
        let (followers, expelled) = Followers::start(
            peers.clone(),
            membership.clone(),
            directory.clone(),
            own.clone(),
            issuer,
        );
        parts.followers = Some(followers);
        if joins {
            first_list(&membership).await?;
        }

        let lifecycles = Arc::new(MeshLifecycles::new(
            id,
            events,
            registry.clone(),
            peers.clone(),
            membership.nodes(),
        ));
        let inference = Arc::new(MeshInference {
            node: id,
            directory: directory.clone(),
            registry,
            peers: peers.clone(),
        });
        let administration = Arc::new(MeshAdministration {
            name: name.clone(),
            inference: inference.clone(),
            endpoint: endpoint.clone(),
            tickets: tickets.clone(),
            membership: membership.clone(),
            member_file,
            directory,
            owner: owner.clone(),
            desired: desired.clone(),
            peers,
            plugins,
            issuer,
            end_node: end_node.clone(),
        });
        let gateway = Gateway::new(
            gateway_options(&config, &data, recorder.clone(), address(&http, config.http))?,
            inference,
            administration,
            lifecycles,
        );
        let facts = NodeFacts {
            name,
            id: id.to_string(),
            http: address(&http, config.http),
            grpc: address(&grpc, config.grpc),
            addresses: endpoint.addresses(),
        };
        owner.restore(desired.deployments()).await;
        data.announce(&facts.name, facts.http, facts.grpc)?;
        tracing::info!(name = %facts.name, id = %facts.id, http = %facts.http, grpc = %facts.grpc, exact = own.exact, "node started");
        Ok(Self {
            facts,
            parts: parts.run(),
            endpoint,
            tickets,
            membership,
            issuer,
            owner,
            expelled,
            gateway,
            metrics,
            http,
            grpc,
            end_node,
            draining,
            broken,
        })
    }

    /// Who and where it is.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// A new ticket, on the node that admits others.
    ///
    /// # Errors
    ///
    /// This node is not it.
    pub fn ticket(&self) -> Result<String, NodeError> {
        if self.issuer.is_some() {
            let message = "tickets of this mesh come from the node that started it; run `mesh node ticket` there";
            return Err(MeshError::new(ErrorCode::Conflict, message).into());
        }
        let revoked = self.membership.revoked().borrow().tickets_until;
        let ticket = self
            .tickets
            .issue(self.endpoint.id(), self.endpoint.addresses(), revoked)?;
        Ok(ticket.to_string())
    }

    /// Serves until `stop` resolves, the node leaves its mesh, or something fails that it cannot do without; then
    /// drains and ends.
    ///
    /// # Errors
    ///
    /// The failure that ended it.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), NodeError> {
        let Self {
            parts,
            owner,
            mut expelled,
            gateway,
            metrics,
            http,
            grpc,
            end_node,
            draining,
            broken,
            ..
        } = self;
        let shutdown = CancellationToken::new();
        let mut servers = Servers::default();
        let (serving, stopping) = (gateway.clone(), shutdown.clone());
        servers.start("HTTP", async move {
            let routes = serving.http_with(metrics);
            serving.serve_http_routes(http, routes, stopping).await
        });
        let stopping = shutdown.clone();
        servers.start("gRPC", async move { gateway.serve_grpc(grpc, stopping).await });
        let ended: Result<(), NodeError> = tokio::select! {
            () = stop => Ok(()),
            () = end_node.cancelled() => Ok(()),
            () = broken.cancelled() => {
                let message = "a part failed that the node cannot do without; see its log, and start it again";
                Err(MeshError::internal(message).into())
            }
            error = expulsion(&mut expelled) => Err(error.into()),
            error = servers.failure() => Err(error),
        };
        tracing::info!("node stops");
        draining.cancel();
        shutdown.cancel();
        servers.drained().await;
        owner.stop_all().await;
        parts.end().await;
        ended
    }
}

/// Tells this run of the node from others: 53 random bits, which JSON numbers hold exactly.
fn run_number() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1 & ((1 << 53) - 1)
}

/// Resolves when the issuer no longer knows this node; never on the issuer itself.
async fn expulsion(expelled: &mut watch::Receiver<Option<MeshError>>) -> MeshError {
    let error = expelled
        .wait_for(Option::is_some)
        .await
        .ok()
        .and_then(|error| error.clone());
    match error {
        Some(error) => error,
        None => std::future::pending().await,
    }
}

/// Opens the QUIC endpoint. A free port is taken once and kept over restarts if it can be had: peers that have not
/// noticed the restart yet go on sending to it, and tickets stay good.
async fn bind_endpoint(data: &DataDir, listen: SocketAddr) -> Result<NodeEndpoint, NodeError> {
    let bind = |listen| {
        let options = LinkOptions {
            secret: data.key,
            listen,
        };
        async move { NodeEndpoint::bind(&options).await }
    };
    if listen.port() != 0 {
        return Ok(bind(listen).await?);
    }
    let known = data.last_port();
    let endpoint = match known {
        Some(port) => match bind(SocketAddr::new(listen.ip(), port)).await {
            Ok(endpoint) => endpoint,
            Err(_) => bind(listen).await?,
        },
        None => bind(listen).await?,
    };
    if let Some(port) = endpoint.port().filter(|port| Some(*port) != known) {
        data.keep_port(port)?;
    }
    Ok(endpoint)
}

fn child_program(config: &NodeConfig) -> Result<ChildProgram, NodeError> {
    match &config.program {
        Some(path) => Ok(ChildProgram::at(path)),
        None => ChildProgram::current().map_err(NodeError::file("find", "the program of this node")),
    }
}

async fn listen(what: &'static str, address: SocketAddr, flag: &'static str) -> Result<TcpListener, NodeError> {
    TcpListener::bind(address).await.map_err(|error| NodeError::Listen {
        what,
        address,
        error,
        flag,
    })
}

fn address(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

fn own_entry(config: &NodeConfig, host: &HostFacts, endpoint: &NodeEndpoint, name: &str, run: u64) -> Member {
    Member {
        id: endpoint.id().to_string(),
        name: name.to_owned(),
        addresses: endpoint.addresses().iter().map(SocketAddr::to_string).collect(),
        host_id: host.host_id.clone(),
        state: NodeState::Up.into(),
        self_: true,
        issuer: false,
        cores: host.cores,
        memory_bytes: config.memory.unwrap_or(host.memory),
        exact: config.exact && mesh_engine::is_process_exact(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        run,
        key_in_use_by: String::new(),
    }
}

fn sink_options(config: &NodeConfig, data: &DataDir, name: &str) -> SinkOptions {
    SinkOptions {
        data_dir: config.data_dir.clone(),
        key: ChainKey::new(&data.key),
        node: name.to_owned(),
        policy: config.receipts,
        token_ids: config.receipt_tokens,
    }
}

fn gateway_options(
    config: &NodeConfig,
    data: &DataDir,
    telemetry: Arc<dyn Telemetry>,
    http: SocketAddr,
) -> Result<GatewayOptions, NodeError> {
    let secret = |text: &str| Secret::new(text).map_err(|error| NodeError::Config(error.to_string()));
    let mut options = GatewayOptions::new(secret(&data.token)?);
    options.telemetry = telemetry;
    options.hosts = config.hosts(http);
    options.origins = config.allow_origins.to_vec();
    options.connections = config.connections(raise_file_limit());
    options.session_header = config.session_header()?;
    options.api_key = config.api_key.as_ref().map(|key| secret(&key.0)).transpose()?;
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::{future::pending, path::Path, time::Duration};

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::running_node;

    /// Nothing here takes a tenth of it.
    const DEADLINE: Duration = Duration::from_secs(20);

    fn config(data_dir: &Path) -> NodeConfig {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        NodeConfig {
            name: Some("a".to_owned()),
            data_dir: data_dir.to_owned(),
            http: any,
            grpc: any,
            listen: any,
            ..NodeConfig::default()
        }
    }

    async fn eventually(is_true: impl Fn() -> bool) {
        let look = async {
            while !is_true() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(DEADLINE, look).await.expect("it becomes true in time");
    }

    /// A node that takes connections and never says a word.
    async fn silent_issuer() -> (NodeEndpoint, String) {
        let secret = [7; 32];
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let endpoint = NodeEndpoint::bind(&LinkOptions { secret, listen }).await.unwrap();
        let ticket = TicketIssuer::new(&secret)
            .issue(endpoint.id(), endpoint.addresses(), 0)
            .unwrap();
        (endpoint, ticket.to_string())
    }

    #[tokio::test]
    async fn a_join_that_is_called_off_ends_at_once_and_leaves_nothing() {
        let (_issuer, ticket) = silent_issuer().await;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node");
        let claimed = || eventually(|| path.join("node.json").exists());
        let start = Node::start_unless(config(&path), Some(ticket.clone()), claimed());
        let ended = timeout(DEADLINE, start).await.expect("in time");
        assert!(matches!(ended, Err(NodeError::Interrupted)), "{:?}", ended.err());
        assert!(!path.exists());

        // Nobody waits for the next one.
        tokio::select! {
            _ = Node::start(config(&path), Some(ticket)) => panic!("it cannot join"),
            () = claimed() => {}
        }
        eventually(|| !path.exists()).await;
    }

    #[tokio::test]
    async fn a_start_that_fails_keeps_the_directory_of_a_node_that_ran_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node");
        let node = Node::start(config(&path), None).await.unwrap();
        let id = node.facts().id.clone();
        node.run_until(async {}).await.unwrap();
        let models = path.join("models");
        std::fs::remove_dir_all(&models).unwrap();
        std::fs::write(&models, "in the way").unwrap();
        assert!(Node::start(config(&path), None).await.is_err());
        std::fs::remove_file(&models).unwrap();
        let node = Node::start(config(&path), None).await.unwrap();
        assert_eq!(node.facts().id, id);
        node.run_until(async {}).await.unwrap();
    }

    /// A listener without an address: its descriptor is a pipe.
    #[cfg(unix)]
    fn no_listener() -> TcpListener {
        let (reader, _) = std::io::pipe().unwrap();
        let listener = std::net::TcpListener::from(std::os::fd::OwnedFd::from(reader));
        listener.set_nonblocking(true).unwrap();
        TcpListener::from_std(listener).unwrap()
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_server_that_ends_early_ends_the_node_with_its_error() {
        let dir = tempfile::tempdir().unwrap();
        for what in ["HTTP", "gRPC"] {
            let mut node = Node::start(config(dir.path()), None).await.unwrap();
            match what {
                "HTTP" => node.http = no_listener(),
                _ => node.grpc = no_listener(),
            }
            let ended = timeout(DEADLINE, node.run_until(pending())).await.expect("in time");
            let error = ended.expect_err("a server is missing").to_string();
            assert!(error.contains(&format!("the {what} server ended")), "{error}");
            assert!(running_node(dir.path()).is_err());
        }
    }
}
