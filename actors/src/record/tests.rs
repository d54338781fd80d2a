#![allow(clippy::unwrap_used)] // Tests and their helpers.

use super::entry::{Begun, ChunkTold, GateIs, Part, Road, Step, Told, What, Word};
use super::recorder::Recorder;
use super::ring::Ring;
use super::words;
use super::{PeerIs, Proofs, message_named};
use crate::ids::{ClaimNo, Incarnation, LegNo, LifeId, PeerRef, PoolId, RoomKey, Tick};
use crate::memory::Proof;
use crate::reason::{Code, Reason};
use crate::room::event::{JobEnd, LegTerms, SectionShape, SliceShape, Timer};
use crate::room::{Role, StateName};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Every third one is of the kind that is kept whole.
fn push(ring: &mut Ring, seq: u64) {
    match seq % 3 {
        0 => ring.push_whole(seq, seq, Part::Node, What::Note(seq.to_string().into())),
        _ => ring.push(seq, &words::of(&refused(seq)).unwrap()),
    }
}

fn refused(id: u64) -> What {
    What::Refused {
        key: RoomKey::new(id, 0),
        role: Role::Receiver,
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
            push(&mut ring, seq);
        }
        let mut out = Vec::new();
        ring.copy(since, below, most, &mut out);
        let there = count.saturating_sub(size as u64)..count;
        let wanted: Vec<u64> = there.filter(|s| *s >= since && *s < below).take(most).collect();
        prop_assert_eq!(out.iter().map(|k| k.seq).collect::<Vec<_>>(), wanted);
        prop_assert!(ring.len() <= size);
        for found in out {
            let what = found.whole.or_else(|| words::read(&found.words));
            let wanted = match found.seq % 3 {
                0 => What::Note(found.seq.to_string().into()),
                _ => refused(found.seq),
            };
            prop_assert_eq!(what, Some(wanted));
        }
    }

    #[test]
    fn who_goes_on_with_next_reads_everything_once_or_knows_how_much_was_lost(
        writes in proptest::collection::vec((0usize..3, 0usize..12), 1..20),
        size in 1usize..20,
        max in 1usize..15,
    ) {
        let recorder = recorder(2, size);
        let scribes = [recorder.shard(0), recorder.shard(1), recorder.part(Part::Lane(0))];
        let mut said = 0;
        let (mut since, mut last, mut read, mut lost) = (0, None, 0, 0);
        for (who, count) in writes {
            for _ in 0..count {
                said += 1;
                match said % 5 {
                    0 => scribes[who].note("x"),
                    _ => scribes[who].write(|| refused(said)),
                }
            }
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
                let recorder = &recorder;
                scope.spawn(move || {
                    let scribe = recorder.shard(shard);
                    for i in 0..EACH {
                        match i % 16 {
                            0 => scribe.note("x"),
                            _ => scribe.write(|| refused(i)),
                        }
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let (mut since, mut read) = (0, Vec::new());
            loop {
                let last = over.load(Ordering::Acquire);
                let records = recorder.read(since, 100);
                assert_eq!(records.lost, 0, "nothing is overwritten here");
                read.extend(
                    records
                        .entries
                        .iter()
                        .map(|e| (e.seq, e.part, e.what.clone())),
                );
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
    let numbers: Vec<u64> = read.iter().map(|(seq, ..)| *seq).collect();
    assert_eq!(numbers, (0..3 * EACH).collect::<Vec<_>>());
    for shard in 0..3 {
        let of = read
            .iter()
            .filter(|(_, part, _)| *part == Part::Shard(shard));
        let wanted = (0..EACH).map(|i| match i % 16 {
            0 => What::Note("x".into()),
            _ => refused(i),
        });
        assert!(
            of.map(|(.., what)| what.clone()).eq(wanted),
            "shard {shard}"
        );
    }
}

#[test]
fn what_several_shards_wrote_is_in_the_order_of_their_times() {
    let recorder = recorder(3, 64);
    let scribes = [recorder.shard(0), recorder.shard(1), recorder.shard(2)];
    for (who, at) in [
        (0, 10),
        (0, 40),
        (1, 20),
        (2, 15),
        (1, 30),
        (2, 50),
        (0, 45),
    ] {
        scribes[who].turn_at(Tick(at * 1_000));
        scribes[who].write(|| refused(at));
        scribes[who].write(|| refused(at));
    }
    let entries = recorder.read_all().entries;
    let times: Vec<_> = entries.iter().map(|e| e.at.as_micros()).collect();
    assert_eq!(
        times,
        [10, 10, 15, 15, 20, 20, 30, 30, 40, 40, 45, 45, 50, 50]
    );
}

#[test]
fn what_a_shard_wrote_last_is_read_although_it_never_writes_again() {
    let recorder = recorder(1, 1 << 10);
    let scribe = recorder.shard(0);
    for count in 1..200 {
        scribe.write(|| refused(count));
        let records = recorder.read(count - 1, 10);
        assert_eq!(records.entries.len(), 1, "entry {count}");
        assert_eq!(records.entries[0].what, refused(count));
    }
    (0..200).for_each(|i| scribe.write(|| refused(i)));
    assert_eq!(recorder.read(199, 1_000).entries.len(), 200);
}

#[test]
fn another_thread_may_write_in_the_name_of_a_shard() {
    let recorder = recorder(1, 1 << 10);
    let own = recorder.shard(0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let other = recorder.shard(0);
            (0..500).for_each(|i| other.write(|| refused(1_000 + i)));
        });
        (0..500).for_each(|i| own.write(|| refused(i)));
        other.join().unwrap();
    });
    let mut rooms: Vec<u64> = Vec::new();
    for entry in recorder.read_all().entries {
        assert_eq!(entry.part, Part::Shard(0));
        rooms.push(entry.what.room().unwrap().id.0);
    }
    rooms.sort_unstable();
    assert_eq!(rooms, (0..500).chain(1_000..1_500).collect::<Vec<_>>());
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

fn room_key() -> impl Strategy<Value = RoomKey> {
    (any::<u64>(), any::<u32>()).prop_map(|(id, attempt)| RoomKey::new(id, attempt))
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Sender), Just(Role::Receiver)]
}

fn state() -> impl Strategy<Value = StateName> {
    prop::sample::select(vec![
        StateName::Registered,
        StateName::Transferring,
        StateName::Draining,
        StateName::Done,
        StateName::Aborted,
    ])
}

fn deadline() -> impl Strategy<Value = Option<Duration>> {
    prop::option::of(any::<u64>().prop_map(Duration::from_nanos))
}

fn section() -> impl Strategy<Value = SectionShape> {
    let numbers = (any::<u16>(), any::<[u32; 4]>(), any::<u64>());
    let slice = (any::<u16>(), any::<[u32; 4]>(), any::<bool>());
    (numbers, prop::option::of(slice)).prop_map(|(numbers, slice)| {
        let (pool, [layer, layer_end, page_tokens, pages], page_bytes) = numbers;
        SectionShape {
            pool: PoolId(pool),
            layer,
            layer_end,
            page_tokens,
            page_bytes,
            pages,
            slice: slice.map(|(section, numbers, row)| SliceShape {
                section,
                source_layer: numbers[0],
                pool_layers: numbers[1],
                page_tokens: numbers[2],
                granule: numbers[3],
                row,
            }),
        }
    })
}

fn terms() -> impl Strategy<Value = LegTerms> {
    let sections = prop::collection::vec(section(), 0..3);
    let numbers = (any::<[u16; 2]>(), any::<[u64; 2]>(), any::<[bool; 2]>());
    (numbers, sections).prop_map(|((ranks, tokens, marks), sections)| LegTerms {
        receivers: ranks[0],
        rank: ranks[1],
        skip: tokens[0],
        total: tokens[1],
        sections: sections.into(),
        aux: marks[0],
        checksum: marks[1],
    })
}

fn begun() -> impl Strategy<Value = Begun> {
    let numbers = (any::<u16>(), any::<u32>(), any::<[u64; 3]>(), any::<bool>());
    prop_oneof![
        (any::<u16>(), deadline()).prop_map(|(receivers, deadline)| Begun::Sender {
            receivers,
            deadline
        }),
        (numbers, deadline()).prop_map(
            |((legs, peer, [cells, total, pages], checksum), deadline)| {
                Begun::Receiver {
                    legs,
                    peer: PeerRef(peer),
                    cells,
                    total,
                    checksum,
                    pages,
                    deadline,
                }
            }
        ),
    ]
}

fn chunk() -> impl Strategy<Value = ChunkTold> {
    let numbers = (
        any::<u16>(),
        any::<(u64, u64)>(),
        any::<(u32, u32)>(),
        any::<[u32; 6]>(),
    );
    numbers.prop_map(
        |(pool, tokens, layers, [no, pages, first, last, page_tokens, pool_layers])| ChunkTold {
            no,
            pool,
            tokens,
            layers,
            pages,
            first,
            last,
            page_tokens,
            pool_layers,
        },
    )
}

fn job_end() -> impl Strategy<Value = JobEnd> {
    prop_oneof![
        any::<u64>().prop_map(|checksum| JobEnd::Landed { checksum }),
        Just(JobEnd::Refused),
        Just(JobEnd::Cancelled),
        Just(JobEnd::Errored("no road".into())),
    ]
}

fn told() -> impl Strategy<Value = Told> {
    let leg = || any::<u16>().prop_map(LegNo);
    let reason = || Just(Reason::new(Code::Requested, "the user left"));
    let pair = any::<(u64, u64)>();
    prop_oneof![
        begun().prop_map(Told::Start),
        (leg(), any::<u32>(), any::<u64>()).prop_map(|(leg, peer, cells)| Told::Leg {
            leg,
            peer: PeerRef(peer),
            cells
        }),
        reason().prop_map(Told::Abort),
        chunk().prop_map(Told::Push),
        (any::<u64>(), any::<bool>()).prop_map(|(total, aux)| Told::Finish { total, aux }),
        (leg(), terms()).prop_map(|(leg, terms)| Told::Bind {
            leg,
            terms: terms.into()
        }),
        leg().prop_map(Told::ClaimOpened),
        (leg(), reason()).prop_map(|(leg, reason)| Told::ClaimNotOpened { leg, reason }),
        leg().prop_map(Told::Bound),
        (leg(), pair).prop_map(|(leg, (posted, written))| Told::Progress {
            leg,
            posted,
            written
        }),
        (leg(), any::<(u64, u64)>(), any::<Option<u64>>()).prop_map(
            |(leg, (total, cells), checksum)| Told::Complete {
                leg,
                total,
                cells,
                checksum
            }
        ),
        leg().prop_map(Told::Accepted),
        (leg(), reason()).prop_map(|(leg, reason)| Told::Rejected { leg, reason }),
        (leg(), reason()).prop_map(|(leg, reason)| Told::PeerEnded { leg, reason }),
        leg().prop_map(Told::PeerOut),
        (leg(), reason()).prop_map(|(leg, reason)| Told::LegLost { leg, reason }),
        (leg(), any::<u64>()).prop_map(|(leg, bytes)| Told::Moved { leg, bytes }),
        (leg(), any::<u32>(), any::<u64>(), job_end()).prop_map(|(leg, job, rest, end)| {
            Told::JobOver {
                leg,
                job,
                rest,
                end,
            }
        }),
        any::<u64>().prop_map(Told::Summed),
        prop::sample::select(Timer::ALL.to_vec()).prop_map(Told::Timer),
        Just(Told::Quiet),
        Just(Told::Panicked),
    ]
}

fn word() -> impl Strategy<Value = Word> {
    let names = prop::sample::select(super::entry::MESSAGES.to_vec());
    let claim = any::<Option<u64>>().prop_map(|claim| claim.map(ClaimNo));
    let numbers = (any::<u32>(), any::<u64>());
    (numbers, names, claim, prop::option::of(room_key())).prop_map(
        |((peer, frame), message, claim, room)| Word {
            peer: PeerRef(peer),
            message,
            claim,
            room,
            frame,
        },
    )
}

fn road() -> impl Strategy<Value = Road> {
    prop_oneof![
        Just(Road::Here),
        any::<u16>().prop_map(Road::Lane),
        Just(Road::Tcp),
        Just(Road::Ucx),
        Just(Road::Nowhere),
        any::<u16>().prop_map(Road::Device),
    ]
}

fn gate_is() -> impl Strategy<Value = GateIs> {
    prop::sample::select(vec![
        GateIs::Open,
        GateIs::Occupied,
        GateIs::Closed,
        GateIs::WriterDead,
        GateIs::Drained,
        GateIs::Fenced,
    ])
}

fn what() -> impl Strategy<Value = What> {
    let life = || any::<u64>().prop_map(LifeId);
    let leg = || any::<u16>().prop_map(LegNo);
    let claim = || any::<u64>().prop_map(ClaimNo);
    prop_oneof![
        8 => (room_key(), life(), role(), state(), state(), told()).prop_map(
            |(key, life, role, from, to, told)| What::Room(Step {
                key, life, role, from, to, told, reason: None,
            })
        ),
        1 => word().prop_map(What::Sent),
        1 => word().prop_map(What::Received),
        1 => (room_key(), life(), leg(), any::<u32>(), claim()).prop_map(
            |(key, life, leg, peer, claim)| What::Leg { key, life, leg, peer: PeerRef(peer), claim }
        ),
        1 => (room_key(), life(), leg(), claim(), gate_is()).prop_map(
            |(key, life, leg, claim, is)| What::Gate { key, life, leg, claim, is }
        ),
        1 => (room_key(), life(), leg(), any::<u32>(), road(), any::<u64>()).prop_map(
            |(key, life, leg, job, road, bytes)| What::Job { key, life, leg, job, road, bytes }
        ),
        1 => (room_key(), life(), any::<bool>()).prop_map(|(key, life, dead)| What::Lease {
            key,
            life,
            proofs: dead.then_some(Proof::WriterDead).into_iter().collect(),
        }),
        1 => (room_key(), role()).prop_map(|(key, role)| What::Refused { key, role }),
        1 => (room_key(), life(), role(), any::<u32>()).prop_map(
            |(key, life, role, of)| What::Retry { key, life, role, of }
        ),
    ]
}

/// Whether there is a text in it, or a list longer than one, or a section of parts.
fn is_long(what: &What) -> bool {
    let What::Room(step) = what else {
        return false;
    };
    match &step.told {
        Told::Abort(_)
        | Told::ClaimNotOpened { .. }
        | Told::Rejected { .. }
        | Told::PeerEnded { .. }
        | Told::LegLost { .. } => true,
        Told::JobOver { end, .. } => matches!(end, JobEnd::Errored(_)),
        Told::Bind { terms, .. } => {
            terms.sections.len() > 1 || terms.sections.iter().any(|s| s.slice.is_some())
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_is_written_as_words_is_read_as_it_was(what in what()) {
        match words::of(&what) {
            Some(words) => prop_assert_eq!(words::read(&words), Some(what)),
            None => prop_assert!(is_long(&what), "{:?} has no words", what),
        }
    }

    #[test]
    fn a_recorder_gives_what_was_written_into_it(all in prop::collection::vec(what(), 0..100)) {
        let recorder = recorder(1, 1 << 10);
        let scribe = recorder.shard(0);
        all.iter().for_each(|what| scribe.write(|| what.clone()));
        let read = recorder.read_all().entries;
        prop_assert_eq!(read.into_iter().map(|entry| entry.what).collect::<Vec<_>>(), all);
    }
}
