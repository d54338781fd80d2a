use super::*;
use crate::memory::copy::End;
use crate::memory::shared_table::{SharedGates, TableError};
use crate::memory::{
    Bell, PidFd, ProcessId, RemoteGates, RemotePool, SharedMemory, SharedOptions, TableMemory,
    Writer, open_shared,
};
use std::cell::Cell;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// Both sides of a gate table, in one process; `pidfd` stands for the writer's.
struct Both {
    ours: Arc<SharedGates>,
    theirs: RemoteGates,
    overwritten: Arc<AtomicU64>,
    rung: Bell,
    pool: Pool,
    remote: RemotePool,
}

fn both(slots: u32, pidfd: PidFd) -> Both {
    let writer = ProcessId::own().unwrap();
    let options = SharedOptions::default();
    let memory = SharedMemory::create("gates", TableMemory::bytes_of(slots), &options).unwrap();
    let fd = memory.fd().try_clone_to_owned().unwrap();
    let table = TableMemory::create(memory, &writer);
    let mapped = SharedMemory::receive(fd, TableMemory::bytes_of(slots)).unwrap();
    let mapped = TableMemory::open(mapped).unwrap();
    assert_eq!((mapped.slots(), mapped.writer()), (slots, writer));
    let rung = Bell::new().unwrap();
    let bell = Arc::new(rung.try_clone().unwrap());
    let overwritten = Arc::<AtomicU64>::default();
    let pool = Pool::shared(layout(Order::LayersFirst)).unwrap();
    let memory = pool.shared_memory().unwrap();
    let fd = memory.fd().try_clone_to_owned().unwrap();
    let memory = SharedMemory::receive(fd, memory.len()).unwrap();
    Both {
        ours: SharedGates::new(table, Arc::new(Writer::new(pidfd)), None),
        theirs: RemoteGates::new(mapped, bell, Arc::clone(&overwritten)),
        overwritten,
        rung,
        remote: RemotePool::new(memory, layout(Order::LayersFirst)).unwrap(),
        pool,
    }
}

fn own() -> PidFd {
    PidFd::own().unwrap()
}

/// A process that does nothing. It goes with this, and keeps nobody waiting for its output.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> (Sleeper, PidFd) {
        let child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pidfd = ProcessId::of(child.id()).unwrap().open().unwrap().unwrap();
        (Sleeper(child), pidfd)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_written_through_a_mapping_is_in_the_pool_when_its_gate_is_finished() {
    let (b, bell) = (both(4, own()), Arc::default());
    let source = pool();
    let mut lease = source.lease_write(&[6]).unwrap();
    lease.page_mut(2, 0).fill(0xAB);
    let lease = lease.into_read();
    let mut lent = b.pool.lease_write(&[3]).unwrap();
    let gate = open_shared(&b.ours, ClaimNo(7), target(&mut lent, &bell)).unwrap();
    let inside = b.theirs.enter(gate.slot(), ClaimNo(7)).unwrap();
    let ticket = ticket(&lease, &Arc::default());
    let to = (&b.remote, &[3][..]);
    inside
        .copy_from(to, at(2, 3), &ticket, at(2, 6), 16)
        .unwrap();
    let stray = inside.copy_from(to, at(2, 4), &ticket, at(2, 6), 16);
    let end = End::Destination;
    assert_eq!(stray, Err(CopyError::NotLent { end, page: 4 }));
    let outside = inside.copy_from(to, 3 * 8 * 16 - 8, &ticket, at(2, 6), 16);
    assert!(matches!(outside, Err(CopyError::OutOfPool { .. })));
    drop(inside);
    let witness = gate.close().try_finish().unwrap();
    assert_eq!(
        witness.landed(),
        Landed {
            pieces: 1,
            bytes: 16
        }
    );
    assert_eq!(lent.page(2, 0), [0xAB; 16]);
    assert_eq!(seen(&b.pool, 2, 4), [0; 16]);
}

#[test]
fn bytes_of_a_slice_are_placed_in_the_pages_that_a_claim_names_and_nowhere_else() {
    let (b, bell) = (both(4, own()), Arc::default());
    let mut lent = b.pool.lease_write(&[3]).unwrap();
    let gate = open_shared(&b.ours, ClaimNo(7), target(&mut lent, &bell)).unwrap();
    let inside = b.theirs.enter(gate.slot(), ClaimNo(7)).unwrap();
    let (to, cursor) = ((&b.remote, &[3][..]), Cell::new(0));
    inside.place(to, at(2, 3), &[0xCD; 16], &cursor).unwrap();
    let stray = inside.place(to, at(2, 3) + 8, &[1; 16], &cursor);
    let end = End::Destination;
    assert_eq!(stray, Err(CopyError::NotLent { end, page: 4 }));
    let outside = inside.place(to, 3 * 8 * 16 - 8, &[1; 16], &cursor);
    assert!(matches!(outside, Err(CopyError::OutOfPool { .. })));
    drop(inside);
    let witness = gate.close().try_finish().unwrap();
    let (pieces, bytes) = (1, 16);
    assert_eq!(witness.landed(), Landed { pieces, bytes });
    assert_eq!(lent.page(2, 0), [0xCD; 16]);
    assert_eq!(seen(&b.pool, 2, 4), [0; 16]);
}

/// Found by fuzzing: a lane of a debug build ended by a panic while it left.
#[test]
fn an_owner_that_overwrites_the_word_of_a_gate_does_not_panic_who_leaves_it_and_is_counted() {
    let (b, bell) = (both(4, own()), Arc::default());
    let mut lent = b.pool.lease_write(&[3]).unwrap();
    let gate = open_shared(&b.ours, ClaimNo(7), target(&mut lent, &bell)).unwrap();
    let at = TableMemory::SLOT * (1 + gate.slot() as usize);
    let word = b.ours.table().memory().word(at).unwrap();
    for (n, scribbled) in [0, 9 | 1 << 48, 7].into_iter().enumerate() {
        assert_eq!(b.overwritten.load(Ordering::Relaxed), n as u64);
        let before = word.load(Ordering::Relaxed);
        let inside = b.theirs.enter(gate.slot(), ClaimNo(7)).unwrap();
        word.store(scribbled, Ordering::Relaxed);
        drop(inside);
        assert_eq!(word.load(Ordering::Relaxed), scribbled, "it was left alone");
        word.store(before, Ordering::Relaxed);
    }
    // Only those.
    drop(b.theirs.enter(gate.slot(), ClaimNo(7)).unwrap());
    assert_eq!(b.overwritten.load(Ordering::Relaxed), 3);
}

#[test]
fn a_writer_of_another_process_holds_the_witness_back_and_rings_when_it_leaves() {
    let (b, bell) = (both(4, own()), Arc::<Rings>::default());
    let mut lent = b.pool.lease_write(&[1]).unwrap();
    let gate = open_shared(&b.ours, ClaimNo(9), target(&mut lent, &bell)).unwrap();
    let slot = gate.slot();
    let [first, second] = [(); 2].map(|()| b.theirs.enter(slot, ClaimNo(9)).unwrap());
    let closing = gate.close().try_finish().unwrap_err();
    assert_eq!(
        b.theirs.enter(slot, ClaimNo(9)).unwrap_err(),
        Refused::Closed
    );
    drop(first);
    assert!(!b.rung.silence(), "somebody is still inside");
    let closing = closing.try_finish().unwrap_err();
    b.ours.rang();
    assert_eq!(bell.heard(), []);
    drop(second);
    assert!(b.rung.silence());
    b.ours.rang();
    assert_eq!(bell.heard(), [ClaimNo(9)]);
    assert!(closing.try_finish().is_ok());
    lent.page_mut(0, 0).fill(1);
}

#[test]
fn a_living_writer_inside_is_never_discounted_and_a_dead_one_is() {
    let (mut child, pidfd) = Sleeper::new();
    let (b, bell) = (both(4, pidfd), Arc::default());
    let mut lent = b.pool.lease_write(&[1, 2]).unwrap();
    let gate = open_shared(&b.ours, ClaimNo(9), target(&mut lent, &bell)).unwrap();
    // As the process would that is stopped, and then killed, inside.
    let inside = b.theirs.enter(gate.slot(), ClaimNo(9)).unwrap();
    let closing = gate.close().try_finish().unwrap_err();
    let closing = closing.try_finish_dead().unwrap_err();
    assert!(b.pool.lease_read(&[2]).is_err());
    child.kill();
    let mut closing = closing.try_finish().unwrap_err();
    let witness = loop {
        // The kernel is not asked for each gate and each time.
        closing = match closing.try_finish_dead() {
            Ok(witness) => break witness,
            Err(closing) => closing,
        };
        std::thread::yield_now();
    };
    assert_eq!(Witness::WriterDead(witness).proof(), Proof::WriterDead);
    lent.page_mut(0, 0).fill(1);
    // Its slot is not used again: the count of the dead stays in it.
    let mut slots = Vec::new();
    for number in 10..13 {
        let mut other = b.pool.lease_write(&[number as u32 - 5]).unwrap();
        let gate = open_shared(&b.ours, ClaimNo(number), target(&mut other, &bell)).unwrap();
        slots.push((gate, other));
    }
    let mut other = b.pool.lease_write(&[3]).unwrap();
    assert!(open_shared(&b.ours, ClaimNo(13), target(&mut other, &bell)).is_err());
    drop(inside);
}

#[test]
fn a_dead_writer_does_not_open_what_is_not_closed() {
    let (mut child, pidfd) = Sleeper::new();
    child.kill();
    let (b, bell) = (both(4, pidfd), Arc::default());
    let mut lent = b.pool.lease_write(&[1]).unwrap();
    let gate = open_shared(&b.ours, ClaimNo(9), target(&mut lent, &bell)).unwrap();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lent.page(0, 0)[0])).is_err());
    assert!(gate.close().try_finish().is_ok());
}

#[test]
fn a_gate_that_nobody_waits_for_keeps_its_pages_until_its_writers_are_out() {
    let (b, bell) = (both(1, own()), Arc::default());
    let mut lent = b.pool.lease_write(&[1]).unwrap();
    let gate = open_shared(&b.ours, ClaimNo(9), target(&mut lent, &bell)).unwrap();
    let inside = b.theirs.enter(gate.slot(), ClaimNo(9)).unwrap();
    drop((gate, lent));
    assert!(b.pool.lease_read(&[1]).is_err(), "somebody is inside");
    let mut other = b.pool.lease_write(&[2]).unwrap();
    let full = open_shared(&b.ours, ClaimNo(10), target(&mut other, &bell)).unwrap_err();
    assert!(full.to_string().contains("1 gates"), "{full}");
    drop(inside);
    assert!(b.rung.silence());
    b.ours.rang();
    assert!(b.pool.lease_read(&[1]).is_ok());
    let gate = open_shared(&b.ours, ClaimNo(10), *full.target).unwrap();
    assert_eq!(b.theirs.enter(0, ClaimNo(9)).unwrap_err(), Refused::Stale);
    drop(gate);
}

#[test]
fn a_slot_or_a_number_that_is_none_lets_nobody_in() {
    let (b, bell) = (both(2, own()), Arc::default());
    let mut lent = b.pool.lease_write(&[1]).unwrap();
    let gate = open_shared(&b.ours, ClaimNo(9), target(&mut lent, &bell)).unwrap();
    let enter = |slot, number| b.theirs.enter(slot, ClaimNo(number)).map(drop);
    assert_eq!(enter(2, 9), Err(Refused::NoSuchSlot));
    assert_eq!(enter(u32::MAX, 9), Err(Refused::NoSuchSlot));
    assert_eq!(enter(gate.slot(), 8), Err(Refused::Stale));
    assert_eq!(enter(gate.slot(), 0), Err(Refused::Stale));
    assert_eq!(enter(gate.slot(), 9 | 1 << 48), Err(Refused::Stale));
    assert_eq!(enter(1 - gate.slot(), 9), Err(Refused::Stale));
    assert_eq!(enter(gate.slot(), 9), Ok(()));
}

#[test]
fn memory_that_is_no_table_is_not_taken_for_one() {
    let options = SharedOptions::default();
    let memory = SharedMemory::create("none", 4096, &options).unwrap();
    let fd = memory.fd().try_clone_to_owned().unwrap();
    assert!(matches!(
        TableMemory::open(memory),
        Err(TableError::Foreign { magic: 0, .. })
    ));
    drop(fd);
    // One that says that it is larger than what was mapped of it.
    let memory = SharedMemory::create("gates", TableMemory::bytes_of(8), &options).unwrap();
    let fd = memory.fd().try_clone_to_owned().unwrap();
    let _table = TableMemory::create(memory, &ProcessId::own().unwrap());
    let part = SharedMemory::receive(fd, TableMemory::bytes_of(4)).unwrap();
    let bytes = part.len();
    if bytes < TableMemory::bytes_of(8) {
        assert!(matches!(
            TableMemory::open(part),
            Err(TableError::TooSmall { slots: 8, .. })
        ));
    }
}

#[test]
fn whoever_takes_over_a_table_shuts_every_slot_and_learns_who_is_inside() {
    let (b, bell) = (both(4, own()), Arc::default());
    let mut lent = b.pool.lease_write(&[1]).unwrap();
    let gate = open_shared(&b.ours, ClaimNo(9), target(&mut lent, &bell)).unwrap();
    let inside = b.theirs.enter(gate.slot(), ClaimNo(9)).unwrap();
    let table = b.ours.table().clone();
    assert_eq!(table.shut(gate.slot()), Some((9, 1)));
    assert_eq!(
        b.theirs.enter(gate.slot(), ClaimNo(9)).unwrap_err(),
        Refused::Closed
    );
    drop(inside);
    assert_eq!(table.shut(gate.slot()), Some((9, 0)));
    assert_eq!(table.shut(4), None);
}

#[test]
fn a_gate_whose_word_the_peer_wrote_over_is_not_opened_and_the_peer_is_blamed() {
    let (b, bell) = (both(1, own()), Arc::default());
    // Slot 0 is behind the header, and its word is its first.
    let word = b.ours.table().memory().word(TableMemory::SLOT).unwrap();
    word.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    let mut lent = b.pool.lease_write(&[3]).unwrap();
    let refused = open_shared(&b.ours, ClaimNo(7), target(&mut lent, &bell)).unwrap_err();
    let number = ClaimNo(7);
    assert_eq!(refused.why, NotOpened::Overwritten { number, slot: 0 });
    drop(refused);
    lent.page_mut(0, 0).fill(1);
    let bad = open_shared(&b.ours, ClaimNo(0), target(&mut lent, &bell)).unwrap_err();
    assert_eq!(bad.why, NotOpened::BadNumber(ClaimNo(0)));
}
