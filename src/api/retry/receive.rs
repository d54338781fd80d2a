//! The decode side of a room that is tried again.

use super::super::block::block_on;
use super::super::error::StartError;
use super::super::receive::{ReceiveBuilder, ReceiveRoom};
use super::super::send::Launched;
use super::policy::{Next, Retry, Tries};
use kvroom_actors::memory::WriteLease;
use kvroom_actors::room::Outcome;
use std::time::Instant;

/// Destination pages of a new try: leases of the same pools, of as many pages, as the first ones.
#[derive(Debug, Default)]
pub struct Pages {
    /// One lease a pool.
    pub leases: Vec<WriteLease>,
    /// The aux row, if the room has one.
    pub aux: Option<WriteLease>,
}

/// A decode room that is tried again when its path fails. Dropping it aborts the present try; pages of all
/// tries go back to their pools when that is proven to be right.
#[must_use = "whoever waits for its outcome has it tried again"]
pub struct RetriedReceive<F> {
    tries: Tries,
    since: Instant,
    /// The first one, without its pages.
    like: ReceiveBuilder,
    /// Oldest first; there is one at least.
    rooms: Vec<ReceiveRoom>,
    pages: F,
    /// A new try that its shard has not answered for yet.
    starting: Option<Launched<ReceiveRoom>>,
    /// The caller wants no more tries.
    over: bool,
}

impl<F> std::fmt::Debug for RetriedReceive<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetriedReceive")
            .field("tries", &self.tries)
            .field("rooms", &self.rooms)
            .finish_non_exhaustive()
    }
}

impl ReceiveBuilder {
    /// Starts the room, to be tried again if the path to a sender fails ([`Retry`]). `pages` is asked for other
    /// pages for each new try, with the room that failed: those of that one may still be written, and come back
    /// by it. None is for no further try. The room's deadline is for all tries together; a new one's claims wait
    /// for the next session with their peers, for [`Deadlines::resume`](crate::Deadlines) at most.
    ///
    /// The senders have to be started by [`SendBuilder::start_retried`](crate::SendBuilder::start_retried).
    ///
    /// # Errors
    /// As [`ReceiveBuilder::start`].
    pub async fn start_retried<F>(
        self,
        retry: Retry,
        pages: F,
    ) -> Result<RetriedReceive<F>, StartError>
    where
        F: FnMut(&ReceiveRoom) -> Option<Pages>,
    {
        let like = self.without_pages();
        let tries = Tries {
            retry,
            first: like.key().attempt,
            again: 0,
            deadline: like.time(),
        };
        let since = Instant::now();
        let room = self.start().await?;
        Ok(RetriedReceive {
            tries,
            since,
            like,
            rooms: vec![room],
            pages,
            starting: None,
            over: false,
        })
    }

    /// As [`ReceiveBuilder::start_retried`], on a plain thread.
    ///
    /// # Errors
    /// As [`ReceiveBuilder::start`].
    pub fn blocking_start_retried<F>(
        self,
        retry: Retry,
        pages: F,
    ) -> Result<RetriedReceive<F>, StartError>
    where
        F: FnMut(&ReceiveRoom) -> Option<Pages>,
    {
        block_on(self.start_retried(retry, pages))
    }
}

impl<F> RetriedReceive<F> {
    /// All tries, oldest first; the last one is the present one.
    pub fn rooms(&self) -> &[ReceiveRoom] {
        &self.rooms
    }

    /// All tries, oldest first: each still has the pages that were given for it.
    pub fn into_rooms(self) -> Vec<ReceiveRoom> {
        self.rooms
    }

    /// Ends the present try, and there is no other one.
    pub fn abort(&mut self, reason: impl Into<String>) {
        self.over = true;
        self.starting = None;
        if let Some(room) = self.rooms.last() {
            room.abort(reason);
        }
    }
}

impl<F: FnMut(&ReceiveRoom) -> Option<Pages>> RetriedReceive<F> {
    /// Waits for the outcome of the last try, and starts those that it takes. It may be dropped and called
    /// again: the present try goes on meanwhile, and no other one is begun.
    ///
    /// If a new try cannot be started (there are no pages for it, or a limit is reached), the outcome is that
    /// of the one before.
    pub async fn outcome(&mut self) -> Outcome {
        loop {
            let Some(room) = self.rooms.last() else {
                unreachable!("there is a room from the start");
            };
            let outcome = room.outcome().await;
            let next = self.tries.next(&outcome, self.since.elapsed());
            let Some(next) = next.filter(|_| !self.over) else {
                return outcome;
            };
            match self.again(next).await {
                Ok(Some(room)) => {
                    self.rooms.push(room);
                    self.tries.again += 1;
                }
                Ok(None) => return outcome,
                Err(error) => {
                    let room = self.like.key().id;
                    tracing::warn!(%room, attempt = next.attempt, %error, "a room is not tried again");
                    return outcome;
                }
            }
        }
    }

    /// As [`RetriedReceive::outcome`], on a plain thread.
    pub fn blocking_outcome(&mut self) -> Outcome {
        block_on(self.outcome())
    }

    /// Starts the next try. What it is at is kept, so that whoever drops this waits for the same one the next time.
    async fn again(&mut self, next: Next) -> Result<Option<ReceiveRoom>, StartError> {
        if self.starting.is_none() {
            let Some(builder) = self.builder(next) else {
                return Ok(None);
            };
            self.starting = Some(builder.launch(None).await?);
        }
        if let Some(starting) = &mut self.starting {
            let answer = starting.answered().await;
            let room = self.starting.take().map(|starting| starting.room);
            return answer.map(|()| room);
        }
        Ok(None)
    }

    fn builder(&mut self, next: Next) -> Option<ReceiveBuilder> {
        let pages = (self.pages)(self.rooms.last()?)?;
        let mut builder = self.like.without_pages().attempt(next.attempt);
        builder = builder.retry_of(next.retry_of);
        if let Some(left) = next.deadline {
            builder = builder.deadline(left);
        }
        for lease in pages.leases {
            builder = builder.into(lease);
        }
        if let Some(aux) = pages.aux {
            builder = builder.aux(aux);
        }
        Some(builder)
    }
}
