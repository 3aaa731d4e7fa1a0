//! Under which names a node is asked.
//!
//! A page whose name is made to resolve to this machine (DNS rebinding) counts as of the same origin to its browser: it
//! sends no `Origin` that gives it away, and may read the answers. What it cannot change is the name in `Host`.

use std::{net::IpAddr, str::FromStr};

use axum::http::{HeaderMap, Uri, header, uri::Authority};
use mesh_proto::{ErrorCode, MeshError};

use crate::generate::shorten;

/// A name from a client is echoed up to here.
const ECHOED_HOST: usize = 100;

/// A host's name or address, without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

/// Why a text is no [`HostName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a host; write it without scheme and port, such as gpu-box.example or 192.0.2.7")]
pub struct HostNameError(String);

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        let wrong = || HostNameError(shorten(text, ECHOED_HOST));
        let text = match text.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => text.to_owned(),
        };
        let authority: Authority = text.parse().map_err(|_| wrong())?;
        let is_host = authority.port().is_none() && !text.contains(['@', ':']) || text.starts_with('[');
        is_host.then(|| Self(normal(authority.host()))).ok_or_else(wrong)
    }
}

/// Lower case, without the dot of a fully qualified name and the brackets of an address.
fn normal(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// The names that a node answers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    any: bool,
    listen: IpAddr,
    names: Vec<HostName>,
}

impl Hosts {
    /// Names and addresses of this machine's loopback, the address of the listener, and these names; each with any port,
    /// since tunnels and containers change it. A listener on every interface answers to every address: who has to be made
    /// to resolve to this node has a name.
    pub fn of(listen: IpAddr, names: Vec<HostName>) -> Self {
        Self {
            any: false,
            listen,
            names,
        }
    }

    /// Every name: for a node whose key is what a page lacks.
    pub fn any() -> Self {
        Self {
            any: true,
            ..Self::of(IpAddr::from([127, 0, 0, 1]), Vec::new())
        }
    }

    /// Lets a request in whose target is a name of this node.
    ///
    /// # Errors
    ///
    /// `permission_denied`, or `invalid_request` if it names no host or several.
    pub(crate) fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), MeshError> {
        if self.any {
            return Ok(());
        }
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            let message = "a request needs one host header; send `host: localhost`, or the name of the node";
            return Err(MeshError::new(ErrorCode::InvalidRequest, message));
        };
        let host = String::from_utf8_lossy(host.as_bytes());
        // A request to a proxy names the host in its target as well.
        let target = uri.authority().map(Authority::as_str);
        match std::iter::once(&*host).chain(target).find(|host| !self.has(host)) {
            None => Ok(()),
            Some(other) => Err(refused(other)),
        }
    }

    fn has(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let port = host.strip_prefix(authority.host());
        if !port.is_some_and(|port| port.is_empty() || port.strip_prefix(':').is_some_and(is_port)) {
            return false;
        }
        let name = normal(authority.host());
        if self.names.iter().any(|known| known.0 == name) || name == "localhost" || name.ends_with(".localhost") {
            return true;
        }
        name.parse::<IpAddr>().is_ok_and(|address| self.has_address(address))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let listens = self.listen.is_unspecified() || address == self.listen;
        address.is_loopback() || (listens && !address.is_unspecified())
    }
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

fn refused(host: &str) -> MeshError {
    let message = format!(
        "{:?} is not a name of this node; if it should be, add it with --allow-host (allow_hosts, MESH_ALLOW_HOSTS), or \
         use localhost or the node's address",
        shorten(host, ECHOED_HOST)
    );
    MeshError::new(ErrorCode::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn allows(hosts: &Hosts, host: &str) -> bool {
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_str(host).unwrap())]);
        hosts.check(&headers, &Uri::from_static("/")).is_ok()
    }

    fn listening(address: &str, names: &[&str]) -> Hosts {
        let names = names.iter().map(|name| name.parse().unwrap()).collect();
        Hosts::of(address.parse().unwrap(), names)
    }

    #[test]
    fn loopback_the_listener_and_listed_names_are_names_of_the_node() {
        let hosts = listening("192.0.2.7", &["GPU-box.example.", "2001:db8::1"]);
        for name in [
            "localhost",
            "LOCALHOST:9470",
            "localhost.:1",
            "mesh.localhost:80",
            "127.0.0.1:9470",
            "127.1.2.3",
            "[::1]:9470",
            "[::ffff:127.0.0.1]",
            "192.0.2.7:80",
            "gpu-box.example:9470",
            "Gpu-Box.Example.",
            "[2001:db8::1]:1",
        ] {
            assert!(allows(&hosts, name), "{name}");
        }
        for name in [
            "",
            "evil.example",
            "evil.example:9470",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
            "192.0.2.8",
            "0.0.0.0",
            "[::]",
            "2130706433",
            "user@localhost",
            "localhost:evil",
            "localhost, evil.example",
            "[::1",
        ] {
            assert!(!allows(&hosts, name), "{name}");
        }
    }

    #[test]
    fn a_listener_on_every_interface_has_every_address_but_no_other_name() {
        let hosts = listening("0.0.0.0", &[]);
        assert!(allows(&hosts, "192.0.2.8:9470") && allows(&hosts, "[2001:db8::2]"));
        assert!(!allows(&hosts, "evil.example") && !allows(&hosts, "0.0.0.0:9470"));
    }

    #[test]
    fn a_request_without_one_host_is_refused_and_one_in_the_target_counts() {
        let hosts = listening("127.0.0.1", &[]);
        let none = hosts
            .check(&HeaderMap::new(), &Uri::from_static("/"))
            .expect_err("none");
        assert_eq!(none.code, ErrorCode::InvalidRequest);
        let local = || (header::HOST, HeaderValue::from_static("localhost"));
        let mut two = HeaderMap::from_iter([local()]);
        two.append(header::HOST, HeaderValue::from_static("localhost"));
        assert!(hosts.check(&two, &Uri::from_static("/")).is_err());
        let one = HeaderMap::from_iter([local()]);
        assert!(hosts.check(&one, &Uri::from_static("http://evil.example/")).is_err());
        assert!(Hosts::any().check(&HeaderMap::new(), &Uri::from_static("/")).is_ok());
    }

    #[test]
    fn what_is_no_name_is_refused_as_a_setting() {
        for text in ["", "http://x", "x:80", "a b", "x/y", "user@x", "[::1"] {
            assert!(text.parse::<HostName>().is_err(), "{text:?}");
        }
        for text in ["x", "x.example", "10.0.0.1", "::1", "[::1]"] {
            assert!(text.parse::<HostName>().is_ok(), "{text:?}");
        }
    }
}
