//! Prefill runs the model over four ranks and decode over two, and the other way round; each rank is a
//! process, pages have other sizes and another order on both sides, and every byte is compared.
//!
//! ```text
//!   prefill TP 4          decode TP 2            unequal_ranks      one table, from eight processes and four
//!   heads 0..2 ─────┐
//!   heads 2..4 ─────┴──▶  heads 0..4
//!   heads 4..6 ─────┐
//!   heads 6..8 ─────┴──▶  heads 4..8
//! ```
#[path = "unequal_ranks/cube.rs"]
mod cube;
#[path = "unequal_ranks/processes.rs"]
mod processes;

use kvroom::layout::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Routes, Share, routes};
use kvroom::{Chunk, Node, Outcome, Peer, Pool, RoomId};
use std::{error::Error, time::Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROOM: u64 = 42;
const TOKENS: u64 = 500; // of the request; neither side's last page is full
const CHUNK: u64 = 128; // a multiple of both sides' pages

/// How many ranks each side has.
#[derive(Clone, Copy)]
struct Sides {
    prefill: u32,
    decode: u32,
}

/// What rank `rank` of `ranks` holds of 4 layers and 8 heads: its share of the heads.
fn holds(rank: u32, ranks: u32, page_tokens: u32, order: DimOrder) -> Result<Vec<CubeLayout>> {
    let heads = Share::of_rank(8, rank, ranks).ok_or("the ranks do not divide 8 heads")?;
    let (channels, dtype) = (64, Dtype::bf16());
    let plane = Plane {
        heads,
        channels,
        dtype,
    };
    Ok(vec![CubeLayout {
        name: "kv".into(),
        kind: CubeKind::Kv,
        layers: Share::whole(4),
        planes: vec![plane; 2], // K and V
        page_tokens,
        granule: 1,
        pages: 64,
        page_gap: 0,
        order,
    }])
}

impl Sides {
    fn of_prefill(self) -> Result<Vec<Vec<CubeLayout>>> {
        (0..self.prefill)
            .map(|rank| holds(rank, self.prefill, 16, DimOrder::NHD))
            .collect()
    }

    fn of_decode(self) -> Result<Vec<Vec<CubeLayout>>> {
        (0..self.decode)
            .map(|rank| holds(rank, self.decode, 32, DimOrder::PAGES_HND))
            .collect()
    }

    /// Who sends what to whom: the same wherever it is asked.
    fn routes(self) -> Result<Routes> {
        Ok(routes(&self.of_prefill()?, &self.of_decode()?, ROOM)?)
    }
}

/// A pool in shared memory that says what its bytes mean.
fn pool(content: &CubeLayout) -> Result<Pool> {
    let cells = content.pool_layout().ok_or("its pages are not together")?;
    Ok(Pool::shared(cells)?.with_content(content.clone())?)
}

/// Rank `me` of prefill: listens, and sends what it holds to as many ranks as want some of it.
async fn prefill(sides: Sides, me: usize) -> Result<()> {
    let content = sides.of_prefill()?.swap_remove(me).swap_remove(0);
    let pool = pool(&content)?;
    let node = Node::builder(&format!("prefill-{me}")).pool(pool.clone());
    let node = node.listen("tcp://127.0.0.1:0").start().await?;
    println!("listening on {}", node.addresses()[0]);
    let legs = sides.routes()?.from(me).count();
    let room = node.send(RoomId(ROOM)).receivers(u16::try_from(legs)?);
    let sender = room.start().await?;
    let mut next = 0; // page of the source
    for first in (0..TOKENS).step_by(CHUNK as usize) {
        let tokens = first..TOKENS.min(first + CHUNK);
        let pages = next..next + cube::pages_of(&content, &tokens);
        next = pages.end;
        let mut lease = pool.lease_write(&Vec::from_iter(pages))?;
        cube::fill(&mut lease, &content, &tokens); // what the engine computes
        let chunk = Chunk::tokens(tokens).pages(lease.into_read());
        sender.reserve().await?.push(chunk)?;
    }
    sender.finish(TOKENS, None)?;
    let outcome = sender.outcome().await;
    drop(sender.released().await);
    node.shutdown().await;
    match outcome {
        Outcome::Done => Ok(()),
        outcome => Err(format!("prefill rank {me}: {outcome}").into()),
    }
}

/// Rank `me` of decode: takes what it holds from whoever has it, and compares every byte.
async fn decode(sides: Sides, me: usize, addresses: &[String]) -> Result<()> {
    let all = sides.of_decode()?;
    let content = &all[me][0];
    let pool = pool(content)?;
    let node = Node::builder(&format!("decode-{me}")).pool(pool.clone());
    let node = node.start().await?;
    let mut peers = Vec::new();
    for address in addresses {
        peers.push(node.connect(address).await?);
    }
    let pages = Vec::from_iter((0..cube::pages_of(content, &(0..TOKENS))).rev());
    let mut lease = pool.lease_write(&pages)?;
    cube::clear(&mut lease);
    let from = Vec::<&Peer>::from_iter(&peers);
    let room = node.receive(RoomId(ROOM)).from_ranks(&from, ROOM);
    let room = room
        .ranks(&all, me)
        .total(TOKENS)
        .checksum(true)
        .into(lease);
    let begun = Instant::now();
    let receiver = room.start().await?;
    let (outcome, back) = (receiver.outcome().await, receiver.released().await);
    let took = begun.elapsed();
    if outcome != Outcome::Done {
        return Err(format!("decode rank {me}: {outcome}").into());
    }
    let right = cube::check(&back.leases[0], content, &(0..TOKENS))?;
    let fabric = peers[0].fabric().ok_or("no session")?;
    let (legs, landed) = (back.proofs.len(), back.landed.bytes);
    println!("{legs} {landed} {right} {} {fabric}", took.as_micros());
    node.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    processes::run().await
}
