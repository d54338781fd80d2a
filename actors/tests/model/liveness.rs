//! From where can ends be reached, over each kind of plane: backward over the whole graph of a world.
//!
//! ```text
//!   can end       from everywhere, by what may be counted on, all ends; or is kept, and why is known
//!   drains end    where every process lives, without any clock running out
//!   healthy       if nobody interferes, all are done, always
//! ```
//!
//! Memory is kept for ever in one case alone: a device of a dead process, or a failed flush, on a
//! path that nothing can destroy.

use crate::exhaustive::{OneRoom, SIZE, is_large};
use crate::model::network::{RECEIVER, SENDER, Step};
use crate::model::reach::{Class, EVERY, Graph, IN_TIME};
use crate::model::size::{Kind, Mortal, Size};
use crate::model::world::{Action, World};
use crate::mortals::{pool_survives, sender_dies};
use crate::planes::{SHM, TCP, UCX};
use kvroom_actors::ids::LifeId;
use kvroom_actors::room::{Outcome, Timer};

fn graph(name: &str, floor: usize, size: Size) -> Graph {
    let graph = Graph::of(&OneRoom(size));
    println!("{name}: {} unique states, whole graph", graph.len());
    assert_eq!(graph.broken, None, "{name}: broken, by these steps");
    assert!(graph.len() > floor, "{name}: only {} states", graph.len());
    graph
}

/// From everywhere all can end. Says whether some states can only be kept.
fn can_end(name: &str, graph: &Graph) -> bool {
    let ends = |w: &World| w.is_empty_at_rest() || w.is_wanted_quarantine(true);
    let stuck = graph.cannot_reach(|_| true, ends);
    assert_eq!(stuck, None, "{name}: stuck, after these steps");
    graph
        .cannot_reach(|_| true, World::is_empty_at_rest)
        .is_some()
}

/// Some life ended, and its memory is not back.
fn drains(world: &World) -> bool {
    let mut nodes = world.nodes.iter();
    nodes.any(|n| n.core.lives().any(|(_, life)| life.outcome().is_some()))
}

fn all_live(world: &World) -> bool {
    world.down.is_empty() && world.lives.iter().all(|life| *life == 0)
}

fn drains_end_in_time(name: &str, graph: &Graph) {
    let from = |w: &World| drains(w) && all_live(w);
    let some = graph.cannot_reach_by(IN_TIME, from, |_| false);
    assert!(some.is_some(), "{name}: nothing ever drains");
    let stuck = graph.cannot_reach_by(IN_TIME, from, |w| !drains(w));
    assert_eq!(stuck, None, "{name}: drains for ever, after these steps");
}

#[test]
fn where_processes_live_all_ends_and_drains_wait_for_no_clock() {
    let sizes = [
        (
            "tcp",
            2_500,
            Size {
                aborts: 1,
                resends: 1,
                ..TCP
            },
        ),
        ("shm", 350, Size { aborts: 1, ..SHM }),
        (
            "ucx",
            3_500,
            Size {
                aborts: 1,
                losses: 1,
                ..UCX
            },
        ),
        (
            "ucx, flush fails, fence",
            1_000,
            Size {
                aborts: 1,
                flush_errors: 1,
                fence: true,
                ..UCX
            },
        ),
    ];
    for (name, floor, size) in sizes {
        let graph = graph(name, floor, size);
        assert!(!can_end(name, &graph), "{name}: something is kept for ever");
        // A receiver fences a path of a silent peer only when its drain clock runs out.
        if size.flush_errors == 0 {
            drains_end_in_time(name, &graph);
        }
    }
}

/// An abort of a new session may meet a room that is about to be over, and must be answered.
#[test]
fn where_mailboxes_fall_behind_drains_wait_for_no_clock() {
    let name = "ucx, mailboxes fall behind";
    let size = Size {
        losses: 1,
        at_once: false,
        ..UCX
    };
    // By default from where a copy is under way, and the receiver has just given its session up.
    let mut world = World::new(Size {
        at_once: true,
        ..size
    });
    let is_inside = |w: &World| w.plane.jobs.iter().any(|j| j.inside);
    while !is_inside(&world) {
        let next = world.calls().into_iter().chain(world.fair()).next();
        world.apply(&next.expect("a copy begins"));
    }
    world.apply(&Action::Link(0, RECEIVER, Step::GiveUp));
    world.size.at_once = false;
    let small = Graph::since(world, EVERY);
    println!("{name}: {} unique states since then", small.len());
    assert_eq!(small.broken, None, "{name}: broken, by these steps");
    assert!(small.len() > 2_000, "{name}: only {} states", small.len());
    drains_end_in_time(name, &small);
    if is_large() {
        drains_end_in_time(name, &graph(name, 2_000, size));
    } else {
        crate::skipped("ucx, mailboxes fall behind, with copies: KVROOM_MODEL_LARGE=1");
    }
}

#[test]
fn where_a_process_dies_all_ends_but_what_a_device_may_still_write() {
    let one = |size| Size {
        attempts: 1,
        ..size
    };
    let sizes = [
        ("tcp, sender dies", 500, false, one(sender_dies(Kind::Tcp))),
        ("shm, sender dies or is stopped", 4_500, false, {
            Size {
                stops: 1,
                ..one(sender_dies(Kind::Shm))
            }
        }),
        (
            "tcp, pool survives",
            450,
            false,
            one(pool_survives(Kind::Tcp)),
        ),
        (
            "shm, pool survives",
            400,
            false,
            one(pool_survives(Kind::Shm)),
        ),
        (
            "shm, either dies",
            800,
            false,
            Size {
                mortal: Mortal::All,
                ..one(pool_survives(Kind::Shm))
            },
        ),
        (
            "ucx, sender dies, fence",
            650,
            false,
            Size {
                fence: true,
                ..one(sender_dies(Kind::Ucx))
            },
        ),
        (
            "ucx, sender dies, no fence",
            700,
            true,
            one(sender_dies(Kind::Ucx)),
        ),
        (
            "ucx, flush fails, no fence",
            700,
            true,
            Size {
                aborts: 1,
                flush_errors: 1,
                ..UCX
            },
        ),
    ];
    for (name, floor, is_kept, size) in sizes {
        let graph = graph(name, floor, size);
        assert_eq!(
            can_end(name, &graph),
            is_kept,
            "{name}: something is kept for ever"
        );
    }
}

#[test]
fn if_nobody_interferes_all_are_done_on_every_plane() {
    let planes = [Kind::Local, Kind::Tcp, Kind::Shm, Kind::Ucx];
    let shapes = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)];
    for (plane, (senders, receivers, rooms)) in
        planes.into_iter().zip(shapes.iter().cycle().copied())
    {
        for (senders, receivers, rooms) in [(1, 1, 1), (senders, receivers, rooms)] {
            let size = Size {
                plane,
                senders,
                receivers,
                rooms,
                credit: 2,
                pushes: 8,
                ..SIZE
            };
            let graph = Graph::within(&OneRoom(size), &[Class::Fair, Class::Call]);
            println!("{plane:?}, healthy: {} unique states", graph.len());
            assert_eq!(graph.broken, None, "{plane:?}: broken, by these steps");
            let done = |w: &World| {
                w.is_empty_at_rest()
                    && w.truth.stories.len() == w.nodes.len() * w.size.rooms as usize
                    && w.truth
                        .stories
                        .values()
                        .all(|s| s.outcome == Some(Outcome::Done))
            };
            assert_eq!(
                graph.cannot_reach_by(&[Class::Fair, Class::Call], |_| true, done),
                None
            );
        }
    }
}

/// A world at rest whose flush failed on a path that nothing can destroy.
fn quarantined() -> World {
    let mut world = World::new(Size {
        flush_errors: 1,
        ..UCX
    });
    let failed = |a: &Action| matches!(a, Action::FlushError(_));
    loop {
        let mut faults = world.faults();
        faults.retain(failed);
        let next = faults.into_iter().chain(world.calls()).chain(world.fair());
        let Some(action) = next.chain(world.clocks()).next() else {
            return world;
        };
        world.apply(&action);
    }
}

#[test]
fn a_quarantine_explains_nothing_but_what_it_holds() {
    let kept = quarantined();
    let left = kept.leftovers();
    assert!(kept.is_wanted_quarantine(true), "{left:?}");
    type Leak = (&'static str, fn(&mut World));
    let leaks: [Leak; 6] = [
        ("a source", |w| {
            w.truth.lend(0);
        }),
        ("a clock", |w| {
            w.nodes[1].clocks.insert((LifeId(100), Timer::Drain));
        }),
        ("pages", |w| w.truth.occupy((1, 0, 7), LifeId(107))),
        ("a room", |w| {
            let room = w.nodes[0].rooms[&LifeId(0)].clone();
            w.nodes[0].rooms.insert(LifeId(9), room);
        }),
        ("a credit", |w| {
            let end = &mut w.links[0].ends[SENDER];
            end.session.as_mut().unwrap().claim_ended();
        }),
        ("a debt that no copy stands for", |w| w.plane.jobs.clear()),
    ];
    for (what, leak) in leaks {
        let mut world = kept.clone();
        leak(&mut world);
        assert!(!world.is_wanted_quarantine(true), "{what} leaks unseen");
    }
    // Where nothing is quarantined, nothing is explained.
    let mut world = World::new(UCX);
    assert!(world.is_empty_at_rest());
    world.truth.lend(0);
    assert!(!world.is_wanted_quarantine(true), "a source leaks unseen");
}
