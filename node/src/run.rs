//! The composition root: what a node is made of, from the data directory up, and how it ends.
//!
//! Start: data directory, listeners, QUIC endpoint, mesh (new, known or joined), model files, hosts, owner, servers.
//! Stop, under the deadlines of each part: gateway drains, own deployments end, watches end, links end, actors end,
//! the endpoint tells its peers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mesh_actors::{
    deployment::{DeploymentEnvironment, Owner},
    directory::Directory,
    host::{HostEnvironment, StageRegistry},
    membership::{MembershipHandle, spawn_membership},
    ports::events::NoSubscribers,
    root::RootHandle,
};
use mesh_engine::{LlamaLoader, LlamaVocabularyLoader};
use mesh_gateway::{Gateway, GatewayOptions, Secret};
use mesh_links::{
    ControlServices, Followers, LinkOptions, MeshHosts, NodeEndpoint, Peers, Server, Ticket, TicketIssuer, join,
};
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{Node as Member, NodeState},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{
    NodeConfig, NodeError,
    administration::MeshAdministration,
    data_dir::DataDir,
    host_facts::{HostFacts, host_facts},
    inference::MeshInference,
    members::MemberFile,
    store::DiskStore,
};

/// How long a node that joined waits for its first member list.
const FIRST_LIST_LIMIT: Duration = Duration::from_secs(10);

/// How long the endpoint may wait for peers to hear that it closes.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

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
    data: Arc<DataDir>,
    endpoint: NodeEndpoint,
    tickets: TicketIssuer,
    issuer: Option<NodeId>,
    root: RootHandle,
    owner: Owner,
    followers: Followers,
    expelled: watch::Receiver<Option<MeshError>>,
    server: Server,
    gateway: Gateway,
    http: TcpListener,
    grpc: TcpListener,
    end_node: CancellationToken,
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
        let ticket = ticket
            .map(|text| text.parse::<Ticket>().map_err(MeshError::from))
            .transpose()?;
        let data = Arc::new(DataDir::open(&config.data_dir)?);
        let started = Self::start_on(data.clone(), config, ticket).await;
        if started.is_err() {
            data.discard_if_new();
        }
        started
    }

    async fn start_on(data: Arc<DataDir>, config: NodeConfig, ticket: Option<Ticket>) -> Result<Self, NodeError> {
        let joins = ticket.is_some();
        let http = listen("HTTP", config.http, "--http").await?;
        let grpc = listen("gRPC", config.grpc, "--grpc").await?;
        let endpoint = bind_endpoint(&data, config.listen).await?;
        let host = host_facts();
        let id = endpoint.id();
        let name = data.claim(config.name.as_deref(), &id.to_string(), &host.hostname)?;
        let own = own_entry(&config, &host, &endpoint, &name);

        let end_node = CancellationToken::new();
        let broken = CancellationToken::new();
        let root = RootHandle::spawn(broken.clone()).await?;
        let member_file = Arc::new(MemberFile::new(data.file("members.json")));
        let (membership, issuer) = enter_mesh(&endpoint, own.clone(), ticket, &member_file, &root).await?;
        let own = Member {
            issuer: issuer.is_none(),
            ..own
        };

        let directory = Directory::default();
        let registry = Arc::new(StageRegistry::default());
        let peers = Peers::new(endpoint.clone(), membership.nodes());
        let store = Arc::new(DiskStore::open(config.models_dir(), peers.clone())?);
        let hosts = Arc::new(HostEnvironment {
            node: id,
            node_name: name.clone(),
            threads: config.threads.unwrap_or(host.cores),
            gpu_layers: config.gpu_layers,
            exact: own.exact,
            loader: Arc::new(LlamaLoader),
            vocabularies: Arc::new(LlamaVocabularyLoader),
            store: store.clone(),
            links: Arc::new(peers.clone()),
            registry: registry.clone(),
            events: Arc::new(NoSubscribers),
            root: root.clone(),
        });
        let mesh_hosts = Arc::new(MeshHosts::new(peers.clone(), id));
        mesh_hosts.set_local(hosts.clone());
        let owner = Owner::new(Arc::new(DeploymentEnvironment {
            node: id,
            node_name: name.clone(),
            store: store.clone(),
            hosts: mesh_hosts,
            members: membership.nodes(),
            directory: directory.clone(),
            root: root.clone(),
        }));

        let tickets = TicketIssuer::new(&data.key);
        let services = Arc::new(ControlServices {
            membership: membership.clone(),
            directory: directory.clone(),
            owner: owner.clone(),
            registry: registry.clone(),
            hosts,
            files: store,
            tickets: tickets.clone(),
        });
        let server = Server::start(endpoint.clone(), services);
        let (followers, expelled) = Followers::start(
            peers.clone(),
            membership.clone(),
            directory.clone(),
            own.clone(),
            issuer,
        );
        if joins {
            first_list(&membership).await?;
        }

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
            membership,
            member_file,
            directory,
            owner: owner.clone(),
            peers,
            issuer,
            end_node: end_node.clone(),
        });
        let gateway = Gateway::new(gateway_options(&config, &data)?, inference, administration);
        let facts = NodeFacts {
            name,
            id: id.to_string(),
            http: address(&http, config.http),
            grpc: address(&grpc, config.grpc),
            addresses: endpoint.addresses(),
        };
        data.announce(&facts.name, facts.http, facts.grpc)?;
        tracing::info!(name = %facts.name, id = %facts.id, http = %facts.http, grpc = %facts.grpc, exact = own.exact, "node started");
        Ok(Self {
            facts,
            data,
            endpoint,
            tickets,
            issuer,
            root,
            owner,
            followers,
            expelled,
            server,
            gateway,
            http,
            grpc,
            end_node,
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
        Ok(self
            .tickets
            .issue(self.endpoint.id(), self.endpoint.addresses())?
            .to_string())
    }

    /// Serves until `stop` resolves, the node leaves its mesh, or something fails that it cannot do without; then
    /// drains and ends.
    ///
    /// # Errors
    ///
    /// The failure that ended it.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), NodeError> {
        let Self {
            data,
            endpoint,
            root,
            owner,
            followers,
            mut expelled,
            server,
            gateway,
            http,
            grpc,
            end_node,
            broken,
            ..
        } = self;
        let shutdown = CancellationToken::new();
        let stopping = shutdown.clone();
        let servers = tokio::spawn(async move {
            tokio::join!(
                gateway.serve_http(http, stopping.clone()),
                gateway.serve_grpc(grpc, stopping)
            )
        });
        let ended = tokio::select! {
            () = stop => Ok(()),
            () = end_node.cancelled() => Ok(()),
            () = broken.cancelled() => {
                Err(MeshError::internal("a part failed that the node cannot do without; see its log, and start it again"))
            }
            error = expulsion(&mut expelled) => Err(error),
        };
        tracing::info!("node stops");
        shutdown.cancel();
        let served = servers.await;
        owner.stop_all().await;
        drop(followers);
        server.stop().await;
        root.stop().await;
        if tokio::time::timeout(CLOSE_LIMIT, endpoint.close()).await.is_err() {
            tracing::info!("closed without the last words of peers that have gone");
        }
        data.withdraw();
        if let Ok((http, grpc)) = served
            && let Err(error) = http.and(grpc)
        {
            tracing::error!(%error, "a server ended with an error");
        }
        Ok(ended?)
    }
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

fn own_entry(config: &NodeConfig, host: &HostFacts, endpoint: &NodeEndpoint, name: &str) -> Member {
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
    }
}

/// The mesh of the ticket, the one known from before, or a new one of this node alone. Gives the issuer, if that is
/// another node.
async fn enter_mesh(
    endpoint: &NodeEndpoint,
    own: Member,
    ticket: Option<Ticket>,
    file: &Arc<MemberFile>,
    root: &RootHandle,
) -> Result<(MembershipHandle, Option<NodeId>), NodeError> {
    let known = file.load()?;
    let known_issuer = known.iter().find(|node| node.issuer).map(|node| node.id.clone());
    let Some(ticket) = ticket else {
        let issuer = known_issuer.filter(|id| *id != own.id);
        let own = Member {
            issuer: issuer.is_none(),
            ..own
        };
        let membership = spawn_membership(own, known, file.clone(), root).await?;
        let issuer = issuer
            .map(|id| id.parse())
            .transpose()
            .map_err(|error| MeshError::internal(format!("{error}")))?;
        return Ok((membership, issuer));
    };
    if ticket.issuer.to_string() == own.id {
        let message = "this ticket is the node's own; give it to another node, or use `mesh node start`";
        return Err(MeshError::new(ErrorCode::Conflict, message).into());
    }
    if known_issuer.is_some_and(|id| id != ticket.issuer.to_string()) {
        let message = "this node belongs to another mesh; run `mesh node leave` first, or use another --data-dir";
        return Err(MeshError::new(ErrorCode::Conflict, message).into());
    }
    let list = join(endpoint, &ticket, own.clone()).await?;
    mesh_actors::membership::MemberStore::save(file.as_ref(), &list.nodes)?;
    let membership = spawn_membership(own, list.nodes, file.clone(), root).await?;
    Ok((membership, Some(ticket.issuer)))
}

fn gateway_options(config: &NodeConfig, data: &DataDir) -> Result<GatewayOptions, NodeError> {
    let secret = |text: &str| Secret::new(text).map_err(|error| NodeError::Config(error.to_string()));
    let mut options = GatewayOptions::new(secret(&data.token)?);
    options.api_key = config.api_key.as_ref().map(|key| secret(&key.0)).transpose()?;
    Ok(options)
}

/// Waits until a node that joined has its first member list from the issuer.
async fn first_list(membership: &MembershipHandle) -> Result<(), MeshError> {
    let mut nodes = membership.nodes();
    let up = nodes.wait_for(|nodes| {
        nodes
            .iter()
            .any(|node| node.issuer && node.state == NodeState::Up as i32)
    });
    match tokio::time::timeout(FIRST_LIST_LIMIT, up).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(MeshError::new(
            ErrorCode::DeadlineExceeded,
            "the issuer admitted this node, but sends no member list",
        )),
    }
}
