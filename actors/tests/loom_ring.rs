//! The cursors of a ring and its doorbell, in every order that loom finds.
//!
//! The file under test is the library's own; its atomics are loom's here. Bytes are in loom's cells,
//! which fail the test on any access that is not ordered by what the file does. A sleeper waits for
//! its bell alone: a wake-up that is lost is a deadlock, which loom finds. That lost wake-ups are found is
//! shown with protocols that are broken on purpose; there the sleeper only says whether it would sleep,
//! since loom ends the process when several threads are stuck.
#![allow(unsafe_code)] // Looks into loom's cells, as a ring does into its bytes.
#![allow(clippy::unwrap_used)] // Tests and their helpers.
#![allow(clippy::duplicate_mod)] // The file as it is, and with a broken fence.

/// As it is.
#[path = "."]
mod whole {
    #[allow(dead_code, unreachable_pub)]
    #[path = "../src/memory/ring_cursor.rs"]
    pub(crate) mod ring_cursor;

    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    }
}

/// The same file, with a fence that does nothing.
#[path = "."]
mod without_fence {
    #[allow(dead_code, unreachable_pub)]
    #[path = "../src/memory/ring_cursor.rs"]
    pub(crate) mod ring_cursor;

    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

        pub(crate) fn fence(_: Ordering) {}
    }
}

/// The same file, whose cursors are not released.
#[path = "."]
mod without_release {
    #[allow(dead_code, unreachable_pub)]
    #[path = "../src/memory/ring_cursor.rs"]
    pub(crate) mod ring_cursor;

    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

        pub(crate) struct Ordering;

        #[allow(non_upper_case_globals)]
        impl Ordering {
            pub(crate) const Acquire: super::super::Real = super::super::Real::Acquire;
            pub(crate) const Release: super::super::Real = super::super::Real::Relaxed;
            pub(crate) const Relaxed: super::super::Real = super::super::Real::Relaxed;
            pub(crate) const SeqCst: super::super::Real = super::super::Real::SeqCst;
        }
    }
}

/// The same file, whose cursors are not acquired.
#[path = "."]
mod without_acquire {
    #[allow(dead_code, unreachable_pub)]
    #[path = "../src/memory/ring_cursor.rs"]
    pub(crate) mod ring_cursor;

    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

        pub(crate) struct Ordering;

        #[allow(non_upper_case_globals)]
        impl Ordering {
            pub(crate) const Acquire: super::super::Real = super::super::Real::Relaxed;
            pub(crate) const Release: super::super::Real = super::super::Real::Release;
            pub(crate) const Relaxed: super::super::Real = super::super::Real::Relaxed;
            pub(crate) const SeqCst: super::super::Real = super::super::Real::SeqCst;
        }
    }
}

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering as Real;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// An eventfd whose count nobody reads: each ring is heard once.
struct Bell {
    rung: Mutex<u32>,
    more: Condvar,
}

impl Bell {
    fn new() -> Self {
        Bell {
            rung: Mutex::new(0),
            more: Condvar::new(),
        }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() += 1;
        self.more.notify_one();
    }

    /// Sleeps until it is rung once more than `heard` times.
    fn wait(&self, heard: &mut u32) {
        let mut rung = self.rung.lock().unwrap();
        while *rung == *heard {
            rung = self.more.wait(rung).unwrap();
        }
        *heard = *rung;
    }

    fn count(&self) -> u32 {
        *self.rung.lock().unwrap()
    }
}

struct Byte(UnsafeCell<u8>);

// SAFETY: that accesses to it are ordered is what the tests find out.
unsafe impl Sync for Byte {}
// SAFETY: as above.
unsafe impl Send for Byte {}

/// The two ends of one direction, over one version of the file under test.
macro_rules! ends {
    ($name:ident, $version:ident) => {
        #[allow(dead_code)] // The broken one only falls asleep.
        mod $name {
            use super::$version::ring_cursor::{Consumer, Producer, Words};
            use super::*;

            /// A direction of `N` bytes.
            pub(super) struct Direction<const N: usize> {
                pub(super) words: Words,
                bytes: [Byte; N],
                /// What the reader waits for, and the writer.
                pub(super) data: Bell,
                pub(super) room: Bell,
            }

            impl<const N: usize> Direction<N> {
                pub(super) fn new() -> Arc<Self> {
                    Arc::new(Direction {
                        words: Words::new(),
                        bytes: std::array::from_fn(|_| Byte(UnsafeCell::new(0))),
                        data: Bell::new(),
                        room: Bell::new(),
                    })
                }
            }

            pub(super) struct Writer<const N: usize> {
                at: Arc<Direction<N>>,
                producer: Producer,
                heard: u32,
            }

            impl<const N: usize> Writer<N> {
                pub(super) fn new(at: &Arc<Direction<N>>) -> Self {
                    let (at, producer) = (Arc::clone(at), Producer::new(N as u64));
                    Writer {
                        at,
                        producer,
                        heard: 0,
                    }
                }

                /// Puts in what fits of these.
                pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
                    let free = self.producer.free(&self.at.words, bytes.len() as u64);
                    let n = (free.unwrap() as usize).min(bytes.len());
                    for (i, byte) in (self.producer.at()..).zip(&bytes[..n]) {
                        let cell = &self.at.bytes[i as usize % N].0;
                        // SAFETY: loom fails the test if this is not ordered with every other access.
                        cell.with_mut(|p| unsafe { *p = *byte });
                    }
                    if n > 0 && self.producer.publish(&self.at.words, n as u64) {
                        self.at.data.ring();
                    }
                    n
                }

                /// Whether it goes to sleep until there is room.
                fn falls_asleep(&mut self, look_again: bool) -> bool {
                    self.producer.announce(&self.at.words);
                    !(look_again && self.producer.look(&self.at.words))
                }

                fn sleep(&mut self) {
                    if self.falls_asleep(true) {
                        self.at.room.wait(&mut self.heard);
                    }
                    self.producer.awake(&self.at.words);
                }

                pub(super) fn write_all(&mut self, mut bytes: &[u8]) {
                    while !bytes.is_empty() {
                        match self.write(bytes) {
                            0 => self.sleep(),
                            n => bytes = &bytes[n..],
                        }
                    }
                }
            }

            pub(super) struct Reader<const N: usize> {
                at: Arc<Direction<N>>,
                consumer: Consumer,
                heard: u32,
            }

            impl<const N: usize> Reader<N> {
                pub(super) fn new(at: &Arc<Direction<N>>) -> Self {
                    let (at, consumer) = (Arc::clone(at), Consumer::new(N as u64));
                    Reader {
                        at,
                        consumer,
                        heard: 0,
                    }
                }

                /// Takes out what is there, `most` bytes at most.
                pub(super) fn read(&mut self, most: usize, into: &mut Vec<u8>) -> usize {
                    let there = self.consumer.available(&self.at.words).unwrap();
                    let n = (there as usize).min(most);
                    for i in (self.consumer.at()..).take(n) {
                        let cell = &self.at.bytes[i as usize % N].0;
                        // SAFETY: loom fails the test if this is not ordered with every write.
                        into.push(cell.with(|p| unsafe { *p }));
                    }
                    if n > 0 && self.consumer.consume(&self.at.words, n as u64) {
                        self.at.room.ring();
                    }
                    n
                }

                /// Whether it goes to sleep until there is something.
                fn falls_asleep(&mut self, look_again: bool) -> bool {
                    self.consumer.announce(&self.at.words);
                    !(look_again && self.consumer.look(&self.at.words))
                }

                pub(super) fn sleep(&mut self) {
                    if self.falls_asleep(true) {
                        self.at.data.wait(&mut self.heard);
                    }
                    self.consumer.awake(&self.at.words);
                }

                pub(super) fn read_exactly(&mut self, n: usize) -> Vec<u8> {
                    let mut came = Vec::new();
                    while came.len() < n {
                        if self.read(n - came.len(), &mut came) == 0 {
                            self.sleep();
                        }
                    }
                    came
                }
            }

            /// A byte is looked for once while it is written.
            pub(super) fn a_byte_is_read_while_it_comes() {
                let direction = Direction::<1>::new();
                let mut writer = Writer::new(&direction);
                let writing = thread::spawn(move || assert_eq!(writer.write(&[7]), 1));
                let mut came = Vec::new();
                let n = Reader::new(&direction).read(1, &mut came);
                assert_eq!(came, &[7][..n]);
                writing.join().unwrap();
            }

            /// A byte is written, if there is room, over one that is being read.
            pub(super) fn a_byte_is_written_over_one_that_is_read() {
                let direction = Direction::<1>::new();
                let mut writer = Writer::new(&direction);
                assert_eq!(writer.write(&[7]), 1);
                let mut reader = Reader::new(&direction);
                let reading = thread::spawn(move || {
                    let mut came = Vec::new();
                    assert_eq!((reader.read(1, &mut came), &came[..]), (1, &[7][..]));
                });
                writer.write(&[8]);
                reading.join().unwrap();
            }

            /// A reader falls asleep while a byte is written.
            pub(super) fn a_reader_falls_asleep(look_again: bool) {
                let direction = Direction::<1>::new();
                let mut writer = Writer::new(&direction);
                let writing = thread::spawn(move || assert_eq!(writer.write(&[7]), 1));
                let asleep = Reader::new(&direction).falls_asleep(look_again);
                writing.join().unwrap();
                let rung = direction.data.count();
                assert!(!asleep || rung == 1, "a lost wake-up");
            }

            /// The writer of a full ring falls asleep while a byte is read.
            pub(super) fn a_writer_falls_asleep(look_again: bool) {
                let direction = Direction::<1>::new();
                let mut writer = Writer::new(&direction);
                assert_eq!(writer.write(&[7]), 1);
                let mut reader = Reader::new(&direction);
                let reading = thread::spawn(move || assert_eq!(reader.read(1, &mut vec![]), 1));
                let asleep = writer.falls_asleep(look_again);
                reading.join().unwrap();
                let rung = direction.room.count();
                assert!(!asleep || rung == 1, "a lost wake-up");
            }
        }
    };
}

ends!(right, whole);
ends!(unfenced, without_fence);
ends!(unreleased, without_release);
ends!(unacquired, without_acquire);

/// One thread writes these, another one reads them; each sleeps when it has to.
fn pass<const N: usize>(bytes: &'static [u8]) {
    let direction = right::Direction::<N>::new();
    let mut writer = right::Writer::new(&direction);
    let writing = thread::spawn(move || writer.write_all(bytes));
    let came = right::Reader::new(&direction).read_exactly(bytes.len());
    writing.join().unwrap();
    assert_eq!(came, bytes);
}

#[test]
fn bytes_come_in_order_and_whoever_sleeps_is_woken() {
    check(|| pass::<2>(&[1, 2, 3]));
}

#[test]
fn a_ring_of_one_byte_hands_over_each_and_loses_no_wake_up() {
    check(|| pass::<1>(&[1, 2, 3]));
}

#[test]
fn a_reader_that_sleeps_is_woken_for_the_one_word_that_comes() {
    check(|| pass::<4>(&[7]));
}

#[test]
fn both_directions_answer_each_other() {
    check(|| {
        let (there, back) = (right::Direction::<1>::new(), right::Direction::<1>::new());
        let (mut asks, mut hears) = (right::Writer::new(&there), right::Reader::new(&back));
        let other = thread::spawn(move || {
            let (mut hears, mut answers) = (right::Reader::new(&there), right::Writer::new(&back));
            for _ in 0..2 {
                let word = hears.read_exactly(1);
                answers.write_all(&[word[0] + 1]);
            }
        });
        for word in [1, 5] {
            asks.write_all(&[word]);
            assert_eq!(hears.read_exactly(1), [word + 1]);
        }
        other.join().unwrap();
    });
}

#[test]
fn nobody_is_rung_who_did_not_say_that_it_sleeps() {
    check(|| {
        let direction = right::Direction::<2>::new();
        let mut writer = right::Writer::new(&direction);
        let writing = thread::spawn(move || {
            assert_eq!(writer.write(&[1]), 1);
            assert_eq!(writer.write(&[2]), 1);
        });
        let mut reader = right::Reader::new(&direction);
        let mut came = Vec::new();
        while came.len() < 2 {
            reader.read(2, &mut came);
            thread::yield_now();
        }
        writing.join().unwrap();
        assert_eq!((direction.data.count(), direction.room.count()), (0, 0));
    });
}

#[test]
fn each_sleep_is_rung_for_once() {
    check(|| {
        let direction = right::Direction::<4>::new();
        let mut writer = right::Writer::new(&direction);
        let writing = thread::spawn(move || {
            for byte in 1..=3 {
                assert_eq!(writer.write(&[byte]), 1);
            }
        });
        let mut reader = right::Reader::new(&direction);
        reader.sleep();
        writing.join().unwrap();
        // None if it found something when it looked again, and the writer did not see it sleep.
        assert!(direction.data.count() <= 1);
        let mut came = Vec::new();
        assert_eq!(reader.read(4, &mut came), 3);
    });
}

#[test]
fn who_falls_asleep_is_rung_or_finds_it_when_it_looks_again() {
    check(|| right::a_reader_falls_asleep(true));
    check(|| right::a_writer_falls_asleep(true));
}

#[test]
#[should_panic(expected = "a lost wake-up")]
fn planted_a_reader_that_does_not_look_again_is_found() {
    check(|| right::a_reader_falls_asleep(false));
}

#[test]
#[should_panic(expected = "a lost wake-up")]
fn planted_a_writer_that_does_not_look_again_is_found() {
    check(|| right::a_writer_falls_asleep(false));
}

#[test]
#[should_panic(expected = "a lost wake-up")]
fn planted_missing_fences_lose_the_wake_up_of_a_reader() {
    check(|| unfenced::a_reader_falls_asleep(true));
}

#[test]
#[should_panic(expected = "a lost wake-up")]
fn planted_missing_fences_lose_the_wake_up_of_a_writer() {
    check(|| unfenced::a_writer_falls_asleep(true));
}

#[test]
fn a_byte_is_seen_whole_and_never_written_over_before_it_was_read() {
    check(right::a_byte_is_read_while_it_comes);
    check(right::a_byte_is_written_over_one_that_is_read);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn planted_a_tail_that_is_not_released_shows_a_byte_before_it_is_there() {
    check(unreleased::a_byte_is_read_while_it_comes);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn planted_a_tail_that_is_not_acquired_shows_a_byte_before_it_is_there() {
    check(unacquired::a_byte_is_read_while_it_comes);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn planted_a_head_that_is_not_released_lets_a_byte_be_written_over() {
    check(unreleased::a_byte_is_written_over_one_that_is_read);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn planted_a_head_that_is_not_acquired_lets_a_byte_be_written_over() {
    check(unacquired::a_byte_is_written_over_one_that_is_read);
}
