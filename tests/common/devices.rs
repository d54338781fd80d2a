//! Emulated devices, and pairs of nodes whose pages are on them.

use super::*;
use kvroom::actors::copy::device::{Ready, Stream};
use kvroom::device::emulated::{Config, Machine};
use kvroom::device::{Device, DeviceOptions};
use std::sync::Arc;

/// Where a side's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Host,
    Device(u32),
}

/// Emulated devices and their copy actors.
pub(crate) struct Devices {
    pub(crate) machine: Machine,
    pub(crate) all: Vec<Device>,
}

impl Devices {
    pub(crate) fn new(config: Config, options: &DeviceOptions) -> Devices {
        let machine = Machine::new(Config {
            streams: 16,
            ..config
        });
        let device = |n| {
            let context = machine.context(n).unwrap();
            Device::start(context, options.clone()).unwrap()
        };
        Devices {
            all: (0..2).map(device).collect(),
            machine,
        }
    }

    pub(crate) fn two() -> Devices {
        Devices::new(with(2), &small())
    }

    pub(crate) fn pool(&self, at: At, layout: PoolLayout) -> Pool {
        match at {
            At::Host => Pool::owned(layout).unwrap(),
            At::Device(n) => Pool::on_device(layout, &self.all[n as usize]).unwrap(),
        }
    }

    /// A stream of an engine on the device.
    pub(crate) fn engine(&self, n: usize) -> Stream {
        let context = self.all[n].context();
        context.stream(Default::default()).unwrap()
    }
}

pub(crate) fn with(devices: u32) -> Config {
    Config {
        devices,
        ..Config::default()
    }
}

/// Slots so small that a page takes several.
pub(crate) fn small() -> DeviceOptions {
    DeviceOptions {
        slots: 4,
        slot_bytes: 64 << 10,
        // By pinned memory and a socket, as between hosts; `device_straight` is for the other way.
        between_processes: false,
        ..DeviceOptions::default()
    }
}

pub(crate) struct Pair {
    pub(crate) prefill: Node,
    pub(crate) decode: Node,
    /// The decode side's handle of the prefill side.
    pub(crate) peer: Peer,
    pub(crate) from: Pool,
    pub(crate) to: Pool,
    pub(crate) rows: (Pool, Pool),
}

impl Pair {
    pub(crate) async fn new(devices: &Devices, from: At, to: At) -> Pair {
        Pair::of(devices, (from, kv(26, PIECE)), (to, kv(26, PIECE))).await
    }

    pub(crate) async fn of(
        devices: &Devices,
        from: (At, PoolLayout),
        to: (At, PoolLayout),
    ) -> Pair {
        Pair::over(Over::Local, devices, from, to).await
    }

    pub(crate) async fn tcp(devices: &Devices, from: At, to: At) -> Pair {
        let (from, to) = ((from, kv(26, PIECE)), (to, kv(26, PIECE)));
        Pair::over(Over::Tcp, devices, from, to).await
    }

    pub(crate) async fn over(
        over: Over,
        devices: &Devices,
        from: (At, PoolLayout),
        to: (At, PoolLayout),
    ) -> Pair {
        let hub = LocalHub::new();
        let rows = (devices.pool(from.0, aux(4)), devices.pool(to.0, aux(4)));
        let (from, to) = (devices.pool(from.0, from.1), devices.pool(to.0, to.1));
        let node = async |name: &str, kv: &Pool, rows: &Pool| {
            let mut node = Node::builder(name).hub(&hub);
            if over == Over::Tcp {
                node = node.listen("tcp://127.0.0.1:0");
            }
            let node = node.pool(kv.clone()).pool(rows.clone());
            node.start().await.unwrap()
        };
        let prefill = node("prefill", &from, &rows.0).await;
        let decode = node("decode", &to, &rows.1).await;
        let address = match over {
            Over::Tcp => prefill.addresses()[0].clone(),
            _ => "local://prefill".into(),
        };
        let peer = decode.connect(&address).await.unwrap();
        Pair {
            prefill,
            decode,
            peer,
            from,
            to,
            rows,
        }
    }

    pub(crate) async fn moves(&self, id: u64, checksum: bool) {
        let pages: Vec<u32> = (0..12).map(|i| (i * 7 + id as u32) % 24).collect();
        let row = self.rows.1.lease_write(&[id as u32 % 4]).unwrap();
        let lease = self.to.lease_write(&pages).unwrap();
        let room = self.decode.receive(RoomId(id)).from(&self.peer).into(lease);
        let room = room.aux(row).checksum(checksum).start().await.unwrap();
        let sender = self.prefill.send(RoomId(id)).start().await.unwrap();
        for half in 0..2u64 {
            let lease = stamped(&self.from, &pages[half as usize * 6..][..6], id, half * 6);
            let tokens = half * 6 * TOKENS..(half + 1) * 6 * TOKENS;
            let slot = sender.reserve().await.unwrap();
            slot.push(Chunk::tokens(tokens).pages(lease)).unwrap();
        }
        let row = stamped(&self.rows.0, &[3 - id as u32 % 4], id, 99);
        sender.finish(12 * TOKENS, Some(row)).unwrap();
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        assert_eq!(within(sender.outcome()).await, Outcome::Done);
        let back = within(room.released()).await;
        is_stamped(&back.leases[0], id, 0);
        is_stamped(&back.aux.unwrap(), id, 99);
        drop(within(sender.released()).await);
    }

    pub(crate) async fn end(self) {
        settle(&[&self.prefill, &self.decode]).await;
        for pool in [&self.from, &self.to, &self.rows.0, &self.rows.1] {
            all_free(pool).await;
        }
        assert_quiet(&self.prefill).await;
        assert_quiet(&self.decode).await;
    }
}

pub(crate) fn cell_of(pool: &Pool, stamp: u64, layer: u32, place: u64) -> Vec<u8> {
    let n = pool.layout().page_bytes as usize / 8;
    let words = (0..n).map(|i| word(stamp, layer, place, i));
    words.flat_map(u64::to_ne_bytes).collect()
}

pub(crate) fn stamp(lease: &mut WriteLease, stamp: u64, place: u64) {
    let pool = lease.pool().clone();
    for layer in 0..pool.layout().layers {
        for i in 0..lease.pages().len() {
            let bytes = cell_of(&pool, stamp, layer, place + i as u64);
            lease.store(layer, i, &bytes).unwrap();
        }
    }
}

pub(crate) fn stamped(pool: &Pool, pages: &[u32], of: u64, place: u64) -> ReadLease {
    let mut lease = pool.lease_write(pages).unwrap();
    stamp(&mut lease, of, place);
    lease.into_read()
}

pub(crate) fn is_stamped(lease: &WriteLease, stamp: u64, place: u64) {
    let pool = lease.pool();
    let mut bytes = vec![0; pool.layout().page_bytes as usize];
    for layer in 0..pool.layout().layers {
        for i in 0..lease.pages().len() {
            lease.load(layer, i, &mut bytes).unwrap();
            let want = cell_of(pool, stamp, layer, place + i as u64);
            let wrong = (0..want.len()).find(|i| bytes[*i] != want[*i]);
            assert_eq!(wrong, None, "byte of layer {layer}, place {i} of {stamp}");
        }
    }
}

/// Work of an engine that writes pages and is held up.
pub(crate) struct Engine {
    pub(crate) stream: Stream,
    pub(crate) go: mpsc::Sender<()>,
    pub(crate) ready: Arc<Ready>,
}

impl Engine {
    /// An engine whose stream stands still until it is told to go; the event is behind that.
    pub(crate) fn held(devices: &Devices, n: usize) -> Engine {
        let stream = devices.engine(n);
        let (go, told) = mpsc::channel();
        let flight = stream.queue((), move |_, q| {
            q.call(move || {
                let _ = told.recv_timeout(PATIENCE);
            })
        });
        drop(flight.unwrap());
        let ready = devices.all[n].context().ready_event(false).unwrap();
        stream.record(&ready).unwrap();
        Engine {
            stream,
            go,
            ready: Arc::new(ready),
        }
    }

    pub(crate) fn goes(&self) {
        self.go.send(()).unwrap();
    }
}
