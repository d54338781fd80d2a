//! Gate tables in memory that a peer writes: its header, and its gates' words under way.

use super::{again, memory, put};
use crate::fuzzing::Feed;
use crate::ids::ClaimNo;
use crate::memory::free_list::MAX_SLOTS;
use crate::memory::shared_table::SharedGates;
use crate::memory::{
    Bell, Closing, Doorbell, OpenGate, PidFd, Pool, ProcessId, RemoteGates, SharedMemory,
    TableMemory, Target, WriteLease, Writer, open_shared,
};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SLOTS: u32 = 4;
const PAGES: u32 = 8;
/// More than the slots need, so that a table can say that it is larger than it is.
const BYTES: usize = 1024;

thread_local! {
    static FIXED: Fixed = Fixed::new();
}

/// What is made once.
struct Fixed {
    memory: SharedMemory,
    own: ProcessId,
    bell: Arc<Bell>,
}

impl Fixed {
    fn new() -> Fixed {
        Fixed {
            memory: memory(BYTES),
            own: ProcessId::own().unwrap(),
            bell: Arc::new(Bell::new().unwrap()),
        }
    }
}

/// A table's header as a peer may write it; a writer that scribbles over the words of gates that are
/// open here; an owner that does so over those that this process is inside of. Nothing panics,
/// nothing outside of the table is touched, and pages come back only when the word says that nobody
/// is inside.
pub fn gate_table(data: &[u8]) {
    let mut feed = Feed::new(data);
    FIXED.with(|fixed| {
        for at in (0..BYTES).step_by(8) {
            put(&fixed.memory, at, 0);
        }
        match feed.byte() % 3 {
            0 => header(fixed, &mut feed),
            1 => owner(fixed, &mut feed),
            _ => writer(fixed, &mut feed),
        }
    });
}

fn header(fixed: &Fixed, feed: &mut Feed<'_>) {
    let bytes = 1 + usize::from(feed.u16()) % BYTES;
    let mut at = 0;
    while !feed.is_empty() && at < BYTES {
        put(&fixed.memory, at, feed.u64());
        at += 8;
    }
    let Ok(table) = TableMemory::open(again(&fixed.memory, bytes)) else {
        return;
    };
    assert!(table.slots() as usize <= MAX_SLOTS);
    assert!(TableMemory::bytes_of(table.slots()) <= bytes);
    let _ = table.writer().look();
    for slot in 0..table.slots() {
        let (number, _) = table.shut(slot).unwrap();
        assert!(number <= ClaimNo::MAX.0);
        let gates = table.slot(slot).unwrap();
        let _ = gates.pieces.load(Ordering::Relaxed);
    }
    assert!(table.slot(table.slots()).is_none() && table.slot(u32::MAX).is_none());
}

struct Nobody;

impl Doorbell for Nobody {
    fn ring(&self, _: ClaimNo) {}
}

/// One claim's gate; and its lease, which holds the pages.
enum Lent {
    Open(OpenGate, WriteLease),
    Closing(Closing, WriteLease),
}

/// Whoever lends, with a writer that lies.
fn owner(fixed: &Fixed, feed: &mut Feed<'_>) {
    let table = TableMemory::create(
        again(&fixed.memory, TableMemory::bytes_of(SLOTS)),
        &fixed.own,
    );
    let pidfd = PidFd::own().unwrap();
    let gates = SharedGates::new(table, Arc::new(Writer::new(pidfd)), None);
    let layout = PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 2,
        pages: PAGES,
        page_bytes: 16,
        page_tokens: 4,
    };
    let pool = Pool::owned(layout).unwrap();
    let (mut lent, mut number) = (Vec::new(), 0);
    for _ in 0..64 {
        if feed.is_empty() {
            break;
        }
        match feed.byte() % 6 {
            0 => {
                number += 1;
                let page = number as u32 % PAGES;
                let Ok(mut lease) = pool.lease_write(&[page]) else {
                    continue;
                };
                let target = Target::new(vec![lease.target_section()], None, Arc::new(Nobody));
                match open_shared(&gates, ClaimNo(number), target) {
                    Ok(gate) => lent.push(Lent::Open(gate, lease)),
                    Err(refused) => assert!(!refused.why.to_string().is_empty()),
                }
            }
            1 => scribble(fixed, number, feed),
            2 if !lent.is_empty() => {
                let at = usize::from(feed.byte()) % lent.len();
                let next = match lent.swap_remove(at) {
                    Lent::Open(gate, lease) => Lent::Closing(gate.close(), lease),
                    closing @ Lent::Closing(..) => closing,
                };
                lent.push(next);
            }
            3 if !lent.is_empty() => {
                let at = usize::from(feed.byte()) % lent.len();
                match lent.swap_remove(at) {
                    Lent::Closing(closing, lease) => {
                        let (slot, number) = (closing.slot(), closing.number());
                        let said = word(fixed, slot);
                        match closing.try_finish() {
                            Ok(closed) => {
                                assert_eq!(closed.number(), number);
                                assert!(
                                    said & ClaimNo::MAX.0 == number.0 && inside(said) == 0,
                                    "{said:#x} is not empty"
                                );
                            }
                            Err(closing) => match closing.try_finish_dead() {
                                Ok(_) => panic!("the writer lives"),
                                Err(closing) => lent.push(Lent::Closing(closing, lease)),
                            },
                        }
                    }
                    open @ Lent::Open(..) => lent.push(open),
                }
            }
            4 if !lent.is_empty() => {
                let at = usize::from(feed.byte()) % lent.len();
                drop(lent.swap_remove(at));
            }
            _ => gates.rang(),
        }
    }
}

/// Whoever writes, with an owner that lies.
fn writer(fixed: &Fixed, feed: &mut Feed<'_>) {
    let table = TableMemory::create(
        again(&fixed.memory, TableMemory::bytes_of(SLOTS)),
        &fixed.own,
    );
    let overwritten = Arc::<AtomicU64>::default();
    let gates = RemoteGates::new(table, Arc::clone(&fixed.bell), Arc::clone(&overwritten));
    let mut insides = Vec::new();
    for _ in 0..64 {
        if feed.is_empty() {
            break;
        }
        match feed.byte() % 3 {
            0 => scribble(fixed, u64::from(feed.byte()), feed),
            1 => {
                let slot = u32::from(feed.byte()) % (SLOTS + 1);
                let number = u64::from(feed.byte());
                let said = word(fixed, slot.min(SLOTS - 1));
                match gates.enter(slot, ClaimNo(number)) {
                    Ok(inside) => {
                        assert!(slot < SLOTS && number != 0 && said & ClaimNo::MAX.0 == number);
                        insides.push((inside, slot, number));
                    }
                    Err(refused) => assert!(!refused.to_string().is_empty()),
                }
            }
            _ if !insides.is_empty() => {
                let at = usize::from(feed.byte()) % insides.len();
                let (inside_now, slot, number) = insides.swap_remove(at);
                let (said, before) = (word(fixed, slot), overwritten.load(Ordering::Relaxed));
                drop(inside_now);
                let counted = overwritten.load(Ordering::Relaxed) - before;
                let wrong = said & ClaimNo::MAX.0 != number || inside(said) == 0;
                assert_eq!(counted, u64::from(wrong), "{said:#x}");
            }
            _ => {}
        }
    }
}

/// A word that looks like one, or does not.
fn scribble(fixed: &Fixed, number: u64, feed: &mut Feed<'_>) {
    let slot = usize::from(feed.byte()) % SLOTS as usize;
    let how = feed.byte();
    let value = match how & 3 {
        0 => feed.u64(),
        1 => number | u64::from(how) << 56,
        2 => number | u64::from(feed.u16()) << 48,
        _ => word(fixed, slot as u32) ^ 1 << (how >> 2),
    };
    put(&fixed.memory, TableMemory::SLOT * (1 + slot), value);
}

fn word(fixed: &Fixed, slot: u32) -> u64 {
    let at = TableMemory::SLOT * (1 + slot as usize);
    fixed.memory.word(at).unwrap().load(Ordering::Relaxed)
}

fn inside(word: u64) -> u64 {
    word >> 48 & 0x3FFF
}
