//! Nodes whose shard runs on the thread of their engine.
#![allow(clippy::unwrap_used)]

mod common;

use common::{
    PATIENCE, TOKENS, all_free, code, fill, kv, names, socket_path, text, verify, within,
};
use kvroom::actors::copy::plant::Brake;
use kvroom::{
    Chunk, Code, Deadlines, Driver, Fabric, LocalHub, Node, NodeBuilder, NodeError, Outcome, Peer,
    Pool, PoolError, PoolLayout, ReadLease, ReceiveRoom, RoomId, SendRoom,
};
use std::future::Future;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A node with a pool, and its driver if it has one.
struct End {
    node: Node,
    pool: Pool,
    driver: Option<Driver>,
}

impl End {
    fn builder(name: &str) -> (NodeBuilder, Pool) {
        let pool = Pool::owned(kv(16, 4096)).unwrap();
        (Node::builder(name).pool(pool.clone()), pool)
    }

    fn driven(with: (NodeBuilder, Pool)) -> End {
        let (node, driver) = with.0.start_driven().unwrap();
        End {
            node,
            pool: with.1,
            driver: Some(driver),
        }
    }

    fn threaded(with: (NodeBuilder, Pool)) -> End {
        End {
            node: with.0.blocking_start().unwrap(),
            pool: with.1,
            driver: None,
        }
    }

    fn drive(&mut self) -> bool {
        self.driver.as_mut().unwrap().drive()
    }

    fn run<F: Future>(&mut self, future: F) -> F::Output {
        self.driver.as_mut().unwrap().run(within(future))
    }

    fn connect(&mut self, address: &str) -> Peer {
        let node = self.node.clone();
        self.run(node.connect(address)).unwrap()
    }

    fn receive(&mut self, id: u64, peer: &Peer, pages: &[u32]) -> ReceiveRoom {
        let lease = self.pool.lease_write(pages).unwrap();
        let room = self.node.receive(RoomId(id)).from(peer).into(lease);
        self.run(room.start()).unwrap()
    }

    fn stamped(&self, pages: &[u32], stamp: u64) -> ReadLease {
        stamped(&self.pool, pages, stamp)
    }

    /// Stops it, with everything given back.
    fn end(mut self) {
        let (node, pool) = (self.node.clone(), self.pool.clone());
        self.run(all_free(&pool));
        let report = self.run(node.shutdown());
        assert!(report.drained, "{report:?}");
        assert!(self.driver.as_ref().unwrap().is_over());
        assert!(!self.drive());
    }
}

fn stamped(pool: &Pool, pages: &[u32], stamp: u64) -> ReadLease {
    let mut lease = pool.lease_write(pages).unwrap();
    fill(&mut lease, stamp, 0);
    lease.into_read()
}

/// Polls, and drives all of these, until it is so.
fn drive_until(what: &str, ends: &mut [&mut End], mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        for end in &mut *ends {
            end.drive();
        }
    }
}

/// A prefill node on threads of its own that serves rooms for as long as it is asked to.
struct Prefill {
    rooms: mpsc::Sender<(u64, Vec<u32>)>,
    thread: thread::JoinHandle<()>,
}

impl Prefill {
    /// A room with the number of its stamp.
    fn serve(end: End) -> Prefill {
        let End { node, pool, .. } = end;
        let (rooms, asked) = mpsc::channel::<(u64, Vec<u32>)>();
        let thread = thread::spawn(move || {
            for (id, pages) in asked {
                let sender = node.send(RoomId(id)).blocking_start().unwrap();
                let total = pages.len() as u64 * TOKENS;
                let chunk = Chunk::tokens(0..total).pages(stamped(&pool, &pages, id));
                sender.blocking_reserve().unwrap().push(chunk).unwrap();
                sender.finish(total, None).unwrap();
                assert_eq!(sender.blocking_outcome(), Outcome::Done);
                drop(sender.blocking_released());
            }
            assert!(node.blocking_shutdown().drained);
        });
        Prefill { rooms, thread }
    }

    fn send(&self, id: u64, pages: &[u32]) {
        self.rooms.send((id, pages.to_vec())).unwrap();
    }

    fn end(self) {
        drop(self.rooms);
        self.thread.join().unwrap();
    }
}

fn in_hub(hub: &LocalHub, name: &str) -> (NodeBuilder, Pool) {
    let (builder, pool) = End::builder(name);
    (builder.hub(hub), pool)
}

/// Threaded prefill and driven decode, connected.
fn half_driven() -> (End, End, Peer) {
    let hub = LocalHub::new();
    let prefill = End::threaded(in_hub(&hub, "p"));
    let mut decode = End::driven(in_hub(&hub, "d"));
    let peer = decode.connect("local://p");
    (prefill, decode, peer)
}

#[test]
fn an_engine_drives_its_shard_from_its_own_loop() {
    let (prefill, mut decode, peer) = half_driven();
    let prefill = Prefill::serve(prefill);
    for id in 0..50 {
        let room = decode.receive(id, &peer, &[3, 1]);
        prefill.send(id, &[0, 5]);
        drive_until("the room is done", &mut [&mut decode], || {
            room.poll().released
        });
        assert_eq!(room.try_outcome(), Some(Outcome::Done));
        verify(&room.try_released().unwrap().leases[0], id, 0);
    }
    prefill.end();
    decode.end();
}

#[test]
fn both_engines_drive_their_shards() {
    let hub = LocalHub::new();
    let (ready, named) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let theirs = hub.clone();
    let prefill = thread::spawn(move || {
        let mut prefill = End::driven(in_hub(&theirs, "p"));
        ready.send(()).unwrap();
        for id in 0..20 {
            serve_driven(&mut prefill, id);
        }
        // Its last words are to be heard, so it goes on until the other one has gone.
        while matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty)) {
            prefill.drive();
        }
        prefill.end();
    });
    named.recv().unwrap();
    let mut decode = End::driven(in_hub(&hub, "d"));
    let peer = decode.connect("local://p");
    for id in 0..20 {
        let room = decode.receive(id, &peer, &[3, 1]);
        drive_until("the room is done", &mut [&mut decode], || {
            room.poll().released
        });
        assert_eq!(room.try_outcome(), Some(Outcome::Done));
        verify(&room.try_released().unwrap().leases[0], id, 0);
    }
    decode.end();
    drop(stop);
    prefill.join().unwrap();
}

fn serve_driven(prefill: &mut End, id: u64) {
    let room = prefill.node.send(RoomId(id));
    let sender = prefill.run(room.start()).unwrap();
    let lease = prefill.stamped(&[0, 5], id);
    let chunk = Chunk::tokens(0..2 * TOKENS).pages(lease);
    sender.try_reserve().unwrap().push(chunk).unwrap();
    sender.finish(2 * TOKENS, None).unwrap();
    drive_until("it is sent", &mut [prefill], || sender.poll().released);
    assert_eq!(sender.try_outcome(), Some(Outcome::Done));
}

#[test]
fn one_thread_drives_two_nodes() {
    let hub = LocalHub::new();
    let (mut prefill, mut decode) = (
        End::driven(in_hub(&hub, "p")),
        End::driven(in_hub(&hub, "d")),
    );
    // A blocking call drives both.
    let peer = decode.node.blocking_connect("local://p").unwrap();
    let room = decode.receive(1, &peer, &[3, 1]);
    let sender = prefill.run(prefill.node.clone().send(RoomId(1)).start());
    let sender = sender.unwrap();
    let chunk = Chunk::tokens(0..2 * TOKENS).pages(prefill.stamped(&[0, 5], 9));
    sender.try_reserve().unwrap().push(chunk).unwrap();
    sender.finish(2 * TOKENS, None).unwrap();
    drive_until("both ended", &mut [&mut prefill, &mut decode], || {
        room.poll().released && sender.poll().released
    });
    verify(&room.try_released().unwrap().leases[0], 9, 0);
    drop((room, sender));
    // Each is driven for itself now: nobody answers the other's goodbye, and nothing waits for that.
    decode.end();
    prefill.end();
}

#[test]
fn driven_nodes_meet_over_a_unix_socket() {
    meet_over_a_socket(Pool::owned, Fabric::Tcp);
}

#[test]
fn driven_nodes_share_memory_and_a_ring() {
    meet_over_a_socket(Pool::shared, Fabric::Shm);
}

fn meet_over_a_socket(pool: fn(PoolLayout) -> Result<Pool, PoolError>, fabric: Fabric) {
    let end = move |name| {
        let pool = pool(kv(16, 4096)).unwrap();
        (Node::builder(name).pool(pool.clone()), pool)
    };
    let (ready, named) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let prefill = thread::spawn(move || {
        let (builder, pool) = end("p");
        let builder = builder.listen(&format!("unix://{}", socket_path().display()));
        let mut prefill = End::driven((builder, pool));
        ready.send(prefill.node.addresses()[0].clone()).unwrap();
        for id in 0..20 {
            serve_driven(&mut prefill, id);
        }
        while matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty)) {
            prefill.drive();
        }
        prefill.end();
    });
    let address = named.recv().unwrap();
    let mut decode = End::driven(end("d"));
    let peer = decode.connect(&address);
    assert_eq!(peer.fabric(), Some(fabric));
    for id in 0..20 {
        let room = decode.receive(id, &peer, &[3, 1]);
        if id % 2 == 0 {
            drive_until("the room is done", &mut [&mut decode], || {
                room.poll().released
            });
        } else {
            // Parked meanwhile, and rung.
            decode.run(room.outcome());
        }
        assert_eq!(room.try_outcome(), Some(Outcome::Done));
        verify(&decode.run(room.released()).leases[0], id, 0);
    }
    decode.end();
    drop(stop);
    prefill.join().unwrap();
}

#[test]
fn a_thread_that_drives_waits_for_what_comes_from_elsewhere() {
    let (prefill, mut decode, peer) = half_driven();
    let prefill = Prefill::serve(prefill);
    let room = decode.receive(1, &peer, &[3, 1]);
    prefill.send(1, &[0, 5]);
    let driver = decode.driver.as_mut().unwrap();
    // A wait that nothing ends would be over with the test's patience.
    while !room.poll().released {
        assert!(driver.wait(PATIENCE), "nothing came");
    }
    // What is still under way is little; then nothing comes, and the time is waited for.
    let rest = Duration::from_millis(20);
    let quiet = (0..100).any(|_| {
        let start = Instant::now();
        !driver.wait(rest) && start.elapsed() >= rest
    });
    assert!(quiet, "something always happened");
    verify(&room.try_released().unwrap().leases[0], 1, 0);
    drop(room);
    prefill.end();
    decode.end();
}

#[test]
fn blocking_calls_on_the_driving_thread_drive_the_node_themselves() {
    let (prefill, decode, peer) = half_driven();
    let prefill = Prefill::serve(prefill);
    let lease = decode.pool.lease_write(&[3, 1]).unwrap();
    let room = decode.node.receive(RoomId(1)).from(&peer).into(lease);
    let room = room.blocking_start().unwrap();
    prefill.send(1, &[0, 5]);
    assert_eq!(room.blocking_outcome(), Outcome::Done);
    verify(&room.blocking_released().leases[0], 1, 0);
    drop(room);
    prefill.end();
    assert!(decode.node.blocking_shutdown().drained);
    assert!(decode.driver.unwrap().is_over());
}

#[test]
fn a_blocking_call_inside_a_turn_panics_instead_of_waiting_for_itself() {
    let (prefill, mut decode, peer) = half_driven();
    let room = decode.receive(1, &peer, &[3, 1]);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        decode.run(async { room.blocking_outcome() })
    }));
    let message = caught.unwrap_err();
    names(
        message.downcast_ref::<String>().unwrap(),
        &["\"d\"", "await the future"],
    );
    drop(room);
    decode.end();
    assert!(prefill.node.blocking_shutdown().drained);
}

#[test]
fn an_abort_of_a_driven_room_gives_its_memory_back_when_the_writer_is_out() {
    let (hub, brake) = (LocalHub::new(), Brake::default());
    let (builder, pool) = in_hub(&hub, "p");
    let of_prefill = brake.clone();
    let builder = builder.configure(move |config| config.brake = Some(of_prefill));
    let prefill = End::threaded((builder, pool));
    let mut decode = End::driven(in_hub(&hub, "d"));
    let peer = decode.connect("local://p");
    let room = decode.receive(1, &peer, &[3, 1]);
    let sender = prefill.node.send(RoomId(1)).blocking_start().unwrap();
    brake.hold_after(0);
    let chunk = Chunk::tokens(0..2 * TOKENS).pages(prefill.stamped(&[0, 5], 1));
    let slot = sender.blocking_reserve().unwrap();
    slot.push(chunk).unwrap();
    drive_until("the writer is inside", &mut [&mut decode], || {
        brake.held() == 1
    });
    room.abort("enough");
    drive_until("the outcome is known", &mut [&mut decode], || {
        room.poll().ended
    });
    assert_eq!(code(&room.try_outcome().unwrap()), Code::Requested);
    decode.driver.as_mut().unwrap().drive_for(REST);
    assert!(!room.poll().released, "a writer is inside");
    brake.release();
    drive_until("the memory is back", &mut [&mut decode], || {
        room.poll().released
    });
    assert_eq!(code(&sender.blocking_outcome()), Code::Requested);
    drop((room, sender));
    decode.end();
    assert!(prefill.node.blocking_shutdown().drained);
}

/// Long enough for a driven node to do all it can.
const REST: Duration = Duration::from_millis(20);

#[test]
fn a_driver_that_goes_first_leaks_what_is_held_and_tells_whoever_waits() {
    let (prefill, mut decode, peer) = half_driven();
    let room = decode.receive(1, &peer, &[3, 1]);
    let sender = prefill.node.send(RoomId(1)).blocking_start().unwrap();
    let waits = thread::spawn(move || {
        let outcome = room.blocking_outcome();
        (outcome, room.blocking_released().leases.len())
    });
    drop(decode.driver.take());
    let (outcome, leases) = waits.join().unwrap();
    assert_eq!(code(&outcome), Code::NodeShutdown);
    assert_eq!(leases, 0);
    assert_eq!(decode.pool.leased_pages(), 2, "it may still be written to");
    // Nobody drives, and nobody is waited for.
    let start = Instant::now();
    let report = decode.node.blocking_shutdown();
    assert!(!report.drained, "{report:?}");
    assert!(start.elapsed() < PATIENCE / 2);
    let lost = sender.blocking_outcome();
    assert!(matches!(lost, Outcome::Aborted(_)), "{lost:?}");
    drop(sender);
    assert!(prefill.node.blocking_shutdown().drained);
    let late = decode.node.send(RoomId(2)).blocking_start();
    names(&late.unwrap_err(), &["starts no rooms"]);
}

#[test]
fn a_node_that_nobody_drives_stops_at_its_deadline() {
    let hub = LocalHub::new();
    let prefill = End::threaded(in_hub(&hub, "p"));
    let (builder, pool) = in_hub(&hub, "d");
    let builder = builder.deadlines(Deadlines {
        shutdown: Duration::from_millis(50),
        ..Deadlines::default()
    });
    let mut decode = End::driven((builder, pool));
    let peer = decode.connect("local://p");
    let room = decode.receive(1, &peer, &[3, 1]);
    let node = decode.node.clone();
    let report = thread::spawn(move || node.blocking_shutdown());
    // Not driven, on purpose.
    let report = report.join().unwrap();
    assert!(!report.drained, "{report:?}");
    assert!(!room.poll().ended, "nobody drives, so nobody says so");
    // A future that waits for it is not left waiting.
    let outcome = decode.run(room.outcome());
    assert_eq!(code(&outcome), Code::NodeShutdown);
    assert!(decode.driver.as_ref().unwrap().is_over());
    drop(room);
    assert!(prefill.node.blocking_shutdown().drained);
}

#[test]
fn a_node_stopped_from_elsewhere_ends_what_its_driver_waits_for() {
    let (prefill, mut decode, peer) = half_driven();
    let room = decode.receive(1, &peer, &[3, 1]);
    let node = decode.node.clone();
    let stop = thread::spawn(move || node.blocking_shutdown());
    let outcome = decode.run(room.outcome());
    assert_eq!(code(&outcome), Code::NodeShutdown);
    drop(room);
    let driver = decode.driver.as_mut().unwrap();
    while !driver.is_over() {
        driver.drive_for(PATIENCE);
    }
    let report = stop.join().unwrap();
    assert!(report.drained, "{report:?}");
    assert!(prefill.node.blocking_shutdown().drained);
}

#[test]
fn clocks_run_out_only_while_the_shard_is_driven() {
    let (prefill, mut decode, peer) = half_driven();
    // So that the claim does not wait at prefill, whose clocks go on.
    let sender = prefill.node.send(RoomId(1)).blocking_start().unwrap();
    let lease = decode.pool.lease_write(&[3, 1]).unwrap();
    let room = decode.node.receive(RoomId(1)).from(&peer).into(lease);
    let room = room.deadline(Duration::from_millis(30));
    let room = decode.run(room.start()).unwrap();
    thread::sleep(Duration::from_millis(100));
    assert!(!room.poll().ended, "{:?}", room.try_outcome());
    drive_until("its time is over", &mut [&mut decode], || {
        room.poll().released
    });
    let outcome = room.try_outcome().unwrap();
    assert_eq!(code(&outcome), Code::DeadlineExceeded, "{}", text(&outcome));
    drop((room, sender));
    decode.end();
    assert!(prefill.node.blocking_shutdown().drained);
}

#[test]
fn a_pause_of_the_engine_does_not_count_against_its_rooms() {
    let (prefill, mut decode, peer) = half_driven();
    // So that the claim does not wait at prefill, whose clocks go on.
    let sender = prefill.node.send(RoomId(1)).blocking_start().unwrap();
    let lease = decode.pool.lease_write(&[3, 1]).unwrap();
    let room = decode.node.receive(RoomId(1)).from(&peer).into(lease);
    let room = room.deadline(Duration::from_millis(1_500));
    let room = decode.run(room.start()).unwrap();
    thread::sleep(Duration::from_millis(1_900));
    let driver = decode.driver.as_mut().unwrap();
    driver.drive_for(REST);
    assert!(!room.poll().ended, "{:?}", room.try_outcome());
    drop((room, sender));
    decode.end();
    assert!(prefill.node.blocking_shutdown().drained);
}

#[test]
fn a_driven_node_is_refused_inside_a_runtime_with_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let refused = runtime.block_on(async { Node::builder("d").start_driven() });
    assert!(matches!(refused, Err(NodeError::InsideRuntime)));
    // The thread itself is as good as any.
    let (node, mut driver) = Node::builder("d").start_driven().unwrap();
    assert!(driver.run(node.shutdown()).drained);
    // And again, after one has gone.
    let (node, mut driver) = Node::builder("d").start_driven().unwrap();
    assert!(driver.run(node.shutdown()).drained);
}

#[test]
fn handles_of_a_driven_node_work_on_other_threads() {
    let (prefill, mut decode, peer) = half_driven();
    let prefill = Prefill::serve(prefill);
    let (node, pool) = (decode.node.clone(), decode.pool.clone());
    let worker = thread::spawn(move || {
        for id in 0..20 {
            let lease = pool.lease_write(&[3, 1]).unwrap();
            let room = node.receive(RoomId(id)).from(&peer).into(lease);
            let room = room.blocking_start().unwrap();
            prefill.send(id, &[0, 5]);
            assert_eq!(room.blocking_outcome(), Outcome::Done);
            verify(&room.blocking_released().leases[0], id, 0);
        }
        prefill.end();
    });
    drive_until("the worker is done", &mut [&mut decode], || {
        worker.is_finished()
    });
    worker.join().unwrap();
    decode.end();
}

/// Rooms that come faster than turns: all of them end, whatever is left for a later turn.
#[test]
fn many_rooms_at_once_take_several_turns_and_lose_nothing() {
    const ROOMS: u64 = 600;
    let (prefill, mut decode, peer) = half_driven();
    let sender = prefill.node.clone();
    let rooms: Vec<SendRoom> = (0..ROOMS)
        .map(|id| sender.send(RoomId(id)).blocking_start().unwrap())
        .collect();
    let receivers: Vec<ReceiveRoom> = (0..ROOMS)
        .map(|id| {
            // All wait at once: only sixteen pages are there, so they receive nothing.
            let lease = decode.pool.lease_write(&[]).unwrap();
            let room = decode.node.receive(RoomId(id)).from(&peer).into(lease);
            decode.run(room.start()).unwrap()
        })
        .collect();
    for room in &receivers {
        room.abort("over");
    }
    drive_until("all are over", &mut [&mut decode], || {
        receivers.iter().all(|r| r.poll().released)
    });
    for room in &rooms {
        let outcome = room.blocking_outcome();
        assert_eq!(code(&outcome), Code::Requested);
    }
    drop((rooms, receivers));
    decode.end();
    assert!(prefill.node.blocking_shutdown().drained);
}
