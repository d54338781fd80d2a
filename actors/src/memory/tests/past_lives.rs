//! Pools whose runtime died, with real processes: one that had the pool, one that writes into it.
//!
//! ```text
//!   test ──spawns──▶ life    attaches, opens gate 9 for pages 1 and 2; is killed
//!        ──spawns──▶ writer  enters gate 9; is stopped inside, continued, killed
//!   then the test's own process attaches
//! ```
#![allow(unsafe_code)] // Makes pools of files, sends signals.

use super::dir::Dir;
use super::*;
use crate::memory::shared_table::SharedGates;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const CLAIM: ClaimNo = ClaimNo(9);

pub(super) fn from_file(path: &Path) -> Result<Pool, PoolError> {
    let options = FileOptions {
        create: true,
        ..FileOptions::default()
    };
    // SAFETY: nobody shortens the file; leases and gates are kept to by all processes of this test.
    unsafe { Pool::from_file(layout(Order::LayersFirst), path, &options) }
}

/// A process of its own; it goes with this.
pub(super) struct Other {
    child: Child,
    says: BufReader<ChildStdout>,
    told: ChildStdin,
}

impl Other {
    pub(super) fn start(role: &str, path: &Path, more: &str) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory::tests::past_lives::another_process"])
            .args(["--ignored", "--nocapture"])
            .env("KVROOM_TEST_ROLE", role)
            .env("KVROOM_TEST_PATH", path)
            .env("KVROOM_TEST_MORE", more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Other {
            says: BufReader::new(child.stdout.take().unwrap()),
            told: child.stdin.take().unwrap(),
            child,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says this.
    #[track_caller]
    pub(super) fn expect(&mut self, word: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.says.read_line(&mut line).unwrap(),
                0,
                "it ended before it said {word}"
            );
            if let Some(said) = line.trim().strip_prefix('@') {
                assert_eq!(said, word);
                return;
            }
        }
    }

    fn go_on(&mut self) {
        self.told.write_all(b"\n").unwrap();
    }

    pub(super) fn signal(&self, signal: libc::c_int) {
        // SAFETY: takes no pointers; the process is a child that was not waited for, so the number
        // is still its.
        assert_eq!(unsafe { libc::kill(self.pid() as libc::pid_t, signal) }, 0);
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: &str) {
    println!("@{word}");
}

fn wait() {
    let _ = std::io::stdin().read(&mut [0; 1]);
}

/// What the other processes of these tests do.
#[test]
#[ignore = "run by other tests as a process of its own"]
fn another_process() {
    let var = |name| std::env::var(name).unwrap();
    let (path, more) = (
        PathBuf::from(var("KVROOM_TEST_PATH")),
        var("KVROOM_TEST_MORE"),
    );
    match var("KVROOM_TEST_ROLE").as_str() {
        "life" => life(from_file(&path), more.parse().unwrap(), false),
        "late" => life(from_file(&path), more.parse().unwrap(), true),
        "daemon" => {
            std::env::set_current_dir(path.parent().unwrap()).unwrap();
            let pool = from_file(Path::new(path.file_name().unwrap()));
            std::env::set_current_dir("/").unwrap();
            life(pool, more.parse().unwrap(), false);
        }
        "writer" => writer(&path),
        role => panic!("{role}"),
    }
}

/// A runtime that has the pool, and lends pages 1 and 2 to a claim that process `writer` serves; its
/// gates were made before it had the pool, if it came `late`.
fn life(pool: Result<Pool, PoolError>, writer: u32, late: bool) {
    let pool = pool.unwrap();
    pool.attachment().unwrap().reserve_claims(100);
    let id = ProcessId::of(writer).unwrap();
    let bytes = TableMemory::bytes_of(4);
    let memory = match late {
        true => SharedMemory::create("gates", bytes, &SharedOptions::default()),
        false => gate_table([&pool], &id, bytes).unwrap(),
    };
    let table = TableMemory::create(memory.unwrap(), &id);
    let gates = SharedGates::new(
        table.clone(),
        Arc::new(Writer::new(id.open().unwrap().unwrap())),
        Some(Arc::new(NoteOwners::new(table))),
    );
    let mut lease = pool.lease_write(&[1, 2]).unwrap();
    let gate = open_shared(&gates, CLAIM, target(&mut lease, &Arc::default())).unwrap();
    assert_eq!(gate.slot(), 0);
    say("lent");
    wait();
    assert!(gate.close().try_finish().is_ok());
    drop(lease);
    say("back");
    wait();
    drop((gates, pool));
    say("gone");
    wait();
}

/// A peer's process that enters the claim's gate, leaves it, and tries again.
fn writer(path: &Path) {
    wait();
    let table = PathBuf::from(format!("{}.kvroom.gates-1", path.display()));
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(table)
        .unwrap();
    let memory = SharedMemory::receive_file(file.into(), TableMemory::bytes_of(4)).unwrap();
    let gates = RemoteGates::new(
        TableMemory::open(memory).unwrap(),
        Arc::new(Bell::new().unwrap()),
        Arc::default(),
    );
    let inside = gates.enter(0, CLAIM).ok();
    say("inside");
    wait();
    drop(inside);
    say("left");
    wait();
    match gates.enter(0, CLAIM) {
        Ok(_) => say("entered"),
        Err(refused) => say(&format!("{refused:?}")),
    }
}

/// A pool whose life was killed while its writer was inside, stopped.
fn after_a_death_with_a_writer_inside() -> (Dir, PathBuf, Other) {
    let dir = Dir::new();
    let path = dir.path("kv");
    let mut writer = Other::start("writer", &path, "");
    let mut life = Other::start("life", &path, &writer.pid().to_string());
    life.expect("lent");
    writer.go_on();
    writer.expect("inside");
    writer.signal(libc::SIGSTOP);
    life.kill();
    (dir, path, writer)
}

fn waits(page: u32, writer: Option<u32>) -> Quarantined {
    Quarantined {
        page,
        claim: CLAIM,
        writer,
    }
}

#[test]
fn memory_is_no_pool_by_another_name_while_a_writer_of_its_former_life_may_be_alive() {
    let (dir, path, mut writer) = after_a_death_with_a_writer_inside();
    let other = dir.path("other");
    let refused = || {
        let text = from_file(&other).unwrap_err().to_string();
        assert!(
            text.contains("kv.kvroom") && text.contains("former name"),
            "{text}"
        );
        assert!(
            text.contains(&format!("process {}", writer.pid())),
            "{text}"
        );
        assert!(
            !dir.path("other.kvroom").exists(),
            "nothing is left of the try"
        );
    };
    fs::hard_link(&path, &other).unwrap();
    refused();
    fs::remove_file(&path).unwrap();
    refused();
    // By its former name it is what it was.
    fs::rename(&other, &path).unwrap();
    let pool = from_file(&path).unwrap();
    let pages: Vec<u32> = pool.quarantined().iter().map(|q| q.page).collect();
    assert_eq!(pages, [1, 2]);
    drop(pool);
    fs::rename(&path, &other).unwrap();
    // A new file by the former name does not make what is known of the old one void.
    drop(from_file(&path).unwrap());
    let text = from_file(&other).unwrap_err().to_string();
    assert!(text.contains("former name"), "{text}");
    writer.kill();
    assert_eq!(from_file(&other).unwrap().quarantined(), []);
}

#[test]
fn a_writer_that_is_stopped_inside_keeps_exactly_its_claims_pages_until_it_has_left() {
    let (dir, path, mut writer) = after_a_death_with_a_writer_inside();
    let pool = from_file(&path).unwrap();
    let pid = Some(writer.pid());
    assert_eq!(pool.quarantined(), [waits(1, pid), waits(2, pid)]);
    assert_eq!(pool.look_again(), 0);
    for refused in [
        pool.lease_read(&[0, 1]).unwrap_err(),
        pool.lease_write(&[0, 1]).unwrap_err(),
    ] {
        let holder = Holder::FormerLife;
        assert_eq!(
            refused,
            LeaseError::Held {
                page: 1,
                position: 1,
                holder
            }
        );
        assert!(
            refused
                .to_string()
                .contains("quarantined from a previous life"),
            "{refused}"
        );
    }
    drop(pool.lease_write(&[0, 3, 4, 5, 6, 7]).unwrap());
    assert_eq!(
        pool.leased_pages(),
        0,
        "quarantined pages are nobody's lease"
    );
    writer.signal(libc::SIGCONT);
    writer.go_on();
    writer.expect("left");
    assert_eq!(pool.look_again(), 2);
    assert_eq!((pool.quarantined(), pool.look_again()), (vec![], 0));
    drop(pool.lease_write(&[1, 2]).unwrap());
    assert_eq!(dir.names(), ["kv", "kv.kvroom"], "the old table is gone");
    writer.go_on();
    writer.expect("Closed");
}

#[test]
fn a_writer_that_dies_inside_is_discounted() {
    let (dir, path, mut writer) = after_a_death_with_a_writer_inside();
    let pool = from_file(&path).unwrap();
    assert_eq!(pool.quarantined().len(), 2);
    writer.kill();
    // The lease looks by itself.
    drop(pool.lease_write(&[2]).unwrap());
    assert_eq!(pool.quarantined(), []);
    drop(pool.lease_write(&[1]).unwrap());
    assert_eq!(dir.names(), ["kv", "kv.kvroom"]);
}

#[test]
fn what_is_quarantined_stays_so_over_another_life() {
    let (_dir, path, mut writer) = after_a_death_with_a_writer_inside();
    for _ in 0..3 {
        let pool = from_file(&path).unwrap();
        assert_eq!(pool.quarantined().len(), 2);
        assert!(pool.lease_read(&[2]).is_err());
    }
    writer.kill();
    assert_eq!(from_file(&path).unwrap().quarantined(), []);
}

#[test]
fn a_page_whose_table_is_lost_waits_for_the_writers_death() {
    let (_dir, path, mut writer) = after_a_death_with_a_writer_inside();
    fs::remove_file(format!("{}.kvroom.gates-1", path.display())).unwrap();
    let pool = from_file(&path).unwrap();
    assert_eq!(pool.quarantined(), [waits(1, None), waits(2, None)]);
    writer.signal(libc::SIGCONT);
    writer.go_on();
    writer.expect("left");
    assert_eq!(pool.look_again(), 0, "nothing shows that it has left");
    writer.kill();
    assert_eq!(pool.look_again(), 2);
    drop(pool.lease_write(&[1, 2]).unwrap());
}

#[test]
fn another_layout_is_not_taken_while_somebody_may_write() {
    let (_dir, path, mut writer) = after_a_death_with_a_writer_inside();
    let other = || {
        let options = FileOptions::default();
        // SAFETY: as above.
        unsafe { Pool::from_file(layout(Order::PagesFirst), &path, &options) }
    };
    let refused = other().unwrap_err().to_string();
    assert!(
        refused.contains(&format!("process {}", writer.pid())),
        "{refused}"
    );
    assert_eq!(
        from_file(&path).unwrap().quarantined().len(),
        2,
        "it told the one layout still"
    );
    writer.kill();
    assert_eq!(other().unwrap().quarantined(), []);
}

#[test]
fn a_life_that_is_alive_keeps_the_pool_and_one_that_died_leaves_its_numbers() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let mut life = Other::start("life", &path, &std::process::id().to_string());
    life.expect("lent");
    let pid = life.pid();
    let taken = from_file(&path).unwrap_err();
    assert!(
        matches!(&taken, PoolError::Shared { why: SharedError::Attached { pid: p, .. }, .. } if *p == pid),
        "{taken}"
    );
    life.signal(libc::SIGSTOP);
    assert!(from_file(&path).is_err(), "one that is stopped is alive");
    life.kill();
    let pool = from_file(&path).unwrap();
    assert_eq!(pool.quarantined(), [], "nobody was inside");
    assert_eq!(pool.attachment().unwrap().first_claim(), 100);
    assert_eq!(dir.names(), ["kv", "kv.kvroom"]);
}

#[test]
fn a_life_that_is_alive_keeps_the_pool_whatever_boot_it_is_said_to_be_of() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let mut life = Other::start("life", &path, &std::process::id().to_string());
    life.expect("lent");
    let companion = fs::File::options()
        .write(true)
        .open(dir.path("kv.kvroom"))
        .unwrap();
    // Where the header names the boot of the attached runtime.
    companion.write_all_at(&[7; 16], 10 * 8).unwrap();
    // The companion cannot say who it is; the memory itself can.
    let taken = super::one_memory::attach(&path).unwrap_err();
    assert!(
        matches!(&taken, SharedError::Attached { pid: 0, .. }),
        "{taken}"
    );
    let (taken, alive) = (from_file(&path).unwrap_err(), life.pid());
    assert!(
        matches!(&taken, PoolError::Shared { why: SharedError::Attached { pid, .. }, .. } if *pid == alive),
        "{taken}"
    );
    life.kill();
    drop(from_file(&path).unwrap());
}

#[test]
fn a_life_that_ends_well_leaves_nothing_but_its_numbers() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let life = Other::start("life", &path, &std::process::id().to_string());
    ends_well(&dir, life);
    let pool = from_file(&path).unwrap();
    assert_eq!(
        (pool.quarantined(), pool.attachment().unwrap().first_claim()),
        (vec![], 100)
    );
}

#[test]
fn a_pool_that_was_opened_by_a_relative_path_is_found_from_another_working_directory() {
    let dir = Dir::new();
    let me = std::process::id().to_string();
    ends_well(&dir, Other::start("daemon", &dir.path("kv"), &me));
}

fn ends_well(dir: &Dir, mut life: Other) {
    life.expect("lent");
    assert_eq!(dir.names(), ["kv", "kv.kvroom", "kv.kvroom.gates-1"]);
    life.go_on();
    life.expect("back");
    life.go_on();
    life.expect("gone");
    assert_eq!(dir.names(), ["kv", "kv.kvroom"]);
}

#[test]
fn a_table_lies_beside_each_pool_that_outlives_the_process_and_goes_with_the_last_who_is_inside() {
    let dir = Dir::new();
    let (kv, aux) = (
        from_file(&dir.path("kv")).unwrap(),
        from_file(&dir.path("aux")).unwrap(),
    );
    let private = pool();
    let me = ProcessId::own().unwrap();
    let bytes = TableMemory::bytes_of(4);
    assert!(gate_table([&private], &me, bytes).is_none());
    let memory = gate_table([&kv, &private, &aux], &me, bytes)
        .unwrap()
        .unwrap();
    let both = [
        "aux",
        "aux.kvroom",
        "aux.kvroom.gates-1",
        "kv",
        "kv.kvroom",
        "kv.kvroom.gates-1",
    ];
    assert_eq!(dir.names(), both);
    let mapped =
        SharedMemory::receive_file(memory.fd().try_clone_to_owned().unwrap(), bytes).unwrap();
    let table = TableMemory::create(memory, &me);
    let theirs = RemoteGates::new(
        TableMemory::open(mapped).unwrap(),
        Arc::new(Bell::new().unwrap()),
        Arc::default(),
    );
    let writer = Arc::new(Writer::new(PidFd::own().unwrap()));
    let gates = SharedGates::new(
        table.clone(),
        writer,
        Some(Arc::new(NoteOwners::new(table))),
    );
    let mut lease = kv.lease_write(&[3]).unwrap();
    let gate = open_shared(&gates, CLAIM, target(&mut lease, &Arc::default())).unwrap();
    let inside = theirs.enter(gate.slot(), CLAIM).unwrap();
    // The session is over, and nobody waits for the gate.
    drop((gate, gates));
    assert_eq!((kv.look_again(), aux.look_again()), (0, 0));
    assert_eq!(dir.names(), both, "somebody is inside");
    assert_eq!(kv.leased_pages(), 1);
    drop(inside);
    assert_eq!((kv.look_again(), aux.look_again()), (0, 0));
    assert_eq!(dir.names(), ["aux", "aux.kvroom", "kv", "kv.kvroom"]);
}

#[test]
fn a_pool_that_came_after_the_table_waits_for_the_writers_death() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let mut writer = Other::start("writer", &path, "");
    let mut life = Other::start("late", &path, &writer.pid().to_string());
    life.expect("lent");
    assert_eq!(dir.names(), ["kv", "kv.kvroom"]);
    life.kill();
    let pool = from_file(&path).unwrap();
    // Its gate was in memory that died with it: nobody sees whether somebody is inside.
    assert_eq!(pool.quarantined(), [waits(1, None), waits(2, None)]);
    assert_eq!(pool.look_again(), 0);
    writer.kill();
    assert_eq!(pool.look_again(), 2);
}

#[test]
fn pages_that_cannot_be_noted_as_lent_are_not_and_the_error_says_what_to_end() {
    let dir = Dir::new();
    let (kv, bell) = (from_file(&dir.path("kv")).unwrap(), Arc::default());
    let me = ProcessId::own().unwrap();
    let bytes = TableMemory::bytes_of(1);
    let memory = SharedMemory::create("gates", bytes, &SharedOptions::default()).unwrap();
    let table = TableMemory::create(memory, &me);
    let gates = SharedGates::new(
        table.clone(),
        Arc::new(Writer::new(PidFd::own().unwrap())),
        Some(Arc::new(NoteOwners::new(table))),
    );
    let full: Vec<_> = (0..128)
        .map(|_| kv.attachment().unwrap().gate_table(&me, bytes).unwrap())
        .collect();
    let mut lease = kv.lease_write(&[3]).unwrap();
    let refused = open_shared(&gates, CLAIM, target(&mut lease, &bell)).unwrap_err();
    let NotOpened::NotRecorded(SharedError::Companion { path, why }) = &refused.why else {
        panic!("{refused}")
    };
    assert_eq!(path, &dir.path("kv.kvroom").canonicalize().unwrap());
    assert!(why.contains("end some of them"), "{why}");
    drop((refused, full));
    // The slot was given back, and the only other reason is that it is taken.
    let gate = open_shared(&gates, CLAIM, target(&mut lease, &bell)).unwrap();
    let mut other = kv.lease_write(&[4]).unwrap();
    let refused = open_shared(&gates, ClaimNo(10), target(&mut other, &bell)).unwrap_err();
    assert_eq!(
        refused.why,
        NotOpened::Exhausted(GatesExhausted { limit: 1 })
    );
    assert!(gate.close().try_finish().is_ok());
}

#[test]
fn numbers_of_claims_are_written_before_they_are_used() {
    let dir = Dir::new();
    let (one, two) = (
        from_file(&dir.path("one")).unwrap(),
        from_file(&dir.path("two")).unwrap(),
    );
    let numbers = ClaimNumbers::new([&pool()]);
    assert_eq!((numbers.take(), numbers.take()), (ClaimNo(1), ClaimNo(2)));
    let first = |pool: &Pool| pool.attachment().unwrap().first_claim();
    numbers.add_pool(&one);
    let number = numbers.take();
    assert!(number == ClaimNo(3) && first(&one) > number.0);
    // Another pool has seen more.
    two.attachment().unwrap().reserve_claims(1 << 40);
    numbers.add_pool(&two);
    let number = numbers.take();
    assert_eq!(number, ClaimNo(1 << 40));
    assert!(first(&one) > number.0 && first(&two) > number.0);
    let written = first(&one);
    while numbers.take().0 < written {}
    assert!(
        first(&one) > written && first(&two) > written,
        "another block"
    );
    drop(one);
    while numbers.take().0 < first(&two) - 1 {}
    numbers.take();
    assert!(
        from_file(&dir.path("one"))
            .unwrap()
            .attachment()
            .unwrap()
            .first_claim()
            > written
    );
}
