//! One piece of memory is one pool, whatever it is called, until it is let go of.

use super::dir::Dir;
use super::past_lives::{Other, from_file};
use super::*;
use crate::memory::shared::Attachment;
use crate::memory::shared_table::SharedGates;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

const BYTES: usize = 3 * 8 * 16;

fn of_others(memory: OthersMemory<'_>) -> Result<Pool, PoolError> {
    Pool::of_others(layout(Order::LayersFirst), memory)
}

fn sealed(memory: impl AsFd, beside: &Path) -> Result<Pool, PoolError> {
    of_others(OthersMemory::Sealed {
        memory: memory.as_fd().try_clone_to_owned().unwrap(),
        beside,
    })
}

/// Another's memfd, which nobody has as a pool yet: received as from an engine.
fn engines(bytes: usize) -> OwnedFd {
    let memory = SharedMemory::create("engine", bytes, &SharedOptions::default()).unwrap();
    memory.fd().try_clone_to_owned().unwrap()
}

/// Which process it is said to be in use by.
#[track_caller]
fn in_use_by(refused: Result<Pool, PoolError>) -> u32 {
    let refused = refused.unwrap_err();
    let text = refused.to_string();
    let PoolError::Shared {
        why: SharedError::Attached { pid, .. },
        ..
    } = refused
    else {
        panic!("{text}")
    };
    assert!(text.contains(&format!("in use by process {pid}")), "{text}");
    pid
}

#[test]
fn two_names_of_a_file_are_one_pool_and_who_has_it_is_said() {
    let dir = Dir::new();
    let (one, two) = (dir.path("one"), dir.path("two"));
    let pool = from_file(&one).unwrap();
    fs::hard_link(&one, &two).unwrap();
    let me = std::process::id();
    assert_eq!(in_use_by(from_file(&two)), me);
    let others = OthersMemory::File {
        path: &two,
        options: &FileOptions::default(),
    };
    assert_eq!(in_use_by(of_others(others)), me);
    assert_eq!(
        dir.names(),
        ["one", "one.kvroom", "two"],
        "nothing was put beside it"
    );
    drop(pool);
    drop(from_file(&two).unwrap());
}

#[test]
fn a_process_that_has_the_file_by_another_name_keeps_it_until_it_is_dead() {
    let dir = Dir::new();
    let (one, two) = (dir.path("one"), dir.path("two"));
    let mut life = Other::start("life", &one, &std::process::id().to_string());
    life.expect("lent");
    fs::hard_link(&one, &two).unwrap();
    assert_eq!(in_use_by(from_file(&two)), life.pid());
    life.signal(libc::SIGSTOP);
    assert_eq!(in_use_by(from_file(&two)), life.pid(), "stopped is alive");
    life.kill();
    // Its writer, which is this process, is alive.
    let refused = from_file(&two).unwrap_err().to_string();
    assert!(refused.contains("former name"), "{refused}");
    drop(from_file(&one).unwrap());
}

#[test]
fn one_memfd_is_one_pool_wherever_what_is_known_of_it_is_kept() {
    let dir = Dir::new();
    let fd = engines(BYTES);
    let pool = sealed(&fd, &dir.path("here")).unwrap();
    assert!(pool.is_of_others());
    let me = std::process::id();
    // The same descriptor, whose locks the kernel does not tell apart.
    assert_eq!(in_use_by(sealed(&fd, &dir.path("there"))), me);
    assert_eq!(dir.names(), ["here.kvroom"]);
    drop(pool);
    drop(sealed(&fd, &dir.path("there")).unwrap());
}

#[test]
fn what_a_node_made_for_itself_is_nobodys_pool() {
    let dir = Dir::new();
    let me = std::process::id();
    let pool = Pool::shared(layout(Order::LayersFirst)).unwrap();
    let gates = SharedMemory::create("gates", 4096, &SharedOptions::default()).unwrap();
    for memory in [pool.shared_memory().unwrap().fd(), gates.fd()] {
        assert_eq!(in_use_by(sealed(memory, &dir.path("own"))), me);
    }
    // Nor are the files beside a pool, by any name.
    let kv = from_file(&dir.path("kv")).unwrap();
    let table = kv
        .attachment()
        .unwrap()
        .gate_table(&ProcessId::own().unwrap(), 4096);
    let table = table.unwrap();
    for (n, beside) in ["kv.kvroom", "kv.kvroom.gates-1"].into_iter().enumerate() {
        let name = dir.path(&format!("link-{n}"));
        fs::hard_link(dir.path(beside), &name).unwrap();
        assert_eq!(in_use_by(from_file(&name)), me, "{beside}");
    }
    drop((table, kv, gates, pool));
}

#[test]
fn a_pool_in_memory_is_allocated_at_registration() {
    let dir = Dir::new();
    let large = PoolLayout {
        page_bytes: 1 << 20,
        ..layout(Order::LayersFirst)
    };
    let bytes = 24 << 20;
    let sparse = SharedMemory::sparse("engine", bytes);
    let file = fs::File::from(sparse.try_clone().unwrap());
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512;
    assert_eq!(blocks(), 0);
    let memory = OthersMemory::Sealed {
        memory: sparse,
        beside: &dir.path("kv"),
    };
    let _pool = Pool::of_others(large, memory).unwrap();
    assert!(blocks() >= bytes, "a lane's first write finds it there");
}

#[test]
fn a_pool_is_let_go_of_only_when_it_is_retired_and_nothing_is_leased() {
    let dir = Dir::new();
    let (path, other) = (dir.path("kv"), dir.path("other"));
    let pool = from_file(&path).unwrap();
    fs::hard_link(&path, &other).unwrap();
    assert!(!pool.let_go(), "it is not retired");
    in_use_by(from_file(&path));
    let lease = pool.lease_read(&[1]).unwrap();
    pool.retire();
    assert!(!pool.let_go(), "a page is leased");
    in_use_by(from_file(&path));
    in_use_by(from_file(&other));
    drop(lease);
    assert!(pool.let_go());
    // Handles of it are left, and see the memory.
    let next = from_file(&other).unwrap();
    assert_eq!(seen(&pool, 0, 0), [0; 16]);
    assert!(pool.let_go(), "again, which is nothing new");
    in_use_by(from_file(&path));
    drop(pool);
    in_use_by(from_file(&path));
    drop(next);
}

/// Gates of a pool, in memory that is not recorded beside it, and the side that enters them.
fn gates_of(slots: u32) -> (Arc<SharedGates>, RemoteGates) {
    let me = ProcessId::own().unwrap();
    let bytes = TableMemory::bytes_of(slots);
    let memory = SharedMemory::create("gates", bytes, &SharedOptions::default()).unwrap();
    let mapped = SharedMemory::receive(memory.fd().try_clone_to_owned().unwrap(), bytes).unwrap();
    let table = TableMemory::create(memory, &me);
    let writer = Arc::new(Writer::new(PidFd::own().unwrap()));
    let noted = Arc::new(NoteOwners::new(table.clone()));
    let theirs = RemoteGates::new(
        TableMemory::open(mapped).unwrap(),
        Arc::new(Bell::new().unwrap()),
        Arc::default(),
    );
    (SharedGates::new(table, writer, Some(noted)), theirs)
}

#[test]
fn a_pool_is_not_let_go_of_while_a_gate_to_it_is_open_or_closing_though_its_lease_was_dropped() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let pool = from_file(&path).unwrap();
    let (gates, theirs) = gates_of(2);
    let mut lease = pool.lease_write(&[3]).unwrap();
    let gate = open_shared(&gates, ClaimNo(9), target(&mut lease, &Arc::default())).unwrap();
    let inside = theirs.enter(gate.slot(), ClaimNo(9)).unwrap();
    drop(lease);
    pool.retire();
    assert!(!pool.let_go(), "its gate is open");
    in_use_by(from_file(&path));
    let closing = gate.close();
    assert!(!pool.let_go(), "somebody is inside its closed gate");
    in_use_by(from_file(&path));
    let closing = closing.try_finish().unwrap_err();
    drop(inside);
    assert!(!pool.let_go(), "nobody has seen that it is empty");
    assert!(closing.try_finish().is_ok());
    assert!(pool.let_go());
    // What came late is told so, and holds on to nothing.
    let attachment = pool.attachment().unwrap();
    let me = ProcessId::own().unwrap();
    let late = attachment
        .gate_table(&me, TableMemory::bytes_of(2))
        .unwrap_err();
    assert!(late.to_string().contains("was let go of"), "{late}");
    assert_eq!(Arc::strong_count(attachment), 1);
    drop(pool);
    assert_eq!(dir.names(), ["kv", "kv.kvroom"]);
    // The session that could write goes on, and its gates serve other pools.
    let next = from_file(&path).unwrap();
    assert_eq!(next.quarantined(), []);
    let mut lease = next.lease_write(&[3]).unwrap();
    let gate = open_shared(&gates, ClaimNo(10), target(&mut lease, &Arc::default())).unwrap();
    assert!(theirs.enter(gate.slot(), ClaimNo(10)).is_ok());
    assert!(theirs.enter(gate.slot(), ClaimNo(9)).is_err());
}

#[test]
#[should_panic(expected = "no slice of it is made")]
fn a_lease_of_others_memory_gives_no_slice() {
    let dir = Dir::new();
    let fd = engines(BYTES);
    let pool = sealed(&fd, &dir.path("kv")).unwrap();
    let lease = pool.lease_read(&[1]).unwrap();
    let _ = lease.page(0, 0);
}

#[test]
#[should_panic(expected = "no slice of it is made")]
fn a_lease_of_others_memory_gives_no_slice_to_write_either() {
    let dir = Dir::new();
    let fd = engines(BYTES);
    let pool = sealed(&fd, &dir.path("kv")).unwrap();
    let mut lease = pool.lease_write(&[1]).unwrap();
    let _ = lease.page_mut(0, 0);
}

#[test]
fn what_is_summed_of_others_memory_is_what_it_holds() {
    let dir = Dir::new();
    let fd = engines(BYTES);
    let engine = fs::File::from(fd.try_clone().unwrap());
    let bytes: Vec<u8> = (0..BYTES).map(|n| n as u8).collect();
    std::os::unix::fs::FileExt::write_all_at(&engine, &bytes, 0).unwrap();
    let pool = sealed(&fd, &dir.path("kv")).unwrap();
    let view = pool.lease_read(&[5]).unwrap().source_view();
    let (from, to) = (at(2, 5) as usize, at(2, 6) as usize);
    let seen = view.with_bytes(from as u64, 16, <[u8]>::to_vec).unwrap();
    assert_eq!(seen, bytes[from..to]);
    // An odd place and length: bytes before and after the words of 8.
    let seen = view.with_bytes(from as u64 + 3, 11, <[u8]>::to_vec);
    assert_eq!(seen.unwrap(), bytes[from + 3..from + 14]);
    assert!(
        view.with_bytes(to as u64, 16, <[u8]>::len).is_err(),
        "not leased"
    );
}

/// The companion by itself, whose header can be wrong about who is attached.
pub(super) fn attach(path: &Path) -> Result<(), SharedError> {
    Attachment::new(path, &layout(Order::LayersFirst), 1).map(drop)
}
