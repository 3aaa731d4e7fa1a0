//! Which web pages may ask a node.
//!
//! A browser lets any page send simple requests to any address, loopback included. It tells whose page it is in `Origin`
//! (Fetch standard), and for requests without one, whether it is another site's in `Sec-Fetch-Site` (Fetch Metadata).
//! No client but a browser sends either, so that both are refused unless the page's origin is listed.

use std::str::FromStr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use mesh_proto::{ErrorCode, MeshError};
use tower_http::cors::AllowOrigin;

use crate::generate::shorten;

/// An origin from a client is echoed up to here.
const ECHOED_ORIGIN: usize = 100;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The origin of a web page, such as `https://chat.example` or `http://localhost:3000`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// Why a text is no [`Origin`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no origin of a web page; write scheme, host and port, such as http://localhost:3000")]
pub struct OriginError(String);

impl FromStr for Origin {
    type Err = OriginError;

    /// `null` is no origin: any page can come to have it. Neither is `*`.
    fn from_str(text: &str) -> Result<Self, OriginError> {
        let wrong = || OriginError(shorten(text, ECHOED_ORIGIN));
        let (scheme, host) = text.split_once("://").ok_or_else(wrong)?;
        let visible = |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase() && !"/?#@*\\,".contains(c);
        if scheme.is_empty() || host.is_empty() || !scheme.chars().chain(host.chars()).all(visible) {
            return Err(wrong());
        }
        HeaderValue::from_str(text).map(Self).map_err(|_| wrong())
    }
}

/// The origins that may ask; none by default, not even those of loopback: whatever else runs on this machine would be
/// let in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origins(Vec<Origin>);

impl Origins {
    pub(crate) fn new(listed: Vec<Origin>) -> Self {
        Self(listed)
    }

    /// Lets in whatever is no browser, and pages of the listed origins.
    ///
    /// # Errors
    ///
    /// `permission_denied`.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), MeshError> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (Some(origin), None) if self.has(origin) => Ok(()),
            (Some(origin), _) => Err(refused(&String::from_utf8_lossy(origin.as_bytes()))),
            (None, _) => of_this_site(headers),
        }
    }

    fn has(&self, origin: &HeaderValue) -> bool {
        self.0.iter().any(|listed| listed.0 == origin)
    }

    /// For the answers to them.
    pub(crate) fn cors(&self) -> AllowOrigin {
        AllowOrigin::list(self.0.iter().map(|origin| origin.0.clone()))
    }
}

/// Requests without an origin: navigation that the user began (`none`), and what a page of this node would send. Pages
/// on other ports of this machine are `same-site`.
fn of_this_site(headers: &HeaderMap) -> Result<(), MeshError> {
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    if sites.all(|site| site == "none" || site == "same-origin") {
        return Ok(());
    }
    Err(forbidden("web pages of other sites"))
}

fn refused(origin: &str) -> MeshError {
    if origin == "null" {
        let message = "web pages without an origin (null), such as files and sandboxed frames, may not ask this node; \
                       serve the page over HTTP and list its origin with --allow-origin";
        return MeshError::new(ErrorCode::PermissionDenied, message);
    }
    forbidden(&format!("web pages of {:?}", shorten(origin, ECHOED_ORIGIN)))
}

fn forbidden(who: &str) -> MeshError {
    let message = format!(
        "{who} may not ask this node; to let them, list their origin with --allow-origin (allow_origins, \
         MESH_ALLOW_ORIGINS)"
    );
    MeshError::new(ErrorCode::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins() -> Origins {
        Origins::new(vec![
            "https://chat.example".parse().unwrap(),
            "http://localhost:3000".parse().unwrap(),
        ])
    }

    fn allows(headers: &[(&'static str, &'static str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        origins().check(&map).is_ok()
    }

    #[test]
    fn only_pages_of_listed_origins_and_no_browser_at_all_are_let_in() {
        for open in [
            &[][..],
            &[("origin", "https://chat.example")],
            &[("origin", "http://localhost:3000"), ("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "same-origin")],
        ] {
            assert!(allows(open), "{open:?}");
        }
        for closed in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "")],
            &[("origin", "http://chat.example")],
            &[("origin", "https://chat.example:8443")],
            &[("origin", "https://chat.example.evil.example")],
            &[("origin", "http://localhost:3001")],
            &[("origin", "https://chat.example"), ("origin", "https://evil.example")],
            &[("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "something-new")],
        ] {
            assert!(!allows(closed), "{closed:?}");
        }
    }

    #[test]
    fn what_is_no_origin_is_refused_as_a_setting() {
        for text in [
            "",
            "null",
            "*",
            "chat.example",
            "https://",
            "://x",
            "https://x/",
            "https://*.x",
            "https://a b",
            "https://X.example",
            "https://user@x",
        ] {
            assert!(text.parse::<Origin>().is_err(), "{text:?}");
        }
        for text in ["http://[::1]:3000", "chrome-extension://abc", "tauri://localhost"] {
            assert!(text.parse::<Origin>().is_ok(), "{text:?}");
        }
    }
}
