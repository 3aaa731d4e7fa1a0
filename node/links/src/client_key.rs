//! The key that this node's gateway asks of clients, as other nodes hear of it.
//!
//! A key is the mesh's: a node with one does nothing for the clients of a gateway that does not have it too. The asking
//! node proves that it has the key with each request; the proof is worth nothing on another connection and does not
//! tell the key.

use std::{fmt, sync::Arc};

use constant_time_eq::constant_time_eq;
use iroh::endpoint::Connection;
use mesh_proto::{
    ErrorCode, MeshError,
    wire::{ControlRequest, KeyAgreement, StageSpec, control_request::Request},
};

use crate::{admission::exporter, ticket::mac};

/// Label of the exporter that a proof covers; not that of joins, whose proofs have another key.
const EXPORTER_LABEL: &[u8] = b"EXPERIMENTAL mesh client key 1";

/// None, or the key. Cheap to clone, never printed.
#[derive(Clone, Default)]
pub struct ClientKey(Option<Arc<[u8]>>);

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "ClientKey(redacted)"
        } else {
            "ClientKey(none)"
        })
    }
}

impl ClientKey {
    /// The node's API key, if it has one.
    pub fn new(key: Option<&str>) -> Self {
        Self(key.map(|key| key.as_bytes().into()))
    }

    /// What proves the key on one connection; empty without a key.
    pub(crate) fn proof(&self, connection: &Connection) -> Result<Vec<u8>, MeshError> {
        let Some(key) = &self.0 else {
            return Ok(Vec::new());
        };
        Ok(mac(key, &exporter(connection, EXPORTER_LABEL)?))
    }
}

/// Who asks on a connection, as far as keys go: one for each connection.
#[derive(Debug, Clone)]
pub struct KeyCheck {
    /// Of this node's key; empty without one.
    own: Vec<u8>,
}

impl KeyCheck {
    pub fn new(key: &ClientKey, connection: &Connection) -> Result<Self, MeshError> {
        Ok(Self {
            own: key.proof(connection)?,
        })
    }

    /// How the key behind a proof compares with this node's.
    pub fn agreement(&self, proof: &[u8]) -> KeyAgreement {
        match (self.own.is_empty(), proof.is_empty()) {
            (true, true) => KeyAgreement::Same,
            (false, true) => KeyAgreement::AskerHasNone,
            (true, false) => KeyAgreement::AnswererHasNone,
            (false, false) if constant_time_eq(&self.own, proof) => KeyAgreement::Same,
            (false, false) => KeyAgreement::Different,
        }
    }

    /// Whether this node does what is asked.
    ///
    /// # Errors
    ///
    /// It is for clients of a gateway that does not ask them for this node's key, or the head of a model would be where
    /// the gateway does not ask for its owner's.
    pub fn allows(&self, request: &ControlRequest, asker: &str, own: &str) -> Result<(), MeshError> {
        let agreement = self.agreement(&request.key_proof);
        match &request.request {
            Some(
                Request::Generate(_)
                | Request::Subscribe(_)
                | Request::ListRequests(_)
                | Request::GetReceipt(_)
                | Request::Cancel(_),
            ) => serves(agreement, asker, own),
            Some(Request::HostStage(host)) => hosts(agreement, host.spec.as_ref(), asker, own),
            _ => Ok(()),
        }
    }
}

/// For clients of the asker's gateway.
fn serves(agreement: KeyAgreement, asker: &str, own: &str) -> Result<(), MeshError> {
    let what = match agreement {
        KeyAgreement::AskerHasNone => format!("node {asker} has no API key, and node {own} has one"),
        KeyAgreement::Different => format!("node {asker} has another API key than node {own}"),
        KeyAgreement::Same | KeyAgreement::AnswererHasNone | KeyAgreement::Unspecified => return Ok(()),
    };
    let message = format!("{what}; start node {asker} with the same MESH_API_KEY, or ask node {own} itself");
    Err(MeshError::new(ErrorCode::PermissionDenied, message))
}

/// The head answers the clients of its own node's gateway: that must ask for the key of the model's owner.
fn hosts(agreement: KeyAgreement, spec: Option<&StageSpec>, owner: &str, own: &str) -> Result<(), MeshError> {
    if spec.is_none_or(|spec| spec.stage != 0) {
        return Ok(());
    }
    let what = match agreement {
        KeyAgreement::Same | KeyAgreement::Unspecified => return Ok(()),
        KeyAgreement::AskerHasNone => format!("node {own} has an API key, and node {owner} has none"),
        KeyAgreement::AnswererHasNone => format!("node {owner} has an API key, and node {own} has none"),
        KeyAgreement::Different => format!("node {owner} has another API key than node {own}"),
    };
    let message = format!(
        "{what}: the first layers of a model must be on a node with its owner's key; start both with the same \
         MESH_API_KEY, or name another node for the first layers with --stages"
    );
    Err(MeshError::new(ErrorCode::PermissionDenied, message))
}

/// Says in the log of this node, which asked, what does not fit.
pub fn tell(agreement: KeyAgreement) {
    match agreement {
        KeyAgreement::Same | KeyAgreement::Unspecified => {}
        KeyAgreement::AskerHasNone => tracing::warn!(
            "this mesh has an API key, and this node has none: its clients are refused what other nodes do; start it \
             again with the same MESH_API_KEY"
        ),
        KeyAgreement::AnswererHasNone => tracing::warn!(
            "this node has an API key, and the node that admits others has none: its clients are refused what this \
             node does; start that one again with the same MESH_API_KEY"
        ),
        KeyAgreement::Different => tracing::warn!(
            "this node has another API key than the mesh: its clients are refused what other nodes do; start it again \
             with the same MESH_API_KEY"
        ),
    }
}

#[cfg(test)]
mod tests {
    use mesh_proto::{
        v1::{CancelRequestRequest, GetReceiptRequest, ListRequestsRequest, SubscribeRequest},
        wire::{FetchRequest, GenerateCall, HostStage, LanesRequest},
    };

    use super::*;

    fn check(own: &str) -> KeyCheck {
        KeyCheck {
            own: own.as_bytes().to_vec(),
        }
    }

    fn asks(own: &str, proof: &str, request: Request) -> Result<(), MeshError> {
        let request = ControlRequest {
            request: Some(request),
            key_proof: proof.as_bytes().to_vec(),
        };
        check(own).allows(&request, "b", "a")
    }

    fn for_clients() -> [Request; 5] {
        [
            Request::Generate(GenerateCall::default()),
            Request::Subscribe(SubscribeRequest::default()),
            Request::ListRequests(ListRequestsRequest::default()),
            Request::GetReceipt(GetReceiptRequest::default()),
            Request::Cancel(CancelRequestRequest::default()),
        ]
    }

    #[test]
    fn a_node_with_a_key_serves_no_clients_of_a_gateway_without_it() {
        for request in for_clients() {
            for wrong in ["", "other", "ke", "key2"] {
                let refused = asks("key", wrong, request.clone()).expect_err(wrong);
                assert_eq!(refused.code, ErrorCode::PermissionDenied);
                assert!(refused.message.contains("MESH_API_KEY"), "{refused}");
            }
            asks("key", "key", request.clone()).unwrap();
            asks("", "", request.clone()).unwrap();
            asks("", "key", request).unwrap();
        }
    }

    #[test]
    fn a_head_is_only_where_the_key_is_its_owners() {
        let host = |stage| {
            Request::HostStage(HostStage {
                spec: Some(StageSpec {
                    stage,
                    ..StageSpec::default()
                }),
            })
        };
        for (own, owner) in [("", "key"), ("key", ""), ("key", "other")] {
            assert!(asks(own, owner, host(0)).is_err(), "{own:?} {owner:?}");
            asks(own, owner, host(1)).unwrap();
        }
        asks("key", "key", host(0)).unwrap();
        asks("", "", host(0)).unwrap();
    }

    #[test]
    fn what_nodes_do_among_themselves_needs_no_key() {
        for request in [
            Request::Fetch(FetchRequest::default()),
            Request::Lanes(LanesRequest::default()),
        ] {
            asks("key", "", request).unwrap();
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        assert!(!format!("{:?}", ClientKey::new(Some("swordfish"))).contains("swordfish"));
    }
}
