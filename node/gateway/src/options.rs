//! Settings of a gateway.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use mesh_actors::ports::telemetry::{NoTelemetry, Telemetry};

use crate::{hosts::Hosts, identity::SessionHeader, limits::ConnectionLimits, origins::Origin, secret::Secret};

/// A 128k-token conversation is about half a megabyte; this leaves room for JSON escapes and tenfold growth.
const BODY_LIMIT: usize = 8 << 20;

/// A body of the limit's size arrives within this at 2.2 Mbit/s.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Common proxies close a response that was idle for 15 to 60 seconds.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Most service managers kill 30 (Kubernetes) to 90 (systemd) seconds after asking.
const DRAIN_DEADLINE: Duration = Duration::from_secs(25);

/// Four deployments with a queue of 64 each; more would only wait, holding a request each.
const MAX_IN_FLIGHT: u32 = 256;

/// Settings of a [`Gateway`](crate::Gateway). [`GatewayOptions::new`] gives the defaults.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// When set, inference needs `authorization: Bearer KEY`. A node that listens off loopback must set it.
    pub api_key: Option<Secret>,
    /// What administration over gRPC needs, always.
    pub admin_token: Secret,
    /// Names under which HTTP is asked (default: those of loopback).
    pub hosts: Hosts,
    /// Origins of web pages that may ask (default: none).
    pub origins: Vec<Origin>,
    /// The header that carries agent sessions; `None` (the default): there are none.
    pub session_header: Option<SessionHeader>,
    /// Hears of refused calls.
    pub telemetry: Arc<dyn Telemetry>,
    /// Largest HTTP body in bytes, 413 above (default 8 MiB). Also the largest gRPC message.
    pub body_limit: usize,
    /// Time for a whole HTTP body to arrive, 408 afterwards (default 30 s).
    pub body_timeout: Duration,
    /// A streamed answer that has nothing to say sends a comment this often (default 10 s).
    pub ping_interval: Duration,
    /// Time that running requests get once the node is told to stop (default 25 s).
    pub drain_deadline: Duration,
    /// Requests that may wait or run at once over HTTP and gRPC together, 429 above (default 256). Fewer if the
    /// connections are few.
    pub max_in_flight: u32,
    /// Connections, and bodies that are being read.
    pub connections: ConnectionLimits,
}

impl GatewayOptions {
    /// The defaults, without an API key.
    pub fn new(admin_token: Secret) -> Self {
        Self {
            api_key: None,
            admin_token,
            hosts: Hosts::of(Ipv4Addr::LOCALHOST.into(), Vec::new()),
            origins: Vec::new(),
            session_header: None,
            telemetry: Arc::new(NoTelemetry),
            body_limit: BODY_LIMIT,
            body_timeout: BODY_TIMEOUT,
            ping_interval: PING_INTERVAL,
            drain_deadline: DRAIN_DEADLINE,
            max_in_flight: MAX_IN_FLIGHT,
            connections: ConnectionLimits::default(),
        }
    }
}
