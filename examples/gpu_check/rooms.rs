//! Rooms over pools of the device, aborted in the middle of their pipelines.
//!
//! ```text
//!   source (first device) ──room──▶ destination (last device, then the host)
//!                            │ aborted, by either side, after some of its pieces
//!                            └▶ pages back ─▶ canary of (room, page) written at once ─▶ looked at again
//! ```
//!
//! A byte of a canary that changes is a late write; and a room that is not aborted must bring every byte.

use crate::devices::Devices;
use crate::failure::Failure;
use crate::options::Options;
use crate::random::Random;
use crate::steps::Steps;
use crate::table::{Row, Verdict};
use kvroom::device::{Device, DeviceOptions};
use kvroom::{
    Chunk, LocalHub, Node, Order, Outcome, Peer, Pool, PoolKind, PoolLayout, RoomId, WriteLease,
};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "rooms: aborts in mid-pipeline, canary oracle";

const LAYERS: u32 = 4;
const PAGES: u32 = 64;
const PAGE_BYTES: u64 = 16 << 10;
const TOKENS: u64 = 16;
/// Pages of one room.
const OF_A_ROOM: u32 = 32;
/// Fewer than the pieces of one.
const PIECES: u64 = 12;
/// How long anything of one room may take.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn steps(steps: &mut Steps, devices: &Arc<Devices>, options: &Options) {
    let (devices, seed) = (Arc::clone(devices), options.seed);
    let rooms = if options.is_small() { 16 } else { 60 };
    steps.run(NAME, Duration::from_secs(60), move || {
        let mut seen = Seen::default();
        // Slots so small that a room is several times as many pieces as are queued at once.
        let options = DeviceOptions {
            slots: 4,
            slot_bytes: 128 << 10,
            ..DeviceOptions::default()
        };
        let start = |context| Device::start(context, options.clone());
        let first = start(devices.first().context.clone())?;
        let last = start(devices.last().context.clone())?;
        for to in [Some(&last), None] {
            storm(&first, to, (rooms, seed), &mut seen)?;
        }
        let kernels = match first.kernels() {
            Some(Ok(())) => "by kernels",
            _ => "without kernels",
        };
        let said = format!(
            "{} rooms, {} aborted with pieces under way, {} done; {} late bytes, {} wrong; {kernels}",
            seen.rooms, seen.flying, seen.done, seen.late, seen.wrong
        );
        let good = seen.late == 0 && seen.wrong == 0 && seen.flying > 0 && seen.done > 0;
        let verdict = match good {
            true => Verdict::Ok,
            false => Verdict::Failed,
        };
        Ok(vec![Row::new(NAME, said, "0 late, 0 wrong", verdict)])
    });
}

#[derive(Default)]
struct Seen {
    rooms: u64,
    /// Aborted while a device worked for them.
    flying: u64,
    done: u64,
    /// Bytes of canaries that changed.
    late: u64,
    /// Bytes of rooms that were done and are not what was sent.
    wrong: u64,
}

struct Ends {
    prefill: Node,
    decode: Node,
    peer: Peer,
    from: Pool,
    to: Pool,
}

fn storm(
    from: &Device,
    to: Option<&Device>,
    (rooms, seed): (u64, u64),
    seen: &mut Seen,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(said)?;
    runtime.block_on(async {
        let ends = ends(from, to).await?;
        let mut random = Random::new(seed);
        for id in 0..rooms {
            let within = tokio::time::timeout(PATIENCE, room(&ends, from, id, &mut random, seen));
            within.await.map_err(|_| Failure::Late(PATIENCE))??;
        }
        ends.decode.shutdown().await;
        ends.prefill.shutdown().await;
        Ok(())
    })
}

async fn ends(from: &Device, to: Option<&Device>) -> Result<Ends, Failure> {
    let layout = || PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: LAYERS,
        pages: PAGES,
        page_bytes: PAGE_BYTES,
        page_tokens: TOKENS as u32,
    };
    let from = Pool::on_device(layout(), from).map_err(said)?;
    let to = match to {
        Some(device) => Pool::on_device(layout(), device),
        None => Pool::owned(layout()),
    };
    let to = to.map_err(said)?;
    let hub = LocalHub::new();
    let start = async |name: &str, pool: &Pool| {
        let node = Node::builder(name).hub(&hub).pool(pool.clone());
        node.start().await.map_err(said)
    };
    let prefill = start("prefill", &from).await?;
    let decode = start("decode", &to).await?;
    let peer = decode.connect("local://prefill").await.map_err(said)?;
    Ok(Ends {
        prefill,
        decode,
        peer,
        from,
        to,
    })
}

async fn room(
    ends: &Ends,
    device: &Device,
    id: u64,
    random: &mut Random,
    seen: &mut Seen,
) -> Result<(), Failure> {
    let first = (id as u32 % 2) * OF_A_ROOM;
    let pages: Vec<u32> = (first..first + OF_A_ROOM).rev().collect();
    let lease = ends.to.lease_write(&pages).map_err(said)?;
    let total = u64::from(OF_A_ROOM) * TOKENS;
    let room = ends.decode.receive(RoomId(id)).from(&ends.peer);
    let room = room.into(lease).start().await.map_err(said)?;
    let sender = ends.prefill.send(RoomId(id)).start().await.map_err(said)?;
    let mut source = ends.from.lease_write(&pages).map_err(said)?;
    write(&mut source, 2 * id)?;
    let before = device.stats().pieces;
    let slot = sender.reserve().await.map_err(said)?;
    let chunk = Chunk::tokens(0..total).pages(source.into_read());
    let pushed = slot.push(chunk).map_err(said)?;
    let aborts = !id.is_multiple_of(4);
    if aborts {
        // Some pieces later, whichever they are; the work goes on meanwhile.
        let some = before + random.below(PIECES);
        while device.stats().pieces < some && !room.poll().ended {
            tokio::task::yield_now().await;
        }
        seen.flying += u64::from(device.stats().queued > 0);
        match id % 2 {
            0 => room.abort("checked"),
            _ => sender.abort("checked"),
        }
    } else {
        sender.finish(total, None).map_err(said)?;
    }
    seen.rooms += 1;
    let done = room.outcome().await == Outcome::Done;
    let released = room.released().await;
    let Some(mut lease) = released.leases.into_iter().next() else {
        return Err(Failure::Room(format!(
            "room {id} did not give its pages back"
        )));
    };
    if done {
        seen.done += 1;
        seen.wrong += differ(&lease, 2 * id)?;
    }
    write(&mut lease, 2 * id + 1)?;
    // The source comes back after the last read of it: then nothing of the room is under way.
    drop(pushed.released().await);
    drop(sender.released().await);
    seen.late += differ(&lease, 2 * id + 1)?;
    Ok(())
}

/// What a cell holds: (stamp, layer, place) in every word.
fn cell(stamp: u64, layer: u32, place: usize) -> Vec<u8> {
    let words = (0..PAGE_BYTES / 8).map(|i| {
        let place = u64::from(layer) << 56 | (place as u64) << 40 | i << 24;
        place ^ stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    });
    words.flat_map(u64::to_le_bytes).collect()
}

fn write(lease: &mut WriteLease, stamp: u64) -> Result<(), Failure> {
    for layer in 0..LAYERS {
        for place in 0..lease.pages().len() {
            let bytes = cell(stamp, layer, place);
            lease.store(layer, place, &bytes).map_err(said)?;
        }
    }
    Ok(())
}

fn differ(lease: &WriteLease, stamp: u64) -> Result<u64, Failure> {
    let mut differ = 0;
    let mut bytes = vec![0; PAGE_BYTES as usize];
    for layer in 0..LAYERS {
        for place in 0..lease.pages().len() {
            lease.load(layer, place, &mut bytes).map_err(said)?;
            let want = cell(stamp, layer, place);
            differ += bytes.iter().zip(&want).filter(|(a, b)| a != b).count() as u64;
        }
    }
    Ok(differ)
}

fn said(error: impl std::fmt::Display) -> Failure {
    Failure::Room(error.to_string())
}
