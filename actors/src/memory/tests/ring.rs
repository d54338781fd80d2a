//! Rings: bytes, cursors of peers that lie, and who is to be rung. Orders of threads: `loom_ring`.

use crate::memory::ring::RING_BYTES;
use crate::memory::ring_cursor::{BadCursor, Consumer, Producer, Words};
use crate::memory::{
    HugePages, RingError, RingMemory, RingReader, RingSide, RingWriter, SharedMemory, SharedOptions,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

struct End {
    writer: RingWriter,
    reader: RingReader,
}

const PLAIN: SharedOptions = SharedOptions {
    huge: HugePages::Off,
    numa_node: None,
};

fn memory() -> SharedMemory {
    SharedMemory::create("ring", RingMemory::bytes(), &PLAIN).unwrap()
}

fn again(memory: &SharedMemory) -> SharedMemory {
    let fd = memory.fd().try_clone_to_owned().unwrap();
    SharedMemory::receive(fd, RingMemory::bytes()).unwrap()
}

fn end(memory: SharedMemory, side: RingSide) -> End {
    let (writer, reader) = RingMemory::new(memory, side).unwrap().split();
    End { writer, reader }
}

/// Both ends, each with a mapping of its own, and a third one to lie with.
fn pair() -> (End, End, SharedMemory) {
    let one = memory();
    let (two, third) = (again(&one), again(&one));
    let low = end(one, RingSide::Lower);
    (low, end(two, RingSide::Higher), third)
}

/// Where the words are: tail and head of the direction from lower to higher, then of the other one.
const TAIL: usize = 0;
const HEAD: usize = 128;
const OTHER: usize = 256;

fn forge(memory: &SharedMemory, at: usize, value: u64) {
    memory.word(at).unwrap().store(value, Ordering::Relaxed);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Write(usize),
    Read(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![
        3 => 0..64usize,
        3 => 0..RING_BYTES / 8,
        1 => 0..RING_BYTES + 64,
        1 => Just(RING_BYTES),
    ];
    (any::<bool>(), len).prop_map(|(write, n)| if write { Op::Write(n) } else { Op::Read(n) })
}

/// Bytes that say where they are, again after 251.
fn pattern() -> Vec<u8> {
    (0..RING_BYTES + 512).map(|i| (i % 251) as u8).collect()
}

/// One direction against a queue. Gives how many bytes went through.
fn against_a_queue(writer: &mut RingWriter, reader: &mut RingReader, ops: &[Op]) -> u64 {
    let pattern = pattern();
    let mut queue = VecDeque::new();
    let (mut written, mut read) = (0_u64, 0_u64);
    for op in ops {
        match *op {
            Op::Write(n) => {
                let bytes = &pattern[(written % 251) as usize..][..n];
                let moved = writer.write(bytes).unwrap();
                assert_eq!(moved.bytes, n.min(RING_BYTES - queue.len()));
                queue.extend(&bytes[..moved.bytes]);
                written += moved.bytes as u64;
            }
            Op::Read(n) => {
                let mut into = vec![0xEE; n];
                let moved = reader.read(&mut into).unwrap();
                assert_eq!(moved.bytes, n.min(queue.len()));
                let want: Vec<u8> = queue.drain(..moved.bytes).collect();
                assert_eq!(into[..moved.bytes], want);
                assert!(into[moved.bytes..].iter().all(|b| *b == 0xEE));
                read += moved.bytes as u64;
            }
        }
        assert_eq!(reader.look(), !queue.is_empty());
        assert_eq!(writer.look(), queue.len() < RING_BYTES);
    }
    read
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn both_directions_are_queues(
        ops in prop::collection::vec(op(), 1..60),
        back in prop::collection::vec(op(), 1..20),
    ) {
        let (mut low, mut high, _) = pair();
        against_a_queue(&mut low.writer, &mut high.reader, &ops);
        against_a_queue(&mut high.writer, &mut low.reader, &back);
    }

    #[test]
    fn whatever_a_peer_says_nothing_is_moved_that_is_not_within(
        lies in prop::collection::vec((any::<bool>(), lie(), op()), 1..40),
    ) {
        let (mut low, mut high, lying) = pair();
        for (tail, value, op) in lies {
            forge(&lying, if tail { TAIL } else { HEAD }, value);
            let moved = match op {
                Op::Write(n) => low.writer.write(&vec![7; n]).map(|m| (m.bytes, n)),
                Op::Read(n) => high.reader.read(&mut vec![0; n]).map(|m| (m.bytes, n)),
            };
            if let Ok((moved, asked)) = moved {
                prop_assert!(moved <= asked && moved <= RING_BYTES);
            }
        }
    }

    #[test]
    fn whatever_a_peer_says_what_is_counted_is_within(
        lies in prop::collection::vec((lie(), lie(), 0..=8u64), 1..40),
    ) {
        let words = Words::new();
        let (mut producer, mut consumer) = (Producer::new(8), Consumer::new(8));
        for (tail, head, n) in lies {
            words.forge(tail, head);
            if let Ok(free) = producer.free(&words, n) {
                prop_assert!(free <= 8);
                producer.publish(&words, n.min(free));
            }
            words.forge(tail, head);
            if let Ok(there) = consumer.available(&words) {
                prop_assert!(there <= 8);
                consumer.consume(&words, n.min(there));
            }
        }
    }
}

fn lie() -> impl Strategy<Value = u64> {
    let near = RING_BYTES as u64;
    prop_oneof![
        0..16u64,
        near - 4..near + 4,
        any::<u64>(),
        u64::MAX - 4..=u64::MAX
    ]
}

#[test]
fn bytes_that_wrap_around_come_out_as_they_were() {
    let (mut low, mut high, _) = pair();
    let step = RING_BYTES / 3 + 5;
    let ops = [Op::Write(step), Op::Read(step)].repeat(10);
    let through = against_a_queue(&mut low.writer, &mut high.reader, &ops);
    assert_eq!(through, 10 * step as u64);
    assert!(through > 3 * RING_BYTES as u64, "it did not wrap");
}

#[test]
fn a_tail_beyond_the_ring_or_back_is_the_peers_fault() {
    for (first, second) in [(8, RING_BYTES as u64 + 1), (8, 7), (8, u64::MAX)] {
        let (_, mut high, lying) = pair();
        forge(&lying, TAIL, first);
        // Makes sense: eight bytes of whatever is there, of which four are read.
        assert_eq!(high.reader.read(&mut [0; 4]).map(|m| m.bytes), Ok(4));
        // Four are left over of what the reader has seen.
        let before = high.reader.read(&mut []).map(|m| m.bytes);
        assert_eq!(before, Ok(0));
        let said = if second > 8 {
            second.wrapping_add(4)
        } else {
            second
        };
        forge(&lying, TAIL, said);
        assert!(high.reader.look(), "a fault is something to be found");
        let error = high.reader.read(&mut [0; 64]).unwrap_err();
        let why = BadCursor::Tail {
            said,
            head: 4,
            before: 8,
        };
        assert_eq!(error, RingError::Peer(why));
        let text = error.to_string();
        assert!(text.contains("the peer is at fault"), "{text}");
    }
}

#[test]
fn a_head_beyond_the_tail_or_back_is_the_peers_fault() {
    for said in [RING_BYTES as u64 + 1, 3, u64::MAX] {
        let (mut low, _, lying) = pair();
        let full = vec![1; RING_BYTES];
        assert_eq!(low.writer.write(&full).unwrap().bytes, RING_BYTES);
        forge(&lying, HEAD, 4);
        assert_eq!(low.writer.write(&full).unwrap().bytes, 4);
        let said = if said > 4 { said.wrapping_add(4) } else { said };
        forge(&lying, HEAD, said);
        let error = low.writer.write(&[1]).unwrap_err();
        let why = BadCursor::Head {
            said,
            tail: RING_BYTES as u64 + 4,
            before: 4,
        };
        assert_eq!(error, RingError::Peer(why));
        assert!(error.to_string().contains("the peer is at fault"));
    }
}

#[test]
fn the_directions_do_not_touch_each_other() {
    let (mut low, mut high, looking) = pair();
    low.writer.write(&vec![1; RING_BYTES]).unwrap();
    high.writer.write(&vec![2; RING_BYTES]).unwrap();
    let word = |at| looking.word(at).unwrap().load(Ordering::Relaxed);
    assert_eq!(
        (word(TAIL), word(OTHER)),
        (RING_BYTES as u64, RING_BYTES as u64)
    );
    let mut into = vec![0; 2 * RING_BYTES];
    assert_eq!(high.reader.read(&mut into).unwrap().bytes, RING_BYTES);
    assert!(into[..RING_BYTES].iter().all(|b| *b == 1));
    assert_eq!(low.reader.read(&mut into).unwrap().bytes, RING_BYTES);
    assert!(into[..RING_BYTES].iter().all(|b| *b == 2));
    assert_eq!(
        (word(HEAD), word(OTHER + HEAD)),
        (RING_BYTES as u64, RING_BYTES as u64)
    );
}

#[test]
fn only_a_reader_that_sleeps_is_rung_and_once() {
    let (mut low, mut high, _) = pair();
    let write = |low: &mut End| low.writer.write(b"x").unwrap().ring;
    assert!(!write(&mut low), "it has not said that it sleeps");
    assert!(!high.reader.arm(), "it must not sleep: there is something");
    assert!(!write(&mut low), "it has taken that back");
    assert_eq!(high.reader.read(&mut [0; 8]).unwrap().bytes, 2);
    assert!(high.reader.arm());
    assert!(write(&mut low));
    assert!(!write(&mut low), "it was rung before");
    assert_eq!(high.reader.read(&mut [0; 8]).unwrap().bytes, 2);
    assert!(high.reader.arm());
    high.reader.awake();
    assert!(!write(&mut low), "it was woken by something else");
}

#[test]
fn only_a_writer_that_waits_is_rung_and_once() {
    let (mut low, mut high, _) = pair();
    assert!(!low.writer.arm(), "there is room");
    low.writer.write(&vec![0; RING_BYTES]).unwrap();
    let read = |high: &mut End| high.reader.read(&mut [0; 8]).unwrap().ring;
    assert!(!read(&mut high));
    assert!(!low.writer.arm(), "there is room again");
    low.writer.write(&[0; 8]).unwrap();
    assert!(low.writer.arm());
    assert!(read(&mut high));
    assert!(!read(&mut high));
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let small = SharedMemory::create(
        "small",
        RingMemory::bytes() - 4096,
        &SharedOptions::default(),
    );
    let error = RingMemory::new(small.unwrap(), RingSide::Lower).unwrap_err();
    assert!(matches!(error, RingError::TooSmall { .. }), "{error}");
}

#[test]
fn the_readers_word_is_asked_for_only_when_what_is_known_does_not_suffice() {
    let (words, mut producer) = (Words::new(), Producer::new(4));
    // A lie that is found out as soon as it is looked at.
    words.forge(0, 99);
    assert_eq!(producer.free(&words, 4), Ok(4));
    assert!(!producer.publish(&words, 3));
    assert_eq!(producer.at(), 3);
    assert_eq!(producer.free(&words, 1), Ok(1));
    assert!(producer.free(&words, 2).is_err());
    words.forge(3, 0);
    assert_eq!(
        producer.free(&words, 2),
        Ok(1),
        "nothing was read meanwhile"
    );
    words.forge(3, 3);
    assert_eq!(producer.free(&words, 2), Ok(4));
    words.forge(3, 2);
    assert_eq!(producer.free(&words, 4), Ok(4));
    assert!(producer.free(&words, 5).is_err(), "it went back");
}

#[test]
fn a_full_ring_is_read_whole_and_what_was_seen_once_is_seen_again() {
    let (words, mut consumer) = (Words::new(), Consumer::new(4));
    assert!(!consumer.look(&words));
    words.forge(4, 0);
    assert!(consumer.look(&words));
    assert_eq!(consumer.available(&words), Ok(4));
    assert_eq!(consumer.available(&words), Ok(4));
    for said in [3, 5] {
        words.forge(said, 0);
        assert!(consumer.available(&words).is_err(), "{said}");
    }
    words.forge(4, 0);
    assert!(!consumer.consume(&words, 4));
    assert_eq!((consumer.at(), consumer.available(&words)), (4, Ok(0)));
    words.forge(5, 4);
    assert_eq!(consumer.available(&words), Ok(1));
}

#[test]
fn whoever_is_awake_again_is_not_rung_and_whoever_sleeps_is_rung_once() {
    let words = Words::new();
    let (mut producer, mut consumer) = (Producer::new(4), Consumer::new(4));
    consumer.announce(&words);
    consumer.awake(&words);
    assert!(!producer.publish(&words, 1));
    consumer.announce(&words);
    assert!(producer.publish(&words, 1) && !producer.publish(&words, 2));
    assert!(!producer.look(&words));
    producer.announce(&words);
    producer.awake(&words);
    assert!(!consumer.consume(&words, 1));
    producer.announce(&words);
    assert!(producer.look(&words));
    assert!(consumer.consume(&words, 1) && !consumer.consume(&words, 2));
}
