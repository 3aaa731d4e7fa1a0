//! Who may call: the API key for inference, the administration token for everything.

use axum::http::{HeaderMap, header::AUTHORIZATION};
use mesh_proto::{ErrorCode, MeshError};

use crate::secret::Secret;

/// The secrets of this node. HTTP headers and gRPC metadata are checked by the same code.
#[derive(Debug)]
pub(crate) struct Access {
    api_key: Option<Secret>,
    admin_token: Secret,
}

impl Access {
    pub(crate) fn new(api_key: Option<Secret>, admin_token: Secret) -> Self {
        Self { api_key, admin_token }
    }

    /// Inference and reading: open when the node has no API key (whoever listens off loopback must set one), else
    /// the key or the administration token.
    pub(crate) fn user(&self, headers: &HeaderMap) -> Result<(), MeshError> {
        let Some(key) = &self.api_key else { return Ok(()) };
        let presented =
            bearer(headers).ok_or_else(|| refused("no API key was given; send it as `authorization: Bearer KEY`"))?;
        // Both are compared whatever the first says, so that time does not tell which of them failed.
        if key.matches(presented) | self.admin_token.matches(presented) {
            return Ok(());
        }
        Err(refused(
            "the API key is wrong; send the node's key as `authorization: Bearer KEY`",
        ))
    }

    /// Token ids and text of other people's requests: open where inference is open, else the token.
    pub(crate) fn content(&self, headers: &HeaderMap) -> Result<(), MeshError> {
        if self.api_key.is_none() || self.admin(headers).is_ok() {
            return Ok(());
        }
        let message = "token ids and text need the administration token on a node with an API key; send it as \
                       `authorization: Bearer TOKEN`, or leave include_token_ids and include_text out";
        Err(MeshError::new(ErrorCode::PermissionDenied, message))
    }

    /// Administration: always the token.
    pub(crate) fn admin(&self, headers: &HeaderMap) -> Result<(), MeshError> {
        let presented = bearer(headers).ok_or_else(|| {
            refused("no administration token was given; send the one in the node's data directory as `authorization: Bearer TOKEN`")
        })?;
        if self.admin_token.matches(presented) {
            return Ok(());
        }
        Err(refused(
            "the administration token is wrong; use the one in the data directory of this node",
        ))
    }
}

fn refused(message: &str) -> MeshError {
    MeshError::new(ErrorCode::Unauthenticated, message)
}

/// The credentials of a `Bearer` authorization; the scheme's case does not matter (RFC 9110 §11.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, credentials) = value.split_at_checked("bearer ".len())?;
    let credentials = credentials.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !credentials.is_empty()).then_some(credentials)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))])
    }

    fn access(key: Option<&str>) -> Access {
        Access::new(key.map(|key| Secret::new(key).unwrap()), Secret::new("admin").unwrap())
    }

    #[test]
    fn nothing_but_the_key_or_the_token_opens_a_node_with_a_key() {
        let access = access(Some("key"));
        for open in ["Bearer key", "bearer  key", "Bearer admin"] {
            assert!(access.user(&headers(open)).is_ok(), "{open}");
        }
        for closed in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer    ",
            "key",
            "Basic key",
            "Bearer ke",
            "Bearer key2",
        ] {
            assert!(access.user(&headers(closed)).is_err(), "{closed}");
        }
        assert!(access.user(&HeaderMap::new()).is_err());
    }

    #[test]
    fn the_key_alone_does_not_open_token_ids_and_text() {
        assert!(access(None).content(&HeaderMap::new()).is_ok());
        let refused = access(Some("key")).content(&headers("Bearer key")).unwrap_err();
        assert_eq!(refused.code, ErrorCode::PermissionDenied);
        assert!(access(Some("key")).content(&headers("Bearer admin")).is_ok());
    }

    #[test]
    fn administration_needs_the_token_even_where_inference_is_open() {
        let access = access(None);
        assert!(access.user(&HeaderMap::new()).is_ok());
        assert!(access.admin(&HeaderMap::new()).is_err());
        assert!(access.admin(&headers("Bearer ")).is_err());
        assert!(access.admin(&headers("Bearer admin")).is_ok());
    }
}
