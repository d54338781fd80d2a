//! Contradictions: values that are right by themselves and not together.

use super::schema::{Config, POOL, PoolSettings};
use super::source::{Complaint, Origins};
use super::value::{Backing, Listen, Setting};
use crate::daemon::devices::Named;
use crate::daemon::health::CANARY;
use std::collections::BTreeMap;

/// Devices of one daemon: each has a thread and slots of its own.
const MAX_DEVICES: usize = 64;

/// What is wrong with the whole, each where the first of its keys was said.
pub(super) fn check(config: &Config, origins: &Origins) -> Vec<Complaint> {
    let mut checking = Checking {
        origins,
        complaints: Vec::new(),
    };
    checking.http(config);
    checking.node(config);
    checking.devices(config);
    checking.deadlines(config);
    checking.health(config);
    checking.pools(&config.pools);
    checking.pools_on_devices(config);
    checking.complaints
}

struct Checking<'a> {
    origins: &'a Origins,
    complaints: Vec<Complaint>,
}

impl Checking<'_> {
    /// These keys, of which the one to blame comes first, contradict each other.
    fn contradict(&mut self, paths: &[&str], what: impl Into<String>) {
        if self.origins.are_read(paths) {
            let at = self.origins.first_said(paths);
            let what = what.into();
            self.complaints.push(Complaint { at, what });
        }
    }

    fn http(&mut self, config: &Config) {
        let http = &config.http;
        if http.tls_cert.is_some() && http.tls_key.is_none() {
            let what = "http.tls_cert needs http.tls_key, the private key of the certificate";
            self.contradict(&["http.tls_cert", "http.tls_key"], what);
        }
        if http.tls_key.is_some() && http.tls_cert.is_none() {
            let what = "http.tls_key needs http.tls_cert, the certificate of the key";
            self.contradict(&["http.tls_key", "http.tls_cert"], what);
        }
        if http.tls_client_ca.is_some() && http.tls_cert.is_none() {
            let what = "http.tls_client_ca needs http.tls_cert and http.tls_key: clients show \
                        certificates over TLS only";
            self.contradict(&["http.tls_client_ca", "http.tls_cert"], what);
        }
        if http.listen.is_empty() {
            let what = "http.listen is empty; name an address at least";
            self.contradict(&["http.listen"], what);
        }
        let open = http.listen.iter().find(|listen| !listen.is_local());
        if let Some(open) = open
            && http.token_file.is_none()
            && http.tls_client_ca.is_none()
        {
            let what = format!(
                "http.listen: other machines can reach {open}; set http.token_file, or \
                 http.tls_client_ca with a certificate, or listen on 127.0.0.1 only"
            );
            let paths = ["http.listen", "http.token_file", "http.tls_client_ca"];
            self.contradict(&paths, what);
        }
        for (i, listen) in http.listen.iter().enumerate() {
            let any = matches!(listen, Listen::Tcp(address) if address.port() == 0);
            if !any && http.listen[..i].contains(listen) {
                let what = format!("http.listen names {listen} twice");
                self.contradict(&["http.listen"], what);
            }
        }
        if http.rate_burst.is_some() && http.rate_per_second.is_none() {
            let what = "http.rate_burst needs http.rate_per_second; without it there is no bound";
            self.contradict(&["http.rate_burst", "http.rate_per_second"], what);
        }
    }

    fn node(&mut self, config: &Config) {
        let node = &config.node;
        if let Some(name) = &config.top.name
            && name.len() > 64
        {
            let what = format!("name has {} bytes; give it 1 to 64", name.len());
            self.contradict(&["name"], what);
        }
        let (given, lanes) = (node.pin_lanes.len(), node.lanes);
        if given > lanes {
            let what = format!("node.pin_lanes names {given} processors and node.lanes is {lanes}");
            self.contradict(&["node.pin_lanes", "node.lanes"], what);
        }
        if let Some(shards) = node.shards
            && node.pin_shards.len() > shards
        {
            let given = node.pin_shards.len();
            let what =
                format!("node.pin_shards names {given} processors and node.shards is {shards}");
            self.contradict(&["node.pin_shards", "node.shards"], what);
        }
        if node.shm_group.is_some() && !node.shm {
            let what = "node.shm_group needs node.shm = true; leave one of them out";
            self.contradict(&["node.shm_group", "node.shm"], what);
        }
        for (i, address) in node.listen.iter().enumerate() {
            if !address.0.ends_with(":0") && node.listen[..i].contains(address) {
                let what = format!("node.listen names {} twice", address.0);
                self.contradict(&["node.listen"], what);
            }
        }
    }

    fn devices(&mut self, config: &Config) {
        let ordinals = &config.devices.ordinals;
        for (i, ordinal) in ordinals.iter().enumerate() {
            if ordinals[..i].contains(ordinal) {
                let what = format!("devices.ordinals names device {ordinal} twice");
                self.contradict(&["devices.ordinals"], what);
            }
        }
        if ordinals.len() > MAX_DEVICES {
            let what = format!(
                "devices.ordinals names {} devices; {MAX_DEVICES} are possible",
                ordinals.len()
            );
            self.contradict(&["devices.ordinals"], what);
        }
    }

    fn deadlines(&mut self, config: &Config) {
        let all = &config.deadlines;
        if all.ping >= all.liveness {
            let what = format!(
                "deadlines.ping ({:?}) must be less than deadlines.liveness ({:?}): a peer must be \
                 asked before it is given up; lower the one or raise the other",
                all.ping, all.liveness
            );
            self.contradict(&["deadlines.ping", "deadlines.liveness"], what);
        }
        if all.backoff_first > all.backoff_most {
            let what = format!(
                "deadlines.backoff_first ({:?}) is more than deadlines.backoff_most ({:?})",
                all.backoff_first, all.backoff_most
            );
            self.contradict(&["deadlines.backoff_first", "deadlines.backoff_most"], what);
        }
    }

    fn health(&mut self, config: &Config) {
        if config.health.canary {
            return;
        }
        for path in ["health.canary_interval", "health.canary_deadline"] {
            if *self.origins.of(path) != super::source::Origin::Default {
                let what = format!("{path} has no meaning with health.canary = false");
                self.contradict(&[path, "health.canary"], what);
            }
        }
    }

    fn pools(&mut self, pools: &[PoolSettings]) {
        let mut names = BTreeMap::new();
        let mut files = BTreeMap::new();
        for (number, pool) in pools.iter().enumerate() {
            let path = PoolSettings::path_of(number);
            let paths = [path.as_str(), POOL];
            if let Some(first) = names.insert(&pool.name, path.clone()) {
                let first = self.origins.first_said(&[&first, POOL]);
                let name = &pool.name;
                let what = format!("there is a pool {name:?} already ({first}); rename one");
                self.contradict(&paths, what);
            }
            if pool.name == CANARY {
                let what = format!("the pool {CANARY:?} is the daemon's own; rename this one");
                self.contradict(&paths, what);
            }
            if let Err(why) = pool.layout().validate() {
                self.contradict(&paths, why.to_string());
            }
            match (pool.backing, &pool.path) {
                (Backing::File, None) => {
                    let what = format!("pool {:?}: backing = \"file\" needs a path", pool.name);
                    self.contradict(&paths, what);
                }
                (Backing::File, Some(file)) => {
                    if let Some(other) = files.insert(file, &pool.name) {
                        let file = file.display();
                        let what = format!("pool {other:?} is in the file {file} already");
                        self.contradict(&paths, what);
                    }
                }
                // What is wrong with these is said by `pools_on_devices`.
                (Backing::Device, _) => {}
                _ if pool.device.is_some() => {}
                (_, Some(_)) => {
                    let name = &pool.name;
                    let what = format!("pool {name:?}: a path needs backing = \"file\"");
                    self.contradict(&paths, what);
                }
                (_, None) if pool.create => {
                    let name = &pool.name;
                    let what = format!(
                        "pool {name:?}: create is for files only; set backing = \"file\" and a path"
                    );
                    self.contradict(&paths, what);
                }
                (_, None) => {}
            }
        }
    }

    fn pools_on_devices(&mut self, config: &Config) {
        let on_device = |pool: &PoolSettings| pool.backing == Backing::Device;
        let pools = config.pools.iter().enumerate();
        for (number, pool) in pools.filter(|(_, p)| p.device.is_some() || on_device(p)) {
            let path = PoolSettings::path_of(number);
            let paths = [path.as_str(), POOL];
            let name = &pool.name;
            match pool.device {
                Some(_) if !on_device(pool) => {
                    let backing = pool.backing.show();
                    let what = format!(
                        "pool {name:?}: backing = {backing} is memory of the host, and device = … is not: leave \
                         one of them out"
                    );
                    self.contradict(&paths, what);
                }
                Some(device) => self.may_use(config, device, name, &paths),
                None => {
                    let what = format!(
                        "pool {name:?}: backing = \"device\" needs a device, by its number or its UUID"
                    );
                    self.contradict(&paths, what);
                }
            }
            let file = [("path", pool.path.is_some()), ("create", pool.create)];
            for (key, _) in file
                .iter()
                .filter(|(_, is_said)| *is_said && on_device(pool))
            {
                let what = format!(
                    "pool {name:?}: {key} is for files only, and memory of a device is none: leave it out"
                );
                self.contradict(&paths, what);
            }
        }
    }

    /// Which number a UUID is, is known to the driver only: then it is looked at when the daemon starts.
    fn may_use(&mut self, config: &Config, device: Named, pool: &str, paths: &[&str]) {
        let allowed = &config.devices.ordinals;
        let what = match device {
            Named::Ordinal(ordinal) if !allowed.contains(&ordinal) => {
                let mut all = allowed.clone();
                all.push(ordinal);
                format!(
                    "pool {pool:?}: device {ordinal} may not be used; add it to devices.ordinals (ordinals = {all:?})"
                )
            }
            Named::Uuid(uuid) if allowed.is_empty() => format!(
                "pool {pool:?}: no device may be used; add the number of {uuid} to devices.ordinals \
                 (`nvidia-smi -L` shows it)"
            ),
            _ => return,
        };
        let paths: Vec<&str> = paths.iter().copied().chain(["devices.ordinals"]).collect();
        self.contradict(&paths, what);
    }
}
