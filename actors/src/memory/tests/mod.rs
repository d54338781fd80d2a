//! Tests of pools, leases, gates and jobs together, on one thread. Orders of threads: the loom tests.

mod dir;
mod far;
mod file_pools;
mod free_list;
mod gates;
mod jobs;
mod leases;
mod on_device;
mod one_memory;
mod past_lives;
mod ring;
mod shared_gates;
mod shared_pools;
mod table_model;

use super::*;
use crate::ids::{ClaimNo, LegNo, LifeId};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use std::sync::{Arc, Mutex};

fn layout(order: Order) -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order,
        layers: 3,
        pages: 8,
        page_bytes: 16,
        page_tokens: 4,
    }
}

fn pool() -> Pool {
    Pool::owned(layout(Order::LayersFirst)).unwrap()
}

/// Offset of a cell in a pool of layers first, of [`layout`].
fn at(layer: u64, page: u64) -> u64 {
    (layer * 8 + page) * 16
}

fn seen(pool: &Pool, layer: u32, page: u32) -> Vec<u8> {
    let mut bytes = vec![0xEE; 16];
    assert_eq!(pool.observe(layer, page, &mut bytes), Ok(16));
    bytes
}

#[derive(Default)]
struct Rings(Mutex<Vec<ClaimNo>>);

impl Doorbell for Rings {
    fn ring(&self, number: ClaimNo) {
        self.0.lock().unwrap().push(number);
    }
}

impl Rings {
    fn heard(&self) -> Vec<ClaimNo> {
        self.0.lock().unwrap().clone()
    }
}

#[derive(Default)]
struct Backs(Mutex<Vec<JobBack>>);

impl TicketSink for Backs {
    fn returned(&self, back: JobBack) {
        self.0.lock().unwrap().push(back);
    }
}

fn target(lease: &mut WriteLease, bell: &Arc<Rings>) -> Target {
    Target::new(vec![lease.target_section()], None, bell.clone())
}

fn ticket(lease: &ReadLease, sink: &Arc<Backs>) -> Ticket {
    let id = JobId {
        life: LifeId(1),
        leg: LegNo(2),
        job: 3,
    };
    Ticket::new(id, lease.source_view(), CancelFlag::new(), sink.clone())
}
