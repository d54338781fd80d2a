//! The model must serve what nobody aborts, and wedge for the reason it was written for.

use super::*;
use crate::driver;
use crate::load::{Load, Turn};
use crate::oracle::Findings;
use crate::storms::{Script, Storm};
use crate::world::World;

fn start(shape: Shape, rooms: &[RoomSpec]) -> (Arc<World>, SharedDict) {
    let pages = |count| Arc::new(Pages::new(shape.layers, count, shape.page_bytes));
    let (destination, source) = (pages(shape.destination_pages), pages(shape.source_pages));
    let world = Arc::new(World::whole(
        shape,
        rooms,
        destination.clone(),
        source.clone(),
    ));
    let engine =
        SharedDict::start(shape, source, destination, world.clone(), Duration::ZERO).unwrap();
    (world, engine)
}

#[test]
fn without_aborts_every_storm_is_served_whole() {
    for storm in [Storm::Incident, Storm::IdReuse, Storm::Convoy] {
        let load = Load::generated(6, 1);
        let script = Script::new(storm, &load, 1).without_aborts();
        let (world, engine) = start(script.shape(load.page_tokens), &script.rooms);
        let verdict = driver::run(&script, &world, &engine, &|_, _| {});
        assert_eq!(
            verdict.done, verdict.rooms,
            "{storm:?}: {:?}",
            verdict.remarks
        );
        assert!(verdict.rooms > 0 && verdict.probe.is_some());
        assert_eq!(verdict.findings, Findings::default());
        assert_eq!((verdict.leaked_pages, verdict.stuck_rooms), (0, 0));
    }
}

#[test]
fn a_chunk_that_outlives_its_room_kills_the_worker_and_health_stays_200() {
    const CHUNKS: u32 = 8;
    let shape = Shape {
        layers: 1,
        page_bytes: 64,
        page_tokens: 16,
        destination_pages: CHUNKS * 8,
        source_pages: CHUNKS * 8,
    };
    let turn = Turn {
        pages: CHUNKS * 8,
        skip_pages: 0,
        tokens: 16 * 8 * u64::from(CHUNKS),
    };
    let spec = |id| RoomSpec {
        id,
        attempt: 0,
        session: 0,
        turn,
    };
    // The race is real: a worker that looks between "failed" and "gone" gets away once in a while.
    let rooms: Vec<RoomSpec> = (0..20).map(spec).collect();
    let (world, engine) = start(shape, &rooms);
    for (no, spec) in rooms.iter().enumerate() {
        let pages = wait_for(|| world.take_destination(no));
        engine.receive(no, spec, &pages).unwrap();
        engine.send(no, spec).unwrap();
        wait_for(|| (engine.ready(no) == Ready::Yes).then_some(()));
        for chunk in 0..CHUNKS {
            let pages = wait_for(|| world.take_source(no, chunk * 8, 8));
            let last = chunk + 1 == CHUNKS;
            engine
                .push(
                    no,
                    Chunk {
                        first: chunk * 8,
                        pages,
                        last,
                    },
                )
                .unwrap();
        }
        wait_for(|| (world.in_flight(&[no]) == 1).then_some(()));
        engine.abort(no, Side::Decode);
        wait_for(|| world.rooms[no].log().prefill.end.clone());
        wait_for(|| {
            let left = lock(&engine.shared.transfer_queues[1].chunks).len();
            (left == 0 || !engine.remarks().is_empty()).then_some(())
        });
        if !engine.remarks().is_empty() {
            break;
        }
    }
    assert!(
        engine.remarks()[0].contains("in transfer_infos"),
        "no worker died"
    );
    assert_eq!(engine.health(), 200);
    engine.stop();
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "it never came");
        thread::sleep(Duration::from_micros(50));
    }
}
