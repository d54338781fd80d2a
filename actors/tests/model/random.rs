//! Random walks with everything that can go wrong, then a healing: all ends well, whatever came.

use crate::exhaustive::SIZE;
use crate::model::size::{Kind, Mortal, Size};
use crate::model::world::{Action, World};
use kvroom_actors::room::Outcome;
use proptest::prelude::*;

const CHUNKS: &[(u32, u32)] = &[(0, 1), (1, 3), (3, 4)];

fn size() -> impl Strategy<Value = Size> {
    let faults = (0..3u32, 0..3u32, 0..2u32, 0..4u32, any::<bool>());
    let room = (
        1..3usize,
        1..3usize,
        1..3u32,
        1..3u32,
        any::<bool>(),
        1..3u32,
    );
    let plane = prop_oneof![
        2 => Just(Kind::Local),
        1 => Just(Kind::Tcp),
        1 => Just(Kind::Shm),
        1 => Just(Kind::Ucx),
    ];
    let around = (0..3u32, 0..3u32, any::<bool>(), 0..3u32, any::<bool>());
    (plane, room, faults, around).prop_map(|(plane, room, faults, around)| {
        let (senders, receivers, rooms, attempts, checksum, credit) = room;
        let (resets, losses, panics, aborts, failures) = faults;
        let (crashes, stops, survives, mishaps, fence) = around;
        Size {
            plane,
            senders,
            receivers,
            rooms,
            attempts,
            checksum,
            chunks: CHUNKS,
            pushes: 16,
            prepared: false,
            credit,
            progress: 8,
            acks: true,
            resets,
            losses,
            panics,
            aborts,
            at_once: false,
            eager: false,
            clocks: true,
            failures,
            mortal: match plane {
                Kind::Local => Mortal::Nobody,
                _ => Mortal::All,
            },
            crashes,
            stops,
            survives,
            resends: if plane == Kind::Tcp { mishaps } else { 0 },
            flush_errors: if plane == Kind::Ucx { mishaps } else { 0 },
            fence,
            ..SIZE
        }
    })
}

/// A step of the walk: mostly what happens by itself, now and then a caller, a fault or a clock.
fn choose(world: &World, dice: u16) -> Option<Action> {
    let pool = match dice % 256 {
        0 => world.clocks(),
        1..3 => world.faults(),
        3..6 => world.healing(),
        6..10 => world.aborts(),
        10..72 => world.calls(),
        _ => world.fair(),
    };
    let at = usize::from(dice / 256);
    pool.get(at.checked_rem(pool.len())?).cloned()
}

/// Callers finish what they began, everything is delivered; clocks run out only where nothing else
/// can happen.
fn heal(world: &mut World) {
    world.calm();
    for _ in 0..10_000 {
        let steps = [world.fair(), world.healing()].into_iter().flatten().next();
        let steps = steps.or_else(|| world.calls().pop());
        let Some(action) = steps.or_else(|| world.clocks().pop()) else {
            return;
        };
        world.apply(&action);
    }
    panic!("the world does not come to rest");
}

fn check(world: &World) -> Result<(), TestCaseError> {
    prop_assert!(world.truth.broken.is_empty(), "{:?}", world.truth.broken);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_happens_every_life_ends_once_and_every_lease_comes_back_on_proof(
        size in size(),
        dice in proptest::collection::vec(any::<u16>(), 0..220),
    ) {
        let mut world = World::new(size);
        for dice in dice {
            if let Some(action) = choose(&world, dice) {
                world.apply(&action);
                check(&world)?;
            }
        }
        heal(&mut world);
        check(&world)?;
        let left = world.leftovers();
        let is_kept = world.is_wanted_quarantine(true);
        prop_assert!(left.is_empty() || is_kept, "{left:?} are left: {world:#?}");
    }
}

/// The walk above would pass in a world where nothing ever works.
#[test]
fn without_faults_every_room_is_done() {
    for (receivers, checksum) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut world = World::new(Size {
            receivers,
            checksum,
            chunks: CHUNKS,
            pushes: 3,
            prepared: false,
            acks: true,
            ..SIZE
        });
        while let Some(action) = world.calls().pop().or_else(|| world.fair().pop()) {
            world.apply(&action);
        }
        assert!(world.is_empty() && world.truth.broken.is_empty());
        let outcomes = world.truth.stories.values().map(|s| s.outcome.clone());
        assert!(outcomes.into_iter().all(|o| o == Some(Outcome::Done)));
        assert_eq!(world.truth.stories.len(), receivers + 1);
    }
}
