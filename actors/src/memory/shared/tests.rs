//! Tests of shared memory itself.

use super::*;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

const SMALL: usize = 3 * 4096;

fn create(bytes: usize) -> SharedMemory {
    SharedMemory::create("test", bytes, &SharedOptions::default()).unwrap()
}

fn fd_of(memory: &SharedMemory) -> OwnedFd {
    memory.fd().try_clone_to_owned().unwrap()
}

/// A value of this process's `smaps` for the mapping that begins at `start`, in bytes.
fn smaps(start: usize, field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let begin = format!("{start:x}-");
    let of_mapping = text.lines().skip_while(|l| !l.starts_with(&begin)).skip(1);
    let line = of_mapping
        .filter_map(|l| l.strip_prefix(field))
        .next()
        .unwrap();
    line.split_ascii_whitespace()
        .next()
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

#[test]
fn what_one_writes_the_other_sees() {
    let memory = create(SMALL);
    let other = SharedMemory::receive(fd_of(&memory), SMALL).unwrap();
    assert_ne!(memory.start(), other.start());
    for at in [0, 8, SMALL - 8] {
        assert_eq!(other.word(at).unwrap().load(Ordering::Relaxed), 0);
        memory
            .word(at)
            .unwrap()
            .store(at as u64 + 1, Ordering::Relaxed);
        assert_eq!(
            other.word(at).unwrap().load(Ordering::Relaxed),
            at as u64 + 1
        );
    }
    assert!(
        memory.word(SMALL).is_none()
            && memory.word(SMALL - 4).is_none()
            && memory.word(4).is_none()
    );
    assert!(memory.word(usize::MAX - 7).is_none());
}

#[test]
fn nobody_can_change_the_size_of_a_memfd_or_its_seals() {
    let memory = create(SMALL);
    let theirs = File::from(fd_of(&memory));
    for bytes in [0, 4096, SMALL as u64 + 4096] {
        let refused = theirs.set_len(bytes).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    }
    assert!(sys::seal(theirs.as_fd()).is_err());
    assert_eq!(theirs.metadata().unwrap().len(), SMALL as u64);
}

#[test]
fn it_is_allocated_named_and_closed_on_exec() {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    let memory = create(SMALL);
    let file = File::from(fd_of(&memory));
    assert_eq!(file.metadata().unwrap().blocks() * 512, SMALL as u64);
    let fd = memory.fd().as_raw_fd();
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    assert!(name.to_string_lossy().contains("kvroom:test"), "{name:?}");
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap();
    let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
    assert_ne!(flags & libc::O_CLOEXEC, 0);
}

#[test]
fn memory_that_could_shrink_is_not_received() {
    let open = sys::memfd(c"open", 0).unwrap();
    File::from(open.try_clone().unwrap())
        .set_len(SMALL as u64)
        .unwrap();
    assert!(matches!(
        SharedMemory::receive(open, SMALL),
        Err(SharedError::NotSealed { .. })
    ));
    let (pipe, _writer) = std::io::pipe().unwrap();
    assert!(matches!(
        SharedMemory::receive(pipe.into(), SMALL),
        Err(SharedError::NotSealed { .. })
    ));
}

#[test]
fn memory_that_is_too_small_is_not_received() {
    let memory = create(SMALL);
    let error = SharedMemory::receive(fd_of(&memory), SMALL + 1).unwrap_err();
    assert!(
        matches!(error, SharedError::TooSmall { needed, found, .. } if (needed, found) == (SMALL as u64 + 1, SMALL as u64)),
        "{error}"
    );
    assert!(SharedMemory::receive(fd_of(&memory), 0).is_err());
}

#[test]
fn more_than_the_machine_has_is_an_error_that_names_the_size() {
    for options in [HugePages::Auto, HugePages::Off].map(|huge| SharedOptions {
        huge,
        numa_node: None,
    }) {
        let error = SharedMemory::create("all", 1 << 50, &options).unwrap_err();
        assert!(
            matches!(&error, SharedError::NoRoom { bytes, .. } if *bytes == 1 << 50),
            "{error}"
        );
        assert!(error.to_string().contains("1125899906842624"), "{error}");
    }
}

#[test]
fn a_node_that_is_not_there_is_an_error_and_one_that_is_there_is_taken() {
    let on = |node| SharedOptions {
        huge: HugePages::Off,
        numa_node: Some(node),
    };
    let missing = SharedMemory::create("node", SMALL, &on(1000)).unwrap_err();
    assert_eq!(missing, SharedError::NoSuchNode(1000));
    match SharedMemory::create("node", SMALL, &on(0)) {
        Ok(memory) => assert_eq!(memory.len(), SMALL),
        // In a container the call is often forbidden.
        Err(SharedError::System {
            call: "mbind",
            errno,
            ..
        }) => skip(&format!("mbind: {errno}")),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn large_memory_begins_at_a_huge_page_and_says_whether_it_is_in_some() {
    let bytes = 4 * (2 << 20) + 4096;
    let memory = create(bytes);
    let start = memory.start().addr().get();
    assert_eq!(start % (2 << 20), 0);
    memory.word(bytes - 8).unwrap().store(1, Ordering::Relaxed);
    let huge = smaps(start, "ShmemPmdMapped:");
    assert_eq!(
        memory.is_huge(),
        huge >= bytes as u64 / 2,
        "{huge} bytes are in huge pages"
    );
    if !memory.is_huge() {
        skip("this system gives shared memory no huge pages");
    }
    let none = SharedOptions {
        huge: HugePages::Off,
        numa_node: None,
    };
    let memory = SharedMemory::create("small pages", bytes, &none).unwrap();
    for at in (0..bytes).step_by(4096) {
        memory.word(at).unwrap().store(1, Ordering::Relaxed);
    }
    assert!(!memory.is_huge());
    assert_eq!(smaps(memory.start().addr().get(), "Rss:"), bytes as u64);
}

#[test]
fn it_is_unmapped_when_it_goes() {
    let memory = create(SMALL);
    let begin = format!("{:x}-", memory.start().addr().get());
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .any(|l| l.starts_with(&begin) && l.contains("kvroom:test"))
    };
    assert!(mapped());
    drop(memory);
    assert!(!mapped());
}

#[track_caller]
fn skip(why: &str) {
    assert!(
        std::env::var_os("KVROOM_REQUIRE_ALL").is_none_or(|v| v != "1"),
        "skipped, and KVROOM_REQUIRE_ALL=1: {why}"
    );
    eprintln!("skipped: {why}");
}
