//! Where a node is: `tcp://HOST:PORT`, `unix:///PATH`, `local://NAME`.
//!
//! A host is an IPv4 address, an IPv6 address in brackets, or a name, which is looked up each time
//! that it is connected to.

use std::fmt;
use std::path::PathBuf;

/// Longest path of a Unix socket in bytes: what the kernel's address holds, without its last zero.
pub const MAX_UNIX_PATH: usize = 107;

/// An address that has been read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// `tcp://HOST:PORT`.
    Tcp {
        /// A name or an IP address, without brackets.
        host: String,
        /// The port; 0, when listening, for any free one.
        port: u16,
    },
    /// `unix:///PATH`.
    Unix(PathBuf),
    /// `local://NAME`: a node in the same hub.
    Local(String),
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Another scheme, or none.
    #[error("{0:?} begins with none of tcp://, unix:// and local://NAME")]
    Scheme(String),
    /// No port, or no host.
    #[error("{0:?} is not of the form tcp://HOST:PORT")]
    NoPort(String),
    /// A port that is no port.
    #[error("{port:?} in {address:?} is no port: 0 to 65535")]
    Port {
        /// The address.
        address: String,
        /// What stands for the port.
        port: String,
    },
    /// An IPv6 address without brackets, or brackets that do not hold one.
    #[error("the host of {0:?} is no name and no IP address; IPv6 is written tcp://[::1]:PORT")]
    Host(String),
    /// A relative path, or none.
    #[error("{0:?} names no absolute path: write unix:///PATH")]
    Path(String),
    /// A path that does not fit into a socket's address.
    #[error("the path of {address:?} has {len} bytes; a Unix socket's has at most {max}", max = MAX_UNIX_PATH)]
    PathTooLong {
        /// The address.
        address: String,
        /// Its length in bytes.
        len: usize,
    },
    /// No name.
    #[error("{0:?} names no node: write local://NAME")]
    NoName(String),
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// [`AddressError`], which says what is wrong with it.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        if let Some(rest) = text.strip_prefix("tcp://") {
            return tcp(text, rest);
        }
        if let Some(path) = text.strip_prefix("unix://") {
            if !path.starts_with('/') || path.len() == 1 || path.contains('\0') {
                return Err(AddressError::Path(text.to_owned()));
            }
            if path.len() > MAX_UNIX_PATH {
                return Err(AddressError::PathTooLong {
                    address: text.to_owned(),
                    len: path.len(),
                });
            }
            return Ok(Address::Unix(PathBuf::from(path)));
        }
        match text.strip_prefix("local://") {
            Some("") => Err(AddressError::NoName(text.to_owned())),
            Some(name) => Ok(Address::Local(name.to_owned())),
            None => Err(AddressError::Scheme(text.to_owned())),
        }
    }
}

fn tcp(text: &str, rest: &str) -> Result<Address, AddressError> {
    let no_port = || AddressError::NoPort(text.to_owned());
    let (host, port) = rest.rsplit_once(':').ok_or_else(no_port)?;
    let bad_host = || AddressError::Host(text.to_owned());
    let host = match host.strip_prefix('[') {
        Some(inner) => {
            let inner = inner.strip_suffix(']').ok_or_else(bad_host)?;
            inner
                .parse::<std::net::Ipv6Addr>()
                .map_err(|_| bad_host())?;
            inner
        }
        None if host.is_empty() => return Err(no_port()),
        None if host.contains([':', '/', '[', ']', '@', '?', '#'])
            || host.contains(char::is_whitespace) =>
        {
            return Err(bad_host());
        }
        None => host,
    };
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port = match port.parse() {
        Ok(number) if digits => number,
        _ if port.is_empty() => return Err(no_port()),
        _ => {
            return Err(AddressError::Port {
                address: text.to_owned(),
                port: port.to_owned(),
            });
        }
    };
    Ok(Address::Tcp {
        host: host.to_owned(),
        port,
    })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
            Address::Local(name) => write!(f, "local://{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_kind_of_address_is_read_and_written_back_as_it_was() {
        for text in [
            "tcp://127.0.0.1:7400",
            "tcp://[::1]:0",
            "tcp://decode-0.cluster.local:65535",
            "unix:///run/kvroom/p.sock",
            "local://a name: with everything",
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        let v6 = Address::parse("tcp://[fe80::1]:9").unwrap();
        let host = "fe80::1".to_owned();
        assert_eq!(v6, Address::Tcp { host, port: 9 });
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said() {
        use AddressError as E;
        let long = format!("unix:///{}", "x".repeat(107));
        for (text, error) in [
            ("", E::Scheme("".into())),
            ("http://a:1", E::Scheme("http://a:1".into())),
            ("TCP://a:1", E::Scheme("TCP://a:1".into())),
            ("tcp://", E::NoPort("tcp://".into())),
            ("tcp://a", E::NoPort("tcp://a".into())),
            ("tcp://a:", E::NoPort("tcp://a:".into())),
            ("tcp://:1", E::NoPort("tcp://:1".into())),
            ("tcp://::1:1", E::Host("tcp://::1:1".into())),
            ("tcp://[a]:1", E::Host("tcp://[a]:1".into())),
            ("tcp://[::1:1", E::Host("tcp://[::1:1".into())),
            ("tcp://a/b:1", E::Host("tcp://a/b:1".into())),
            (
                "tcp://a:65536",
                E::Port {
                    address: "tcp://a:65536".into(),
                    port: "65536".into(),
                },
            ),
            (
                "tcp://a:+1",
                E::Port {
                    address: "tcp://a:+1".into(),
                    port: "+1".into(),
                },
            ),
            ("unix://", E::Path("unix://".into())),
            ("unix://a", E::Path("unix://a".into())),
            ("unix:///", E::Path("unix:///".into())),
            ("local://", E::NoName("local://".into())),
            (
                &long,
                E::PathTooLong {
                    address: long.clone(),
                    len: 108,
                },
            ),
        ] {
            assert_eq!(Address::parse(text), Err(error.clone()), "{text}");
            if text.len() < 20 {
                assert!(error.to_string().contains(text), "{error}");
            }
        }
    }
}
