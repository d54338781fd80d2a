//! Everything that can go wrong, at every step of a transfer between two processes, over TCP and over
//! shared memory.
//!
//! ```text
//!   steps:   claimed · bound · 1, 2, 3 pages have landed · all have · finished
//!            0, 1, 2, … frames of the control connection have passed, this way or that
//! ```
//!
//! Steps are waited for, never slept for. Each case ends: an outcome with a cause, all memory, and a
//! fresh room that is Done.
#![allow(clippy::unwrap_used)]

mod common;

#[path = "sweep/sides.rs"]
mod sides;

use common::process::*;
use common::proxy::{Act, Way};
use common::*;
use kvroom::{Code, Outcome, Proof};
use sides::*;

#[test]
fn plays_the_other_process_when_told_to() {
    play_if_told();
}

/// How far a room has come, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Claimed,
    Bound,
    Landed(u64),
    Finished,
}

fn steps() -> Vec<Step> {
    let mut steps = vec![Step::Claimed, Step::Bound];
    steps.extend((1..=PAGES).map(Step::Landed));
    steps.push(Step::Finished);
    steps
}

/// Brings a room to a step.
async fn bring(d: &mut Decode, step: Step) -> (u64, kvroom::ReceiveRoom) {
    let (id, room) = d.receive().await;
    if step >= Step::Bound {
        d.bind(id, &room).await;
    }
    if let Step::Landed(pages) = step {
        for place in 0..pages {
            d.page(id, place).await;
        }
    }
    if step == Step::Finished {
        for place in 0..PAGES {
            d.page(id, place).await;
        }
        d.prefill.tell(&format!("finish {id} 0 {PAGES}"));
        assert_eq!(within(room.outcome()).await, Outcome::Done);
    }
    (id, room)
}

#[tokio::test]
async fn an_abort_by_either_side_at_every_step_ends_both_and_returns_every_page() {
    for by in BOTH {
        let mut d = Decode::new(by, LONG).await;
        for step in steps() {
            for who in [Who::Decode, Who::Prefill] {
                let (id, room) = bring(&mut d, step).await;
                if step == Step::Claimed {
                    if who == Who::Prefill {
                        // There is nothing to be aborted on that side before it is begun.
                        let line = format!("send {id} 0");
                        d.prefill.ask(&line, &format!("@sending {id} 0")).await;
                    }
                    d.abort(who, id, &room).await;
                    if who == Who::Decode {
                        // It comes when the abort is there, or is on its way.
                        let line = format!("send {id} 0");
                        d.prefill.ask(&line, &format!("@sending {id} 0")).await;
                    }
                } else {
                    d.abort(who, id, &room).await;
                }
                let (here, there) = d.ends(id, room).await;
                let name = format!("{by:?} {step:?} {who:?}: {here}, {there}");
                if step == Step::Finished {
                    assert_eq!(here, Outcome::Done, "{name}");
                    let may = ["done", "Requested"];
                    assert!(may.contains(&&*there), "{name}");
                } else {
                    assert_eq!(code(&here), Code::Requested, "{name}");
                    assert_eq!(there, "Requested", "{name}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_abort_by_either_side_inside_every_piece_ends_both_and_waits_for_whoever_is_inside() {
    let mut d = Decode::new(By::Shm, LONG).await;
    for pieces in 0..PAGES * u64::from(LAYERS) {
        for who in [Who::Decode, Who::Prefill] {
            let (id, room) = d.receive().await;
            d.bind(id, &room).await;
            d.prefill.ask(&format!("hold {pieces}"), "@holding").await;
            for place in 0..PAGES {
                d.push(id, place).await;
            }
            d.prefill.ask("held", "@held").await;
            d.abort(who, id, &room).await;
            // The outcome does not wait; the memory does, for the lane inside its gate.
            assert_eq!(code(&within(room.outcome()).await), Code::Requested);
            settle(&[&d.side.node]).await;
            assert!(
                poll_once(room.released()).await.is_none(),
                "{pieces} {who:?}"
            );
            d.prefill.ask("release", "@going").await;
            let (_, there) = d.ends(id, room).await;
            assert_eq!(there, "Requested", "{pieces} {who:?}");
        }
    }
}

#[tokio::test]
async fn an_abort_by_either_side_in_the_middle_of_every_frame_of_data_ends_both() {
    let mut d = Decode::new(By::Tcp, LONG).await;
    for quarter in 0..4 * PAGES {
        for who in [Who::Decode, Who::Prefill] {
            let (id, room) = d.receive().await;
            d.bind(id, &room).await;
            let data = d.data();
            let bytes = quarter * BYTES * u64::from(LAYERS) / 4 + 100;
            for link in &data {
                link.after_more(Way::Down, bytes, Act::Stop);
            }
            for place in 0..PAGES {
                d.push(id, place).await;
            }
            until("it stands", || data.iter().any(|l| l.has_acted(Way::Down))).await;
            d.abort(who, id, &room).await;
            assert_eq!(code(&within(room.outcome()).await), Code::Requested);
            if who == Who::Decode {
                // Nobody is inside its gate, whatever is on the wire.
                until("its memory is back", || room.poll().released).await;
            }
            data.iter().for_each(|link| link.heal());
            let (_, there) = d.ends(id, room).await;
            assert_eq!(there, "Requested", "{quarter} {who:?}");
        }
    }
}

/// How many frames of the control connection a room takes this way, at least and at most, when nothing
/// happens to it: pings count, too, and the slower a room is, the more of them there are.
async fn frames_of_a_room(d: &mut Decode, way: Way) -> (u64, u64) {
    let (mut least, mut most) = (u64::MAX, 0);
    for _ in 0..3 {
        let link = control(d.proxy()).await;
        let before = link.frames(way);
        let (id, room) = d.receive().await;
        d.push_all(id).await;
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        d.prefill.hears(&format!("@released s {id} 0")).await;
        let frames = link.frames(way) - before;
        (least, most) = (least.min(frames), most.max(frames));
    }
    println!("{way:?}: {least} to {most} frames");
    assert!(least >= 2, "{least}");
    (least, most)
}

/// What happens to a frame of the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// The connection is cut behind the one before it.
    Cut,
    /// It is lost, and the connection with the next one.
    Lost,
    /// It comes when everything else stands.
    Late,
    /// It comes twice.
    Repeated,
    /// It comes behind the next one.
    Swapped,
}

const HARMS: [Harm; 5] = [
    Harm::Cut,
    Harm::Lost,
    Harm::Late,
    Harm::Repeated,
    Harm::Swapped,
];

#[tokio::test]
async fn every_control_frame_may_be_cut_off_lost_late_repeated_or_swapped_and_the_room_is_done() {
    let mut d = Decode::new(By::Tcp, LONG).await;
    let mut cuts = 0;
    let (mut late, mut stood) = (0, 0);
    let mut resumed = 0;
    for way in [Way::Up, Way::Down] {
        let (least, most) = frames_of_a_room(&mut d, way).await;
        late += least;
        for harm in HARMS {
            for frame in 0..most {
                let is_cut = [Harm::Cut, Harm::Lost].contains(&harm);
                let before = d.side.node.stats().await;
                let link = control(d.proxy()).await;
                match harm {
                    Harm::Cut => link.after_frames(way, frame, Act::Reset),
                    Harm::Lost => {
                        link.after_frames(way, frame, Act::Swallow);
                        link.after_frames(way, frame + 1, Act::Reset);
                    }
                    Harm::Late => link.after_frames(way, frame, Act::Stop),
                    Harm::Repeated => link.after_frames(way, frame, Act::Repeat),
                    Harm::Swapped => link.after_frames(way, frame, Act::Swap),
                }
                let (id, room) = d.receive().await;
                d.push_all(id).await;
                if harm == Harm::Late {
                    let stands = || link.has_acted(way) || room.try_outcome().is_some();
                    until("it stands, or is done", stands).await;
                    settle(&[&d.side.node]).await;
                    d.prefill.ask("ping", "@pong").await;
                    stood += u64::from(link.has_acted(way));
                    link.heal();
                } else {
                    // A ping is a frame, too: some frame will come.
                    until("it has happened", || link.has_acted(way) || !link.is_open()).await;
                    assert!(link.has_acted(way), "{way:?} {harm:?} {frame}");
                }
                assert_eq!(
                    within(room.outcome()).await,
                    Outcome::Done,
                    "{way:?} {harm:?} {frame}"
                );
                let (here, there) = d.ends(id, room).await;
                assert_eq!((here, &*there), (Outcome::Done, "done"));
                let after = d.side.node.stats().await;
                if is_cut {
                    cuts += 1;
                    resumed += after.sessions_resumed - before.sessions_resumed;
                }
                if harm == Harm::Repeated {
                    assert!(link.passed(way) > link.came(way), "{way:?} {frame}");
                    // The session knows it, and no room ever hears of it.
                    assert_eq!(
                        after.stale_messages, before.stale_messages,
                        "{way:?} {frame}"
                    );
                }
            }
        }
    }
    // How many frames are taken together may differ from room to room.
    println!("{stood} of {late} were late");
    assert!(stood * 10 >= late * 8, "{stood} of {late}");
    let stats = d.side.node.stats().await;
    assert_eq!(stats.sessions_opened, 1, "{stats:?}");
    assert!(resumed >= cuts * 3 / 4, "{resumed} of {cuts}: {stats:?}");
}

#[tokio::test]
async fn an_abort_that_overtakes_its_claim_costs_the_connection_and_ends_both() {
    an_abort_overtakes(Way::Up).await;
}

#[tokio::test]
async fn an_abort_that_overtakes_the_answer_to_a_claim_costs_the_connection_and_ends_both() {
    an_abort_overtakes(Way::Down).await;
}

/// Of two numbered neighbours the later one comes first: what has a gap before it is not read.
async fn an_abort_overtakes(way: Way) {
    let mut d = Decode::new(By::Tcp, LONG).await;
    let mut resumed = 0;
    // A ping or an acknowledgement may stand between the two; seldom, and not each time.
    for _ in 0..5 {
        settle(&[&d.side.node]).await;
        let link = control(d.proxy()).await;
        link.after_frames(way, 0, Act::Swap);
        let (id, room) = d.receive().await;
        let send = (format!("send {id} 0"), format!("@sending {id} 0"));
        if way == Way::Up {
            room.abort("swept");
        } else {
            d.prefill.ask(&send.0, &send.1).await;
            d.abort(Who::Prefill, id, &room).await;
        }
        let over = || link.has_acted(way) || !link.is_open();
        until("they are swapped", over).await;
        if way == Way::Up {
            d.prefill.ask(&send.0, &send.1).await;
        }
        let (here, there) = d.ends(id, room).await;
        assert_eq!((code(&here), &*there), (Code::Requested, "Requested"));
        resumed = d.side.node.stats().await.sessions_resumed;
        if resumed > 0 {
            break;
        }
    }
    let stats = d.side.node.stats().await;
    assert!(resumed > 0, "nothing came in another order: {stats:?}");
    assert_eq!(stats.sessions_opened, 1, "{stats:?}");
}

#[tokio::test]
async fn an_abort_by_either_side_behind_every_control_frame_ends_both() {
    let mut d = Decode::new(By::Tcp, LONG).await;
    let mut mixed = Vec::new();
    for way in [Way::Up, Way::Down] {
        for frame in 0..frames_of_a_room(&mut d, way).await.1 {
            for who in [Who::Decode, Who::Prefill] {
                let link = hold(d.proxy(), way, frame).await;
                let (id, room) = d.receive().await;
                d.push_all(id).await;
                let stands = || link.has_acted(way) || room.try_outcome().is_some();
                until("it stands, or is done", stands).await;
                settle(&[&d.side.node]).await;
                d.abort(who, id, &room).await;
                if who == Who::Decode {
                    // At once, though nothing gets through.
                    within(room.outcome()).await;
                }
                link.heal();
                let (here, there) = d.ends(id, room).await;
                let here = match here {
                    Outcome::Done => "done".into(),
                    Outcome::Aborted(why) => format!("{:?}", why.code),
                };
                let name = format!("{way:?} {frame} {who:?}: {here}, {there}");
                // One may be done and the other not in one way only.
                let may = [
                    ("done", "done"),
                    ("Requested", "Requested"),
                    ("done", "Requested"),
                ];
                assert!(may.contains(&(&*here, &*there)), "{name}");
                mixed.push((here, there));
            }
        }
    }
    let n = |end: &str| mixed.iter().filter(|(here, _)| here == end).count();
    assert!(n("done") > 0 && n("Requested") > 0, "{mixed:?}");
}

#[tokio::test]
async fn a_prefill_that_is_killed_at_every_step_is_found_out_and_its_next_life_serves() {
    for by in BOTH {
        let mut d = Decode::new(by, SHORT).await;
        for step in steps() {
            let (id, room) = bring(&mut d, step).await;
            d.kill_prefill().await;
            prefill_was_lost(&mut d, id, room, step == Step::Finished).await;
        }
    }
}

/// The room's end and its memory after that kill; then the next life.
async fn prefill_was_lost(d: &mut Decode, id: u64, room: kvroom::ReceiveRoom, done: bool) {
    let outcome = within(room.outcome()).await;
    let mut back = within(room.released()).await;
    let proof = back.proofs[0];
    assert!([Proof::GateClosed, Proof::WriterDead].contains(&proof));
    if outcome == Outcome::Done {
        verify(&back.leases[0], stamp_of(id, 0), 0);
    } else {
        assert!(!done, "{outcome}");
        is_lost(&outcome);
    }
    fill(&mut back.leases[0], 0xbee5, 0);
    d.prefill_again().await;
    d.moves().await;
    verify(&back.leases[0], 0xbee5, 0);
    drop((back, room));
    d.side.quiet().await;
}

#[tokio::test]
async fn a_decode_that_is_killed_at_every_step_frees_every_source_and_its_next_life_is_served() {
    for by in BOTH {
        let mut p = Prefill::new(by, SHORT).await;
        for step in steps() {
            let (id, room) = p.send(step >= Step::Bound).await;
            let pages = match step {
                Step::Claimed | Step::Bound => 0,
                Step::Landed(pages) => pages,
                Step::Finished => PAGES,
            };
            for place in 0..pages {
                let chunk = p.push(id, place, &room).await;
                assert!(within(chunk.released()).await.is_some());
            }
            if step == Step::Finished {
                room.finish(PAGES * TOKENS, None).unwrap();
                assert_eq!(within(room.outcome()).await, Outcome::Done);
            }
            p.kill_decode();
            match step {
                // Nobody had claimed it: nobody's death ends it.
                Step::Claimed => room.abort("nobody came"),
                Step::Finished => {}
                _ => is_lost(&within(room.outcome()).await),
            }
            let outcome = within(room.outcome()).await;
            assert_eq!(within(room.released()).await.outcome, outcome);
            drop(room);
            p.decode_again(by).await;
        }
    }
}

#[tokio::test]
async fn either_side_may_be_killed_behind_every_control_frame() {
    let mut d = Decode::new(By::Tcp, SHORT).await;
    let mut p = Prefill::new(By::Tcp, SHORT).await;
    for way in [Way::Up, Way::Down] {
        for frame in 0..frames_of_a_room(&mut d, way).await.1 {
            let link = hold(d.proxy(), way, frame).await;
            let (id, room) = d.receive().await;
            d.push_all(id).await;
            let stands = || link.has_acted(way) || room.try_outcome().is_some();
            until("it stands, or is done", stands).await;
            d.kill_prefill().await;
            prefill_was_lost(&mut d, id, room, false).await;

            let link = hold(p.proxy(), way, frame).await;
            let (id, room) = p.send(false).await;
            let into = INTO.map(|page| page.to_string()).join(",");
            p.decode.tell(&format!("receive {id} 0 p {into}"));
            let mut chunks = Vec::new();
            for place in 0..PAGES {
                chunks.push(p.push(id, place, &room).await);
            }
            room.finish(PAGES * TOKENS, None).unwrap();
            let stands = || link.has_acted(way) || room.try_outcome().is_some();
            until("it stands, or is done", stands).await;
            p.kill_decode();
            // If its claim never came, nobody's death ends it.
            settle(&[&p.side.node]).await;
            let alone = room.poll().state == kvroom::StateName::Registered;
            if alone {
                room.abort("nobody came");
            }
            match within(room.outcome()).await {
                Outcome::Done => assert!(!alone, "{way:?} {frame}"),
                Outcome::Aborted(why) if alone => assert_eq!(why.code, Code::Requested, "{why}"),
                lost => is_lost(&lost),
            }
            for chunk in chunks {
                assert!(within(chunk.released()).await.is_some());
            }
            drop(within(room.released()).await);
            drop(room);
            p.decode_again(By::Tcp).await;
        }
    }
}
