//! Two sessions over a channel that loses, repeats and reorders within a transport's life, and that
//! is reset at any time.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug)]
enum Op {
    Abort,
    Open,
    Withdraw(u64),
    Ended,
    Grant,
    Progress(u64),
    Ping,
    Transmit(usize),
    Deliver(usize),
    Lose(usize),
    Repeat(usize),
    Swap(usize),
    Reset,
}

fn op() -> impl Strategy<Value = (bool, Op)> {
    let op = prop_oneof![
        4 => Just(Op::Abort),
        6 => Just(Op::Open),
        3 => (0..4u64).prop_map(Op::Withdraw),
        4 => Just(Op::Ended),
        1 => Just(Op::Grant),
        2 => (1..9u64).prop_map(Op::Progress),
        1 => Just(Op::Ping),
        9 => (1..5usize).prop_map(Op::Transmit),
        9 => (1..5usize).prop_map(Op::Deliver),
        1 => (0..4usize).prop_map(Op::Lose),
        1 => (0..4usize).prop_map(Op::Repeat),
        1 => (0..4usize).prop_map(Op::Swap),
        1 => Just(Op::Reset),
    ];
    (any::<bool>(), op)
}

/// One end, and what only the test knows about it.
struct End {
    session: Session,
    /// Frames on the way to the other end.
    wire: Vec<Frame>,
    /// Reliable bodies queued here and not withdrawn.
    queued: Vec<Body>,
    /// Reliable bodies delivered here.
    delivered: Vec<Body>,
    /// Claims whose frames were transmitted at least once.
    shown: BTreeSet<u64>,
    opened: u64,
    /// Claims of the other end that are live here.
    live: u32,
    granted: u32,
}

impl End {
    fn new(session: Session) -> Self {
        End {
            session,
            wire: Vec::new(),
            queued: Vec::new(),
            delivered: Vec::new(),
            shown: BTreeSet::new(),
            opened: 0,
            live: 0,
            granted: 0,
        }
    }

    fn open(&mut self, me: Incarnation, peer: Incarnation) {
        let n = self.opened + 1;
        let before = self.session.credit_available();
        match self.session.open_claim(ClaimNo(n), claim(me, peer, n)) {
            Ok(()) => {
                self.opened = n;
                self.queued.push(Body::Claim(claim(me, peer, n)));
            }
            Err(refused) => assert_eq!((refused.why, before), (WhyNotOpened::NoCredit, 0)),
        }
    }

    fn withdraw(&mut self, n: u64, me: Incarnation, peer: Incarnation) {
        let body = Body::Claim(claim(me, peer, n));
        let there = self.queued.contains(&body);
        let taken = self.session.withdraw_claim(ClaimNo(n)).is_some();
        assert_eq!(taken, there && !self.shown.contains(&n));
        if taken {
            self.queued.retain(|b| *b != body);
        }
    }

    fn transmit(&mut self, most: usize) {
        let out = frames(&mut self.session, most);
        assert!(out.len() <= most);
        for frame in &out {
            if let Some(Body::Claim(c)) = &frame.body {
                self.shown.insert(c.tag.id.number.0);
            }
        }
        self.wire.extend(out);
    }

    fn receive(&mut self, frame: Frame) {
        match self.session.receive(frame).unwrap() {
            Received::Deliver(Body::Progress { .. } | Body::Pong { .. }) => {}
            Received::Deliver(body) => {
                self.live += u32::from(matches!(body, Body::Claim(_)));
                self.delivered.push(body);
            }
            _ => {}
        }
    }
}

fn deliver(from: &mut End, to: &mut End, n: usize) {
    let n = n.min(from.wire.len());
    for frame in from.wire.drain(..n) {
        to.receive(frame);
    }
}

fn reset(a: &mut End, b: &mut End) {
    for end in [&mut *a, &mut *b] {
        end.session.reset();
        end.wire.clear();
    }
    let (of_a, of_b) = (a.session.received(), b.session.received());
    a.session.resume(of_b).unwrap();
    b.session.resume(of_a).unwrap();
}

fn step(x: &mut End, y: &mut End, me: Incarnation, peer: Incarnation, op: Op) {
    let at = |i: usize, end: &End| (!end.wire.is_empty()).then(|| i % end.wire.len());
    match op {
        Op::Abort => {
            let body = abort(me, peer, 1 + x.queued.len() as u64);
            x.queued.push(body.clone());
            x.session.queue(body).unwrap();
        }
        Op::Open => x.open(me, peer),
        Op::Withdraw(back) => x.withdraw(x.opened.saturating_sub(back), me, peer),
        Op::Ended => {
            x.session.claim_ended();
            x.live = x.live.saturating_sub(1);
        }
        Op::Grant => {
            x.session.grant(1);
            x.granted += 1;
        }
        Op::Progress(n) => x.session.progress(tag(peer, me, n), 0, 0),
        Op::Ping => x.session.ping(1),
        Op::Transmit(most) => x.transmit(most),
        Op::Deliver(n) => deliver(x, y, n),
        Op::Lose(i) => {
            if let Some(i) = at(i, x) {
                x.wire.remove(i);
            }
        }
        Op::Repeat(i) => {
            if let Some(i) = at(i, x) {
                x.wire.push(x.wire[i].clone());
            }
        }
        Op::Swap(i) => {
            if let Some(i) = at(i, x) {
                x.wire.swap(0, i);
            }
        }
        Op::Reset => reset(x, y),
    }
    assert_eq!(x.session.window(), LIMITS.our_window + x.granted);
    assert_eq!(x.session.peer_claims(), x.live);
}

/// A last reset, then a channel without faults until both are silent.
fn heal(a: &mut End, b: &mut End) {
    reset(a, b);
    for _ in 0..10_000 {
        a.transmit(3);
        b.transmit(3);
        if a.wire.is_empty() && b.wire.is_empty() {
            return;
        }
        deliver(a, b, 3);
        deliver(b, a, 3);
    }
    panic!("they never fall silent");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_reliable_body_is_delivered_exactly_once_and_in_order(
        ops in prop::collection::vec(op(), 0..160)
    ) {
        let (a, b) = pair();
        let (mut a, mut b) = (End::new(a), End::new(b));
        for (first, op) in ops {
            if first {
                step(&mut a, &mut b, A, B, op);
            } else {
                step(&mut b, &mut a, B, A, op);
            }
        }
        heal(&mut a, &mut b);
        for (from, to) in [(&a, &b), (&b, &a)] {
            prop_assert_eq!(&from.queued, &to.delivered);
            prop_assert_eq!(from.session.unacknowledged(), 0);
            // Every credit is with one side or the other: available here, or open or waiting for
            // its batch there.
            let ended = to.session.window()
                - from.session.credit_available()
                - to.session.peer_claims();
            prop_assert!(ended < 4, "{ended} credits are lost or kept back");
            prop_assert!(ended * 4 < to.session.window());
        }
        // Whoever ends all of its peer's claims lets it open a whole window again.
        for _ in 0..a.live {
            a.session.claim_ended();
        }
        heal(&mut a, &mut b);
        prop_assert!(b.session.credit_available() > a.session.window() - a.session.window().div_ceil(4));
    }
}
