//! The schema: every key with its type, default, bounds and words, in one table.
//!
//! ```text
//!   tables! { http: Http { /// words… listen: Vec<Listen> = …; } }
//!       ├─▶ struct Http, Default           what the daemon reads
//!       └─▶ ROWS: [Row<Config>]            TOML, environment, flags, `kvroom config`, the example
//!                                          file and docs/configuration.md
//! ```
//!
//! Rules: a key that is added here is everywhere. The fields of [`Limits`] and [`Deadlines`] come from
//! the lists that `kvroom node` uses, so none can be forgotten.

use super::value::{
    Backing, Bytes, Listen, NodeAddress, Raw, Setting, Shown, WhenOneSided, WhenUcx,
};
use crate::cli::settings::{DEADLINES, LIMITS};
use crate::daemon::devices::Named;
use kvroom::{Deadlines, Limits, Net, Order, PoolKind, UcxOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

/// The effective configuration of the daemon.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Config {
    /// What stands above all tables.
    pub(crate) top: Top,
    /// HTTP.
    pub(crate) http: Http,
    /// The node.
    pub(crate) node: NodeSettings,
    /// UCX.
    pub(crate) ucx: UcxSettings,
    /// Devices that pools can be on.
    pub(crate) devices: DeviceSettings,
    /// Pools that are there from the start.
    pub(crate) pools: Vec<PoolSettings>,
    /// Limits of the node.
    pub(crate) limits: Limits,
    /// Deadlines of the node.
    pub(crate) deadlines: Deadlines,
    /// Health.
    pub(crate) health: HealthSettings,
    /// The flight recorder.
    pub(crate) recorder: RecorderSettings,
    /// The status page.
    pub(crate) status_page: StatusPageSettings,
    /// What is remembered of rooms that are over.
    pub(crate) retention: Retention,
}

/// A key of a `T`.
pub(crate) struct Row<T> {
    /// Its table; empty at the top.
    pub(crate) table: &'static str,
    /// Its name within the table.
    pub(crate) key: &'static str,
    /// What it is, in plain sentences.
    pub(crate) doc: &'static str,
    /// What type, in words.
    pub(crate) kind: &'static str,
    /// What stands for its value in a command line's help.
    pub(crate) word: &'static str,
    /// Whether it is a list.
    pub(crate) list: bool,
    /// Least and most value.
    pub(crate) bounds: Option<(Shown, Shown)>,
    /// A value as TOML has it, for those that have none by default.
    pub(crate) example: Option<&'static str>,
    read: Reader<T>,
    show: Shower<T>,
}

type Reader<T> = Box<dyn Fn(&mut T, &Raw) -> Result<(), String> + Send + Sync>;
type Shower<T> = Box<dyn Fn(&T) -> Shown + Send + Sync>;

impl<T> Row<T> {
    /// `table.key`.
    pub(crate) fn path(&self) -> String {
        self.joined(".")
    }

    /// Its variable in the environment.
    pub(crate) fn variable(&self) -> String {
        format!("KVROOM_{}", self.joined("_").to_uppercase())
    }

    /// Its flag, without the dashes in front.
    pub(crate) fn flag(&self) -> String {
        self.joined("-").replace('_', "-")
    }

    fn joined(&self, by: &str) -> String {
        match self.table {
            "" => self.key.to_owned(),
            table => format!("{table}{by}{}", self.key),
        }
    }

    /// Reads it into its place.
    ///
    /// # Errors
    /// What to write instead; nothing has changed then.
    pub(crate) fn read(&self, into: &mut T, raw: &Raw) -> Result<(), String> {
        (self.read)(into, raw)
    }

    /// Its value.
    pub(crate) fn show(&self, of: &T) -> Shown {
        (self.show)(of)
    }

    /// The same key, of what has a `T`.
    fn lift<U>(self, table: &'static str, part: fn(&mut U) -> &mut T, read: fn(&U) -> &T) -> Row<U>
    where
        T: 'static,
        U: 'static,
    {
        let (reader, shower) = (self.read, self.show);
        Row {
            table,
            key: self.key,
            doc: self.doc,
            kind: self.kind,
            word: self.word,
            list: self.list,
            bounds: self.bounds,
            example: self.example,
            read: Box::new(move |all, raw| reader(part(all), raw)),
            show: Box::new(move |all| shower(read(all))),
        }
    }
}

/// Reads a value that lies within bounds.
fn within<V: Setting>(raw: &Raw, bounds: Option<&(V::Inner, V::Inner)>) -> Result<V, String> {
    let value = V::read(raw)?;
    if let (Some((least, most)), Some(inner)) = (bounds, value.inner())
        && (inner < least || inner > most)
    {
        return Err(format!(
            "{} is not within {} to {}",
            inner.show(),
            least.show(),
            most.show()
        ));
    }
    Ok(value)
}

/// Makes the structs, and for each the rows of its keys.
macro_rules! tables {
    ($(
        $(#[doc = $about:literal])+
        $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $type:ty = $default:expr
                    $(, within $least:expr => $most:expr)?
                    $(, such as $example:literal)?;
            )+
        }
    )+) => {$(
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct $name {
            $(
                $(#[doc = $doc])+
                pub(crate) $key: $type,
            )+
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($key: $default,)+ }
            }
        }

        impl $name {
            /// What the table is about.
            pub(crate) const ABOUT: &'static str = concat!($($about),+);

            fn rows() -> Vec<Row<$name>> {
                vec![$({
                    type Bounds = Option<(
                        <$type as Setting>::Inner,
                        <$type as Setting>::Inner,
                    )>;
                    #[allow(unused_mut, unused_assignments)]
                    let bounds = || -> Bounds {
                        let mut bounds = None;
                        $(bounds = Some(($least, $most));)?
                        bounds
                    };
                    #[allow(unused_mut, unused_assignments)]
                    let example = {
                        let mut example = None;
                        $(example = Some(stringify!($example));)?
                        example
                    };
                    Row {
                        table: "",
                        key: stringify!($key),
                        doc: concat!($($doc),+),
                        kind: <$type as Setting>::KIND,
                        word: <$type as Setting>::WORD,
                        list: <$type as Setting>::LIST,
                        bounds: bounds().map(|(least, most)| (least.show(), most.show())),
                        example,
                        read: Box::new(move |all: &mut $name, raw: &Raw| {
                            all.$key = within::<$type>(raw, bounds().as_ref())?;
                            Ok(())
                        }),
                        show: Box::new(|all: &$name| all.$key.show()),
                    }
                },)+]
            }
        }
    )+};
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn kib(n: u64) -> Bytes {
    Bytes(n << 10)
}

/// How the library uses UCX.
fn defaults() -> UcxOptions {
    UcxOptions::default()
}

tables! {
    /// What stands above all tables.
    Top {
        /// The node's name, 1 to 64 bytes, by which its peers know it. The name of the host and the
        /// port of HTTP if not said.
        name: Option<String> = None, such as "decode-0";
    }

    /// HTTP: where it is served, who may ask, and its limits.
    Http {
        /// Where HTTP is served: IP:PORT (port 0 for any free one) or unix:///PATH; may be a list. An
        /// address that other machines reach needs `token_file` or `tls_client_ca`.
        listen: Vec<Listen> = vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 7480)))];
        /// A file with the token that requests must bear (`Authorization: Bearer …`), without white
        /// space at its ends; read once, at the start. Without one whoever reaches the address may ask.
        token_file: Option<PathBuf> = None, such as "/etc/kvroom/token";
        /// The certificate chain for TLS, PEM. Needs `tls_key`.
        tls_cert: Option<PathBuf> = None, such as "/etc/kvroom/tls.crt";
        /// The private key of `tls_cert`, PEM.
        tls_key: Option<PathBuf> = None, such as "/etc/kvroom/tls.key";
        /// Certificates of those who sign clients' certificates, PEM: only clients with such a
        /// certificate may ask. Needs `tls_cert`.
        tls_client_ca: Option<PathBuf> = None, such as "/etc/kvroom/clients.crt";
        /// The largest body of a request; a larger one is answered with 413.
        max_body_bytes: Bytes = kib(8 << 10), within kib(1) => kib(1 << 20);
        /// The most bytes of a request's line and headers.
        max_header_bytes: Bytes = kib(16), within kib(8) => kib(1 << 10);
        /// How long a client may take to send a request's headers.
        header_timeout: Duration = secs(10), within ms(100) => secs(3600);
        /// How long a request may take, without the time that a long poll asked for.
        request_timeout: Duration = secs(30), within ms(100) => secs(3600);
        /// Connections at once; on one more only probes are answered, and all else with 503. No more than
        /// 256 below the limit of open files (`ulimit -n`).
        max_connections: usize = 1024, within 1 => 65_536;
        /// Requests at once; one more is answered with 503.
        max_concurrent: usize = 512, within 1 => 65_536;
        /// Requests in one second, of all clients together; more are answered with 429. No bound if
        /// not said.
        rate_per_second: Option<u32> = None, within 1 => 10_000_000, such as 20000;
        /// Requests that may come at once beyond the rate; those of one second if not said.
        rate_burst: Option<u32> = None, within 1 => 10_000_000, such as 40000;
        /// The longest wait that a request may ask for.
        long_poll_max: Duration = secs(60), within ms(1) => secs(3600);
    }

    /// The node: its connections to other nodes, its threads.
    NodeSettings {
        /// Where other nodes connect: tcp://HOST:PORT (port 0 for any free one) or unix:///PATH; may be
        /// a list. Other machines need an address that is not loopback, and then a cluster key.
        listen: Vec<NodeAddress> = Vec::new(), such as "tcp://10.0.0.6:7400";
        /// Nodes to connect to from the start, again and again until they are there; may be a list.
        connect: Vec<NodeAddress> = Vec::new(), such as "tcp://10.0.0.7:7400";
        /// A file with the secret that all nodes of the cluster share, at least 16 bytes, without white
        /// space at its ends. The variable KVROOM_CLUSTER_KEY if not said; without either, whoever
        /// reaches an address is a peer.
        cluster_key_file: Option<PathBuf> = None, such as "/etc/kvroom/cluster.key";
        /// Threads that arbitrate rooms. One on up to four cores, a quarter of the cores beyond, if
        /// not said.
        shards: Option<usize> = None, within 1 => 64, such as 2;
        /// Copy lanes, each with a thread of its own.
        lanes: usize = 1, within 1 => 64;
        /// How long a shard's thread looks for more work before it sleeps. 50us while there is a peer
        /// over shared memory, and not at all otherwise, if not said.
        spin: Option<Duration> = None, within ms(0) => ms(10), such as "50us";
        /// Data connections to each peer for large pieces.
        connections: u16 = 1, within 1 => 64;
        /// Congestion control of TCP connections, by the kernel's name; cubic where that is allowed if
        /// not said.
        congestion: Option<String> = None, such as "cubic";
        /// Whether data frames carry a CRC32C of their payload.
        payload_crc: bool = false;
        /// Whether memory is shared with peers on this host. Such a peer is trusted with all of each
        /// shared pool.
        shm: bool = true;
        /// A group, by number, whose processes memory is shared with too, besides those of the same
        /// user.
        shm_group: Option<u32> = None, such as 1000;
        /// Processors for the shards, in their order. Wherever the system puts them if empty.
        pin_shards: Vec<usize> = Vec::new(), such as 2;
        /// Processors for the copy lanes, in their order.
        pin_lanes: Vec<usize> = Vec::new(), such as 3;
    }

    /// UCX: when bytes go through it, and how. It is opened when the daemon starts; `kvroom doctor` says what
    /// there is. Peers need the same minor version of it.
    UcxSettings {
        /// When it is used: "off" is never, and it is not looked for; "rdma" is with peers that it reaches by
        /// RDMA, or that ask for it; "prefer" asks every peer that has it, by whatever it has, and takes the next
        /// route where it does not work; "always" is the same without a next route, and without UCX the daemon
        /// does not start. Who asks for it gets it in place of shared memory, too. A peer
        /// that writes by itself without RDMA is trusted with the whole process.
        when: WhenUcx = WhenUcx::Off;
        /// When senders write into the receiver's memory by themselves: "rdma" where both sides could use RDMA,
        /// "always" with every peer that says the same. Otherwise the receiver writes what comes in messages.
        one_sided: WhenOneSided = WhenOneSided::Rdma;
        /// The file of the library. libucp.so.0 where the system finds it, if not said.
        library: Option<PathBuf> = None, such as "/opt/ucx/lib/libucp.so.0";
        /// Transports that it may use, as UCX_TLS names them. If not said those of RDMA where there are any, and
        /// else all but those by which a peer writes alone.
        transports: Option<String> = None, such as "rc,sm";
        /// Network devices that it may use, as UCX_NET_DEVICES names them. All, if not said.
        devices: Option<String> = None, such as "mlx5_0:1";
        /// Most bytes that a room has on their way to a peer; an abort waits for no more than that.
        window_bytes: Bytes = Bytes(defaults().window_bytes),
            within Bytes(Net::UCX_WINDOW_BYTES.0) => Bytes(Net::UCX_WINDOW_BYTES.1);
        /// Most writes in that window.
        window_puts: u32 = defaults().window_puts,
            within Net::UCX_WINDOW_PUTS.0 => Net::UCX_WINDOW_PUTS.1;
        /// How long a peer may take until the first write to it has landed. Then there is no session over UCX.
        wire_up: Duration = defaults().wire_up, within Net::UCX_TIMES.0 => Net::UCX_TIMES.1;
        /// How long a window may take until it has landed. Then the session is given up, and its rooms end.
        flush: Duration = defaults().flush, within Net::UCX_TIMES.0 => Net::UCX_TIMES.1;
        /// After a connection has failed, how long UCX is not offered to its peer, so that what is tried again
        /// goes by sockets. Not with `when = "always"`.
        after_failure: Duration = defaults().after_failure,
            within Net::UCX_AFTER_FAILURE.0 => Net::UCX_AFTER_FAILURE.1;
        /// How long the end of a connection may take before it is forced.
        close: Duration = defaults().close, within Net::UCX_TIMES.0 => Net::UCX_TIMES.1;
        /// How long its thread looks for more work before it sleeps.
        spin: Duration = defaults().spin, within Net::UCX_SPIN.0 => Net::UCX_SPIN.1;
        /// Peers that did not answer and whose connections are kept, since they may still write.
        retired: usize = defaults().retired, within Net::UCX_RETIRED.0 => Net::UCX_RETIRED.1;
    }

    /// Devices: which of them pools can be on, and how bytes are copied there.
    DeviceSettings {
        /// Devices that pools may be on, by the numbers that this daemon sees them by; may be a list. None
        /// of them is touched before the first pool comes. A pool on any other is refused.
        ordinals: Vec<u32> = Vec::new(), such as 0;
        /// Staging slots of each device, in pinned host memory; so many pieces are queued there at a
        /// time, and that is what an abort waits for.
        slots: usize = 8, within 4 => 256;
        /// Bytes of one slot, which is the largest piece.
        slot_bytes: Bytes = kib(1 << 10), within kib(4) => kib(64 << 10);
        /// Streams of each device for each direction.
        streams: usize = 2, within 1 => 16;
        /// Jobs that wait for each device at most; one more fails its room.
        jobs: usize = 65_536, within 1 => 1 << 20;
        /// Whether pages go straight between devices of two processes of this host, by CUDA's handles, where both
        /// sides can. A peer that takes this way can read and write the slots that they go through.
        between_processes: bool = true;
        /// How long the driver may take to start a device, and to allocate memory or to open memory or an
        /// event. A request that waits longer is answered with 503; a daemon with a pool that does is not
        /// started.
        driver_timeout: Duration = secs(5), within ms(50) => secs(9);
    }

    /// Pools that are there from the start; one [[pool]] each. More come and go over HTTP.
    PoolSettings {
        /// What both engines call it, 1 to 64 bytes.
        name: String = String::new(), such as "kv";
        /// Pages of tokens, or rows of which each room has one.
        kind: PoolKind = PoolKind::Kv;
        /// Which of the two indices varies slowest in memory.
        order: Order = Order::LayersFirst;
        /// Layers.
        layers: u32 = 0, within 1 => u32::MAX, such as 32;
        /// Pages per layer.
        pages: u32 = 0, within 1 => u32::MAX, such as 512;
        /// Bytes of one page in one layer.
        page_bytes: Bytes = Bytes(0), within Bytes(1) => Bytes(u64::MAX), such as "16KiB";
        /// Tokens in one page.
        page_tokens: u32 = 1, within 1 => u32::MAX;
        /// Memory of the daemon alone, memory that peers on this host map, a file that engines map too and
        /// that outlives the daemon, or memory of a device, which is what it is if `device` is said.
        backing: Backing = Backing::Shared;
        /// The file, for `backing = "file"`; on a filesystem in memory, such as /dev/shm.
        path: Option<PathBuf> = None, such as "/dev/shm/kvroom-kv";
        /// Whether the file is made if it is not there.
        create: bool = false;
        /// The device that the daemon allocates the memory on, by its number or UUID; it has to be one of
        /// `devices.ordinals`. Engines on this host open it by the CUDA IPC handle that
        /// `GET /v1/pools/{name}` tells.
        device: Option<Named> = None, such as 0;
    }

    /// Health: the canary room that /readyz rests on, and the watchdog.
    HealthSettings {
        /// Whether a canary room runs through each lane and fabric on reserved pages.
        canary: bool = true;
        /// How often.
        canary_interval: Duration = secs(1), within ms(50) => secs(3600);
        /// A canary that is not done after so long has failed.
        canary_deadline: Duration = secs(2), within ms(10) => secs(600);
        /// A thread of the node with work waiting that makes no turn for so long is blocked.
        blocked_after: Duration = secs(2), within ms(100) => secs(600);
    }

    /// The flight recorder.
    RecorderSettings {
        /// Entries that each shard keeps; the oldest make room.
        entries: usize = 16_384, within 16 => 1 << 24;
        /// Where recordings are written on a stuck room, a panic and SIGUSR1. Nowhere if not said.
        dump_dir: Option<PathBuf> = None, such as "/var/lib/kvroom";
    }

    /// The status page: one word of shared memory for each room.
    StatusPageSettings {
        /// The file; best in /dev/shm. No page if not said.
        path: Option<PathBuf> = None, such as "/dev/shm/kvroom-status";
        /// Rooms that it has space for.
        rooms: u32 = 65_536, within 1 => 1 << 22;
    }

    /// What is remembered of rooms that are over and whose memory is back.
    Retention {
        /// So many of them at most; the oldest are forgotten first.
        ended_rooms: usize = 10_000, within 0 => 10_000_000;
        /// For so long at most.
        ended_for: Duration = secs(600), within ms(0) => secs(30 * 86_400);
    }
}

/// Each table: its name, which is empty for what stands above all others, and what it is about.
pub(crate) const TABLES: &[(&str, &str)] = &[
    ("", Top::ABOUT),
    ("http", Http::ABOUT),
    ("node", NodeSettings::ABOUT),
    ("ucx", UcxSettings::ABOUT),
    ("devices", DeviceSettings::ABOUT),
    (
        "limits",
        " How much of everything the node holds. What is over a limit waits or is refused, and says which.",
    ),
    (
        "deadlines",
        " How long things may take. None of them ever returns memory.",
    ),
    ("health", HealthSettings::ABOUT),
    ("recorder", RecorderSettings::ABOUT),
    ("status_page", StatusPageSettings::ABOUT),
    ("retention", Retention::ABOUT),
];

/// The name of the tables of which there is one for each pool.
pub(crate) const POOL: &str = "pool";

/// Every key but those of pools, in the order of [`TABLES`].
pub(crate) static ROWS: LazyLock<Vec<Row<Config>>> = LazyLock::new(rows);

/// Every key of a pool.
pub(crate) static POOL_ROWS: LazyLock<Vec<Row<PoolSettings>>> = LazyLock::new(PoolSettings::rows);

fn rows() -> Vec<Row<Config>> {
    macro_rules! lifted {
        ($($type:ident at $table:literal is $part:ident),+ $(,)?) => {
            [$(
                <$type>::rows()
                    .into_iter()
                    .map(|row| row.lift::<Config>($table, |all| &mut all.$part, |all| &all.$part))
                    .collect::<Vec<_>>(),
            )+]
        };
    }
    let [top, http, node, ucx, devices] = lifted!(
        Top at "" is top,
        Http at "http" is http,
        NodeSettings at "node" is node,
        UcxSettings at "ucx" is ucx,
        DeviceSettings at "devices" is devices,
    );
    let rest = lifted!(
        HealthSettings at "health" is health,
        RecorderSettings at "recorder" is recorder,
        StatusPageSettings at "status_page" is status_page,
        Retention at "retention" is retention,
    );
    let limits = LIMITS.iter().map(limit_row);
    let deadlines = DEADLINES.iter().map(deadline_row);
    let first = [top, http, node, ucx, devices].into_iter().flatten();
    first
        .chain(limits)
        .chain(deadlines)
        .chain(rest.into_iter().flatten())
        .collect()
}

/// What the library would take for less or more than it is.
fn limit_bounds(name: &str) -> (u64, u64) {
    match name {
        "gates" => (1, (1 << 24) - 1),
        "frame_bytes" => (1, 16 << 20),
        "data_frame_bytes" => (64 << 10, 16 << 20),
        "claims_per_peer" => (1, u64::from(u32::MAX)),
        "receivers" | "senders" => (1, u64::from(u16::MAX)),
        _ => (1, 1 << 40),
    }
}

fn limit_row(field: &'static crate::cli::settings::Field<Limits, u64>) -> Row<Config> {
    let (least, most) = limit_bounds(field.name);
    if field.name.ends_with("_bytes") {
        return number_row::<Bytes>(field, (Bytes(least), Bytes(most)), Bytes, |bytes| bytes.0);
    }
    number_row::<u64>(field, (least, most), |n| n, |n| n)
}

fn number_row<V: Setting<Inner = V> + Copy + Send + Sync + 'static>(
    field: &'static crate::cli::settings::Field<Limits, u64>,
    bounds: (V, V),
    from: fn(u64) -> V,
    into: fn(V) -> u64,
) -> Row<Config> {
    Row {
        table: "limits",
        key: field.name,
        doc: field.doc,
        kind: V::KIND,
        word: V::WORD,
        list: false,
        bounds: Some((bounds.0.show(), bounds.1.show())),
        example: None,
        read: Box::new(move |all, raw| {
            (field.write)(&mut all.limits, into(within(raw, Some(&bounds))?));
            Ok(())
        }),
        show: Box::new(move |all| from((field.read)(&all.limits)).show()),
    }
}

fn deadline_row(
    field: &'static crate::cli::settings::Field<Deadlines, Option<Duration>>,
) -> Row<Config> {
    let bounds = (ms(1), secs(7 * 86_400));
    let may_be_none = field.name == "outcome";
    Row {
        table: "deadlines",
        key: field.name,
        doc: field.doc,
        kind: Duration::KIND,
        word: Duration::WORD,
        list: false,
        bounds: Some((bounds.0.show(), bounds.1.show())),
        example: None,
        read: Box::new(move |all, raw| {
            let value = if may_be_none {
                within::<Option<Duration>>(raw, Some(&bounds))?
            } else {
                Some(within::<Duration>(raw, Some(&bounds))?)
            };
            (field.write)(&mut all.deadlines, value);
            Ok(())
        }),
        show: Box::new(move |all| (field.read)(&all.deadlines).show()),
    }
}
