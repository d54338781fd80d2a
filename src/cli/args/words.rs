//! Words of a command line that have parts: a pool, an address.

/// A pool as the command line says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolSpec {
    pub(crate) name: String,
    pub(crate) layers: u32,
    pub(crate) pages: u32,
    pub(crate) page_bytes: u64,
}

impl std::str::FromStr for PoolSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PoolSpec, String> {
        let mut parts = text.rsplitn(4, ':');
        let (bytes, pages, layers, name) = (parts.next(), parts.next(), parts.next(), parts.next());
        let (Some(bytes), Some(pages), Some(layers), Some(name)) = (bytes, pages, layers, name)
        else {
            return Err("write NAME:LAYERS:PAGES:PAGE_BYTES, for example kv:32:512:16384".into());
        };
        if name.is_empty() {
            return Err("the pool has no name".into());
        }
        fn number<T: std::str::FromStr + PartialOrd + From<u8>>(
            what: &str,
            text: &str,
        ) -> Result<T, String> {
            match text.parse() {
                Ok(n) if n >= T::from(1) => Ok(n),
                _ => Err(format!("{what} {text:?} is not a whole number from 1")),
            }
        }
        Ok(PoolSpec {
            name: name.to_owned(),
            layers: number("layers", layers)?,
            pages: number("pages", pages)?,
            page_bytes: number("page bytes", bytes)?,
        })
    }
}

/// Whether this can be an address at all; whether it can be used is for the library to find out.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let fits = match text.split_once("://") {
        Some(("tcp", rest)) => rest.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        }),
        Some(("unix", rest)) => rest.starts_with('/') && rest.len() > 1,
        _ => false,
    };
    if fits {
        Ok(text.to_owned())
    } else {
        Err("write tcp://HOST:PORT or unix:///PATH".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_and_shaped_by_one_word() {
        let pool: PoolSpec = "a:b:2:3:4096".parse().unwrap();
        assert_eq!(
            pool,
            PoolSpec {
                name: "a:b".into(),
                layers: 2,
                pages: 3,
                page_bytes: 4096
            }
        );
        for bad in [
            "kv",
            "kv:1:2",
            ":1:2:3",
            "kv:0:2:3",
            "kv:1:x:3",
            "kv:1:2:-3",
        ] {
            assert!(bad.parse::<PoolSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_words_that_can_be_addresses_are_taken() {
        for good in [
            "tcp://127.0.0.1:0",
            "tcp://[::1]:7",
            "tcp://host:65535",
            "unix:///a",
        ] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "host:7",
            "tcp://host",
            "tcp://:7",
            "tcp://h:65536",
            "tcp://a/b:1",
            "unix://a",
            "unix:///",
            "local://a",
            "udp://h:1",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
