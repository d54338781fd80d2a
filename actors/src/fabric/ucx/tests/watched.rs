//! What is seen of the thread from outside: its beat, and the queue of its jobs.

use super::*;
use crate::runtime::queue::{Place as Queued, Queue};

/// UCX whose beat the test has.
fn watched() -> Option<(Ucx, Arc<Beat>)> {
    let beat = beat();
    let ucx = start_with(&options("posix,sysv"), &beat)?;
    Some((ucx, beat))
}

#[test]
fn an_idle_thread_rests_between_turns_and_answers_each_question() {
    let Some((ucx, beat)) = watched() else { return };
    let rests = || !beat.read().running && beat.read().waiting == 0;
    until("its rest", rests);
    for _ in 0..3 {
        let before = beat.read().turns;
        assert!(beat.ask());
        ucx.ask_whether_it_is_there();
        until("its answer", || beat.read().asked.is_none());
        assert!(beat.read().turns > before);
        until("its rest", rests);
    }
    // With an end, which is armed.
    let _end = wait(ucx.end()).unwrap();
    until("its rest", rests);
    assert!(!beat.read().gone);
}

#[test]
fn a_thread_that_stands_still_is_in_a_turn_that_does_not_end_and_what_came_waits() {
    let Some((ucx, beat)) = watched() else { return };
    let (release, held) = channel::<()>();
    let (inside, entered) = channel();
    let poke: Poke = Box::new(move |_| {
        let _ = inside.send(());
        let _ = held.recv();
    });
    assert!(ucx.0.mailbox.put(Command::Test(poke)).is_ok());
    entered.recv_timeout(PATIENCE).unwrap();
    let turns = beat.read().turns;
    assert!(beat.ask());
    ucx.ask_whether_it_is_there();
    let read = beat.read();
    assert!(read.running && read.asked.is_some(), "{read:?}");
    assert_eq!((read.turns, read.waiting), (turns, 1));
    drop(release);
    until("its answer", || beat.read().asked.is_none());
    until("its rest", || !beat.read().running);
    assert_eq!(beat.read().waiting, 0);
}

#[test]
fn a_thread_that_panicked_is_gone_and_so_is_one_that_was_told_to_end() {
    let Some((ucx, beat)) = watched() else { return };
    let poke: Poke = Box::new(|_| panic!("planted: the thread of UCX"));
    assert!(ucx.0.mailbox.put(Command::Test(poke)).is_ok());
    until("its end", || beat.read().gone);
    let Some((ucx, beat)) = watched() else { return };
    assert!(!beat.read().gone);
    drop(ucx);
    until("its end", || beat.read().gone);
}

#[test]
fn a_job_is_in_the_queue_until_its_ticket_is_back_and_waits_for_its_first_piece() {
    for (transports, mode) in HERE {
        let Some(pair) = Pair::new(&options_for(transports, mode), mode) else {
            continue;
        };
        let queue: Arc<Queue> = Arc::default();
        let (lease, _pool, open) = large(&pair, 16 << 10, 256);
        hold(&pair.to, &pair.back, true);
        let first = pair.post_in(&lease, &open, Some(Queued::take(&queue)));
        let second = pair.post_in(&lease, &open, Some(Queued::take(&queue)));
        until("its first piece", || queue.waited().count() == 1);
        assert_eq!((queue.jobs(), queue.came()), (2, 2), "{transports}");
        hold(&pair.to, &pair.back, false);
        assert!(first.back().finished && second.back().finished);
        until("both to be over", || queue.jobs() == 0);
        assert_eq!((queue.came(), queue.waited().count()), (2, 2));
    }
}
