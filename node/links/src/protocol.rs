//! Names and bounds of the two protocols.

use std::time::Duration;

/// Control streams: one request each.
pub const CONTROL_ALPN: &[u8] = b"mesh/control/1";

/// Stage links: one connection and one stream each.
pub const STAGE_ALPN: &[u8] = b"mesh/stage/1";

/// How long a peer may take to prove that it belongs here, and how long this node waits for a member list to name it.
pub const ADMISSION_LIMIT: Duration = Duration::from_secs(3);

/// How long answering a join may take in all: saving the list, sending it, and the joiner's closing.
pub const JOIN_LIMIT: Duration = Duration::from_secs(8);

/// With these words a node that joined closes the connection of its join: it has read the answer.
pub const JOINED: &[u8] = b"joined";

/// How long a connection may take to open, with [`CONNECT_TRIES`].
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Attempts to open a connection: a node under a flood may push one out, or ask for an address that is validated, which
/// a peer with several addresses can fail once.
pub const CONNECT_TRIES: u32 = 3;

/// How long a peer may take to answer a control request that needs no work.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A connection without any packet for this long is lost. Well under the ten seconds within which the loss of a stage
/// must show, and five missed keep-alives.
pub const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// Keep-alive of connections.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// How long a TLS handshake may take: two round trips, and one lost packet, which a peer sends again after a second.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(2);

/// Connections that may be in their handshake at once, of all addresses and of one. A large mesh whose members all come
/// back at the same moment fits, and so does a machine with some tens of nodes; with the buffers of its handshake a
/// connection takes some tens of kilobytes.
pub const MAX_HANDSHAKES: usize = 256;
/// See [`MAX_HANDSHAKES`].
pub const HANDSHAKES_PER_ADDRESS: usize = 32;

/// With this many handshakes under way, a peer must show first that its address is its own, which costs it a round trip
/// and this node nothing. A mesh that starts has fewer.
pub const RETRY_FROM: usize = 8;

/// Connections of peers that have not proven that they belong here, of all addresses and of one. The first that come
/// too many push out those that have waited longest.
pub const MAX_UNPROVEN: usize = 64;
/// See [`MAX_UNPROVEN`].
pub const UNPROVEN_PER_ADDRESS: usize = 16;

/// Streams of an unproven peer.
pub const UNPROVEN_STREAMS: u32 = 1;

/// Bytes that an unproven peer may have under way on a connection.
pub const UNPROVEN_WINDOW: u32 = 64 * 1024;

/// Largest message of an unproven peer.
pub const UNPROVEN_MESSAGE: usize = 16 * 1024;

/// Control streams of a member at once: its gateway's requests, hosts and watches.
pub const MEMBER_STREAMS: u32 = 1024;

/// Bytes that a member may have under way on a connection: four frames of the largest usual kind.
pub const MEMBER_WINDOW: u32 = 64 * 1024 * 1024;

/// Bytes that one stream may have under way. iroh's QUIC ends a connection when more than 1,024 separate pieces of a
/// stream wait behind losses, which a burst on loopback can reach with a larger window: 2 MiB are fewer than 2,048
/// packets, so they can never form more than 1,024 pieces.
pub const STREAM_WINDOW: u32 = 2 * 1024 * 1024;

/// Largest control message: a prompt of the gateway's largest body, and room around it.
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;
