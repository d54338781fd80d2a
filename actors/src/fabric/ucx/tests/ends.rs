//! Ends come and go.

use super::*;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn gone(ucx: &Ucx) {
    until("the end of all ends", || {
        poke(ucx, |thread| thread.ends()) == 0
    });
}

#[test]
fn a_thousand_ends_come_and_go_without_growth() {
    for (transports, count) in [("tcp", 1000), ("posix,sysv", 200)] {
        let Some(ucx) = start(&options(transports)) else {
            continue;
        };
        let before = descriptors();
        for _ in 0..count / 50 {
            let ends: Vec<UcxEnd> = wait(async {
                let mut ends = Vec::new();
                for _ in 0..50 {
                    ends.push(ucx.end().await.unwrap());
                }
                ends
            });
            drop(ends);
            gone(&ucx);
        }
        // Others of this process open and close some, too; each end would leave five.
        let grown = descriptors().saturating_sub(before);
        assert!(grown < count, "{transports}: {grown} descriptors are left");
        assert_eq!(poke(&ucx, |thread| thread.left()), 0);
    }
}

#[test]
fn pairs_connect_again_and_again_and_none_is_left() {
    for (transports, mode) in HERE {
        let options = options_for(transports, mode);
        let (Some(from), Some(to)) = (start(&options), start(&options)) else {
            continue;
        };
        for _ in 0..20 {
            let (route, back) = wait(async {
                let (a, b) = (from.end().await.unwrap(), to.end().await.unwrap());
                let (of_a, of_b) = (offer(&from, &a), offer(&to, &b));
                let (a, b) = tokio::join!(a.connect(&of_b, mode), b.connect(&of_a, mode));
                (a.unwrap(), b.unwrap())
            });
            route.close();
            drop((route, back));
        }
        gone(&from);
        gone(&to);
        // Those that peers put to are kept; see the fence table.
        let left = if mode == UcxMode::OneSided { 20 } else { 0 };
        for ucx in [&from, &to] {
            assert_eq!(poke(ucx, |thread| thread.left()), left, "{transports}");
        }
    }
}

#[test]
fn so_many_kept_connections_are_a_limit() {
    let options = UcxOptions {
        retired: 1,
        ..options("posix,sysv")
    };
    let Some(pair) = Pair::new(&options, UcxMode::OneSided) else {
        return;
    };
    pair.route.close();
    gone(&pair.from);
    let refused = wait(pair.from.end()).unwrap_err();
    let limit = "ucx.retired";
    assert!(
        matches!(refused, UcxError::Limit { limit: l, value: 1, .. } if l == limit),
        "{refused}"
    );
}

#[test]
fn a_handle_may_be_dropped_in_every_state() {
    for (transports, mode) in HERE {
        let Some(pair) = Pair::new(&options_for(transports, mode), mode) else {
            continue;
        };
        // Offered.
        drop(wait(pair.from.end()).unwrap());
        // Connecting, to one that never answers.
        wait(async {
            let (a, b) = (pair.from.end().await.unwrap(), pair.to.end().await.unwrap());
            let number = b.handle.number;
            poke(&pair.to, move |thread| {
                thread.at(number, |route| route.held = true)
            });
            let theirs = offer(&pair.to, &b);
            let connecting = a.connect(&theirs, mode);
            let short = Duration::from_millis(50);
            assert!(tokio::time::timeout(short, connecting).await.is_err());
            poke(&pair.to, move |thread| {
                thread.at(number, |route| route.held = false)
            });
        });
        // With a job under way.
        let (lease, _pool, open) = large(&pair, 16 << 10, 2048);
        let posted = pair.post(&lease, &open, 1, Class::Bulk, 0);
        let Pair {
            from,
            to,
            route,
            back,
            ..
        } = pair;
        drop(route);
        posted.back();
        gone(&from);
        drop(open);
        drop(back);
        gone(&to);
        // With nothing left to do the threads end.
        let mailboxes = [&from, &to].map(|ucx| Arc::clone(&ucx.0.mailbox));
        drop((from, to));
        for mailbox in mailboxes {
            until("the end of its thread", || {
                mailbox.put(Command::Quit).is_err()
            });
        }
    }
}

#[test]
fn a_pool_is_registered_once() {
    let Some(ucx) = start(&options("posix,sysv")) else {
        return;
    };
    let pool = Pool::owned(layout(Order::LayersFirst, 2, 4, 4096)).unwrap();
    assert_eq!(ucx.key_of(&pool), None);
    let key = wait(ucx.register(&pool)).unwrap();
    assert_eq!(wait(ucx.register(&pool.clone())).unwrap(), key);
    assert_eq!(ucx.key_of(&pool), Some(key));
    assert_eq!(ucx.0.keys.lock().unwrap().len(), 1);
}

#[test]
fn an_end_of_messages_is_not_let_go_before_what_it_sent_is_out() {
    let mut options = options("tcp");
    options.window_bytes = 64 << 20;
    // Nothing is forced.
    options.close = PATIENCE * 2;
    let Some(pair) = Pair::new(&options, UcxMode::Messages) else {
        return;
    };
    let (lease, _pool, open) = large(&pair, 16 << 10, 4096);
    let number = pair.route.handle.number;
    let under_way = || {
        let (count, counted) = channel();
        poke(&pair.from, move |thread| {
            thread.at(number, |route| {
                let _ = count.send(route.under_way());
            });
        });
        counted.try_recv().ok()
    };
    // More than the sockets between the two take.
    hold(&pair.to, &pair.back, true);
    let posted = pair.post(&lease, &open, 1, Class::Bulk, 0);
    until("what it cannot send", || under_way().unwrap() > 100);
    pair.route.close();
    // The source is free at once.
    assert!(!posted.back().finished);
    for _ in 0..100 {
        assert!(under_way().unwrap() > 0);
    }
    hold(&pair.to, &pair.back, false);
    gone(&pair.from);
    assert_eq!(poke(&pair.from, |thread| thread.left()), 0);
    drop(open);
}

#[test]
fn a_session_that_begins_over_a_path_that_has_ended_is_told_and_no_other() {
    for (transports, mode) in HERE {
        let options = options_for(transports, mode);
        let (Some(from), Some(to)) = (start(&options), start(&options)) else {
            continue;
        };
        let (ended, lives) = wait(async {
            let (a, b) = (from.end().await.unwrap(), to.end().await.unwrap());
            let (of_a, of_b) = (offer(&from, &a), offer(&to, &b));
            let (a, b) = tokio::join!(a.connect(&of_b, mode), b.connect(&of_a, mode));
            (a.unwrap(), b.unwrap())
        });
        let begin = |route: &UcxRoute| {
            let (told, hears) = channel();
            let over = move |why: &str| told.send(why.to_owned()).unwrap();
            let (gates, stats, meter) = (GateTable::new(1), Arc::default(), Arc::default());
            route.guard(WRITER, &gates, &stats, &meter, Box::new(over));
            hears
        };
        let lives = begin(&lives);
        poke(&to, |_| ());
        assert!(lives.try_recv().is_err(), "{transports}");
        let number = ended.handle.number;
        poke(&from, move |thread| {
            thread.at(number, |route| route.close(Instant::now()));
        });
        gone(&from);
        let why = begin(&ended).recv_timeout(PATIENCE).unwrap();
        assert!(why.contains("is over"), "{transports}: {why}");
    }
}
