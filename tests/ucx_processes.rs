//! Two processes that are joined by UCX, of which one stands still, dies, or has another version.
//!
//! In messages the receiver writes its own pages, and what it can prove it proves alone. By puts the sender
//! writes them: then it is its word, or the end of its path, that lets memory go.
#![allow(clippy::unwrap_used)]

mod common;

use common::process::*;
use common::*;
use kvroom::{
    Chunk, Deadlines, Fabric, LocalHub, Outcome, Peer, Proof, ReceiveRoom, Retry, RoomId,
    StateName, UcxOptions,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PLAYER: &str = "plays_the_other_process_when_told_to";
const MESSAGES: &str = "tcp;messages;10000";
const PUTS: &str = "posix,sysv;puts;10000";
/// With a transport whose end proves nothing of a peer's writes.
const UNPROVEN: &str = "posix,cma;puts;10000";

#[test]
fn plays_the_other_process_when_told_to() {
    play_if_told();
}

fn role(name: &'static str, ucx: &str) -> Role {
    Role {
        name,
        page_bytes: PIECE,
        liveness_ms: 30_000,
        ucx: Some(ucx.to_owned()),
        ..Role::default()
    }
}

async fn is_here(test: &'static str) -> bool {
    let here = tokio::task::spawn_blocking(move || ucx_is_here(test));
    here.await.unwrap()
}

async fn here(name: &str, ucx: UcxOptions) -> Side {
    here_for(name, ucx, PATIENCE).await
}

/// One that gives up a peer of which nothing comes for so long.
async fn here_for(name: &str, ucx: UcxOptions, patience: Duration) -> Side {
    let mut setup = Setup {
        over: Over::Ucx,
        layout: kv(16, PIECE),
        deadlines: Deadlines {
            ping: (patience / 4).min(Duration::from_secs(1)),
            liveness: patience,
            resume: patience,
            drain: Duration::from_millis(50),
            backoff_first: Duration::from_millis(5),
            backoff_most: Duration::from_millis(50),
            ..Deadlines::default()
        },
        ..Setup::default()
    };
    setup.net.ucx = ucx;
    Side::start(&LocalHub::new(), name, &setup, &Default::default()).await
}

struct Pair {
    decode: Side,
    prefill: Other,
    peer: Peer,
}

impl Pair {
    async fn over(ucx: &str) -> Pair {
        Pair::patient(ucx, PATIENCE).await
    }

    /// Of a receiver that gives the sender up after so long.
    async fn patient(ucx: &str, patience: Duration) -> Pair {
        let decode = here_for("d", ucx_of(ucx), patience).await;
        let prefill = Other::start(PLAYER, &role("p", ucx)).await;
        let peer = within(decode.node.connect(&prefill.address)).await.unwrap();
        assert_eq!(peer.fabric(), Some(Fabric::Ucx));
        Pair {
            decode,
            prefill,
            peer,
        }
    }

    async fn bound(&mut self, id: u64, pages: &[u32]) -> ReceiveRoom {
        let lease = self.decode.pool.lease_write(pages).unwrap();
        let room = self.decode.node.receive(RoomId(id)).from(&self.peer);
        let room = within(room.into(lease).start()).await.unwrap();
        let line = format!("send {id} 0");
        self.prefill.ask(&line, &format!("@sending {id} 0")).await;
        until("it is bound", || room.poll().state != StateName::Registered).await;
        room
    }

    /// A whole room; what proved that its pages came back.
    async fn moves(&mut self, id: u64) -> Vec<Proof> {
        let room = self.bound(id, &[0, 1]).await;
        self.prefill.tell(&format!("push {id} 0 0 2"));
        self.prefill.tell(&format!("finish {id} 0 2"));
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        let back = within(room.released()).await;
        verify(&back.leases[0], stamp_of(id, 0), 0);
        self.prefill.hears(&format!("@released s {id} 0")).await;
        back.proofs
    }
}

#[tokio::test]
async fn in_messages_a_gate_of_this_process_is_the_proof_and_by_puts_the_senders_word() {
    if !is_here("in_messages_a_gate_of_this_process_is_the_proof_and_by_puts_the_senders_word")
        .await
    {
        return;
    }
    for (ucx, proof) in [(MESSAGES, Proof::GateClosed), (PUTS, Proof::PeerDrained)] {
        let mut pair = Pair::over(ucx).await;
        assert_eq!(pair.moves(1).await, [proof], "{ucx}");
        // One that is aborted in the middle, by this side.
        let room = pair.bound(2, &[2, 3, 4]).await;
        pair.prefill.ask("push 2 0 0 2", "@pushed 2 0 0").await;
        room.abort("the user left");
        assert!(matches!(within(room.outcome()).await, Outcome::Aborted(_)));
        assert_eq!(within(room.released()).await.proofs, [proof], "{ucx}");
        assert_eq!(pair.moves(3).await, [proof], "{ucx}");
        pair.prefill.ask("free", "@free").await;
        pair.decode.quiet().await;
    }
}

#[tokio::test]
async fn a_sender_that_put_and_was_killed_leaves_pages_that_the_end_of_its_path_gives_back() {
    if !is_here("a_sender_that_put_and_was_killed_leaves_pages_that_the_end_of_its_path_gives_back")
        .await
    {
        return;
    }
    let mut pair = Pair::over(PUTS).await;
    let room = pair.bound(1, &[0, 1, 2, 3]).await;
    pair.prefill.ask("push 1 0 0 2", "@pushed 1 0 0").await;
    pair.prefill.kill();
    assert!(matches!(within(room.outcome()).await, Outcome::Aborted(_)));
    let mut back = within(room.released()).await;
    assert_eq!(back.proofs, [Proof::PathFenced]);
    // They are this process's again: nothing else writes them.
    let lease = &mut back.leases[0];
    fill(lease, 77, 0);
    let mut other = Other::start(PLAYER, &role("q", PUTS)).await;
    let peer = within(pair.decode.node.connect(&other.address))
        .await
        .unwrap();
    let into = pair.decode.pool.lease_write(&[8, 9]).unwrap();
    let room = pair.decode.node.receive(RoomId(9)).from(&peer).into(into);
    let room = within(room.start()).await.unwrap();
    for line in ["send 9 0", "push 9 0 0 2", "finish 9 0 2"] {
        other.tell(line);
    }
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    verify(lease, 77, 0);
    drop((back, within(room.released()).await));
    other.ask("free", "@free").await;
    pair.decode.quiet().await;
}

/// Four pages of a room whose sender has put and stands still, and whose receiver has given it up, are
/// quarantined, and this is seen.
async fn of_a_silent_sender(pair: &mut Pair) -> ReceiveRoom {
    let room = pair.bound(1, &[0, 1, 2, 3]).await;
    pair.prefill.ask("push 1 0 0 2", "@pushed 1 0 0").await;
    pair.prefill.stop();
    room.abort("the user left");
    assert!(matches!(within(room.outcome()).await, Outcome::Aborted(_)));
    room
}

async fn quarantined(pair: &Pair) {
    let node = &pair.decode.node;
    until("they are quarantined", || {
        node.metrics().quarantine.pages == 4
    })
    .await;
    assert_eq!(node.metrics().quarantine.rooms, 1);
    let held = node.quarantined().await;
    assert_eq!(held.by_peer.get("p"), Some(&4), "{held:?}");
    let stats = node.stats().await;
    assert_eq!(
        (stats.rooms_quarantined, stats.quarantined_pages),
        (1, 4),
        "{stats:?}"
    );
    assert!(pair.decode.pool.lease_write(&[0]).is_err(), "nobody has it");
}

#[tokio::test]
async fn pages_of_a_silent_sender_whose_path_proves_nothing_stay_quarantined_until_it_says_that_it_is_out()
 {
    let test = "pages_of_a_silent_sender_whose_path_proves_nothing_stay_quarantined_until_it_says_that_it_is_out";
    if !is_here(test).await {
        return;
    }
    // Whether the receiver still has its session with it when it goes on, or gave that up.
    for patience in [PATIENCE, Duration::from_secs(1)] {
        let mut pair = Pair::patient(UNPROVEN, patience).await;
        let room = of_a_silent_sender(&mut pair).await;
        if patience < PATIENCE {
            until("it is given up", || pair.peer.is_up().is_err()).await;
        }
        quarantined(&pair).await;
        pair.prefill.go_on();
        let back = within(room.released()).await;
        assert_eq!(back.proofs, [Proof::PeerDrained], "{patience:?}");
        drop((room, back));
        until("none is quarantined", || {
            pair.decode.node.metrics().quarantine.pages == 0
        })
        .await;
        pair.prefill.ask("free", "@free").await;
        pair.decode.quiet().await;
    }
}

#[tokio::test]
async fn pages_of_a_silent_sender_come_back_with_the_end_of_a_path_that_proves_it_and_not_before() {
    let test =
        "pages_of_a_silent_sender_come_back_with_the_end_of_a_path_that_proves_it_and_not_before";
    if !is_here(test).await {
        return;
    }
    let mut pair = Pair::patient(PUTS, Duration::from_secs(1)).await;
    let room = of_a_silent_sender(&mut pair).await;
    quarantined(&pair).await;
    // It still stands.
    let back = within(room.released()).await;
    assert_eq!(back.proofs, [Proof::PathFenced]);
    assert!(pair.peer.is_up().is_err());
    drop((room, back));
    pair.prefill.go_on();
    pair.prefill.hears("@aborted s 1 0").await;
    pair.prefill.ask("free", "@free").await;
    pair.decode.quiet().await;
}

#[tokio::test]
async fn a_receiver_that_stands_still_for_longer_than_a_flush_ends_the_session_and_the_next_one_serves()
 {
    if !is_here("a_receiver_that_stands_still_for_longer_than_a_flush_ends_the_session_and_the_next_one_serves")
        .await
    {
        return;
    }
    let short = "tcp;messages;1000";
    let prefill = here("p", ucx_of(short)).await;
    let mut decode = Other::start(PLAYER, &role("d", MESSAGES)).await;
    let line = format!("connect {}", prefill.address);
    decode.ask(&line, "@connected p").await;
    decode.ask("receive 1 0 p 0,1,2,3", "@receiving 1 0").await;
    let room = within(prefill.node.send(RoomId(1)).start()).await.unwrap();
    until("it is bound", || room.poll().state != StateName::Registered).await;
    decode.stop();
    let chunk = push(&room, 0..4 * TOKENS, prefill.stamped(&[0, 1, 2, 3], 1, 0)).await;
    // Its session is alive for as far as anybody can tell by it: the flush is what is late.
    let outcome = within(room.outcome()).await;
    assert!(outcome.to_string().contains("ucx.flush"), "{outcome}");
    assert!(within(chunk.released()).await.is_some());
    decode.go_on();
    decode.hears("@aborted r 1 0").await;
    let begun = Instant::now();
    loop {
        let peer = prefill.node.peer("d").await;
        if peer.is_some_and(|peer| peer.is_up().is_ok()) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "they do not meet again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    decode.ask("receive 2 0 p 4,5", "@receiving 2 0").await;
    let room = within(prefill.node.send(RoomId(2)).start()).await.unwrap();
    push(
        &room,
        0..2 * TOKENS,
        prefill.stamped(&[4, 5], stamp_of(2, 0), 0),
    )
    .await;
    room.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    decode.hears("@done r 2 0").await;
    drop(within(room.released()).await);
    decode.ask("free", "@free").await;
    prefill.quiet().await;
}

#[tokio::test]
async fn a_room_whose_path_failed_is_tried_again_on_other_pages_over_sockets() {
    if !is_here("a_room_whose_path_failed_is_tried_again_on_other_pages_over_sockets").await {
        return;
    }
    let prefill = here("p", ucx_of("tcp;preferred;1000")).await;
    let mut decode = Other::start(PLAYER, &role("d", "tcp;preferred;10000")).await;
    let line = format!("connect {}", prefill.address);
    decode.ask(&line, "@connected p").await;
    let peer = prefill.node.peer("d").await.unwrap();
    assert_eq!(peer.fabric(), Some(Fabric::Ucx));
    decode
        .ask("retried 1 0 p 0,1,2,3 8,9,10,11", "@receiving 1 0")
        .await;
    let room = prefill.node.send(RoomId(1));
    let mut room = within(room.start_retried(Retry::default())).await.unwrap();
    until("it is bound", || {
        room.rooms()[0].poll().state != StateName::Registered
    })
    .await;
    decode.stop();
    let lease = prefill.stamped(&[0, 1, 2, 3], stamp_of(1, 0), 0);
    let chunk = Chunk::tokens(0..4 * TOKENS).pages(lease);
    within(room.push(chunk)).await.unwrap();
    room.finish(4 * TOKENS, None);
    let failed = within(room.rooms()[0].outcome()).await;
    assert!(failed.to_string().contains("ucx.flush"), "{failed}");
    decode.go_on();
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    assert_eq!(room.rooms().len(), 2);
    decode.hears("@done r 1 0").await;
    decode.hears("@released r 1 0").await;
    // The two processes live, and their next session goes by what UCX was preferred to.
    assert_eq!(peer.is_up(), Ok(()));
    assert_eq!(peer.fabric(), Some(Fabric::Tcp));
    drop(within(room.released()).await);
    decode.ask("free", "@free").await;
    prefill.quiet().await;
}

#[tokio::test]
async fn a_session_that_is_ended_on_purpose_is_no_failure_of_its_path() {
    if !is_here("a_session_that_is_ended_on_purpose_is_no_failure_of_its_path").await {
        return;
    }
    let setup = ucx_of("tcp;preferred;10000");
    let (prefill, decode) = (here("p", setup.clone()).await, here("d", setup).await);
    for i in 0..12 {
        let peer = within(decode.node.connect(&prefill.address)).await.unwrap();
        assert_eq!(peer.fabric(), Some(Fabric::Ucx), "session {i}");
        // By either side.
        match i % 2 {
            0 => within(decode.node.disconnect(&peer)).await,
            _ => {
                let peer = prefill.node.peer("d").await.unwrap();
                within(prefill.node.disconnect(&peer)).await;
            }
        }
        until("it is over", || peer.is_up().is_err()).await;
    }
}

#[tokio::test]
async fn where_no_path_works_what_prefers_ucx_takes_sockets_and_what_insists_on_it_is_refused() {
    let test =
        "where_no_path_works_what_prefers_ucx_takes_sockets_and_what_insists_on_it_is_refused";
    if !is_here(test).await {
        return;
    }
    // No transport is at both ends.
    let decode = here("d", ucx_of("tcp;preferred;10000")).await;
    let mut prefill = Other::start(PLAYER, &role("p", "posix;preferred;10000")).await;
    let peer = within(decode.node.connect(&prefill.address)).await.unwrap();
    assert_eq!(peer.fabric(), Some(Fabric::Tcp));
    let mut pair = Pair {
        decode,
        prefill,
        peer,
    };
    assert_eq!(pair.moves(1).await, [Proof::GateClosed]);
    prefill = Other::start(PLAYER, &role("q", "posix;messages;10000")).await;
    let refused = within(pair.decode.node.connect(&prefill.address)).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("bytes are to go through UCX"), "{refused}");
    pair.prefill.ask("free", "@free").await;
    pair.decode.quiet().await;
}

#[tokio::test]
async fn versions_that_do_not_mix_are_refused_with_both_numbers() {
    let test = "versions_that_do_not_mix_are_refused_with_both_numbers";
    if !is_here(test).await {
        return;
    }
    let given = std::env::var_os("KVROOM_TEST_UCX_LIBRARIES").unwrap_or_default();
    let libraries: Vec<PathBuf> = std::env::split_paths(&given).collect();
    let [one, other] = &libraries[..] else {
        let required = std::env::var_os("KVROOM_REQUIRE_ALL").is_some_and(|value| value == "1");
        assert!(
            !required,
            "KVROOM_TEST_UCX_LIBRARIES has to name two libraries"
        );
        eprintln!("SKIPPED: {test}: KVROOM_TEST_UCX_LIBRARIES names no two libraries");
        return;
    };
    let with = |library: &PathBuf| format!("{MESSAGES};{}", library.display());
    // Neither is opened here: one process has one UCX.
    let old = Other::start(PLAYER, &role("old", &with(one))).await;
    let mut new = Other::start(PLAYER, &role("new", &with(other))).await;
    new.tell(&format!("connect {}", old.address));
    let said = new.hears("@refused").await;
    let said = said.join(" ");
    assert!(said.contains("1.13.1") && said.contains("1.22."), "{said}");
}
