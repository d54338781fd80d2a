//! Where a daemon is, and what is asked of it.

use super::super::exit::Failure;
use std::fmt::Write;
use std::path::PathBuf;

/// Where a daemon serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// TCP: a host (IPv6 in its brackets) and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Place {
    /// Reads `http://HOST:PORT` or `unix:///PATH`.
    pub(super) fn read(url: &str) -> Result<Place, Failure> {
        let wrong = |why: &str| {
            Err(Failure::Usage(format!(
                "the URL {url:?} of the daemon: {why}; write http://HOST:PORT or unix:///PATH"
            )))
        };
        if let Some(path) = url.strip_prefix("unix://") {
            return if path.starts_with('/') && path.len() > 1 {
                Ok(Place::Unix(PathBuf::from(path)))
            } else {
                wrong("the path of the socket must begin with /")
            };
        }
        if url.starts_with("https://") {
            return wrong("this program asks without TLS; use a Unix socket or loopback, or curl");
        }
        let Some(authority) = url.strip_prefix("http://") else {
            return wrong("it is neither http:// nor unix://");
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
        if !authority.chars().all(fits) {
            return wrong("it has more than a host and a port");
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
            _ => (authority, Some(80)),
        };
        match port {
            Some(port) if !host.is_empty() => Ok(Place::Tcp(host.to_owned(), port)),
            Some(_) => wrong("it has no host"),
            None => wrong("its port is no number up to 65535"),
        }
    }

    /// What the header `Host` has.
    pub(super) fn host(&self) -> String {
        match self {
            Place::Tcp(host, port) => format!("{host}:{port}"),
            Place::Unix(_) => "localhost".to_owned(),
        }
    }
}

/// A path with a query.
#[derive(Clone, Debug)]
pub(super) struct Target(String);

impl Target {
    /// A path without a query yet.
    pub(super) fn new(path: impl Into<String>) -> Target {
        Target(path.into())
    }

    /// One more pair, if there is a value.
    pub(super) fn with(mut self, name: &str, value: Option<impl ToString>) -> Target {
        if let Some(value) = value {
            self.0.push(if self.0.contains('?') { '&' } else { '?' });
            self.0.push_str(name);
            self.0.push('=');
            encode(&value.to_string(), &mut self.0);
        }
        self
    }

    /// As a request has it.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Everything but letters, digits and `-._~` as %XX.
fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            into.push(char::from(byte));
        } else {
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_host_and_port_or_a_socket() {
        let tcp = |host: &str, port| Some(Place::Tcp(host.to_owned(), port));
        for (url, wanted) in [
            ("http://127.0.0.1:7480", tcp("127.0.0.1", 7480)),
            ("http://box:1/", tcp("box", 1)),
            ("http://box", tcp("box", 80)),
            ("http://[::1]:7", tcp("[::1]", 7)),
            ("http://[::1]", tcp("[::1]", 80)),
            ("unix:///run/k", Some(Place::Unix("/run/k".into()))),
            ("", None),
            ("127.0.0.1:7480", None),
            ("https://box", None),
            ("http://", None),
            ("http://:7", None),
            ("http://box:70000", None),
            ("http://box/v1", None),
            ("http://me@box", None),
            ("http://b\r\nx: y", None),
            ("unix://run", None),
            ("unix:///", None),
        ] {
            let place = Place::read(url);
            if let Err(e) = &place {
                assert_eq!(e.exit_code(), super::super::super::exit::USAGE, "{url}");
            }
            assert_eq!(place.ok(), wanted, "{url}");
        }
    }

    #[test]
    fn values_of_a_query_are_encoded() {
        let target = Target::new("/v1/rooms")
            .with("state", Some("done"))
            .with("role", None::<&str>)
            .with("tag", Some("a b&c=ü"));
        assert_eq!(
            target.as_str(),
            "/v1/rooms?state=done&tag=a%20b%26c%3D%C3%BC"
        );
    }
}
