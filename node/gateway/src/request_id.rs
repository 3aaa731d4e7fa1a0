//! The id of a request: the client's if it is a UUID, else a new one.

use mesh_proto::RequestId;

/// Name of the HTTP header and of the gRPC metadata entry, both ways.
pub(crate) const HEADER: &str = "x-request-id";

/// Length of a UUID in its usual form, 8-4-4-4-12.
const HYPHENATED: usize = 36;

/// Keeps `given` if it is a UUID with hyphens (in lower case from here on, RFC 9562 §4), else makes an id.
pub(crate) fn keep_or_make(given: Option<&[u8]>) -> RequestId {
    given
        .filter(|given| given.len() == HYPHENATED)
        .and_then(|given| std::str::from_utf8(given).ok()?.parse().ok())
        .unwrap_or_else(RequestId::random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_kept_and_anything_else_replaced() {
        let uuid = "0189d0c1-7a4b-7c3d-9e8f-001122334455";
        assert_eq!(keep_or_make(Some(uuid.as_bytes())).to_string(), uuid);
        assert_eq!(keep_or_make(Some(uuid.to_uppercase().as_bytes())).to_string(), uuid);
        for other in [&b"abc"[..], b"", b"\xff\xfe", b"{0189d0c1-7a4b-7c3d-9e8f-001122334455}"] {
            assert_ne!(keep_or_make(Some(other)).to_string().as_bytes(), other);
        }
        assert_ne!(keep_or_make(None), keep_or_make(None));
    }
}
