//! The library inside somebody else's process: any runtime or none, handles lost in any way.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::actors::copy::plant::Brake;
use kvroom::{
    Chunk, Code, LocalHub, Node, Outcome, Pool, RoomId, SendRoom, StartErrorKind, StateName,
};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_of_a_multi_thread_runtime_share_two_nodes() {
    let duo = Arc::new(
        Duo::with(Setup {
            layout: kv(64, 4096),
            ..Setup::default()
        })
        .await,
    );
    let tasks: Vec<_> = (0..8u32)
        .map(|task| {
            let duo = Arc::clone(&duo);
            tokio::spawn(async move {
                let pages = [4 * task, 4 * task + 2];
                for round in 0..25u64 {
                    let id = u64::from(task) * 1_000 + round;
                    duo.moves(id, 0, &pages, &pages).await;
                }
            })
        })
        .collect();
    for task in tasks {
        within(task).await.unwrap();
    }
    let duo = Arc::into_inner(duo).unwrap();
    assert_eq!(duo.decode.node.stats().await.done, 200);
    duo.end().await;
}

#[tokio::test(flavor = "current_thread")]
async fn both_sides_run_on_one_thread_that_also_runs_the_caller() {
    let duo = Duo::new().await;
    tokio::join!(
        duo.moves(1, 0, &[0], &[0]),
        duo.moves(2, 0, &[1, 2], &[3, 4]),
        duo.moves(3, 0, &[5], &[6]),
    );
    duo.end().await;
}

#[test]
fn a_plain_thread_needs_no_runtime() {
    let hub = LocalHub::new();
    let (from, to) = (
        Pool::owned(kv(8, 4096)).unwrap(),
        Pool::owned(kv(8, 4096)).unwrap(),
    );
    let start = |name: &str, pool: &Pool| {
        let builder = Node::builder(name).hub(&hub).pool(pool.clone());
        builder.blocking_start().unwrap()
    };
    let (prefill, decode) = (start("p", &from), start("d", &to));
    let peer = decode.blocking_connect("local://p").unwrap();

    let prefilling = std::thread::spawn({
        let prefill = prefill.clone();
        let from = from.clone();
        move || {
            let sender = prefill.send(RoomId(1)).blocking_start().unwrap();
            let mut lease = from.lease_write(&[0, 1]).unwrap();
            fill(&mut lease, 1, 0);
            let slot = sender.blocking_reserve().unwrap();
            let chunk = Chunk::tokens(0..2 * TOKENS).pages(lease.into_read());
            let pushed = slot.push(chunk).unwrap();
            sender.finish(2 * TOKENS, None).unwrap();
            assert_eq!(pushed.blocking_released().unwrap().pages(), [0, 1]);
            let outcome = sender.blocking_outcome();
            assert!(sender.blocking_released().leases.is_empty());
            outcome
        }
    });
    let lease = to.lease_write(&[3, 4]).unwrap();
    let room = decode.receive(RoomId(1)).from(&peer).into(lease);
    let receiver = room.blocking_start().unwrap();
    assert_eq!(receiver.blocking_outcome(), Outcome::Done);
    verify(&receiver.blocking_released().leases[0], 1, 0);
    assert_eq!(prefilling.join().unwrap(), Outcome::Done);
    let lease = to.lease_write(&[3]).unwrap();
    let again = decode.receive(RoomId(1)).from(&peer).into(lease);
    let error = again.blocking_start().unwrap_err();
    assert!(matches!(error.kind, StartErrorKind::KeySpent { .. }));
    drop(error);
    drop(receiver);
    assert!(decode.blocking_shutdown().drained);
    assert!(prefill.blocking_shutdown().drained);
    assert_eq!((from.leased_pages(), to.leased_pages()), (0, 0));
}

/// Counts how often it was woken.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_engine_with_its_own_loop_only_polls() {
    let hub = LocalHub::new();
    let pool = |name: &str| (name.to_owned(), Pool::owned(kv(8, 4096)).unwrap());
    let [(p, from), (d, to)] = [pool("p"), pool("d")];
    let start = |name: &str, pool: &Pool| {
        let builder = Node::builder(name).hub(&hub).pool(pool.clone());
        builder.blocking_start().unwrap()
    };
    let (prefill, decode) = (start(&p, &from), start(&d, &to));
    let peer = decode.blocking_connect("local://p").unwrap();
    let lease = to.lease_write(&[0]).unwrap();
    let room = decode.receive(RoomId(1)).from(&peer).into(lease);
    let receiver = room.blocking_start().unwrap();
    let status = receiver.poll();
    assert_eq!(status.state, StateName::Registered);
    assert!(!status.ended && !status.released);
    assert!(receiver.try_released().is_none());

    // A waker of the engine's own: woken when there is something to see.
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let mut outcome = pin!(receiver.outcome());
    assert!(
        outcome
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );

    let sender = prefill.send(RoomId(1)).blocking_start().unwrap();
    let lease = from.lease_write(&[0]).unwrap().into_read();
    let slot = loop {
        if let Ok(slot) = sender.try_reserve() {
            break slot;
        }
    };
    let pushed = slot.push(Chunk::tokens(0..TOKENS).pages(lease)).unwrap();
    sender.finish(TOKENS, None).unwrap();
    let start = Instant::now();
    let mut seen = vec![receiver.poll().state];
    while !(receiver.poll().released && sender.poll().released) {
        assert!(start.elapsed() < PATIENCE, "{:?}", receiver.poll());
        let state = receiver.poll().state;
        if *seen.last().unwrap() != state {
            seen.push(state);
        }
        std::hint::spin_loop();
    }
    assert!(seen.is_sorted(), "a state came back: {seen:?}");
    let status = receiver.poll();
    assert_eq!(status.state, StateName::Done);
    assert!(status.ended && status.released);
    assert_eq!(receiver.try_outcome(), Some(Outcome::Done));
    assert_eq!(sender.try_outcome(), Some(Outcome::Done));
    assert!(pushed.try_released().is_some());
    assert!(pushed.try_released().is_none());
    assert_eq!(receiver.try_released().unwrap().leases.len(), 1);
    assert!(receiver.try_released().unwrap().leases.is_empty());
    assert!(count.0.load(Ordering::SeqCst) > 0);
    assert!(matches!(
        outcome.as_mut().poll(&mut Context::from_waker(&waker)),
        Poll::Ready(Outcome::Done)
    ));
    assert!(decode.blocking_shutdown().drained);
    assert!(prefill.blocking_shutdown().drained);
}

#[tokio::test]
async fn batches_answer_in_order_and_a_bad_one_among_them_harms_no_other() {
    let duo = Duo::new().await;
    let receives = |ids: &[u64]| {
        ids.iter()
            .enumerate()
            .map(|(i, id)| {
                let lease = duo.decode.pool.lease_write(&[i as u32]).unwrap();
                let room = duo.decode.node.receive(RoomId(*id)).from(&duo.peer);
                room.into(lease)
            })
            .collect::<Vec<_>>()
    };
    let mut batch = receives(&[1, 2, 2, 3, 4]);
    batch[4] = duo.decode.node.receive(RoomId(5));
    let started = within(duo.decode.node.start_receives(batch)).await;
    let ok: Vec<bool> = started.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, true, false, true, false]);
    let error = started[2].as_ref().unwrap_err();
    names(error, &["2#0", "alive"]);
    assert_eq!(error.leases[0].pages(), [2]);
    names(started[4].as_ref().unwrap_err(), &["no sender"]);

    let batch = [1, 2, 3, 3].map(|id| duo.prefill.node.send(RoomId(id)));
    let senders = within(duo.prefill.node.start_sends(batch.into())).await;
    let ok: Vec<bool> = senders.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, true, true, false]);
    names(senders[3].as_ref().unwrap_err(), &["3#0", "alive"]);
    for (page, sender) in (0..).zip(senders.iter().flatten()) {
        assert_eq!(sender.key().id, RoomId(u64::from(page) + 1));
        let lease = duo.prefill.stamped(&[page], page.into(), 0);
        push(sender, 0..TOKENS, lease).await;
        sender.finish(TOKENS, None).unwrap();
    }
    for (id, room) in started.iter().enumerate() {
        if let Ok(room) = room {
            assert_eq!(within(room.outcome()).await, Outcome::Done, "room {id}");
        }
    }
    drop((started, senders));
    duo.end().await;
}

#[tokio::test]
async fn a_detached_room_goes_on_and_its_pages_come_back_by_themselves() {
    let duo = Duo::new().await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&told);
    let pool = Pool::owned({
        let mut layout = kv(8, 4096);
        layout.name = "second".into();
        layout
    });
    let pool = pool.unwrap().with_release_callback(move |back| {
        list.lock().unwrap().extend_from_slice(&back.pages);
    });
    let pool = pool.unwrap();
    let mut layout = kv(8, 4096);
    layout.name = "second".into();
    let source = Pool::owned(layout).unwrap();
    duo.prefill.node.add_pool(source.clone()).await.unwrap();
    duo.decode.node.add_pool(pool.clone()).await.unwrap();

    let lease = pool.lease_write(&[6, 2]).unwrap();
    let room = duo.decode.node.receive(RoomId(1)).from(&duo.peer);
    room.into(lease).start().await.unwrap().detach();
    let sender = duo.send(1, 0).await;
    drop(push(&sender, 0..2 * TOKENS, source.lease_read(&[0, 1]).unwrap()).await);
    sender.finish(2 * TOKENS, None).unwrap();
    sender.detach();
    duo.decode.quiet().await;
    duo.prefill.quiet().await;
    all_free(&pool).await;
    all_free(&source).await;
    assert_eq!(*told.lock().unwrap(), [6, 2]);
    assert_eq!(duo.decode.node.stats().await.done, 1);
    assert_eq!(duo.prefill.node.stats().await.done, 1);
    duo.end().await;
}

#[tokio::test]
async fn a_dropped_handle_aborts_its_room_whatever_total_was_said() {
    let duo = Duo::new().await;
    for (id, total) in [(1, u64::MAX), (2, u64::MAX - 1), (3, 0)] {
        let sender = duo.send(id, 0).await;
        sender.finish(total, None).unwrap();
        let error = sender.finish(0, None).unwrap_err();
        names(&error, &[&format!("finish({total})")]);
        drop(sender);
        let d = &duo.prefill.node;
        until_stats("it is aborted", d, |s| s.aborted == id).await;
    }
    duo.end().await;
}

#[tokio::test]
async fn handles_dropped_in_the_middle_of_a_copy_free_no_page_under_it() {
    let duo = Duo::of_pieces().await;
    for what in ["receiver", "sender", "both", "chunk"] {
        let id = what.len() as u64 + if what == "chunk" { 100 } else { 0 };
        let receiver = duo.receive(id, 0, &[0, 1]).await;
        let sender = duo.send(id, 0).await;
        duo.brake.hold_after(1);
        let lease = duo.prefill.stamped(&[0, 1], 1, 0);
        let chunk = push(&sender, 0..2 * TOKENS, lease).await;
        until("a piece is under way", || duo.brake.held() == 1).await;
        drop(chunk);
        let (mut receiver, mut sender) = (Some(receiver), Some(sender));
        if what == "receiver" || what == "both" {
            receiver = None;
        }
        if what == "sender" || what == "both" {
            sender = None;
        }
        settle(&[&duo.decode.node, &duo.prefill.node]).await;
        let held = |pool: &Pool| pool.leased_pages();
        assert_eq!(
            (held(&duo.decode.pool), held(&duo.prefill.pool)),
            (2, 2),
            "{what}"
        );
        if let Some(room) = &receiver
            && what != "chunk"
        {
            assert_eq!(code(&within(room.outcome()).await), Code::HandleDropped);
        }
        if let Some(room) = &sender
            && what != "chunk"
        {
            assert_eq!(code(&within(room.outcome()).await), Code::HandleDropped);
        }
        drop((receiver, sender));
        duo.brake.release();
        duo.decode.quiet().await;
        duo.prefill.quiet().await;
    }
    duo.end().await;
}

#[tokio::test]
async fn forgotten_handles_and_leases_keep_their_pages_for_ever_and_harm_nobody() {
    let duo = Duo::with(Setup {
        layout: kv(32, 4096),
        ..Setup::default()
    })
    .await;
    // A forgotten lease.
    std::mem::forget(duo.decode.pool.lease_write(&[31]).unwrap());
    assert!(duo.decode.pool.lease_read(&[31]).is_err());
    // A forgotten receive room, and a forgotten chunk: what comes back goes nowhere.
    let receiver = duo.receive(1, 0, &[30]).await;
    let sender = duo.send(1, 0).await;
    let chunk = push(&sender, 0..TOKENS, duo.prefill.stamped(&[30], 1, 0)).await;
    std::mem::forget(chunk);
    sender.finish(TOKENS, None).unwrap();
    std::mem::forget(receiver);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    drop(sender);
    // A forgotten send room that was never claimed, and a slot of it: aborted from outside.
    let sender: SendRoom = duo.send(2, 0).await;
    std::mem::forget(within(sender.reserve()).await.unwrap());
    std::mem::forget(push(&sender, 0..TOKENS, duo.prefill.stamped(&[29], 1, 0)).await);
    std::mem::forget(sender);
    // Forgotten futures.
    let room = duo.receive(3, 0, &[29]).await;
    let mut outcome = Box::pin(room.outcome());
    assert!(poll_once(&mut outcome).await.is_none());
    std::mem::forget(outcome);
    std::mem::forget(room);
    duo.decode
        .node
        .abort_where(kvroom::Which::All, "over")
        .await;
    duo.prefill
        .node
        .abort_where(kvroom::Which::All, "over")
        .await;

    assert_quiet(&duo.decode.node).await;
    assert_quiet(&duo.prefill.node).await;
    assert_eq!(duo.decode.pool.leased_pages(), 3);
    assert_eq!(duo.prefill.pool.leased_pages(), 2);
    duo.moves(9, 0, &[0, 1], &[0, 1]).await;
    assert!(within(duo.decode.node.shutdown()).await.drained);
    assert!(within(duo.prefill.node.shutdown()).await.drained);
}

/// Lets a future be polled `polls` times, then drops it.
async fn cut_short<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        if let Some(value) = poll_once(&mut future).await {
            return Some(value);
        }
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_micros(30)).await;
    }
    None
}

#[tokio::test]
async fn any_future_may_be_dropped_at_any_time() {
    let duo = Duo::new().await;
    let (d, p) = (&duo.decode.node, &duo.prefill.node);
    for polls in 0..12usize {
        let id = 10 * polls as u64;
        let lease = duo.decode.pool.lease_write(&[0]).unwrap();
        let room = d.receive(RoomId(id)).from(&duo.peer).into(lease).start();
        let receiver = cut_short(room, polls).await;
        let sender = cut_short(p.send(RoomId(id)).start(), polls).await;
        if let Some(Ok(sender)) = &sender {
            if let Some(Ok(slot)) = cut_short(sender.reserve(), polls).await {
                let lease = duo.prefill.stamped(&[1], id, 0);
                let pushed = slot.push(Chunk::tokens(0..TOKENS).pages(lease)).unwrap();
                cut_short(pushed.released(), polls).await;
            }
            let _ = sender.finish(TOKENS, None);
            cut_short(sender.outcome(), polls).await;
            drop(cut_short(sender.released(), polls).await);
        }
        if let Some(Ok(receiver)) = &receiver {
            cut_short(receiver.outcome(), polls).await;
            drop(cut_short(receiver.released(), polls).await);
        }
        drop((receiver, sender));
        cut_short(d.connect("local://p"), polls).await;
        cut_short(d.stats(), polls).await;
        cut_short(d.rooms(), polls).await;
        cut_short(p.early_claims(), polls).await;
        cut_short(d.abort_where(kvroom::Which::All, "all"), polls).await;
        let batch = vec![p.send(RoomId(id + 1)), p.send(RoomId(id + 2))];
        drop(cut_short(p.start_sends(batch), polls).await);
        duo.decode.quiet().await;
        duo.prefill.quiet().await;
        duo.moves(id + 3, 0, &[2], &[2]).await;
    }
    cut_short(d.disconnect(&duo.peer), 1).await;
    until("it is down", || duo.peer.is_up().is_err()).await;
    cut_short(d.shutdown(), 1).await;
    assert!(within(d.shutdown()).await.drained);
    duo.end().await;
}

#[tokio::test]
async fn starting_a_node_may_be_given_up() {
    let hub = LocalHub::new();
    let pool = Pool::owned(kv(4, 64)).unwrap();
    let builder = Node::builder("n").hub(&hub).pool(pool.clone());
    assert!(poll_once(builder.start()).await.is_none());
    // Whatever was started stops by itself, and the name is free again.
    let start = Instant::now();
    let node = loop {
        let builder = Node::builder("n").hub(&hub).pool(pool.clone());
        match builder.start().await {
            Ok(node) => break node,
            Err(error) => {
                names(&error, &["\"n\"", "already"]);
                assert!(start.elapsed() < PATIENCE);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    assert!(node.shutdown().await.drained);
}

#[tokio::test]
async fn two_pairs_of_nodes_in_one_process_know_nothing_of_each_other() {
    let (a, b) = (Duo::new().await, Duo::new().await);
    assert_eq!(a.hub.names(), b.hub.names());
    tokio::join!(a.moves(1, 0, &[0], &[0]), b.moves(1, 0, &[0], &[0]));
    let lease = a.decode.pool.lease_write(&[3]).unwrap();
    let strange = b.decode.node.receive(RoomId(2)).from(&b.peer);
    let error = strange.into(lease).start().await.unwrap_err();
    names(&error, &["\"kv\"", "not one of this node's", "add_pool()"]);
    assert_eq!(error.leases[0].pages(), [3]);
    drop(error);
    let alone = Side::start(&a.hub, "x", &Setup::default(), &Brake::default()).await;
    assert!(alone.node.peers().await.is_empty());
    alone.quiet().await;
    a.end().await;
    b.end().await;
}
