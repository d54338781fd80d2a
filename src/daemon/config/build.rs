//! From the configuration to a node.

use super::schema::{Config, PoolSettings, UcxSettings};
use super::value::{Backing, WhenOneSided, WhenUcx};
use crate::cli::exit::Failure;
use kvroom::{Net, Node, NodeBuilder, OneSided, Pinning, Pool, UcxOptions, UcxUse};

/// The most bytes of a node's name.
const MAX_NAME: usize = 64;

impl Config {
    /// The node's name: as it was said, or the host's with the port of HTTP.
    pub(crate) fn node_name(&self, port: Option<u16>) -> String {
        if let Some(name) = &self.top.name {
            return name.clone();
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        derived_name(host.trim(), port)
    }

    /// The node that is to be started, and its pools in memory; others are [`Config::pools_in`].
    /// `port` is the one that HTTP was given, of which the node has its name if it has no other.
    ///
    /// # Errors
    /// The cluster's key cannot be read, or there is not the memory for a pool.
    pub(crate) fn node_builder(
        &self,
        port: Option<u16>,
    ) -> Result<(NodeBuilder, Vec<Pool>), Failure> {
        let node = &self.node;
        let key = crate::cli::node::key(node.cluster_key_file.as_deref())?;
        let addresses = node.listen.iter().map(|address| address.0.clone());
        let net = Net {
            listen: addresses.collect(),
            key,
            connections: node.connections,
            congestion: node.congestion.clone(),
            payload_crc: node.payload_crc,
            shm: node.shm,
            shm_group: node.shm_group,
            ucx: self.ucx.options(),
            ..Net::default()
        };
        let mut builder = Node::builder(&self.node_name(port))
            .net(net)
            .lanes(node.lanes)
            .recorder(self.recorder.entries)
            .limits(self.limits.clone())
            .deadlines(self.deadlines.clone())
            .recorder(self.recorder.entries)
            .pin(Pinning {
                shards: node.pin_shards.clone(),
                lanes: node.pin_lanes.clone(),
            });
        if let Some(shards) = node.shards {
            builder = builder.shards(shards);
        }
        if let Some(spin) = node.spin {
            builder = builder.spin(spin);
        }
        let mut pools = Vec::new();
        for settings in &self.pools {
            let made = match settings.backing {
                Backing::Private => Pool::owned(settings.layout()),
                Backing::Shared => Pool::shared(settings.layout()),
                Backing::File | Backing::Device => continue,
            };
            let pool = made.map_err(|e| Failure::Failed(format!("cannot make a pool: {e}")))?;
            builder = builder.pool(pool.clone());
            pools.push(pool);
        }
        Ok((builder, pools))
    }

    /// Pools in memory of this kind, in their order.
    pub(crate) fn pools_in(&self, backing: Backing) -> impl Iterator<Item = &PoolSettings> {
        let pools = self.pools.iter();
        pools.filter(move |pool| pool.backing == backing)
    }
}

impl UcxSettings {
    /// As the library has them.
    pub(crate) fn options(&self) -> UcxOptions {
        UcxOptions {
            when: match self.when {
                WhenUcx::Off => UcxUse::Off,
                WhenUcx::Rdma => UcxUse::Rdma,
                WhenUcx::Prefer => UcxUse::Prefer,
                WhenUcx::Always => UcxUse::Always,
            },
            one_sided: match self.one_sided {
                WhenOneSided::Rdma => OneSided::Rdma,
                WhenOneSided::Always => OneSided::Always,
            },
            library: self.library.clone(),
            transports: self.transports.clone(),
            devices: self.devices.clone(),
            window_bytes: self.window_bytes.0,
            window_puts: self.window_puts,
            wire_up: self.wire_up,
            flush: self.flush,
            after_failure: self.after_failure,
            close: self.close,
            spin: self.spin,
            retired: self.retired,
        }
    }
}

fn derived_name(host: &str, port: Option<u16>) -> String {
    let host = if host.is_empty() { "kvroom" } else { host };
    let end = match port {
        Some(port) => format!("-{port}"),
        None => String::new(),
    };
    let mut room = MAX_NAME - end.len();
    while !host.is_char_boundary(room.min(host.len())) {
        room -= 1;
    }
    format!("{}{end}", &host[..room.min(host.len())])
}

#[cfg(test)]
mod tests {
    use super::super::schema::ROWS;
    use super::super::value::Raw;
    use super::*;

    #[test]
    fn a_daemon_that_says_nothing_of_ucx_uses_it_as_the_library_does_and_each_key_is_passed_on() {
        let mut settings = UcxSettings::default();
        assert_eq!(settings.options(), UcxOptions::default());
        for row in ROWS.iter().filter(|row| row.table == "ucx") {
            let word = match row.key {
                "when" | "one_sided" => "always",
                "library" | "transports" | "devices" => "x",
                "window_bytes" => "8KiB",
                "window_puts" | "retired" => "7",
                _ => "9ms",
            };
            // All times but `spin` have to be longer.
            let word = if matches!(row.key, "wire_up" | "flush" | "close") {
                "99ms"
            } else {
                word
            };
            let mut config = Config::default();
            row.read(&mut config, &Raw::Word(word.into())).unwrap();
            assert_ne!(
                config.ucx.options(),
                UcxOptions::default(),
                "{} is passed on",
                row.path()
            );
            settings = config.ucx;
        }
        assert_eq!(settings.options().retired, 7);
    }

    #[test]
    fn a_node_without_a_name_has_that_of_the_host_with_the_port() {
        assert_eq!(derived_name("box", Some(7480)), "box-7480");
        assert_eq!(derived_name("box", None), "box");
        assert_eq!(derived_name("", Some(1)), "kvroom-1");
        let long = derived_name(&"é".repeat(64), Some(65535));
        assert!(long.len() <= MAX_NAME && long.ends_with("-65535"), "{long}");
    }
}
