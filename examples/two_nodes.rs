//! Two nodes: a request moves in three chunks, and a second one is aborted in flight.
//!
//! ```text
//! two_nodes                                           both nodes in one process
//! two_nodes --fabric tcp --processes 2                the prefill node in a child (shm: the same)
//! two_nodes prefill --listen tcp://127.0.0.1:7400     in one terminal, and in another one
//! two_nodes decode --connect tcp://127.0.0.1:7400
//! ```
#[path = "two_nodes/processes.rs"]
mod processes;

use kvroom::{Chunk, LocalHub, Node, Order, Outcome, Peer, Pool, PoolKind, PoolLayout, RoomId};
use processes::Fabric;
use std::{error::Error, time::Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PAGES: u32 = 48; // of the request: 16 tokens each, in three chunks of 16 pages

/// A side of the transfer: a node, pages for the cache and for a row of what goes with it.
struct Side {
    node: Node,
    kv: Pool,
    aux: Pool,
}

fn pool(name: &str, kind: PoolKind, fabric: Fabric) -> Result<Pool> {
    fabric.pool(PoolLayout {
        name: name.into(),
        kind,
        order: Order::LayersFirst,
        layers: 2,
        pages: 64,
        page_bytes: 16 << 10,
        page_tokens: 16,
    })
}

/// Found in the hub; and at the address, if there is one.
async fn start(name: &str, hub: &LocalHub, fabric: Fabric, address: Option<&str>) -> Result<Side> {
    let kv = pool("kv", PoolKind::Kv, fabric)?;
    let aux = pool("aux", PoolKind::Aux, fabric)?;
    let mut node = Node::builder(name).hub(hub);
    node = node.pool(kv.clone()).pool(aux.clone());
    if let Some(address) = address {
        node = node.listen(address);
    }
    let node = node.start().await?;
    Ok(Side { node, kv, aux })
}

/// What one page of the request holds in one layer.
fn bytes(layer: u32, page: u32) -> Vec<u8> {
    Vec::from_iter((0..16 << 10).map(|at| (layer * 128 + page + at * 7 + at / 256) as u8))
}

/// Chunk `n` of the request, computed into pages of the source.
fn chunk(source: &Pool, n: u32) -> Result<Chunk> {
    let mut lease = source.lease_write(&Vec::from_iter(n * 16..(n + 1) * 16))?;
    for (layer, page) in (0..2).flat_map(|layer| (0..16).map(move |page| (layer, page))) {
        let cell = lease.page_mut(layer, page as usize);
        cell.copy_from_slice(&bytes(layer, n * 16 + page));
    }
    let tokens = u64::from(n) * 256..u64::from(n + 1) * 256;
    Ok(Chunk::tokens(tokens).pages(lease.into_read()))
}

async fn prefill(Side { node, kv, aux }: &Side) -> Result<()> {
    let sender = node.send(RoomId(1)).start().await?;
    let mut row = aux.lease_write(&[2])?;
    row.page_mut(0, 0).copy_from_slice(&bytes(3, 3));
    for n in 0..3 {
        sender.reserve().await?.push(chunk(kv, n)?)?; // back-pressure is in `reserve`
    }
    sender.finish(u64::from(PAGES) * 16, Some(row.into_read()))?;
    let outcome = sender.outcome().await;
    if outcome != Outcome::Done {
        return Err(format!("the request was not taken: {outcome}").into());
    }
    drop(sender.released().await); // the pages may be computed into again

    let sender = node.send(RoomId(2)).start().await?;
    let first = sender.reserve().await?.push(chunk(kv, 0)?)?;
    first.released().await.ok_or("the first chunk is lost")?; // it has landed, two have not
    sender.abort("the user left");
    drop(sender.released().await);
    Ok(())
}

async fn decode(Side { node, kv, aux }: &Side, prefill: &Peer) -> Result<()> {
    let places = Vec::from_iter((0..PAGES).rev()); // where decode wants them, in their order
    let lease = kv.lease_write(&places)?;
    let room = node.receive(RoomId(1)).from(prefill).into(lease);
    let begun = Instant::now();
    let receiver = room.aux(aux.lease_write(&[9])?).start().await?;
    let (outcome, mut back) = (receiver.outcome().await, receiver.released().await);
    let (took, landed, proofs) = (begun.elapsed(), back.landed.bytes, &back.proofs);
    let row_right = matches!(&back.aux, Some(row) if row.page(0, 0) == bytes(3, 3));
    let cell_right = |c| back.leases[0].page(c % 2, c as usize / 2) == bytes(c % 2, c / 2);
    if outcome != Outcome::Done || !(0..2 * PAGES).all(cell_right) || !row_right {
        return Err(format!("{outcome}; every byte right: {row_right}").into());
    }
    let over = prefill.fabric().ok_or("no session")?;
    println!("{outcome}: {landed} bytes in {took:.1?} ({over}), every byte verified, {proofs:?}");

    let lease = back.leases.remove(0); // proven quiet, so it may be lent again
    let room = node.receive(RoomId(2)).from(prefill).into(lease);
    let receiver = room.start().await?;
    let outcome = receiver.outcome().await; // known before the memory is
    let begun = Instant::now();
    let back = receiver.released().await;
    let (took, landed, proofs) = (begun.elapsed(), back.landed.bytes, &back.proofs);
    println!("{outcome}: {landed} bytes had landed, lease back in {took:.1?}, proofs {proofs:?}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    processes::run().await
}

/// Both nodes in this process.
async fn together(fabric: Fabric) -> Result<()> {
    let hub = LocalHub::new();
    let listen = (fabric != Fabric::Local).then_some("tcp://127.0.0.1:0"); // any free port
    let source = start("prefill", &hub, fabric, listen).await?;
    let target = start("decode", &hub, fabric, None).await?;
    let address = match fabric {
        Fabric::Local => "local://prefill",
        Fabric::Tcp | Fabric::Shm => &source.node.addresses()[0],
    };
    let peer = target.node.connect(address).await?;
    tokio::try_join!(prefill(&source), decode(&target, &peer))?;
    Ok(())
}
