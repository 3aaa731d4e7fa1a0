//! Every environment variable that Mesh reads.

/// Data directory; also where commands look for their node.
pub const HOME: &str = "MESH_HOME";

/// API key that inference needs; required to listen off loopback.
pub const API_KEY: &str = "MESH_API_KEY";

/// Name of the node, as `--name`.
pub const NAME: &str = "MESH_NAME";

/// Administration token, for commands to a node elsewhere (`--grpc`).
pub const TOKEN: &str = "MESH_TOKEN";

/// Log filter, as `--log`.
pub const LOG: &str = "MESH_LOG";

/// Settings of the configuration file can be set as `MESH_NAME`, `MESH_HTTP` and so on.
pub const PREFIX: &str = "MESH_";

/// Which ones: all of [`NodeConfig`](crate::NodeConfig), but the data directory, which is [`HOME`], and those that are
/// text whatever they look like, [`NAME`] and [`API_KEY`].
pub const SETTINGS: &[&str] = &[
    "http",
    "grpc",
    "listen",
    "threads",
    "memory",
    "exact",
    "gpu_layers",
    "allow_hosts",
    "allow_origins",
    "connections_per_address",
    "agent_session_header",
    "events",
    "event_window",
    "receipts",
    "receipt_tokens",
    "insecure",
    "log",
];

/// Worker threads of the async runtime; tokio's own variable.
pub const WORKER_THREADS: &str = "TOKIO_WORKER_THREADS";
