//! Rooms that are tried again: by their sessions' ends, with what stands in their way.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use kvroom::record::What;
use kvroom::{
    Chunk, Code, Deadlines, Outcome, Pages, ReceiveRoom, RetriedReceive, RetriedSend, Retry, Role,
    RoomId, RoomKey, StateName, Which,
};
use std::time::Duration;

over_each!(
    a_room_whose_session_ends_is_tried_again_on_other_pages_over_the_next_one,
    a_new_try_waits_for_a_session_and_not_for_ever,
    an_abort_by_tag_meets_a_new_try_that_waits_for_a_session,
);

const ID: RoomId = RoomId(7);
const STAMP: u64 = 5;

/// A room on both sides, its receiver tried again on these pages, bound.
async fn pair<F>(duo: &Duo, times: u16, pages: F) -> (RetriedSend, RetriedReceive<F>)
where
    F: FnMut(&ReceiveRoom) -> Option<Pages>,
{
    let retry = Retry::times(times);
    let send = duo.prefill.node.send(ID).tag("agent").start_retried(retry);
    let send = within(send).await.unwrap();
    let lease = duo.decode.pool.lease_write(&[0, 1, 2, 3]).unwrap();
    let receive = duo.decode.node.receive(ID).tag("agent").from(&duo.peer);
    let receive = receive.into(lease).start_retried(retry, pages);
    let receive = within(receive).await.unwrap();
    let room = &receive.rooms()[0];
    until("it is bound", || room.poll().state != StateName::Registered).await;
    (send, receive)
}

fn chunk(duo: &Duo, first: u64) -> Chunk {
    let pages = [first as u32, first as u32 + 1];
    let lease = duo.prefill.stamped(&pages, STAMP, first);
    Chunk::tokens(first * TOKENS..(first + 2) * TOKENS).pages(lease)
}

async fn connected(duo: &Duo) {
    let again = within(duo.decode.node.connect(&duo.prefill.address)).await;
    assert_eq!(again.unwrap().id(), duo.peer.id());
}

async fn a_room_whose_session_ends_is_tried_again_on_other_pages_over_the_next_one(over: Over) {
    let duo = Duo::over(over).await;
    let pool = duo.decode.pool.clone();
    let mut asked = Vec::new();
    let (mut send, mut receive) = pair(&duo, 2, move |failed: &ReceiveRoom| {
        asked.push(failed.key().attempt);
        assert_eq!(asked, [0]);
        let leases = vec![pool.lease_write(&[8, 9, 10, 11]).unwrap()];
        Some(Pages { leases, aux: None })
    })
    .await;
    within(send.push(chunk(&duo, 0))).await.unwrap();
    duo.decode.node.disconnect(&duo.peer).await;
    let (prefill, decode) = (&duo.prefill.node, &duo.decode.node);
    let rest = async {
        let failed = send.rooms()[0].outcome().await;
        assert_eq!(code(&failed), Code::SessionLost);
        let next = [(RoomKey::new(7, 1), Role::Receiver)];
        // It is there, and waits, before there is a session.
        while decode.rooms_of(&next).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        connected(&duo).await;
        let push = send.push(chunk(&duo, 2));
        push.await.unwrap();
        for (node, role) in [(prefill, Role::Sender), (decode, Role::Receiver)] {
            let info = node.rooms_of(&[(RoomKey::new(7, 1), role)]).await;
            assert_eq!(info[0].retry_of, Some(0), "{role:?}");
        }
        send.finish(4 * TOKENS, None);
        send.outcome().await
    };
    let (sent, received) = within(async { tokio::join!(rest, receive.outcome()) }).await;
    assert_eq!((sent, received), (Outcome::Done, Outcome::Done));
    let rooms = receive.into_rooms();
    let [first, second] = &rooms[..] else {
        panic!("{rooms:?}");
    };
    let back = within(second.released()).await;
    verify(&back.leases[0], STAMP, 0);
    let before = within(first.released()).await;
    assert_eq!(before.leases[0].pages(), [0, 1, 2, 3]);
    assert!(!before.proofs.is_empty(), "{before:?}");
    for (node, role) in [(prefill, Role::Sender), (decode, Role::Receiver)] {
        let counted = node.metrics().retries;
        assert!(counted.contains(&(role, 1)), "{counted:?}");
        let history = node.runtime().shared().recorder.read_all().entries;
        let said = |what: &What| match what {
            What::Retry { key, of, .. } => Some((key.attempt, *of)),
            _ => None,
        };
        let said: Vec<_> = history.iter().filter_map(|e| said(&e.what)).collect();
        assert_eq!(said, [(1, 0)], "{role:?}");
    }
    let (kept, _) = within(send.released()).await;
    assert_eq!(kept.len(), 2);
    drop((rooms, back, before, kept));
    duo.prefill.quiet().await;
    duo.decode.quiet().await;
}

async fn a_new_try_waits_for_a_session_and_not_for_ever(over: Over) {
    let deadlines = Deadlines {
        resume: Duration::from_millis(50),
        ..Deadlines::default()
    };
    let duo = Duo::with(Setup {
        deadlines,
        ..Setup::over(over)
    })
    .await;
    let pool = duo.decode.pool.clone();
    let (send, mut receive) = pair(&duo, 2, move |_: &ReceiveRoom| {
        let leases = vec![pool.lease_write(&[8, 9, 10, 11]).unwrap()];
        Some(Pages { leases, aux: None })
    })
    .await;
    duo.decode.node.disconnect(&duo.peer).await;
    let outcome = within(receive.outcome()).await;
    assert_eq!(code(&outcome), Code::PeerLost, "{outcome}");
    let text = outcome.to_string();
    assert!(text.contains("within 50ms (Deadlines::resume)"), "{text}");
    assert_eq!(
        receive.rooms().len(),
        2,
        "that one was not the path's fault"
    );
    drop((receive, within(send.released()).await));
    duo.prefill.quiet().await;
    duo.decode.quiet().await;
}

async fn an_abort_by_tag_meets_a_new_try_that_waits_for_a_session(over: Over) {
    let duo = Duo::over(over).await;
    let pool = duo.decode.pool.clone();
    let (mut send, mut receive) = pair(&duo, 2, move |_: &ReceiveRoom| {
        let leases = vec![pool.lease_write(&[8, 9, 10, 11]).unwrap()];
        Some(Pages { leases, aux: None })
    })
    .await;
    duo.decode.node.disconnect(&duo.peer).await;
    let all = Which::Tag("agent".into());
    let killed = async {
        for node in [&duo.prefill.node, &duo.decode.node] {
            // A new try, if it is there; a sender's is begun by who waits for it.
            while node.abort_where(all.clone(), "the agent was killed").await == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let outcomes = async { tokio::join!(send.outcome(), receive.outcome(), killed) };
    let (sent, received, ()) = within(outcomes).await;
    assert_eq!(code(&sent), Code::Requested, "{sent}");
    assert_eq!(code(&received), Code::Requested, "{received}");
    drop((receive, within(send.released()).await));
    duo.prefill.quiet().await;
    duo.decode.quiet().await;
}

#[tokio::test]
async fn what_somebody_wanted_is_not_tried_again_and_without_pages_nothing_is() {
    let duo = Duo::new().await;
    let never = |_: &ReceiveRoom| -> Option<Pages> { panic!("nobody is to ask for pages") };
    let (mut send, mut receive) = pair(&duo, 2, never).await;
    receive.abort("not wanted any more");
    let outcome = within(receive.outcome()).await;
    assert_eq!(code(&outcome), Code::Requested);
    assert_eq!(code(&within(send.outcome()).await), Code::Requested);
    let (sends, receives) = (send.rooms().len(), receive.rooms().len());
    assert_eq!((sends, receives), (1, 1));
    drop((receive, within(send.released()).await));

    let mut none = duo.decode.node.receive(RoomId(8)).from(&duo.peer);
    none = none.into(duo.decode.pool.lease_write(&[8]).unwrap());
    let mut none = within(none.start_retried(Retry::default(), |_: &ReceiveRoom| None))
        .await
        .unwrap();
    duo.decode.node.disconnect(&duo.peer).await;
    let outcome = within(none.outcome()).await;
    assert_eq!(code(&outcome), Code::SessionLost, "as the first one ended");
    drop(none);
    duo.decode.quiet().await;
}

#[tokio::test]
async fn who_has_aborted_gets_no_new_try_for_an_end_that_came_first() {
    let duo = Duo::new().await;
    let never = |_: &ReceiveRoom| -> Option<Pages> { panic!("nobody is to ask for pages") };
    let (mut send, mut receive) = pair(&duo, 2, never).await;
    duo.decode.node.disconnect(&duo.peer).await;
    let lost = within(receive.rooms()[0].outcome()).await;
    within(send.rooms()[0].outcome()).await;
    receive.abort("too late to matter");
    send.abort("too late to matter");
    assert_eq!(within(receive.outcome()).await, lost);
    assert_eq!(code(&within(send.outcome()).await), Code::SessionLost);
    assert!(within(send.push(chunk(&duo, 0))).await.is_err());
    drop((receive, within(send.released()).await));
    duo.prefill.quiet().await;
    duo.decode.quiet().await;
}

#[tokio::test]
async fn a_chunk_that_cannot_be_used_ends_all_tries_by_what_is_wrong_with_it() {
    let duo = Duo::new().await;
    let never = |_: &ReceiveRoom| -> Option<Pages> { panic!("nobody is to ask for pages") };
    let (mut send, receive) = pair(&duo, 2, never).await;
    let lease = duo.prefill.stamped(&[0, 1], STAMP, 0);
    // Not at a page boundary: the room ends, and whoever pushed hears of it at the latest with the outcome.
    let _ = within(send.push(Chunk::tokens(1..2 * TOKENS).pages(lease))).await;
    assert_eq!(code(&within(send.outcome()).await), Code::BadChunk);
    assert_eq!(send.rooms().len(), 1);
    drop((receive, within(send.released()).await));
    duo.prefill.quiet().await;
    duo.decode.quiet().await;
}

#[tokio::test]
async fn whoever_stops_waiting_for_an_outcome_and_waits_again_loses_no_try() {
    let duo = Duo::new().await;
    let pool = duo.decode.pool.clone();
    let mut asked = 0;
    let (mut send, mut receive) = pair(&duo, 1, |_: &ReceiveRoom| {
        asked += 1;
        let leases = vec![pool.lease_write(&[8, 9, 10, 11]).unwrap()];
        Some(Pages { leases, aux: None })
    })
    .await;
    within(send.push(chunk(&duo, 0))).await.unwrap();
    within(send.push(chunk(&duo, 2))).await.unwrap();
    duo.decode.node.disconnect(&duo.peer).await;
    connected(&duo).await;
    send.finish(4 * TOKENS, None);
    // Each future is looked at once, and dropped wherever it is.
    let (mut sent, mut received) = (None, None);
    let begun = std::time::Instant::now();
    while sent.is_none() || received.is_none() {
        assert!(begun.elapsed() < PATIENCE, "{sent:?} {received:?}");
        if sent.is_none() {
            sent = tokio::time::timeout(Duration::ZERO, send.outcome())
                .await
                .ok();
        }
        if received.is_none() {
            received = tokio::time::timeout(Duration::ZERO, receive.outcome())
                .await
                .ok();
        }
        tokio::task::yield_now().await;
    }
    assert_eq!((sent, received), (Some(Outcome::Done), Some(Outcome::Done)));
    assert_eq!((send.rooms().len(), receive.rooms().len()), (2, 2));
    drop((receive, within(send.released()).await));
    assert_eq!(asked, 1, "pages are asked for once a try");
    duo.prefill.quiet().await;
    duo.decode.quiet().await;
}
