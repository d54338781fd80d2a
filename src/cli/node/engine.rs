//! What the commands do: a node, its pools, and the handles of the rooms that commands started.
//!
//! Rules: a command that fails changes nothing it did not say; nothing here panics on what a line
//! said; nothing borrows the tables across a wait, so that commands may overlap.

use super::super::pattern::{self, Place};
use super::super::raw;
use super::listing;
use super::protocol::{
    Abort, Cells, Checked, Finish, MAX_COUNT, Push, Receive, Request, Role, Send, Started, Urgency,
    Wait, Waited, Which,
};
use kvroom::{Chunk, Class, Node, Outcome, Peer, Pool, ReceiveRoom, RoomId, RoomKey, SendRoom};
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Reasons in one answer.
const MAX_REASONS: usize = 8;

/// A node and what was started on it. Clones are the same.
#[derive(Clone)]
pub(crate) struct Engine {
    node: Node,
    pools: Rc<[Pool]>,
    rooms: Rc<RefCell<Rooms>>,
}

#[derive(Default)]
struct Rooms {
    sends: HashMap<RoomKey, Rc<SendRoom>>,
    receives: HashMap<RoomKey, Rc<ReceiveRoom>>,
}

type Answer = Result<Value, String>;

impl Engine {
    /// Of a node with these pools.
    pub(crate) fn new(node: Node, pools: Vec<Pool>) -> Engine {
        Engine {
            node,
            pools: pools.into(),
            rooms: Rc::default(),
        }
    }

    /// The node.
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Does one command. `Stop` is left to whoever runs the node.
    pub(crate) async fn run(&self, request: Request) -> Answer {
        match request {
            Request::Ping {} | Request::Stop {} => Ok(Value::Null),
            Request::Fill(cells) => self.fill(&cells),
            Request::Check(cells) => to_value(&self.check(&cells)?),
            Request::Send(send) => to_value(&self.send(send).await?),
            Request::Push(push) => to_value(&self.push(&push)?),
            Request::Finish(finish) => to_value(&self.finish(&finish)?),
            Request::Receive(receive) => to_value(&self.receive(receive).await?),
            Request::Wait(wait) => to_value(&self.wait(&wait).await?),
            Request::Abort(abort) => self.abort(&abort),
            Request::AbortWhere { which, reason } => self.abort_where(which, reason).await,
            Request::Stats {} => Ok(listing::stats(&self.node.stats().await)),
            Request::Peers {} => Ok(listing::peers(&self.node.peers().await)),
            Request::Rooms {} => Ok(listing::rooms(&self.node.rooms().await)),
            Request::EarlyClaims {} => Ok(listing::claims(&self.node.early_claims().await)),
            Request::Connect { address } => {
                let peer = self.node.connect(&address).await;
                let peer = peer.map_err(|e| e.to_string())?;
                Ok(json!({ "peer": peer.name() }))
            }
            Request::Disconnect { peer } => {
                self.node.disconnect(&self.peer(&peer).await?).await;
                Ok(Value::Null)
            }
            Request::RawServe(serve) => to_value(&raw::serve(serve).map_err(|e| e.to_string())?),
        }
    }

    fn fill(&self, cells: &Cells) -> Answer {
        let pool = self.pool(&cells.pool)?;
        let pages = cells.pages.of(0)?;
        let mut lease = pool.lease_write(&pages).map_err(|e| e.to_string())?;
        for (layer, i, place) in places(pool, pages.len(), cells.index) {
            pattern::fill(lease.page_mut(layer, i), cells.seed, place);
        }
        Ok(Value::Null)
    }

    fn check(&self, cells: &Cells) -> Result<Checked, String> {
        let pool = self.pool(&cells.pool)?;
        let pages = cells.pages.of(0)?;
        let lease = pool.lease_read(&pages).map_err(|e| e.to_string())?;
        let differs = places(pool, pages.len(), cells.index)
            .find(|&(layer, i, place)| !pattern::holds(lease.page(layer, i), cells.seed, place))
            .map(|(layer, i, _)| format!("layer {layer}, page {}", pages[i]));
        Ok(Checked { differs })
    }

    async fn send(&self, send: Send) -> Result<Started, String> {
        let ids = ids(send.first, send.count)?;
        let pool = send
            .pool
            .as_deref()
            .map(|name| self.pool(name))
            .transpose()?;
        if send.pages.is_some() != pool.is_some() {
            return Err("pool and pages are given together or not at all".to_owned());
        }
        if send.chunk_pages == Some(0) {
            return Err("chunk_pages is 0; it must be at least 1".to_owned());
        }
        let builder = |id| {
            let mut builder = self
                .node
                .send(RoomId(id))
                .attempt(send.attempt)
                .receivers(send.receivers)
                .class(class(send.class));
            if let Some(tag) = &send.tag {
                builder = builder.tag(tag);
            }
            if let Some(ms) = send.deadline_ms {
                builder = builder.deadline(Duration::from_millis(ms));
            }
            builder
        };
        let started = self
            .node
            .start_sends(ids.clone().map(builder).collect())
            .await;
        let mut tally = Tally::default();
        for (k, (id, room)) in (0..).zip(ids.zip(started)) {
            let key = RoomKey::new(id, send.attempt);
            let room = match room {
                Ok(room) => Rc::new(room),
                Err(e) => {
                    tally.refuse(key, &e);
                    continue;
                }
            };
            self.rooms.borrow_mut().sends.insert(key, Rc::clone(&room));
            tally.count(key, supply(&room, k, &send, pool));
        }
        Ok(tally.0)
    }

    fn push(&self, push: &Push) -> Result<Started, String> {
        let pool = self.pool(&push.pool)?;
        let mut tally = Tally::default();
        for (k, id) in (0..).zip(ids(push.first, push.count)?) {
            let key = RoomKey::new(id, push.attempt);
            let one = self.sending(key).and_then(|room| {
                let pages = push.pages.of(k)?;
                push_chunk(&room, pool, push.token, &pages)
            });
            tally.count(key, one);
        }
        Ok(tally.0)
    }

    fn finish(&self, finish: &Finish) -> Result<Started, String> {
        let mut tally = Tally::default();
        for id in ids(finish.first, finish.count)? {
            let key = RoomKey::new(id, finish.attempt);
            let one = self.sending(key).and_then(|room| {
                let said = room.finish(finish.total, None);
                said.map_err(|e| e.to_string())
            });
            tally.count(key, one);
        }
        Ok(tally.0)
    }

    async fn receive(&self, receive: Receive) -> Result<Started, String> {
        let ids = ids(receive.first, receive.count)?;
        let pool = receive
            .pool
            .as_deref()
            .map(|name| self.pool(name))
            .transpose()?;
        if receive.pages.is_some() != pool.is_some() {
            return Err("pool and pages are given together or not at all".to_owned());
        }
        let mut peers = Vec::new();
        for name in &receive.from {
            peers.push(self.peer(name).await?);
        }
        let mut tally = Tally::default();
        let (mut keys, mut builders) = (Vec::new(), Vec::new());
        for (k, id) in (0..).zip(ids) {
            let key = RoomKey::new(id, receive.attempt);
            let mut builder = self
                .node
                .receive(key.id)
                .attempt(receive.attempt)
                .receivers(receive.receivers)
                .rank(receive.rank)
                .checksum(receive.checksum)
                .skip(receive.skip)
                .class(class(receive.class));
            for peer in &peers {
                builder = builder.from(peer);
            }
            if let (Some(pool), Some(pages)) = (pool, &receive.pages) {
                let lease = pages
                    .of(k)
                    .and_then(|pages| pool.lease_write(&pages).map_err(|e| e.to_string()));
                match lease {
                    Ok(lease) => builder = builder.into(lease),
                    Err(e) => {
                        tally.refuse(key, &e);
                        continue;
                    }
                }
            }
            let without_pages = receive.pages.is_none().then_some(receive.skip);
            if let Some(total) = receive.total.or(without_pages) {
                builder = builder.total(total);
            }
            if let Some(tag) = &receive.tag {
                builder = builder.tag(tag);
            }
            if let Some(ms) = receive.deadline_ms {
                builder = builder.deadline(Duration::from_millis(ms));
            }
            keys.push(key);
            builders.push(builder);
        }
        for (key, room) in keys
            .into_iter()
            .zip(self.node.start_receives(builders).await)
        {
            match room {
                Ok(room) => {
                    self.rooms.borrow_mut().receives.insert(key, Rc::new(room));
                    tally.count(key, Ok(()));
                }
                Err(e) => tally.refuse(key, &e),
            }
        }
        Ok(tally.0)
    }

    async fn wait(&self, wait: &Wait) -> Result<Waited, String> {
        let mut waited = Waited::default();
        let deadline = tokio::time::Instant::now() + Duration::from_millis(wait.timeout_ms);
        // Backwards: the last room of a batch is over last, so one wake-up is enough for all.
        for id in ids(wait.first, wait.count)?.rev() {
            let key = RoomKey::new(id, wait.attempt);
            let outcome = match wait.role {
                Role::Send => match self.sending(key) {
                    Ok(room) => {
                        let over = async {
                            let outcome = room.outcome().await;
                            if wait.released {
                                drop(room.released().await);
                            }
                            outcome
                        };
                        Some(tokio::time::timeout_at(deadline, over).await)
                    }
                    Err(_) => None,
                },
                Role::Receive => match self.receiving(key) {
                    Ok(room) => {
                        let over = async {
                            let outcome = room.outcome().await;
                            if wait.released {
                                drop(room.released().await);
                            }
                            outcome
                        };
                        Some(tokio::time::timeout_at(deadline, over).await)
                    }
                    Err(_) => None,
                },
            };
            let Some(outcome) = outcome else {
                waited.unknown += 1;
                continue;
            };
            let Ok(outcome) = outcome else {
                waited.timed_out += 1;
                continue;
            };
            count_outcome(&mut waited, key, outcome);
            if wait.released {
                self.forget(wait.role, key);
            }
        }
        Ok(waited)
    }

    fn abort(&self, abort: &Abort) -> Answer {
        let mut told = 0;
        for id in ids(abort.first, abort.count)? {
            let key = RoomKey::new(id, abort.attempt);
            match abort.role {
                Role::Send => match self.sending(key) {
                    Ok(room) => room.abort(&*abort.reason),
                    Err(_) => continue,
                },
                Role::Receive => match self.receiving(key) {
                    Ok(room) => room.abort(&*abort.reason),
                    Err(_) => continue,
                },
            }
            told += 1;
        }
        Ok(json!({ "told": told }))
    }

    async fn abort_where(&self, which: Which, reason: String) -> Answer {
        let which = match which {
            Which::All => kvroom::Which::All,
            Which::Room(id) => kvroom::Which::Room(RoomId(id)),
            Which::Tag(tag) => kvroom::Which::Tag(tag),
            Which::Peer(name) => kvroom::Which::Peer(self.peer(&name).await?),
        };
        let told = self.node.abort_where(which, reason).await;
        Ok(json!({ "told": told }))
    }

    fn pool(&self, name: &str) -> Result<&Pool, String> {
        let found = self.pools.iter().find(|p| p.layout().name == name);
        found.ok_or_else(|| format!("there is no pool {name:?}"))
    }

    async fn peer(&self, name: &str) -> Result<Peer, String> {
        let peer = self.node.peer(name).await;
        peer.ok_or_else(|| format!("no peer {name:?} was met"))
    }

    fn sending(&self, key: RoomKey) -> Result<Rc<SendRoom>, String> {
        let room = self.rooms.borrow().sends.get(&key).cloned();
        room.ok_or_else(|| "no command has started it".to_owned())
    }

    fn receiving(&self, key: RoomKey) -> Result<Rc<ReceiveRoom>, String> {
        let room = self.rooms.borrow().receives.get(&key).cloned();
        room.ok_or_else(|| "no command has started it".to_owned())
    }

    fn forget(&self, role: Role, key: RoomKey) {
        // Dropped outside of the borrow: a handle does things when it goes.
        let room = match role {
            Role::Send => (self.rooms.borrow_mut().sends.remove(&key), None),
            Role::Receive => (None, self.rooms.borrow_mut().receives.remove(&key)),
        };
        drop(room);
    }
}

/// Pushes and finishes what the command gives to its `k`-th room.
fn supply(room: &SendRoom, k: u64, send: &Send, pool: Option<&Pool>) -> Result<(), String> {
    let mut tokens = 0;
    if let (Some(pool), Some(pages)) = (pool, &send.pages) {
        let pages = pages.of(k)?;
        tokens = pages.len() as u64;
        let step = send.chunk_pages.unwrap_or(pages.len()).max(1);
        for (token, chunk) in (0..).step_by(step).zip(pages.chunks(step)) {
            push_chunk(room, pool, token, chunk)?;
        }
    }
    if send.finish {
        let total = send.total.unwrap_or(tokens);
        room.finish(total, None).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn push_chunk(room: &SendRoom, pool: &Pool, token: u64, pages: &[u32]) -> Result<(), String> {
    let slot = room.try_reserve().map_err(|e| e.to_string())?;
    let lease = pool.lease_read(pages).map_err(|e| e.to_string())?;
    let tokens = token..token.saturating_add(pages.len() as u64);
    // What is pushed goes back to its pool by itself, when that is proven.
    let pushed = slot.push(Chunk::tokens(tokens).pages(lease));
    pushed.map(drop).map_err(|e| e.to_string())
}

fn count_outcome(waited: &mut Waited, key: RoomKey, outcome: Outcome) {
    match outcome {
        Outcome::Done => waited.done += 1,
        Outcome::Aborted(reason) => {
            waited.aborted += 1;
            *waited
                .codes
                .entry(format!("{:?}", reason.code))
                .or_default() += 1;
            if waited.reasons.len() < MAX_REASONS {
                waited.reasons.push(format!("{key}: {reason}"));
            }
        }
    }
}

/// Every cell of a list of pages, with the place that its pattern follows from.
fn places(pool: &Pool, pages: usize, first: u32) -> impl Iterator<Item = (u32, usize, Place)> {
    let layers = pool.layout().layers;
    (0..layers).flat_map(move |layer| {
        (0..pages).map(move |i| {
            let place = Place {
                layer,
                index: first.wrapping_add(i as u32),
                offset: 0,
            };
            (layer, i, place)
        })
    })
}

fn ids(first: u64, count: u64) -> Result<Range<u64>, String> {
    if count > MAX_COUNT {
        return Err(format!("count is {count}; it must be at most {MAX_COUNT}"));
    }
    let end = first.checked_add(count);
    end.map(|end| first..end)
        .ok_or_else(|| "there are no such room ids".to_owned())
}

fn class(urgency: Urgency) -> Class {
    match urgency {
        Urgency::Interactive => Class::Interactive,
        Urgency::Bulk => Class::Bulk,
    }
}

fn to_value(answer: &impl Serialize) -> Answer {
    serde_json::to_value(answer).map_err(|e| e.to_string())
}

#[derive(Default)]
struct Tally(Started);

impl Tally {
    fn count(&mut self, key: RoomKey, result: Result<(), String>) {
        match result {
            Ok(()) => self.0.started += 1,
            Err(why) => self.refuse(key, &why),
        }
    }

    fn refuse(&mut self, key: RoomKey, why: &impl std::fmt::Display) {
        self.0.refused += 1;
        if self.0.reasons.len() < MAX_REASONS {
            self.0.reasons.push(format!("{key}: {why}"));
        }
    }
}
