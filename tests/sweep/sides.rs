//! The two ends of a sweep: one node here, the other one in a process of its own.

use crate::common::process::{Other, Role, stamp_of};
use crate::common::proxy::{Act, Link, Proxy, Way};
use crate::common::*;
use kvroom::{Code, Deadlines, LocalHub, Outcome, Peer, Proof, ReceiveRoom, RoomId, StateName};
use std::time::{Duration, Instant};

pub(crate) const PLAYER: &str = "plays_the_other_process_when_told_to";

/// What is between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// TCP, through a proxy.
    Tcp,
    Shm,
}

pub(crate) const BOTH: [By; 2] = [By::Tcp, By::Shm];

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Decode,
    Prefill,
}

/// Pages of every room that is swept. Each is one frame, or several pieces.
pub(crate) const PAGES: u64 = 4;
/// Bytes of one of them in a layer.
pub(crate) const BYTES: u64 = PIECE;
/// Where they go.
pub(crate) const INTO: [u32; PAGES as usize] = [4, 5, 6, 7];
/// What is in them before.
const BEFORE: u64 = 0xcaa1;

/// Losses are found out by what says so, and never by silence; what is lost is dialed again at once.
fn deadlines(resume: Duration) -> Deadlines {
    Deadlines {
        ping: Duration::from_millis(100),
        liveness: PATIENCE,
        resume,
        backoff_first: Duration::from_millis(2),
        backoff_most: Duration::from_millis(20),
        ..Deadlines::default()
    }
}

fn role(name: &'static str, by: By) -> Role {
    Role {
        name,
        page_bytes: BYTES,
        shared: by == By::Shm,
        liveness_ms: 30_000,
        resume_ms: 30_000,
        ..Role::default()
    }
}

/// How long a connection that was cut may be away: always long enough.
pub(crate) const LONG: Duration = PATIENCE;
/// Over TCP a process that is dead is a connection that was cut, until this is over or its next life is
/// there.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

async fn here(name: &str, by: By, resume: Duration) -> Side {
    let setup = Setup {
        over: match by {
            By::Tcp => Over::Tcp,
            By::Shm => Over::Shm,
        },
        layout: kv(16, BYTES),
        deadlines: deadlines(resume),
        ..Setup::default()
    };
    Side::start(&LocalHub::new(), name, &setup, &Default::default()).await
}

/// The control connection that is open now.
pub(crate) async fn control(proxy: &Proxy) -> Link {
    let mut found = None;
    until("there is a control connection", || {
        let open = proxy.open().into_iter();
        found = open
            .filter(|link| link.head(Way::Up).get(12) == Some(&0))
            .find(|link| link.frames(Way::Up) >= 2 && link.frames(Way::Down) >= 2);
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// Decode here, prefill there.
pub(crate) struct Decode {
    pub(crate) by: By,
    pub(crate) side: Side,
    pub(crate) prefill: Other,
    pub(crate) peer: Peer,
    proxy: Option<Proxy>,
    /// Of the next room.
    id: u64,
}

impl Decode {
    pub(crate) async fn new(by: By, resume: Duration) -> Decode {
        let side = here("d", by, resume).await;
        let prefill = Other::start(PLAYER, &role("p", by)).await;
        let proxy = (by == By::Tcp).then(|| Proxy::tcp(&prefill.address));
        let address = proxy.as_ref().map_or(&*prefill.address, Proxy::address);
        let peer = within(side.node.connect(address)).await.unwrap();
        let mut decode = Decode {
            by,
            side,
            prefill,
            peer,
            proxy,
            id: 0,
        };
        decode.moves().await;
        decode
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    /// The connections that carry pages.
    pub(crate) fn data(&self) -> Vec<Link> {
        let mut links = self.proxy().open();
        links.retain(|link| {
            link.head(Way::Up)
                .get(12)
                .is_some_and(|message| *message != 0)
        });
        links
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.id += 1;
        self.id
    }

    /// A room on [`INTO`], which is claimed.
    pub(crate) async fn receive(&mut self) -> (u64, ReceiveRoom) {
        let id = self.next_id();
        let mut lease = self.side.pool.lease_write(&INTO).unwrap();
        fill(&mut lease, BEFORE, 0);
        let room = self.side.node.receive(RoomId(id)).from(&self.peer);
        let room = within(room.into(lease).start()).await.unwrap();
        (id, room)
    }

    /// The other side's room, and that this side knows of it.
    pub(crate) async fn bind(&mut self, id: u64, room: &ReceiveRoom) {
        let line = format!("send {id} 0");
        self.prefill.ask(&line, &format!("@sending {id} 0")).await;
        until("it is bound", || room.poll().state != StateName::Registered).await;
    }

    /// One page of the room; waits until it has landed.
    pub(crate) async fn page(&mut self, id: u64, place: u64) {
        self.push(id, place).await;
        let mut seen = vec![0; BYTES as usize];
        let page = INTO[place as usize];
        until("a page has landed", || {
            (0..LAYERS).all(|layer| {
                self.side.pool.observe(layer, page, &mut seen).unwrap();
                holds(&seen, stamp_of(id, 0), layer, place)
            })
        })
        .await;
    }

    /// One page of the room.
    pub(crate) async fn push(&mut self, id: u64, place: u64) {
        self.prefill.tell(&format!("push {id} 0 {place} 1"));
        self.prefill.hears(&format!("@pushed {id} 0 {place}")).await;
    }

    /// The other side's room, from its start to its finish.
    pub(crate) async fn push_all(&mut self, id: u64) {
        self.prefill.tell(&format!("send {id} 0"));
        for place in 0..PAGES {
            self.push(id, place).await;
        }
        self.prefill.tell(&format!("finish {id} 0 {PAGES}"));
    }

    /// A whole room, whatever was before it.
    pub(crate) async fn moves(&mut self) {
        let id = self.next_id();
        let lease = self.side.pool.lease_write(&[0, 1]).unwrap();
        let room = self.side.node.receive(RoomId(id)).from(&self.peer);
        let room = within(room.into(lease).start()).await.unwrap();
        self.prefill.tell(&format!("send {id} 0"));
        self.prefill.tell(&format!("push {id} 0 0 2"));
        self.prefill.tell(&format!("finish {id} 0 2"));
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        let back = within(room.released()).await;
        verify(&back.leases[0], stamp_of(id, 0), 0);
        self.prefill.hears(&format!("@released s {id} 0")).await;
    }

    /// Waits for the end of both rooms and all their memory; pages that came back stay as they are
    /// while the next room goes through. Gives how the two ended.
    pub(crate) async fn ends(&mut self, id: u64, room: ReceiveRoom) -> (Outcome, String) {
        let outcome = within(room.outcome()).await;
        let mut back = within(room.released()).await;
        assert_eq!(back.outcome, outcome);
        assert_eq!(back.proofs, [Proof::GateClosed]);
        if outcome == Outcome::Done {
            verify(&back.leases[0], stamp_of(id, 0), 0);
        }
        fill(&mut back.leases[0], 0xbee5, 0);
        self.prefill.hears(&format!("@released s {id} 0")).await;
        let end = self.end_of_prefill(id);
        self.moves().await;
        verify(&back.leases[0], 0xbee5, 0);
        drop(back);
        self.side.quiet().await;
        (outcome, end)
    }

    /// What the other side said of its end: `done`, or a code. Said once.
    fn end_of_prefill(&mut self, id: u64) -> String {
        let aborted = self.prefill.said(&format!("@aborted s {id} 0 "));
        let done = self.prefill.said(&format!("@done s {id} 0"));
        assert_eq!(aborted.len() + done.len(), 1, "{aborted:?} {done:?}");
        match aborted.first() {
            Some(line) => line.split(' ').nth(4).unwrap().to_owned(),
            None => "done".into(),
        }
    }

    /// Aborts it on one side.
    pub(crate) async fn abort(&mut self, who: Who, id: u64, room: &ReceiveRoom) {
        match who {
            Who::Decode => room.abort("swept"),
            Who::Prefill => {
                self.prefill.tell(&format!("abort {id} 0"));
                self.prefill.ask("ping", "@pong").await;
            }
        }
    }

    /// kill -9, and the next life under the same address.
    pub(crate) async fn kill_prefill(&mut self) {
        self.prefill.kill();
        if let Some(proxy) = &self.proxy {
            // As the kernel of a host whose process is gone.
            proxy.reset();
        }
    }

    /// The next life of prefill, to which this side connects by itself.
    pub(crate) async fn prefill_again(&mut self) {
        let before = self.peer.clone();
        let again = Role {
            listen: self.prefill.address.clone(),
            ..role("p", self.by)
        };
        self.prefill = Other::start(PLAYER, &again).await;
        let start = Instant::now();
        self.peer = loop {
            if let Some(peer) = self.side.node.peer("p").await
                && peer.incarnation() != before.incarnation()
                && peer.is_up().is_ok()
            {
                break peer;
            }
            assert!(start.elapsed() < PATIENCE, "its next life never came up");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
    }
}

/// Prefill here, decode there, which dials.
pub(crate) struct Prefill {
    pub(crate) side: Side,
    pub(crate) decode: Other,
    proxy: Option<Proxy>,
    id: u64,
}

impl Prefill {
    pub(crate) async fn new(by: By, resume: Duration) -> Prefill {
        let side = here("p", by, resume).await;
        let proxy = (by == By::Tcp).then(|| Proxy::tcp(&side.address));
        let decode = Other::start(PLAYER, &role("d", by)).await;
        let mut prefill = Prefill {
            side,
            decode,
            proxy,
            id: 0,
        };
        prefill.meet().await;
        prefill
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    async fn meet(&mut self) {
        let address = match &self.proxy {
            Some(proxy) => proxy.address().to_owned(),
            None => self.side.address.clone(),
        };
        let line = format!("connect {address}");
        self.decode.ask(&line, "@connected p").await;
        self.moves().await;
    }

    /// The other side's room on [`INTO`] and this side's, bound if told to.
    pub(crate) async fn send(&mut self, bound: bool) -> (u64, kvroom::SendRoom) {
        self.id += 1;
        let id = self.id;
        let room = within(self.side.node.send(RoomId(id)).start()).await;
        let room = room.unwrap();
        if bound {
            let into = INTO.map(|page| page.to_string()).join(",");
            let line = format!("receive {id} 0 p {into}");
            self.decode.ask(&line, &format!("@receiving {id} 0")).await;
            until("it is bound", || room.poll().state != StateName::Registered).await;
        }
        (id, room)
    }

    /// One page of the room.
    pub(crate) async fn push(
        &self,
        id: u64,
        place: u64,
        room: &kvroom::SendRoom,
    ) -> kvroom::PushedChunk {
        let lease = self.side.stamped(&[place as u32], stamp_of(id, 0), place);
        push(room, place * TOKENS..(place + 1) * TOKENS, lease).await
    }

    /// A whole room.
    pub(crate) async fn moves(&mut self) {
        self.id += 1;
        let id = self.id;
        self.decode.tell(&format!("receive {id} 0 p 0,1"));
        let room = within(self.side.node.send(RoomId(id)).start()).await;
        let room = room.unwrap();
        let lease = self.side.stamped(&[8, 9], stamp_of(id, 0), 0);
        push(&room, 0..2 * TOKENS, lease).await;
        room.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(room.outcome()).await, Outcome::Done);
        self.decode.hears(&format!("@done r {id} 0")).await;
        self.decode.hears(&format!("@released r {id} 0")).await;
        drop(within(room.released()).await);
    }

    /// kill -9.
    pub(crate) fn kill_decode(&mut self) {
        self.decode.kill();
        if let Some(proxy) = &self.proxy {
            proxy.reset();
        }
    }

    /// Nothing is left of the rooms of the one that was killed; its next life is served.
    pub(crate) async fn decode_again(&mut self, by: By) {
        self.side.quiet().await;
        let again = Role {
            listen: self.decode.address.clone(),
            ..role("d", by)
        };
        self.decode = Other::start(PLAYER, &again).await;
        self.meet().await;
    }
}

/// An end that is what it must be when the other side's process has died.
#[track_caller]
pub(crate) fn is_lost(outcome: &Outcome) {
    let lost = [Code::PeerLost, Code::PeerRestarted, Code::SessionLost];
    assert!(lost.contains(&code(outcome)), "{outcome}");
}

/// Stops a direction of the control connection when so many frames more have passed.
pub(crate) async fn hold(proxy: &Proxy, way: Way, frames: u64) -> Link {
    let link = control(proxy).await;
    link.after_frames(way, frames, Act::Stop);
    link
}
