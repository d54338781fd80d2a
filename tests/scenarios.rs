//! The list of failures from the field in `README.md` names tests that there are; and those of them that
//! need several processes and have no better place.
#![allow(clippy::unwrap_used)]

mod common;

use common::named::{has_test, quoted, sources};
use common::process::*;
use common::*;
use kvroom::{Code, Deadlines, LocalHub, Outcome, PeerState, RoomId, StateName};
use std::path::Path;
use std::time::Duration;

const PLAYER: &str = "plays_the_other_process_when_told_to";

#[test]
fn plays_the_other_process_when_told_to() {
    play_if_told();
}

fn role(name: &'static str, over: Over) -> Role {
    Role {
        name,
        shared: over == Over::Shm,
        liveness_ms: 30_000,
        resume_ms: 30_000,
        ..Role::default()
    }
}

async fn here(name: &str, over: Over, resume: Duration) -> Side {
    let setup = Setup {
        deadlines: Deadlines {
            liveness: PATIENCE,
            resume,
            backoff_first: Duration::from_millis(5),
            backoff_most: Duration::from_millis(50),
            ..Deadlines::default()
        },
        ..Setup::over(over)
    };
    Side::start(&LocalHub::new(), name, &setup, &Default::default()).await
}

#[tokio::test]
async fn a_retry_elsewhere_does_not_wait_for_a_decode_process_that_is_stopped() {
    for over in [Over::Tcp, Over::Shm] {
        let prefill = here("p", over, PATIENCE).await;
        let line = format!("connect {}", prefill.address);
        let mut first = Other::start(PLAYER, &role("d1", over)).await;
        let mut second = Other::start(PLAYER, &role("d2", over)).await;
        for decode in [&mut first, &mut second] {
            decode.ask(&line, "@connected p").await;
        }
        let send = |attempt| prefill.node.send(RoomId(7)).attempt(attempt).start();
        let room = within(send(0)).await.unwrap();
        first.ask("receive 7 0 p 0,1", "@receiving 7 0").await;
        until("it is bound", || room.poll().state != StateName::Registered).await;
        first.stop();
        let stamp = stamp_of(7, 0);
        let chunk = push(&room, 0..TOKENS, prefill.stamped(&[3], stamp, 0)).await;
        room.abort("elsewhere");
        assert_eq!(code(&within(room.outcome()).await), Code::Requested);
        // Its source serves the next attempt, at once, though the first node has said nothing.
        let lease = within(chunk.released()).await.unwrap();
        drop(lease);
        let again = within(send(1)).await.unwrap();
        second.ask("receive 7 1 p 4,5", "@receiving 7 1").await;
        let lease = prefill.stamped(&[3, 4], stamp_of(7, 1), 0);
        push(&again, 0..2 * TOKENS, lease).await;
        again.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(again.outcome()).await, Outcome::Done);
        second.hears("@done r 7 1").await;
        // The first one hears of it when it goes on, and has its pages back.
        first.go_on();
        first.hears("@aborted r 7 0 Requested").await;
        first.ask("free", "@free").await;
        second.ask("free", "@free").await;
        drop((room, again));
        prefill.quiet().await;
    }
}

#[tokio::test]
async fn a_prefill_that_is_down_is_named_and_costs_nobody_else_anything() {
    let short = Duration::from_millis(300);
    let decode = here("d", Over::Tcp, short).await;
    let mut gone = Other::start(PLAYER, &role("gone", Over::Tcp)).await;
    let mut there = Other::start(PLAYER, &role("there", Over::Tcp)).await;
    let down = within(decode.node.connect(&gone.address)).await.unwrap();
    let up = within(decode.node.connect(&there.address)).await.unwrap();
    gone.kill();
    until("it is down", || matches!(down.state(), PeerState::Down(_))).await;
    let states = decode.node.peers().await.into_iter();
    let states: std::collections::BTreeMap<_, _> = states
        .map(|peer| (peer.name().to_owned(), peer.is_up()))
        .collect();
    assert!(states["gone"].is_err(), "{states:?}");
    assert_eq!(states["there"], Ok(()));
    // What is asked of the one that is down ends with its name; the other one serves.
    let lease = decode.pool.lease_write(&[4, 5]).unwrap();
    let room = decode.node.receive(RoomId(1)).from(&down).into(lease);
    match within(room.start()).await {
        Ok(room) => {
            let outcome = within(room.outcome()).await;
            assert_eq!(code(&outcome), Code::PeerLost, "{outcome}");
            assert_eq!(within(room.released()).await.leases.len(), 1);
        }
        Err(refused) => assert_eq!(refused.leases.len(), 1, "{refused}"),
    }
    for id in 10..20 {
        let lease = decode.pool.lease_write(&[0, 1]).unwrap();
        let room = decode.node.receive(RoomId(id)).from(&up).into(lease);
        let room = within(room.start()).await.unwrap();
        there.tell(&format!("send {id} 0"));
        there.tell(&format!("push {id} 0 0 2"));
        there.tell(&format!("finish {id} 0 2"));
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        verify(&within(room.released()).await.leases[0], stamp_of(id, 0), 0);
        there.hears(&format!("@released s {id} 0")).await;
    }
    there.ask("free", "@free").await;
    decode.quiet().await;
}

/// Whether each part of a path is a module that is written down somewhere, or that a macro makes.
fn has_modules<'a>(path: &str, texts: impl Iterator<Item = &'a String> + Clone) -> bool {
    path.split("::").all(|part| {
        let written = [format!("mod {part} {{"), format!("over_each!(@ {part} ")];
        texts
            .clone()
            .any(|text| written.iter().any(|w| text.contains(w)))
    })
}

#[test]
fn scenarios_table_names_existing_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("tests/README.md")).unwrap();
    let texts = sources(root);
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    let mut named = 0;
    let (_, list) = readme.split_once("## Failures from the field").unwrap();
    let (main, _) = list.split_once("### Over TCP").unwrap();
    for line in list.lines().filter(|line| line.starts_with('|')) {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        if !columns[1].starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        for what in columns[3..].iter().flat_map(|column| quoted(column)) {
            named += 1;
            let there = match what.split_once(".rs::") {
                Some((file, test)) => {
                    let file = format!("{file}.rs");
                    let of = |(name, text): (&String, &String)| {
                        (name == &file || name == &format!("tests/{file}")) && has_test(text, test)
                    };
                    texts.iter().any(of)
                }
                None if what.ends_with(".rs") => texts.keys().any(|name| name.ends_with(what)),
                // A folder, a macro's module, or a test wherever it is.
                None if what.contains('/') => root.join(what).exists(),
                None if what.contains("::") => has_modules(what, texts.values()),
                None => texts.values().any(|text| has_test(text, what)),
            };
            if !there {
                wrong.push(what.to_owned());
            }
        }
    }
    for line in main.lines().filter(|line| line.starts_with('|')) {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let first = columns[1];
        if first.starts_with(|c: char| c.is_ascii_digit()) {
            rows.push(first.to_owned());
            let tests = columns[3];
            if !tests.contains(".rs::") && !tests.contains("not yet covered") {
                wrong.push(format!("{first} says nothing"));
            }
        }
    }
    let mut all: Vec<String> = (1..=38).map(|n: u32| n.to_string()).collect();
    all.splice(12..12, ["12a".to_owned(), "12b".to_owned()]);
    assert_eq!(rows, all);
    assert!(wrong.is_empty(), "there are none such: {wrong:#?}");
    assert!(named > 150, "{named}");
}
