//! One side of a ring whose other side writes what it likes.

use super::{again, memory, put};
use crate::fuzzing::Feed;
use crate::memory::ring::RING_BYTES;
use crate::memory::{RingError, RingMemory, RingSide, SharedMemory};
use std::sync::atomic::Ordering;

/// The words of the direction that is written here, and of the one that is read: tail, then head.
const OUT: usize = 0;
const IN: usize = 256;
const TAIL: usize = 0;
const HEAD: usize = 128;
/// Who sleeps, beside each cursor.
const AWAITED: usize = 8;
/// Where the bytes of the direction that is read begin.
const BYTES: usize = 4096 + RING_BYTES;

thread_local! {
    static MEMORY: SharedMemory = memory(RingMemory::bytes());
}

/// Cursors, flags and bytes of a peer at any moment. What is read is what lies between two cursors
/// that can be, and no more than the ring holds; a cursor that cannot be is the peer's fault, and
/// nothing else is.
pub fn ring(data: &[u8]) {
    MEMORY.with(|memory| run(memory, data));
}

fn run(theirs: &SharedMemory, data: &[u8]) {
    for direction in [OUT, IN] {
        for at in [TAIL, HEAD] {
            put(theirs, direction + at, 0);
            put(theirs, direction + at + AWAITED, 0);
        }
    }
    let mut feed = Feed::new(data);
    let ours = again(theirs, RingMemory::bytes());
    let (mut writer, mut reader) = RingMemory::new(ours, RingSide::Lower).unwrap().split();
    let word = |at: usize| theirs.word(at).unwrap().load(Ordering::Relaxed);
    let capacity = RING_BYTES as u64;
    // What this side has done, and the last cursors of the peer that could be.
    let (mut read, mut tail, mut written, mut head) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut into = Vec::new();
    for _ in 0..256 {
        if feed.is_empty() {
            return;
        }
        match feed.byte() % 10 {
            0 => put(theirs, IN + TAIL, tail.wrapping_add(u64::from(feed.u16()))),
            1 => put(theirs, IN + TAIL, feed.u64()),
            2 => put(theirs, OUT + HEAD, head.wrapping_add(u64::from(feed.u16()))),
            3 => put(theirs, OUT + HEAD, feed.u64()),
            4 => {
                let at = usize::from(feed.u16()) * 8 % RING_BYTES;
                put(theirs, BYTES + at, feed.u64());
            }
            5 => {
                put(theirs, IN + HEAD + AWAITED, feed.u64());
                put(theirs, OUT + TAIL + AWAITED, feed.u64());
            }
            6 | 7 => {
                let said = word(IN + TAIL);
                let there = said.wrapping_sub(read);
                let can_be = there <= capacity && there >= tail.wrapping_sub(read);
                assert_eq!(reader.look(), there != 0);
                into.clear();
                into.resize(length(&mut feed), 0xEE);
                match reader.read(&mut into) {
                    Ok(moved) => {
                        assert!(can_be, "{said} after {tail}, {read} read");
                        assert_eq!(moved.bytes as u64, there.min(into.len() as u64));
                        check(theirs, read, &into[..moved.bytes]);
                        assert!(into[moved.bytes..].iter().all(|b| *b == 0xEE));
                        tail = said;
                        read = read.wrapping_add(moved.bytes as u64);
                    }
                    Err(error) => {
                        assert!(!can_be && matches!(error, RingError::Peer(_)), "{error}");
                    }
                }
            }
            8 => {
                let bytes = vec![1; length(&mut feed)];
                let said = word(OUT + HEAD);
                let held = written.wrapping_sub(head);
                let left = written.wrapping_sub(said);
                let asked = capacity - held < bytes.len() as u64;
                match writer.write(&bytes) {
                    Ok(moved) => {
                        assert!(!asked || left <= held, "{said} of {written}, after {head}");
                        head = if asked { said } else { head };
                        let free = capacity - written.wrapping_sub(head);
                        assert_eq!(moved.bytes as u64, free.min(bytes.len() as u64));
                        written = written.wrapping_add(moved.bytes as u64);
                    }
                    Err(error) => {
                        assert!(asked && left > held && !error.to_string().is_empty());
                    }
                }
            }
            _ => {
                for sleeps in [reader.arm(), writer.arm()] {
                    let _ = sleeps;
                }
                if feed.flag() {
                    reader.awake();
                    writer.awake();
                }
            }
        }
        // What this side has published is its own.
        assert!(word(OUT + TAIL) == written && word(IN + HEAD) == read);
    }
}

/// Mostly short.
fn length(feed: &mut Feed<'_>) -> usize {
    let n = usize::from(feed.u16());
    if n >= 0xFF00 {
        RING_BYTES + (n & 0xFF)
    } else {
        n
    }
}

/// These bytes are those of the ring from `read` on.
fn check(theirs: &SharedMemory, read: u64, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate().step_by(61) {
        let at = (read.wrapping_add(i as u64) % RING_BYTES as u64) as usize;
        let word = theirs.word(BYTES + at / 8 * 8).unwrap();
        let expected = word.load(Ordering::Relaxed).to_ne_bytes()[at % 8];
        assert_eq!(*byte, expected, "byte {i}");
    }
}
