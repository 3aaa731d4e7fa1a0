//! gRPC to a running node: where it is, and what it lets us do.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use mesh_proto::v1::{
    deployment_service_client::DeploymentServiceClient, inference_service_client::InferenceServiceClient,
    lifecycle_service_client::LifecycleServiceClient, node_service_client::NodeServiceClient,
};
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use crate::{
    failure::{Exit, Failure},
    local_node, path,
};

/// A node that does not take a connection within this is reported as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection over which nothing comes is probed this often, and given up after as long again.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A snapshot or list of all requests of a large mesh, or a receipt of a long answer, fits in this.
const MAX_MESSAGE: usize = 64 << 20;

/// Administration token of a node reached by `--grpc`.
pub(crate) const TOKEN_VARIABLE: &str = "MESH_TOKEN";

/// API key of a node reached by `--grpc`, for commands that need no more.
pub(crate) const KEY_VARIABLE: &str = "MESH_API_KEY";

/// Which node a command talks to.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which node")]
pub(crate) struct ConnectArgs {
    /// Data directory of a node on this machine [default: $MESH_HOME, else the platform's]
    #[arg(long, value_name = "DIR", conflicts_with = "grpc")]
    pub(crate) data_dir: Option<PathBuf>,
    /// gRPC address of a node anywhere, such as 10.0.0.5:9471; its token comes from MESH_TOKEN
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<String>,
}

impl ConnectArgs {
    /// The command takes the node of this machine, if there is one.
    pub(crate) fn names_no_node(&self) -> bool {
        self.data_dir.is_none() && self.grpc.is_none()
    }
}

/// A node that answered.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    channel: Channel,
    authorization: Authorization,
}

type Authorized = InterceptedService<Channel, Authorization>;

impl Client {
    /// Finds the node and connects to it.
    pub(crate) async fn connect(args: &ConnectArgs) -> Result<Self, Failure> {
        if let Some(address) = &args.grpc {
            let credentials = variable(TOKEN_VARIABLE).or_else(|| variable(KEY_VARIABLE));
            return Self::open(address, credentials.as_deref()).await;
        }
        let data_dir = match &args.data_dir {
            Some(data_dir) => path::absolute(data_dir)?,
            None => local_node::default_data_dir(),
        };
        let node = local_node::running_node(&data_dir)?;
        Self::open(&reachable(node.grpc).to_string(), Some(&node.token)).await
    }

    /// Connects to an address such as `127.0.0.1:9471`, presenting a token or key.
    pub(crate) async fn open(address: &str, credentials: Option<&str>) -> Result<Self, Failure> {
        Self::open_with(address, credentials, |endpoint| endpoint).await
    }

    /// As [`Self::open`], with a connection that `adjust` has a say in.
    pub(crate) async fn open_with(
        address: &str,
        credentials: Option<&str>,
        adjust: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<Self, Failure> {
        let authorization = Authorization::new(credentials)?;
        let wrong = |error| Failure::usage(format!("{address:?} is not an address ({error}); write HOST:PORT"));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(wrong)?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let channel = adjust(endpoint)
            .connect()
            .await
            .map_err(|error| unreachable_node(address, &error))?;
        Ok(Self { channel, authorization })
    }

    pub(crate) fn nodes(&self) -> NodeServiceClient<Authorized> {
        NodeServiceClient::with_interceptor(self.channel.clone(), self.authorization.clone())
    }

    pub(crate) fn deployments(&self) -> DeploymentServiceClient<Authorized> {
        DeploymentServiceClient::with_interceptor(self.channel.clone(), self.authorization.clone())
    }

    pub(crate) fn lifecycle(&self) -> LifecycleServiceClient<Authorized> {
        LifecycleServiceClient::with_interceptor(self.channel.clone(), self.authorization.clone())
            .max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn inference(&self) -> InferenceServiceClient<Authorized> {
        InferenceServiceClient::with_interceptor(self.channel.clone(), self.authorization.clone())
    }
}

/// The token or key, put into the metadata of every call. Never printed.
#[derive(Clone)]
pub(crate) struct Authorization(Option<MetadataValue<Ascii>>);

impl Authorization {
    fn new(credentials: Option<&str>) -> Result<Self, Failure> {
        let Some(credentials) = credentials else {
            return Ok(Self(None));
        };
        let value = format!("Bearer {credentials}").parse::<MetadataValue<Ascii>>();
        let mut value =
            value.map_err(|_| Failure::usage("the token has characters that cannot be sent; copy it again"))?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
}

impl std::fmt::Debug for Authorization {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authorization(redacted)")
    }
}

impl Interceptor for Authorization {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// An empty variable is as good as none.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A node that listens on every address is reached on this machine's own.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        let loopback = match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        address.set_ip(loopback);
    }
    address
}

fn unreachable_node(address: &str, error: &tonic::transport::Error) -> Failure {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let message = format!("no node answers at {address} ({cause}); start one with `mesh node start`");
    Failure::new(Exit::Unreachable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_listens_everywhere_is_reached_on_loopback() {
        for (listens, reached) in [
            ("0.0.0.0:9471", "127.0.0.1:9471"),
            ("[::]:9471", "[::1]:9471"),
            ("10.0.0.5:1", "10.0.0.5:1"),
        ] {
            assert_eq!(reachable(listens.parse().unwrap()), reached.parse().unwrap());
        }
    }

    #[test]
    fn credentials_are_never_printed() {
        let authorization = Authorization::new(Some("swordfish")).unwrap();
        assert!(!format!("{authorization:?}").contains("swordfish"));
    }

    #[tokio::test]
    async fn a_port_without_a_node_is_exit_code_3() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let failure = Client::open(&address, None).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.to_string().contains("mesh node start"));
    }
}
