//! What becomes of jobs and paths when something goes wrong.

use super::*;
use crate::fabric::ucx::transports::is_ended_by_peers;
use kvroom_ucx_sys::Version;

fn hasty(transports: &str) -> UcxOptions {
    UcxOptions {
        flush: Duration::from_millis(400),
        close: Duration::from_millis(500),
        ..options(transports)
    }
}

#[test]
fn a_target_that_stands_still_costs_the_route_and_nothing_lands_after_its_path_is_fenced() {
    for (transports, mode) in HERE {
        let Some(pair) = Pair::new(&hasty(transports), mode) else {
            continue;
        };
        let (major, minor, patch) = pair.to.version();
        if transports != "tcp" && is_ended_by_peers(Version::new(major, minor, patch)) {
            // It would end this process, which is why nobody is given these with it.
            skipped(&format!(
                "UCX {major}.{minor} ends a process over {transports}"
            ));
            continue;
        }
        let (lease, pool, open) = large(&pair, 16 << 10, 512);
        hold(&pair.to, &pair.back, true);
        let posted = pair.post(&lease, &open, 1, Class::Bulk, 0);
        let waiting = pair.post(&lease, &open, 2, Class::Bulk, 0);
        let back = posted.back();
        assert!(!back.finished);
        let why = back.facts.errored.unwrap();
        assert!(why.contains("ucx.flush"), "{transports}: {why}");
        assert!(waiting.back().facts.errored.is_some());
        // The route is over.
        let later = pair.post(&lease, &open, 3, Class::Bulk, 0).back();
        assert!(later.facts.errored.unwrap().contains("is over"));
        if mode == UcxMode::OneSided {
            until("the writer's path", || pair.route.path().is_fenced());
        }
        // The target wakes up, and ends its side.
        let number = pair.back.handle.number;
        poke(&pair.to, move |thread| {
            thread.at(number, |route| {
                route.held = false;
                route.close(Instant::now());
            });
        });
        until("its end", || poke(&pair.to, |thread| thread.ends()) == 0);
        assert_eq!(pair.back.path().is_fenced(), mode == UcxMode::OneSided);
        let seen = written(&pool);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(
            written(&pool),
            seen,
            "{transports}: something landed after the fence"
        );
        drop(open);
    }
}

#[test]
fn a_peer_that_goes_away_ends_the_route() {
    for (transports, mode) in HERE {
        let mut options = hasty(transports);
        if transports == "tcp" {
            // There UCX says so; over shared memory it is the lateness of a flush that shows it.
            options.flush = PATIENCE * 2;
        }
        let Some(pair) = Pair::new(&options, mode) else {
            continue;
        };
        let (lease, _pool, open) = large(&pair, 16 << 10, 2048);
        let posted = pair.post(&lease, &open, 1, Class::Bulk, 0);
        pair.back.close();
        let back = posted.back();
        assert!(
            back.finished || back.facts.errored.is_some(),
            "{:?}",
            back.facts
        );
        until("the end of its end", || {
            poke(&pair.to, |thread| thread.ends()) == 0
        });
        pair.route.close();
        until("the end of this one", || {
            poke(&pair.from, |thread| thread.ends()) == 0
        });
    }
}

#[test]
fn a_peer_that_speaks_otherwise_ends_the_route() {
    let Some(pair) = Pair::new(&options("posix,sysv"), UcxMode::Messages) else {
        return;
    };
    let number = pair.route.handle.number;
    poke(&pair.from, move |thread| {
        thread.at(number, |route| route.send_raw(vec![7; 64]));
    });
    until("the end of its end", || {
        poke(&pair.to, |thread| thread.ends()) == 0
    });
}

#[test]
fn a_panic_of_the_thread_gives_no_ticket_back_and_typed_errors() {
    let Some(pair) = Pair::new(&options("posix,sysv"), UcxMode::OneSided) else {
        return;
    };
    let (lease, _pool, open) = large(&pair, 16 << 10, 512);
    hold(&pair.to, &pair.back, true);
    let posted = pair.post(&lease, &open, 1, Class::Bulk, 0);
    posted.stays_out();
    let poke: Poke = Box::new(|_| panic!("planted: the thread of UCX"));
    assert!(pair.from.0.mailbox.put(Command::Test(poke)).is_ok());
    until("the end of the thread", || {
        let ended = wait(pair.from.end()).err();
        matches!(ended, Some(UcxError::Ended(why)) if why.contains("panicked"))
    });
    posted.stays_out();
    let late = pair.post(&lease, &open, 2, Class::Bulk, 0).back();
    assert!(late.facts.errored.unwrap().contains("panicked"));
}

#[test]
fn puts_over_tcp_are_refused_with_their_reason() {
    let Some(ucx) = start(&options("tcp")) else {
        return;
    };
    let refused = wait(async {
        let (a, b) = (ucx.end().await.unwrap(), ucx.end().await.unwrap());
        let theirs = offer(&ucx, &b);
        a.connect(&theirs, UcxMode::OneSided).await
    });
    let why = refused.unwrap_err().to_string();
    assert!(
        why.contains("assertion of UCX") && why.contains("ucx.one_sided"),
        "{why}"
    );
}

#[test]
fn what_is_no_address_and_no_key_is_an_error() {
    let Some(ucx) = start(&options("posix,sysv")) else {
        return;
    };
    let connect = |spoil: fn(&mut UcxOffer)| {
        wait(async {
            let (a, b) = (ucx.end().await.unwrap(), ucx.end().await.unwrap());
            let mut theirs = offer(&ucx, &b);
            spoil(&mut theirs);
            a.connect(&theirs, UcxMode::OneSided).await
        })
    };
    for spoil in [
        (|offer| offer.worker.clear()) as fn(&mut UcxOffer),
        |offer| offer.worker.truncate(5),
        |offer| offer.probe.key.clear(),
        |offer| offer.probe.key.truncate(8),
        |offer| offer.probe.key = vec![0xff; 40],
    ] {
        let refused = connect(spoil).unwrap_err();
        assert!(matches!(refused, UcxError::Call { .. }), "{refused}");
    }
    until("the end of all", || poke(&ucx, |thread| thread.ends()) == 0);
}

#[test]
fn a_peer_that_does_not_answer_is_late() {
    for (transports, mode) in HERE {
        let mut options = hasty(transports);
        options.wire_up = Duration::from_millis(300);
        let (Some(ucx), Some(other)) = (start(&options), start(&options)) else {
            continue;
        };
        let late = wait(async {
            let (a, b) = (ucx.end().await.unwrap(), other.end().await.unwrap());
            let number = b.handle.number;
            poke(&other, move |thread| {
                thread.at(number, |route| route.held = true)
            });
            a.connect(&offer(&other, &b), mode).await
        });
        let late = late.unwrap_err();
        let limit = "ucx.wire_up";
        assert!(
            matches!(late, UcxError::Late { limit: l, .. } if l == limit),
            "{late}"
        );
    }
}
