//! Two nodes in one process: a request moves in three chunks; another one is aborted in flight.
use kvroom::{Chunk, LocalHub, Node, Order, Outcome, Pool, PoolKind, PoolLayout, RoomId};
use std::{error::Error, time::Instant};

const PAGES: u32 = 48; // of the request: 16 tokens each, in three chunks of 16 pages

fn pool(name: &str, kind: PoolKind) -> Result<Pool, Box<dyn Error>> {
    Ok(Pool::owned(PoolLayout {
        name: name.into(),
        kind,
        order: Order::LayersFirst,
        layers: 2,
        pages: 64,
        page_bytes: 16 << 10,
        page_tokens: 16,
    })?)
}

/// What one page of the request holds in one layer.
fn bytes(layer: u32, page: u32) -> Vec<u8> {
    Vec::from_iter((0..16 << 10).map(|at| (layer * 128 + page + at * 7 + at / 256) as u8))
}

/// Chunk `n` of the request, computed into pages of the source.
fn chunk(source: &Pool, n: u32) -> Result<Chunk, Box<dyn Error>> {
    let mut lease = source.lease_write(&Vec::from_iter(n * 16..(n + 1) * 16))?;
    for (layer, page) in (0..2).flat_map(|layer| (0..16).map(move |page| (layer, page))) {
        let cell = lease.page_mut(layer, page as usize);
        cell.copy_from_slice(&bytes(layer, n * 16 + page));
    }
    let tokens = u64::from(n) * 256..u64::from(n + 1) * 256;
    Ok(Chunk::tokens(tokens).pages(lease.into_read()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let hub = LocalHub::new();
    let (source, source_aux) = (pool("kv", PoolKind::Kv)?, pool("aux", PoolKind::Aux)?);
    let (target, target_aux) = (pool("kv", PoolKind::Kv)?, pool("aux", PoolKind::Aux)?);
    let prefill = Node::builder("prefill").hub(&hub).pool(source.clone());
    let prefill = prefill.pool(source_aux.clone()).start().await?;
    let decode = Node::builder("decode").hub(&hub).pool(target.clone());
    let decode = decode.pool(target_aux.clone()).start().await?;
    let peer = decode.connect("local://prefill").await?;
    let places = Vec::from_iter((0..PAGES).rev()); // where decode wants them, in their order

    let lease = target.lease_write(&places)?;
    let room = decode.receive(RoomId(1)).from(&peer).into(lease);
    let receiver = room.aux(target_aux.lease_write(&[9])?).start().await?;
    let sender = prefill.send(RoomId(1)).start().await?;
    let chunks = [chunk(&source, 0)?, chunk(&source, 1)?, chunk(&source, 2)?];
    let mut row = source_aux.lease_write(&[2])?;
    row.page_mut(0, 0).copy_from_slice(&bytes(3, 3));
    let begun = Instant::now();
    for chunk in chunks {
        sender.reserve().await?.push(chunk)?; // back-pressure is in `reserve`
    }
    sender.finish(u64::from(PAGES) * 16, Some(row.into_read()))?;
    let (outcome, mut back) = (receiver.outcome().await, receiver.released().await);
    let (took, landed, proofs) = (begun.elapsed(), back.landed.bytes, &back.proofs);
    let row_right = matches!(&back.aux, Some(row) if row.page(0, 0) == bytes(3, 3));
    let cell_right = |c| back.leases[0].page(c % 2, c as usize / 2) == bytes(c % 2, c / 2);
    if outcome != Outcome::Done || !(0..2 * PAGES).all(cell_right) || !row_right {
        return Err(format!("{outcome}, and the bytes are not those that were sent").into());
    }
    println!("{outcome}: {landed} bytes in {took:.1?}, every byte verified, proofs {proofs:?}");

    let lease = back.leases.remove(0); // proven quiet, so it may be lent again
    let room = decode.receive(RoomId(2)).from(&peer).into(lease);
    let (receiver, sender) = (room.start().await?, prefill.send(RoomId(2)).start().await?);
    let first = sender.reserve().await?.push(chunk(&source, 0)?)?;
    first.released().await.ok_or("the first chunk is lost")?; // it has landed, two have not
    let begun = Instant::now();
    receiver.abort("the user left");
    let (outcome, back) = (receiver.outcome().await, receiver.released().await);
    let (took, landed, proofs) = (begun.elapsed(), back.landed.bytes, &back.proofs);
    println!("{outcome}: {landed} bytes had landed, lease back in {took:.1?}, proofs {proofs:?}");
    Ok(())
}
