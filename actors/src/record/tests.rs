#![allow(clippy::unwrap_used)] // Tests and their helpers.

use super::entry::{Part, What};
use super::recorder::Recorder;
use super::ring::{Kept, Ring};
use super::{PeerIs, Proofs, message_named};
use crate::ids::{Incarnation, PeerRef};
use crate::memory::Proof;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

fn kept(seq: u64) -> Kept {
    Kept {
        seq,
        at: seq,
        part: Part::Node,
        what: What::Note("x".into()),
    }
}

fn recorder(shards: usize, size: usize) -> Recorder {
    Recorder::new(shards, size, Instant::now())
}

fn seqs(recorder: &Recorder, since: u64, max: usize) -> Vec<u64> {
    let records = recorder.read(since, max);
    records.entries.iter().map(|e| e.seq).collect()
}

proptest! {
    #[test]
    fn a_ring_keeps_the_last_entries_and_copies_what_is_asked_for(
        size in 1usize..9,
        count in 0u64..30,
        since in 0u64..35,
        below in 0u64..35,
        most in 0usize..12,
    ) {
        let mut ring = Ring::new(size);
        for seq in 0..count {
            let gone = ring.push(kept(seq)).map(|k| k.seq);
            prop_assert_eq!(gone, seq.checked_sub(size as u64));
        }
        let mut out = Vec::new();
        ring.copy(since, below, most, &mut out);
        let there = count.saturating_sub(size as u64)..count;
        let wanted: Vec<u64> = there.filter(|s| *s >= since && *s < below).take(most).collect();
        prop_assert_eq!(out.iter().map(|k| k.seq).collect::<Vec<_>>(), wanted);
        prop_assert!(ring.len() <= size);
    }

    #[test]
    fn who_goes_on_with_next_reads_everything_once_or_knows_how_much_was_lost(
        writes in proptest::collection::vec((0usize..3, 0usize..12), 1..20),
        size in 1usize..20,
        max in 1usize..15,
    ) {
        let recorder = recorder(2, size);
        let scribes = [recorder.shard(0), recorder.shard(1), recorder.part(Part::Lane(0))];
        let (mut since, mut last, mut read, mut lost) = (0, None, 0, 0);
        for (who, count) in writes {
            (0..count).for_each(|_| scribes[who].note("x"));
            let records = recorder.read(since, max);
            for entry in &records.entries {
                prop_assert!(last.is_none_or(|l| entry.seq > l));
                last = Some(entry.seq);
            }
            prop_assert!(records.entries.len() <= max);
            read += records.entries.len() as u64;
            lost += records.lost;
            prop_assert_eq!(records.next, read + lost);
            since = records.next;
        }
        while since < recorder.next_seq() {
            let records = recorder.read(since, max);
            read += records.entries.len() as u64;
            lost += records.lost;
            since = records.next;
        }
        prop_assert_eq!(read + lost, recorder.next_seq());
    }
}

#[test]
fn rings_of_several_writers_are_read_as_one_sequence() {
    let recorder = recorder(2, 8);
    let (a, b) = (recorder.shard(0), recorder.shard(1));
    for i in 0..5 {
        a.note("a");
        if i % 2 == 0 {
            b.note("b");
        }
    }
    assert_eq!(seqs(&recorder, 0, 100), (0..8).collect::<Vec<_>>());
    assert_eq!(seqs(&recorder, 2, 3), [2, 3, 4]);
    let records = recorder.read(2, 3);
    assert_eq!((records.next, records.lost), (5, 0));
    let later = recorder.read(100, 3);
    assert_eq!((later.entries.len(), later.next), (0, 100));
    assert_eq!(recorder.read(3, 0).next, 3);
}

#[test]
fn a_busy_shard_does_not_push_out_what_another_wrote() {
    let recorder = recorder(2, 4);
    recorder.shard(1).note("rare");
    (0..100).for_each(|_| recorder.shard(0).note("often"));
    let records = recorder.read_all();
    assert_eq!(records.entries[0].what, What::Note("rare".into()));
    assert_eq!(records.entries.len(), 5);
    assert_eq!(records.lost, 96);
}

#[test]
fn a_recorder_of_size_0_makes_no_entry() {
    let recorder = recorder(1, 0);
    let scribe = recorder.shard(0);
    assert!(!scribe.is_on());
    scribe.write(|| panic!("made"));
    recorder.part(Part::Node).note("x");
    assert_eq!(recorder.next_seq(), 0);
    assert_eq!(recorder.read_all(), super::Records::default());
}

#[test]
fn a_reader_beside_writers_sees_each_entry_once_and_in_order() {
    let recorder = recorder(3, 1 << 16);
    let over = AtomicBool::new(false);
    const EACH: u64 = 10_000;
    let read = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|shard| {
                let scribe = recorder.shard(shard);
                scope.spawn(move || (0..EACH).for_each(|_| scribe.note("x")))
            })
            .collect();
        let reader = scope.spawn(|| {
            let (mut since, mut read) = (0, Vec::new());
            loop {
                let last = over.load(Ordering::Acquire);
                let records = recorder.read(since, 100);
                assert_eq!(records.lost, 0, "nothing is overwritten here");
                read.extend(records.entries.iter().map(|e| e.seq));
                since = records.next;
                if last && records.entries.is_empty() {
                    return read;
                }
            }
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        over.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    assert_eq!(read, (0..3 * EACH).collect::<Vec<_>>());
}

#[test]
fn an_entry_has_the_name_of_its_peer() {
    let recorder = recorder(1, 8);
    recorder.know(PeerRef(7), "prefill-0");
    let scribe = recorder.shard(0);
    scribe.peer(PeerRef(7), Incarnation::default(), PeerIs::Down, "gone");
    scribe.peer(PeerRef(8), Incarnation::default(), PeerIs::Up, "");
    let entries = recorder.read_all().entries;
    assert_eq!(entries[0].peer.as_deref(), Some("prefill-0"));
    assert_eq!(entries[1].peer, None);
}

#[test]
fn proofs_and_messages_are_found_by_their_names() {
    let set: Proofs = [Proof::WriterDead, Proof::NeverSubmitted]
        .into_iter()
        .collect();
    assert_eq!(
        set.iter().collect::<Vec<_>>(),
        [Proof::NeverSubmitted, Proof::WriterDead]
    );
    for proof in set.iter() {
        assert_eq!(Proofs::named(&proof.to_string()), Some(proof));
    }
    assert_eq!(message_named("Claim"), Some("Claim"));
    assert_eq!(message_named("Ping"), None);
}
