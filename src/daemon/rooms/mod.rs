//! Rooms that were started over HTTP: one task owns their handles.
//!
//! ```text
//!   routes, batch ─▶ Rooms ── Ask ──▶ Keeper (table of rooms, handles) ─▶ kvroom::Node
//!        └── what only a shard knows (legs, why memory is held) is asked of it, for the rooms shown
//! ```
//!
//! Rules: a room is started by its key once; the same request again shows the room it started. A room
//! that was started goes on whether its client is there or not, until it ends, its deadline passes, or
//! somebody aborts it. Rooms that are over stay readable as `[retention]` says.

mod batch;
mod chunks;
mod keeper;
mod problems;
mod request;
mod routes;
mod start;
mod table;
mod view;
mod wait;

pub(crate) use keeper::Counts;
pub(crate) use request::RoleName;
pub(crate) use view::{RoomState, Why};

use super::config::Config;
use super::http::{BEGINNING, Problem, QUESTION, Routes, answered};
use super::pools::Pools;
use super::status::StatusPage;
use super::tasks::{Tasks, Without};
use keeper::{Ask, Keeper, Pushed, Reply, Seen, Starting};
use kvroom::Node;
use kvroom::device::Ready;
use request::{FinishRoom, PushChunk, StartRoom};
use std::sync::Arc;
use std::time::Instant;
use table::{Filter, Which};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use view::{ChunkView, Room};

/// The name of the task.
const KEEPER: &str = "rooms keeper";
/// Questions that may wait for the keeper.
const QUEUE: usize = 1_024;

/// Asks the task that owns the rooms. Clones ask the same one.
#[derive(Clone)]
pub(crate) struct Rooms {
    asks: mpsc::Sender<Ask>,
    /// To say which part of it does not answer.
    node: Node,
}

impl Rooms {
    /// Starts the task.
    pub(crate) fn start(
        node: Node,
        pools: Pools,
        config: &Config,
        page: Option<StatusPage>,
        tasks: &Tasks,
    ) -> Rooms {
        let (asks, queue) = mpsc::channel(QUEUE);
        let keeper = Keeper::new(node.clone(), pools, &config.retention, page);
        let keeping = |turns| keeper.run(queue, turns);
        tasks.spawn_in_turns(KEEPER, Without::NotAlive, keeping);
        Rooms { asks, node }
    }

    /// How many rooms there are, by role and state; those that are remembered among them.
    pub(crate) async fn counts(&self) -> Counts {
        let (reply, answer) = oneshot::channel();
        if self.asks.send(Ask::Count(reply)).await.is_err() {
            return Counts::new();
        }
        answer.await.unwrap_or_default()
    }

    /// Has the task panic.
    #[cfg(test)]
    pub(crate) async fn panic(&self) {
        let _ = self.asks.send(Ask::Panic).await;
    }

    /// Has the task stand still until the other end is dropped.
    #[cfg(test)]
    pub(crate) async fn stand(&self, until: std::sync::mpsc::Receiver<()>) {
        let _ = self.asks.send(Ask::Stand(until)).await;
    }

    /// Starts rooms; each answer says whether the room is new.
    async fn start_all(&self, rooms: Vec<StartRoom>) -> Vec<Result<(bool, Seen), Problem>> {
        let (mut ask, mut answers) = (
            Vec::with_capacity(rooms.len()),
            Vec::with_capacity(rooms.len()),
        );
        for room in rooms {
            let (reply, answer) = oneshot::channel();
            ask.push(Starting { room, reply });
            answers.push(answer);
        }
        // If nobody takes it, every answer says so.
        let _ = self.asks.send(Ask::Start(ask)).await;
        let deadline = Instant::now() + BEGINNING;
        let mut started = Vec::with_capacity(answers.len());
        let mut late = None;
        for mut answer in answers {
            let answer = match &late {
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    answered(&self.node, left, answer).await
                }
                // The deadline is over: who has answered by then has.
                Some(problem) => match answer.try_recv() {
                    Err(TryRecvError::Empty) => Err(Problem::clone(problem)),
                    Err(TryRecvError::Closed) => Err(Problem::is_over(KEEPER)),
                    Ok(answer) => Ok(Ok(answer)),
                },
            };
            late = late.or_else(|| answer.as_ref().err().cloned());
            started.push(answer.and_then(|a| a.unwrap_or_else(|_| Err(Problem::is_over(KEEPER)))));
        }
        started
    }

    async fn look(&self, which: Which) -> Result<Seen, Problem> {
        self.ask(|reply| Ask::Look(which, reply)).await
    }

    async fn abort(&self, which: Which, reason: String) -> Result<Seen, Problem> {
        self.ask(|reply| Ask::Abort(which, reason, reply)).await
    }

    async fn push(
        &self,
        which: Which,
        chunk: PushChunk,
        pool: kvroom::Pool,
        ready: Option<Arc<Ready>>,
    ) -> Result<(bool, ChunkView), Problem> {
        let pages = Pushed { pool, ready };
        self.ask(|reply| Ask::Push(which, chunk, pages, reply))
            .await
    }

    async fn finish(
        &self,
        which: Which,
        finish: FinishRoom,
        pool: Option<kvroom::Pool>,
    ) -> Result<(bool, Seen), Problem> {
        self.ask(|reply| Ask::Finish(which, finish, pool, reply))
            .await
    }

    async fn list(&self, filter: Filter) -> Result<(Vec<Room>, Option<u64>), Problem> {
        let (reply, answer) = oneshot::channel();
        let sent = self.asks.send(Ask::List(filter, reply)).await;
        sent.map_err(|_| Problem::is_over(KEEPER))?;
        answer.await.map_err(|_| Problem::is_over(KEEPER))
    }

    async fn ask<T>(&self, ask: impl FnOnce(Reply<T>) -> Ask) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        let sent = self.asks.send(ask(reply)).await;
        sent.map_err(|_| Problem::is_over(KEEPER))?;
        // The keeper answers at once, but about a room whose shard has not said that it was started.
        let answer = answered(&self.node, QUESTION, answer).await?;
        answer.unwrap_or_else(|_| Err(Problem::is_over(KEEPER)))
    }
}

/// The routes of this part.
pub(crate) fn routes() -> Routes {
    routes::all()
}
