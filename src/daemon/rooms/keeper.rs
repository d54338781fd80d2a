//! The keeper: the one task that has the table of rooms.
//!
//! ```text
//!   requests ── Ask ──▶ keeper ──▶ answers
//!                        │  ▲
//!               starts,  ▼  │ posts: started, ended, released
//!               waits   tasks (one for each wait; none holds anything but a handle)
//! ```
//!
//! Rules: the keeper never waits for anything but its channel and its tasks, so a shard that does not
//! answer holds up the rooms of that shard and no request for another. Who asked and went away is not
//! missed: what was begun goes on, and is found by its key.

use super::chunks::{Checked, Chunks, Compared};
use super::problems;
use super::request::{FinishRoom, PushChunk, RoleName, StartRoom};
use super::start::{self, Refused};
use super::table::{Filter, Handle, MemoryOver, Phase, Record, Stage, Table, Which};
use super::view::{ChunkView, PoolPages, Room, RoomState};
use crate::daemon::config::Retention;
use crate::daemon::http::Problem;
use crate::daemon::pools::Pools;
use crate::daemon::status::StatusPage;
use crate::daemon::tasks::Turns;
use kvroom::device::Ready;
use kvroom::{Chunk, FinishProblem, LeaseError, Node, Outcome, Pool, RoomKey, SendRoom};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::MissedTickBehavior;

/// How often old rooms are forgotten, if nothing happens meanwhile.
const SWEEP: Duration = Duration::from_secs(1);
/// How often the status page is told of states that nobody posts.
const REFRESH: Duration = Duration::from_millis(50);

/// Requests about one room that may wait until its shard has started it.
const WAITING: usize = 64;

/// A room as the keeper knows it, with the way to wait for more: the stage may be further than the room
/// that is shown, never the other way round.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) room: Room,
    pub(super) stage: watch::Receiver<Stage>,
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// A room to be started.
pub(super) struct Starting {
    pub(super) room: StartRoom,
    /// Whether the room is new, and the room.
    pub(super) reply: Reply<(bool, Seen)>,
}

/// Where a chunk's pages are, and after which event.
pub(super) struct Pushed {
    pub(super) pool: Pool,
    pub(super) ready: Option<Arc<Ready>>,
}

/// What the keeper can be asked.
pub(super) enum Ask {
    /// Start rooms together.
    Start(Vec<Starting>),
    /// Show a room.
    Look(Which, Reply<Seen>),
    /// End a room.
    Abort(Which, String, Reply<Seen>),
    /// Push a chunk of a pool. The answer says whether it is new.
    Push(Which, PushChunk, Pushed, Reply<(bool, ChunkView)>),
    /// No chunk follows. The answer says whether that is new.
    Finish(Which, FinishRoom, Option<Pool>, Reply<(bool, Seen)>),
    /// Show many rooms.
    List(Filter, oneshot::Sender<(Vec<Room>, Option<u64>)>),
    /// Count rooms.
    Count(oneshot::Sender<Counts>),
    /// The node has these legs: who the peers of rooms that send are.
    Met(Vec<(RoomKey, RoleName, Vec<String>)>),
    /// A defect.
    #[cfg(test)]
    Panic,
    /// Another one.
    #[cfg(test)]
    Stand(std::sync::mpsc::Receiver<()>),
}

/// Rooms that are not forgotten, by state and role.
pub(crate) type Counts = BTreeMap<(RoleName, RoomState), u64>;

enum Posted {
    Started(Vec<(u64, Result<Handle, Refused>)>),
    Ended(u64, Outcome),
    MemoryOver(u64, MemoryOver),
}

/// What a turn is for.
enum Work {
    Ask(Ask),
    Posted(Result<Posted, JoinError>),
    Sweep,
    Refresh,
}

/// The task's state.
pub(super) struct Keeper {
    node: Node,
    pools: Pools,
    table: Table,
    tasks: JoinSet<Posted>,
    digests: [RandomState; 2],
}

impl Keeper {
    pub(super) fn new(
        node: Node,
        pools: Pools,
        retention: &Retention,
        page: Option<StatusPage>,
    ) -> Keeper {
        Keeper {
            node,
            pools,
            table: Table::new(retention.ended_rooms, retention.ended_for, page),
            tasks: JoinSet::new(),
            digests: [RandomState::new(), RandomState::new()],
        }
    }

    /// Runs until nobody can ask any more.
    pub(super) async fn run(mut self, mut asks: mpsc::Receiver<Ask>, turns: Turns) {
        let mut sweep = tokio::time::interval(SWEEP);
        let mut refresh = tokio::time::interval(REFRESH);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let work = tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => Work::Ask(ask),
                    None => return,
                },
                Some(posted) = self.tasks.join_next() => Work::Posted(posted),
                _ = sweep.tick() => Work::Sweep,
                _ = refresh.tick() => Work::Refresh,
            };
            let _turn = turns.begin();
            match work {
                Work::Ask(ask) => self.ask(ask),
                Work::Posted(Ok(posted)) => self.posted(posted),
                Work::Posted(Err(e)) => tracing::error!("a task of the rooms failed: {e}"),
                Work::Sweep => self.table.forget(Instant::now()),
                Work::Refresh => self.table.tell_all(),
            }
        }
    }

    fn ask(&mut self, ask: Ask) {
        match ask {
            Ask::Start(rooms) => self.start(rooms),
            Ask::List(filter, reply) => {
                let _ = reply.send(self.table.list(&filter));
            }
            Ask::Count(reply) => {
                let mut counts = Counts::new();
                for record in self.table.all() {
                    *counts.entry((record.role, record.state())).or_default() += 1;
                }
                let _ = reply.send(counts);
            }
            Ask::Met(rooms) => {
                for (key, role, peers) in rooms {
                    let seq = self.table.exactly(key, role);
                    if let Some(record) = seq.and_then(|seq| self.table.get_mut(seq)) {
                        record.peers = peers;
                    }
                }
            }
            #[cfg(test)]
            Ask::Panic => panic!("planted"),
            #[cfg(test)]
            Ask::Stand(until) => drop(until.recv()),
            Ask::Look(which, _)
            | Ask::Abort(which, ..)
            | Ask::Push(which, ..)
            | Ask::Finish(which, ..) => match self.table.find(which) {
                Ok(seq) => self.about(seq, ask),
                Err(problem) => refuse(ask, problem),
            },
        }
    }

    /// Does what is asked about a room that is there; later, if its shard has not answered yet.
    fn about(&mut self, seq: u64, ask: Ask) {
        if let Some(record) = self.table.get_mut(seq)
            && let Phase::Starting(waiting) = &mut record.phase
        {
            // Who only wanted to look and went away is forgotten; what was to be done is not.
            waiting.retain(|ask| !matches!(ask, Ask::Look(_, reply) if reply.is_closed()));
            if waiting.len() < WAITING {
                waiting.push(ask);
            } else {
                refuse(ask, problems::not_started_yet(record.key, WAITING));
            }
            return;
        }
        match ask {
            Ask::Look(_, reply) => {
                let _ = reply.send(self.seen(seq));
            }
            Ask::Abort(_, reason, reply) => {
                if let Some(handle) = self.table.get(seq).and_then(Record::handle) {
                    handle.abort(&reason);
                }
                let _ = reply.send(self.seen(seq));
            }
            Ask::Push(_, chunk, pages, reply) => {
                let _ = reply.send(self.push(seq, chunk, pages));
            }
            Ask::Finish(_, finish, pool, reply) => {
                let _ = reply.send(self.finish(seq, finish, pool));
            }
            Ask::Start(_) | Ask::List(..) | Ask::Count(_) | Ask::Met(_) => {}
            #[cfg(test)]
            Ask::Panic | Ask::Stand(_) => {}
        }
    }

    fn seen(&self, seq: u64) -> Result<Seen, Problem> {
        let record = self.table.get(seq).ok_or_else(forgotten)?;
        Ok(Seen {
            room: record.show(),
            stage: record.stage.subscribe(),
        })
    }

    fn start(&mut self, rooms: Vec<Starting>) {
        let mut fresh = Vec::new();
        for Starting { room, reply } in rooms {
            let (key, role) = key_of(&room);
            let digest = self.digest(&room);
            let Some(seq) = self.table.exactly(key, role) else {
                let seq = self.table.insert(record(key, role, digest, &room));
                self.wait_for_start(seq, true, reply);
                fresh.push((seq, room));
                continue;
            };
            if self
                .table
                .get(seq)
                .is_some_and(|record| record.digest == digest)
            {
                self.wait_for_start(seq, false, reply);
            } else {
                let _ = reply.send(Err(self.taken(seq, key)));
            }
        }
        if !fresh.is_empty() {
            let (node, pools) = (self.node.clone(), self.pools.clone());
            let seqs: Vec<u64> = fresh.iter().map(|(seq, _)| *seq).collect();
            self.tasks.spawn(async move {
                // In a task of its own: a panic in it is the end of these rooms' start, and is told.
                let starting = tokio::spawn(start::start(node, pools, fresh)).await;
                Posted::Started(starting.unwrap_or_else(|_| {
                    let none = seqs.into_iter().map(|seq| (seq, Err(start::broken())));
                    none.collect()
                }))
            });
        }
    }

    /// Answers when the room has been started, or at once if it was before.
    fn wait_for_start(&mut self, seq: u64, new: bool, reply: Reply<(bool, Seen)>) {
        if let Some(record) = self.table.get_mut(seq)
            && let Phase::Starting(_) = record.phase
        {
            record.starters.push((new, reply));
            return;
        }
        let _ = reply.send(self.seen(seq).map(|seen| (false, seen)));
    }

    fn taken(&self, seq: u64, key: RoomKey) -> Problem {
        match self.table.get(seq).and_then(Record::outcome) {
            None => problems::exists(key),
            Some(outcome) => problems::used(key, &outcome),
        }
    }

    fn digest(&self, room: &StartRoom) -> u128 {
        let [a, b] = self.digests.each_ref().map(|state| state.hash_one(room));
        u128::from(a) << 64 | u128::from(b)
    }

    fn push(
        &mut self,
        seq: u64,
        chunk: PushChunk,
        Pushed { pool, ready }: Pushed,
    ) -> Result<(bool, ChunkView), Problem> {
        let checked = Checked::new(chunk, pool.layout())?;
        let record = self.table.get(seq).ok_or_else(forgotten)?;
        let room = sending(record)?;
        let shown = view_of(&checked);
        if record.chunks.compare(&checked)? == Compared::Same {
            return Ok((false, shown));
        }
        if let Some(finished) = &record.finished {
            let text = format!(
                "room {} was finished with {} tokens: no chunk follows",
                record.key, finished.total
            );
            return Err(Problem::conflict(
                "room-finished",
                "The room was finished",
                text,
            ));
        }
        let slot = room.try_reserve().map_err(|e| problems::no_slot(&e))?;
        let lease = pool.lease_read(&checked.pages);
        let lease = lease.map_err(|e| self.not_leased(&checked.pool, &e))?;
        let chunk = Chunk::tokens(checked.tokens.clone()).layers(checked.layers.clone());
        let chunk = chunk.pages(lease);
        let chunk = match ready {
            Some(ready) => chunk.ready(ready),
            None => chunk,
        };
        let pushed = slot
            .push(chunk)
            .map_err(|e| problems::over(&e.to_string(), &e.reason))?;
        if let Some(record) = self.table.get_mut(seq) {
            record.pages = record.pages.saturating_add(checked.pages.len() as u64);
            record.chunks.add(checked);
            let (landed, room) = (Arc::clone(&record.landed), Arc::clone(&room));
            // The pages go back to their pool here; the room's end gives them back at the latest.
            tokio::spawn(async move {
                let back = pushed.back().await;
                let ended_otherwise = matches!(room.try_outcome(), Some(Outcome::Aborted(_)));
                if back.is_some_and(|back| back.bounced.is_none()) && !ended_otherwise {
                    landed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Ok((true, shown))
    }

    fn finish(
        &mut self,
        seq: u64,
        finish: FinishRoom,
        pool: Option<Pool>,
    ) -> Result<(bool, Seen), Problem> {
        let finish = FinishRoom {
            attempt: None,
            ..finish
        };
        let record = self.table.get(seq).ok_or_else(forgotten)?;
        // A repeat is one also when the room is over.
        if let Some(before) = &record.finished {
            if *before == finish {
                return Ok((false, self.seen(seq)?));
            }
            let text = format!(
                "room {} was finished before, with {} tokens or another aux row",
                record.key, before.total
            );
            return Err(Problem::conflict(
                "room-finished",
                "The room was finished",
                text,
            ));
        }
        let room = sending(record)?;
        let aux = match (&finish.aux, pool) {
            (Some(row), Some(pool)) => {
                let lease = pool.lease_read(&[row.page]);
                Some(lease.map_err(|e| self.not_leased(&row.pool, &e))?)
            }
            _ => None,
        };
        room.finish(finish.total, aux).map_err(|e| match &e.why {
            FinishProblem::Ended(ended) => problems::over(&e.to_string(), &ended.reason),
            FinishProblem::Twice(_) | FinishProblem::BadAux(_) => Problem::unusable(e.to_string()),
        })?;
        if let Some(record) = self.table.get_mut(seq) {
            record.finished = Some(finish);
        }
        Ok((true, self.seen(seq)?))
    }

    fn not_leased(&self, pool: &str, error: &LeaseError) -> Problem {
        let holder = match error {
            LeaseError::Held { page, .. } => self.table.holder(pool, *page),
            _ => None,
        };
        problems::not_leased(pool, error, holder)
    }

    fn posted(&mut self, posted: Posted) {
        match posted {
            Posted::Started(rooms) => {
                for (seq, result) in rooms {
                    match result {
                        Ok(handle) => self.started(seq, handle),
                        Err(Refused::Problem(problem)) => self.refused(seq, &problem),
                        Err(Refused::Leased { pool, error }) => {
                            // Its own record names the pages too: it is not in the way of itself.
                            let record = self.table.remove(seq);
                            let problem = self.not_leased(&pool, &error);
                            if let Some(record) = record {
                                refuse_all(record, &problem);
                            }
                        }
                    }
                }
            }
            Posted::Ended(seq, outcome) => {
                let Some(record) = self.table.get_mut(seq) else {
                    return;
                };
                let Some(handle) = record.handle().cloned() else {
                    return;
                };
                record.phase = Phase::Over(outcome, handle.clone());
                record.stage.send_replace(Stage::Ended);
                self.table.tell(seq);
                self.tasks
                    .spawn(async move { Posted::MemoryOver(seq, handle.over().await) });
            }
            Posted::MemoryOver(seq, MemoryOver::Leaked) => {
                let Some(record) = self.table.get_mut(seq) else {
                    return;
                };
                let Some(outcome) = record.outcome() else {
                    return;
                };
                // Its pages stay on it, and nobody is told that they are free.
                record.phase = Phase::Leaked(outcome);
                record.stage.send_replace(Stage::Released);
                self.table.tell(seq);
            }
            Posted::MemoryOver(seq, MemoryOver::Back(proofs, landed)) => {
                let Some(record) = self.table.get_mut(seq) else {
                    return;
                };
                let Some(outcome) = record.outcome() else {
                    return;
                };
                let age = record.since.elapsed();
                record.phase = Phase::Released {
                    outcome,
                    proofs,
                    landed,
                    age,
                };
                record.held = Vec::new();
                record.chunks.forget();
                record.stage.send_replace(Stage::Released);
                self.table.tell(seq);
                let now = Instant::now();
                self.table.released(seq, now);
                self.table.forget(now);
            }
        }
    }

    fn started(&mut self, seq: u64, handle: Handle) {
        let Some(record) = self.table.get_mut(seq) else {
            return;
        };
        let before = std::mem::replace(&mut record.phase, Phase::Live(handle.clone()));
        let starters = std::mem::take(&mut record.starters);
        self.table.tell(seq);
        self.tasks
            .spawn(async move { Posted::Ended(seq, handle.outcome().await) });
        for (new, reply) in starters {
            let _ = reply.send(self.seen(seq).map(|seen| (new, seen)));
        }
        if let Phase::Starting(waiting) = before {
            for ask in waiting {
                self.about(seq, ask);
            }
        }
    }

    fn refused(&mut self, seq: u64, problem: &Problem) {
        if let Some(record) = self.table.remove(seq) {
            refuse_all(record, problem);
        }
    }
}

fn refuse_all(record: Record, problem: &Problem) {
    for (_, reply) in record.starters {
        let _ = reply.send(Err(problem.clone()));
    }
    if let Phase::Starting(waiting) = record.phase {
        let (id, attempt) = (record.key.id.0, record.key.attempt);
        for ask in waiting {
            refuse(ask, problems::unknown(id, Some(attempt), Some(record.role)));
        }
    }
}

fn refuse(ask: Ask, problem: Problem) {
    match ask {
        Ask::Look(_, reply) | Ask::Abort(_, _, reply) => drop(reply.send(Err(problem))),
        Ask::Push(.., reply) => drop(reply.send(Err(problem))),
        Ask::Finish(.., reply) => drop(reply.send(Err(problem))),
        Ask::Start(_) | Ask::List(..) | Ask::Count(_) | Ask::Met(_) => {}
        #[cfg(test)]
        Ask::Panic | Ask::Stand(_) => {}
    }
}

fn forgotten() -> Problem {
    Problem::not_found(
        "no-such-room",
        "There is no such room",
        "the room was forgotten meanwhile",
    )
}

fn sending(record: &Record) -> Result<Arc<SendRoom>, Problem> {
    match (record.handle(), record.outcome()) {
        (Some(Handle::Send(room)), _) => Ok(Arc::clone(room)),
        (None, Some(outcome)) if record.role == RoleName::Send => {
            Err(problems::over_with(record.key, &outcome))
        }
        _ => Err(problems::wrong_role(record.key)),
    }
}

fn view_of(chunk: &Checked) -> ChunkView {
    ChunkView {
        tokens: [chunk.tokens.start, chunk.tokens.end],
        layers: [chunk.layers.start, chunk.layers.end],
        pool: chunk.pool.clone(),
        pages: u32::try_from(chunk.pages.len()).unwrap_or(u32::MAX),
    }
}

fn key_of(room: &StartRoom) -> (RoomKey, RoleName) {
    match room {
        StartRoom::Receive(r) => (RoomKey::new(r.id.0, r.attempt), RoleName::Receive),
        StartRoom::Send(s) => (RoomKey::new(s.id.0, s.attempt), RoleName::Send),
    }
}

fn record(key: RoomKey, role: RoleName, digest: u128, room: &StartRoom) -> Record {
    let (tag, retry_of, traceparent) = match room {
        StartRoom::Receive(r) => (r.tag.clone(), r.retry_of, r.traceparent.clone()),
        StartRoom::Send(s) => (s.tag.clone(), s.retry_of, s.traceparent.clone()),
    };
    let (mut peers, mut held, mut pages) = (Vec::new(), Vec::new(), 0);
    if let StartRoom::Receive(r) = room {
        peers = r.from.iter().map(|from| from.peer().to_owned()).collect();
        for one in &r.pages {
            pages += one.pages.len() as u64;
            held.push(PoolPages {
                pool: one.pool.clone(),
                pages: one.pages.clone(),
            });
        }
        if let Some(row) = &r.aux {
            held.push(PoolPages {
                pool: row.pool.clone(),
                pages: vec![row.page],
            });
        }
    }
    Record {
        key,
        role,
        digest,
        tag,
        retry_of,
        traceparent,
        peers,
        pages,
        held,
        since: Instant::now(),
        phase: Phase::Starting(Vec::new()),
        starters: Vec::new(),
        stage: watch::channel(Stage::Alive).0,
        chunks: Chunks::default(),
        landed: Arc::new(AtomicU32::new(0)),
        finished: None,
        slot: None,
    }
}
