//! Tickets: what a node needs to join a mesh.
//!
//! A ticket is a line of text, `mesh1` and base32 of:
//!
//! ```text
//! 16 bytes   ticket id: 8 random bytes, then the expiry as a big-endian Unix time in seconds
//! 32 bytes   secret: HMAC-SHA256(key of the issuer, ticket id)
//! 32 bytes   id of the issuer
//! rest       UTF-8: socket addresses of the issuer, separated by commas
//! 4 bytes    the first of the BLAKE3 of everything before: a typing error is told from a wrong ticket
//! ```
//!
//! The issuer keeps no list: it computes the secret again from the id. The secret never travels; the joiner proves
//! that it has it by an HMAC over the exporter of its TLS session, which makes a proof useless elsewhere.

use std::{
    fmt,
    net::SocketAddr,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use constant_time_eq::constant_time_eq;
use hmac::{Hmac, Mac};
use mesh_proto::{ErrorCode, MeshError, NodeId};
use sha2::Sha256;

/// How long a ticket is good for.
pub const TICKET_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

const PREFIX: &str = "mesh1";
const ID_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
const NODE_BYTES: usize = 32;
const CHECK_BYTES: usize = 4;

/// Longest ticket in text: 40 addresses fit.
const MAX_TEXT: usize = 4096;

/// A ticket that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// It is not a ticket at all.
    #[error("this is not a ticket; pass the line that `mesh node ticket` printed")]
    NotATicket,
    /// Some of it is missing or changed.
    #[error("the ticket is damaged; copy the whole line that `mesh node ticket` printed")]
    Damaged,
}

impl From<TicketError> for MeshError {
    fn from(error: TicketError) -> Self {
        Self::invalid("ticket", error.to_string())
    }
}

/// What a node needs to join.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) id: [u8; ID_BYTES],
    pub(crate) secret: [u8; SECRET_BYTES],
    /// Node that issued it.
    pub issuer: NodeId,
    /// Where that node listens.
    pub addresses: Vec<SocketAddr>,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("issuer", &self.issuer)
            .field("secret", &"…")
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        let mut bytes = [
            &self.id[..],
            &self.secret,
            &self.issuer.0,
            addresses.join(",").as_bytes(),
        ]
        .concat();
        bytes.extend_from_slice(&blake3::hash(&bytes).as_bytes()[..CHECK_BYTES]);
        write!(
            f,
            "{PREFIX}{}",
            data_encoding::BASE32_NOPAD.encode(&bytes).to_ascii_lowercase()
        )
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        let body = text
            .strip_prefix(PREFIX)
            .filter(|_| text.len() <= MAX_TEXT)
            .ok_or(TicketError::NotATicket)?;
        let bytes = data_encoding::BASE32_NOPAD
            .decode(body.to_ascii_uppercase().as_bytes())
            .map_err(|_| TicketError::Damaged)?;
        let content = bytes.len().checked_sub(CHECK_BYTES).ok_or(TicketError::Damaged)?;
        let (content, check) = bytes.split_at(content);
        if blake3::hash(content).as_bytes()[..CHECK_BYTES] != *check {
            return Err(TicketError::Damaged);
        }
        let (id, rest) = content.split_first_chunk::<ID_BYTES>().ok_or(TicketError::Damaged)?;
        let (secret, rest) = rest.split_first_chunk::<SECRET_BYTES>().ok_or(TicketError::Damaged)?;
        let (issuer, rest) = rest.split_first_chunk::<NODE_BYTES>().ok_or(TicketError::Damaged)?;
        let addresses = std::str::from_utf8(rest).map_err(|_| TicketError::Damaged)?;
        let addresses = addresses.split(',').filter(|address| !address.is_empty());
        Ok(Self {
            id: *id,
            secret: *secret,
            issuer: NodeId(*issuer),
            addresses: addresses
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map_err(|_| TicketError::Damaged)?,
        })
    }
}

impl Ticket {
    /// When it ends, Unix time in seconds.
    pub fn expires(&self) -> u64 {
        expiry(&self.id)
    }

    /// The joiner's proof for one TLS session.
    pub(crate) fn proof(&self, exporter: &[u8]) -> Vec<u8> {
        mac(&self.secret, exporter)
    }
}

fn expiry(id: &[u8; ID_BYTES]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&id[8..]);
    u64::from_be_bytes(bytes)
}

pub(crate) fn mac(key: &[u8], message: &[u8]) -> Vec<u8> {
    // HMAC takes keys of any length, so this cannot fail; an empty tag equals no proof.
    Hmac::<Sha256>::new_from_slice(key)
        .map(|mut mac| {
            mac.update(message);
            mac.finalize().into_bytes().to_vec()
        })
        .unwrap_or_default()
}

/// Makes and checks tickets.
#[derive(Clone)]
pub struct TicketIssuer {
    key: [u8; 32],
}

impl fmt::Debug for TicketIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketIssuer")
    }
}

impl TicketIssuer {
    /// The key is derived from the node's secret key, so tickets outlive a restart.
    pub fn new(node_secret: &[u8; 32]) -> Self {
        Self {
            key: blake3::derive_key("mesh 2026 ticket issuer", node_secret),
        }
    }

    /// A new ticket, good for several joins within [`TICKET_LIFE`], and later than those that were revoked: `revoked` is
    /// the Unix time in seconds up to which tickets are no longer good.
    ///
    /// # Errors
    ///
    /// The system gives no random bytes.
    pub fn issue(&self, issuer: NodeId, addresses: Vec<SocketAddr>, revoked: u64) -> Result<Ticket, MeshError> {
        let issued = now().max(revoked.saturating_add(1));
        self.issue_until(issuer, addresses, issued.saturating_add(TICKET_LIFE.as_secs()))
    }

    fn issue_until(&self, issuer: NodeId, addresses: Vec<SocketAddr>, expires: u64) -> Result<Ticket, MeshError> {
        let mut id = [0; ID_BYTES];
        getrandom::fill(&mut id[..8]).map_err(|error| MeshError::internal(format!("no random bytes: {error}")))?;
        id[8..].copy_from_slice(&expires.to_be_bytes());
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(&mac(&self.key, &id));
        Ok(Ticket {
            id,
            secret,
            issuer,
            addresses,
        })
    }

    /// Checks a joiner's proof for one TLS session. Tickets issued up to `revoked` are no longer good.
    pub(crate) fn check(&self, ticket_id: &[u8], proof: &[u8], exporter: &[u8], revoked: u64) -> Result<(), MeshError> {
        let refuse = |message: &str| Err(MeshError::new(ErrorCode::Unauthenticated, message).with_param("ticket"));
        let Ok(id) = <&[u8; ID_BYTES]>::try_from(ticket_id) else {
            return refuse("the ticket is not from this mesh; get one with `mesh node ticket`");
        };
        let expected = mac(&mac(&self.key, id), exporter);
        if expected.is_empty() || !constant_time_eq(&expected, proof) {
            return refuse("the ticket is not from this node, or was altered; get a new one with `mesh node ticket`");
        }
        // Only after the proof: who has no ticket learns nothing about its expiry.
        if expiry(id) <= now() {
            return refuse("the ticket has expired; get a new one with `mesh node ticket`");
        }
        if expiry(id).saturating_sub(TICKET_LIFE.as_secs()) <= revoked {
            let message = "the ticket was printed before a node was removed from the mesh; get a new one with `mesh \
                           node ticket`";
            return refuse(message);
        }
        Ok(())
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer() -> TicketIssuer {
        TicketIssuer::new(&[7; 32])
    }

    fn ticket() -> Ticket {
        issuer()
            .issue(
                NodeId([3; 32]),
                vec!["127.0.0.1:4".parse().unwrap(), "[::1]:5".parse().unwrap()],
                0,
            )
            .unwrap()
    }

    #[test]
    fn a_ticket_survives_text() {
        let ticket = ticket();
        assert_eq!(ticket.to_string().parse(), Ok(ticket.clone()));
        assert_eq!(format!("  {ticket}\n").parse(), Ok(ticket));
    }

    #[test]
    fn every_altered_or_cut_ticket_is_damaged() {
        let text = ticket().to_string();
        for at in PREFIX.len()..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'a' { b'b' } else { b'a' };
            assert!(String::from_utf8(bytes).unwrap().parse::<Ticket>().is_err());
            assert!(text[..at].parse::<Ticket>().is_err());
        }
        assert_eq!("hello".parse::<Ticket>(), Err(TicketError::NotATicket));
        assert_eq!("".parse::<Ticket>(), Err(TicketError::NotATicket));
    }

    #[test]
    fn a_proof_is_good_for_its_session_and_issuer_only() {
        let ticket = ticket();
        let proof = ticket.proof(b"session");
        assert_eq!(issuer().check(&ticket.id, &proof, b"session", 0), Ok(()));
        for (id, proof, session) in [
            (&ticket.id[..], &proof[..], &b"another"[..]),
            (&ticket.id[..], &[][..], &b"session"[..]),
            (&ticket.id[..15], &proof[..], &b"session"[..]),
        ] {
            assert!(issuer().check(id, proof, session, 0).is_err());
        }
        assert!(
            TicketIssuer::new(&[8; 32])
                .check(&ticket.id, &proof, b"session", 0)
                .is_err()
        );
    }

    #[test]
    fn a_ticket_from_before_a_removal_is_no_longer_good_and_one_from_after_it_is_in_the_same_second() {
        let (old, removed) = (ticket(), now());
        let error = issuer()
            .check(&old.id, &old.proof(b"s"), b"s", removed)
            .expect_err("revoked");
        assert!(error.message.contains("removed"), "{error}");
        let new = issuer().issue(NodeId([3; 32]), Vec::new(), removed).unwrap();
        assert_eq!(issuer().check(&new.id, &new.proof(b"s"), b"s", removed), Ok(()));
    }

    #[test]
    fn an_expired_ticket_says_so_and_a_later_expiry_cannot_be_claimed() {
        let mut old = issuer().issue_until(NodeId([3; 32]), Vec::new(), 1_000).unwrap();
        let error = issuer().check(&old.id, &old.proof(b"s"), b"s", 0).expect_err("expired");
        assert!(error.message.contains("expired"), "{error}");
        old.id[8..].copy_from_slice(&u64::MAX.to_be_bytes());
        let error = issuer().check(&old.id, &old.proof(b"s"), b"s", 0).expect_err("altered");
        assert!(error.message.contains("altered"), "{error}");
    }
}
