use super::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

#[derive(Debug)]
struct Job {
    id: u32,
    left: u64,
    cancelled: Rc<Cell<bool>>,
}

impl Work for Job {
    fn remaining(&self) -> u64 {
        self.left
    }
    fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }
}

fn job(id: u32, left: u64) -> Job {
    Job {
        id,
        left,
        cancelled: Rc::default(),
    }
}

fn scheduler() -> Scheduler<Job> {
    Scheduler::new(&Config::default())
}

/// One turn that copies the whole budget, or at most `cap` bytes.
enum Did {
    Cancelled(u32),
    Copied {
        flow: u64,
        id: u32,
        class: Class,
        bytes: u64,
        over: bool,
    },
}

fn step(s: &mut Scheduler<Job>, cap: u64) -> Option<Did> {
    Some(match s.next()? {
        Turn::Cancelled(job) => Did::Cancelled(job.id),
        Turn::Piece(mut turn) => {
            let (flow, class) = (turn.flow(), turn.class());
            let bytes = turn.budget().min(cap);
            let job = turn.job();
            let id = job.id;
            job.left -= bytes;
            let over = job.left == 0;
            let back = turn.report(bytes, over);
            assert_eq!(back.map(|j| j.id), over.then_some(id));
            Did::Copied {
                flow,
                id,
                class,
                bytes,
                over,
            }
        }
    })
}

fn copied(s: &mut Scheduler<Job>) -> (u64, u32, Class, u64) {
    match step(s, u64::MAX) {
        Some(Did::Copied {
            flow,
            id,
            class,
            bytes,
            ..
        }) => (flow, id, class, bytes),
        Some(Did::Cancelled(id)) => panic!("job {id} was cancelled"),
        None => panic!("nothing to do"),
    }
}

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

#[test]
fn pieces_are_no_larger_than_their_class_allows() {
    let mut s = scheduler();
    s.push(1, Class::Bulk, job(1, 200 * K)).unwrap();
    assert_eq!(copied(&mut s), (1, 1, Class::Bulk, 128 * K));
    s.push(2, Class::Interactive, job(2, 65 * K)).unwrap();
    assert_eq!(copied(&mut s), (2, 2, Class::Interactive, 64 * K));
    assert_eq!(copied(&mut s), (2, 2, Class::Interactive, K));
    assert_eq!(copied(&mut s), (1, 1, Class::Bulk, 72 * K));
    assert!(s.next().is_none() && s.is_empty());
}

#[test]
fn ten_cancelled_long_jobs_leave_before_anything_is_copied_and_the_healthy_one_is_next() {
    let mut s = scheduler();
    for id in 0..10 {
        s.push(u64::from(id), Class::Bulk, job(id, 64 * M)).unwrap();
    }
    let _ = copied(&mut s);
    s.jobs.iter().for_each(|e| e.job.cancelled.set(true));
    s.push(99, Class::Bulk, job(99, K)).unwrap();
    let mut left = BTreeSet::new();
    loop {
        match step(&mut s, u64::MAX).unwrap() {
            Did::Cancelled(id) => assert!(left.insert(id)),
            Did::Copied {
                id, bytes, over, ..
            } => {
                assert_eq!((id, bytes, over), (99, K, true));
                break;
            }
        }
    }
    assert_eq!(left, (0..10).collect());
    assert!(s.is_empty());
}

#[test]
fn cancelled_jobs_behind_a_long_one_of_their_flow_leave_at_once_when_the_flow_is_named() {
    let mut s = scheduler();
    let gone: Rc<Cell<bool>> = Rc::default();
    s.push(7, Class::Bulk, job(0, 1 << 40)).unwrap();
    for id in 1..=5000 {
        s.push(
            7,
            Class::Bulk,
            Job {
                id,
                left: M,
                cancelled: gone.clone(),
            },
        )
        .unwrap();
    }
    s.push(7, Class::Bulk, job(9999, M)).unwrap();
    gone.set(true);
    assert_eq!(s.cancel(7), 5000);
    assert_eq!(s.cancel(8), 0);
    for id in 1..=5000 {
        assert_eq!(s.take_cancelled().map(|j| j.id), Some(id));
    }
    assert!(s.take_cancelled().is_none());
    let order: Vec<u32> = s.drain().iter().map(|j| j.id).collect();
    assert_eq!(order, [0, 9999]);
}

#[test]
fn the_sweep_finds_cancelled_jobs_that_nobody_named() {
    let mut s = scheduler();
    s.push(1, Class::Bulk, job(0, 1 << 40)).unwrap();
    for id in 1..=1000 {
        s.push(1, Class::Bulk, job(id, M)).unwrap();
    }
    s.jobs[700].job.cancelled.set(true);
    let mut turns = 0;
    while let Some(Did::Copied { .. }) = step(&mut s, u64::MAX) {
        turns += 1;
        assert!(
            turns <= 1001 / SWEPT_EACH_TURN + 1,
            "not found in one whole sweep"
        );
    }
    assert_eq!(s.len(), 1000);
}

#[test]
fn a_job_that_is_pushed_cancelled_is_the_next_to_leave() {
    let mut s = scheduler();
    s.push(1, Class::Interactive, job(1, M)).unwrap();
    let dead = job(2, M);
    dead.cancelled.set(true);
    s.push(1, Class::Interactive, dead).unwrap();
    assert!(matches!(step(&mut s, u64::MAX), Some(Did::Cancelled(2))));
}

#[test]
fn a_full_queue_hands_the_job_back() {
    let mut s = Scheduler::new(&Config {
        capacity: 2,
        ..Config::default()
    });
    s.push(1, Class::Bulk, job(1, 1)).unwrap();
    s.push(1, Class::Bulk, job(2, 1)).unwrap();
    let full = s.push(2, Class::Interactive, job(3, 1)).unwrap_err();
    assert_eq!((full.job.id, full.capacity), (3, 2));
    assert!(full.to_string().contains("jobs_per_lane"));
    let _ = copied(&mut s);
    s.push(2, Class::Interactive, full.job).unwrap();
}

#[test]
fn interactive_waits_behind_one_bulk_piece_at_most() {
    let mut s = scheduler();
    s.push(1, Class::Bulk, job(1, 1 << 40)).unwrap();
    for _ in 0..100 {
        assert_eq!(copied(&mut s).2, Class::Bulk);
    }
    s.push(2, Class::Interactive, job(2, 1 << 40)).unwrap();
    let classes: Vec<Class> = (0..1600).map(|_| copied(&mut s).2).collect();
    assert!(classes.windows(2).all(|w| w != [Class::Bulk, Class::Bulk]));
    for window in classes.windows(16) {
        assert_eq!(window.iter().filter(|c| **c == Class::Bulk).count(), 1);
    }
}

#[test]
fn a_small_job_does_not_wait_for_large_ones_of_other_flows() {
    let mut s = scheduler();
    for flow in 0..5 {
        s.push(flow, Class::Bulk, job(flow as u32, 1 << 40))
            .unwrap();
    }
    s.push(50, Class::Bulk, job(50, 4 * K)).unwrap();
    let seen: Vec<u32> = (0..6).map(|_| copied(&mut s).1).collect();
    assert_eq!(seen, [0, 1, 2, 3, 4, 50]);
}

#[test]
fn a_job_that_cannot_go_on_does_not_hold_up_others() {
    let mut s = scheduler();
    s.push(1, Class::Bulk, job(1, M)).unwrap();
    s.push(2, Class::Bulk, job(2, M)).unwrap();
    match s.next() {
        Some(Turn::Piece(turn)) => assert!(turn.report(0, false).is_none()),
        _ => panic!("a piece was due"),
    }
    assert_eq!(copied(&mut s).1, 2);
    // A turn that is lost counts the same.
    drop(s.next());
    assert_eq!(copied(&mut s).1, 2);
    assert_eq!(s.len(), 2);
}

#[test]
fn a_job_without_bytes_gets_its_turn_and_leaves() {
    let mut s = scheduler();
    s.push(1, Class::Bulk, job(1, 0)).unwrap();
    assert_eq!(copied(&mut s), (1, 1, Class::Bulk, 0));
    assert!(s.is_empty());
}

#[test]
fn silly_sizes_are_taken_as_the_smallest_that_work() {
    let zero = Config {
        interactive_piece: 0,
        bulk_piece: 0,
        bulk_every: 0,
        capacity: 0,
    };
    let mut s = Scheduler::new(&zero);
    s.push(1, Class::Bulk, job(1, 2)).unwrap();
    assert_eq!(copied(&mut s).3, 1);
    assert_eq!(copied(&mut s).3, 1);
    assert!(s.is_empty());
    let huge = Config {
        bulk_piece: u64::MAX,
        ..Config::default()
    };
    let mut s = Scheduler::new(&huge);
    s.push(1, Class::Bulk, job(1, 1 << 50)).unwrap();
    assert_eq!(copied(&mut s).3, 1 << 50);
}

#[test]
fn a_burst_leaves_no_large_tables_behind() {
    let mut s = scheduler();
    for id in 0..20_000 {
        s.push(u64::from(id), Class::Bulk, job(id, 1)).unwrap();
    }
    assert_eq!(
        (s.flows(Class::Bulk), s.flows(Class::Interactive)),
        (20_000, 0)
    );
    while step(&mut s, u64::MAX).is_some() {}
    assert_eq!(s.flows(Class::Bulk), 0);
    assert!(s.jobs.capacity() <= KEPT);
}

fn classes() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Interactive), Just(Class::Bulk)]
}

#[derive(Clone, Debug)]
enum Op {
    Push {
        flow: u64,
        class: Class,
        bytes: u64,
    },
    Step {
        cap: u64,
    },
    Cancel {
        which: prop::sample::Index,
        tell: bool,
    },
    TakeCancelled,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![
        4 => (0u64..4, classes(), 0u64..500 * K)
            .prop_map(|(flow, class, bytes)| Op::Push { flow, class, bytes }),
        4 => (1u64..200 * K).prop_map(|cap| Op::Step { cap }),
        1 => (any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(which, tell)| Op::Cancel { which, tell }),
        1 => Just(Op::TakeCancelled),
    ];
    proptest::collection::vec(one, 0..120)
}

/// What went in: flow, class, the cancel switch, and whether it is out.
struct Pushed {
    flow: u64,
    class: Class,
    cancelled: Rc<Cell<bool>>,
    out: bool,
}

fn take_out(all: &mut [Pushed], id: u32) {
    let job = &mut all[id as usize];
    assert!(!job.out, "job {id} came out twice");
    job.out = true;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_job_comes_out_once_and_in_order_whatever_happens(list in ops()) {
        let mut s = scheduler();
        let mut all: Vec<Pushed> = Vec::new();
        for op in list {
            match op {
                Op::Push { flow, class, bytes } => {
                    let new = job(all.len() as u32, bytes);
                    all.push(Pushed { flow, class, cancelled: new.cancelled.clone(), out: false });
                    s.push(flow, class, new).unwrap();
                }
                Op::Step { cap } => match step(&mut s, cap) {
                    None => prop_assert!(all.iter().all(|j| j.out)),
                    Some(Did::Cancelled(id)) => {
                        prop_assert!(all[id as usize].cancelled.get());
                        take_out(&mut all, id);
                    }
                    Some(Did::Copied { flow, id, class, bytes, over }) => {
                        let mine = &all[id as usize];
                        prop_assert!(!mine.cancelled.get(), "a cancelled job was copied");
                        prop_assert_eq!((mine.flow, mine.class), (flow, class));
                        let most = if class == Class::Bulk { 128 * K } else { 64 * K };
                        prop_assert!(bytes <= most);
                        let earlier = all[..id as usize].iter().find(|j| {
                            (j.flow, j.class) == (flow, class) && !j.out && !j.cancelled.get()
                        });
                        prop_assert!(earlier.is_none(), "job {} overtook its flow", id);
                        if over {
                            take_out(&mut all, id);
                        }
                    }
                },
                Op::Cancel { which, tell } => {
                    if !all.is_empty() {
                        let job = &all[which.index(all.len())];
                        job.cancelled.set(true);
                        if tell {
                            s.cancel(job.flow);
                        }
                    }
                }
                Op::TakeCancelled => {
                    if let Some(job) = s.take_cancelled() {
                        prop_assert!(job.cancelled.get());
                        take_out(&mut all, job.id);
                    }
                }
            }
            prop_assert_eq!(s.len(), all.iter().filter(|j| !j.out).count());
        }
        for job in s.drain() {
            take_out(&mut all, job.id);
        }
        prop_assert!(all.iter().all(|j| j.out) && s.is_empty());
        prop_assert!(s.next().is_none());
    }

    #[test]
    fn no_flow_gets_more_than_a_round_and_a_piece_ahead(
        caps in proptest::collection::vec(1u64..=128 * K, 2..6),
        turns in 1usize..2000,
        class in classes(),
    ) {
        // Flow i copies at most caps[i] bytes a turn: pieces of very different sizes.
        let mut s = scheduler();
        for flow in 0..caps.len() {
            s.push(flow as u64, class, job(flow as u32, u64::MAX)).unwrap();
        }
        let piece = if class == Class::Bulk { 128 * K } else { 64 * K };
        let mut got: BTreeMap<u64, u64> = (0..caps.len() as u64).map(|f| (f, 0)).collect();
        for _ in 0..turns {
            let Some(Turn::Piece(turn)) = s.next() else { panic!("a piece was due") };
            let flow = turn.flow();
            let bytes = turn.budget().min(caps[flow as usize]);
            *got.get_mut(&flow).unwrap() += bytes;
            prop_assert!(turn.report(bytes, false).is_none());
            let (least, most) = (got.values().min().unwrap(), got.values().max().unwrap());
            prop_assert!(most - least < 2 * piece, "{:?}", got);
        }
    }
}
