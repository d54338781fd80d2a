//! The prefill side of a room that is tried again.

use super::super::block::block_on;
use super::super::chunk::Chunk;
use super::super::error::{Ended, FinishProblem, StartError, StartErrorKind};
use super::super::send::{Launched, SendBuilder, SendRoom};
use super::policy::{Next, Retry, Tries};
use kvroom_actors::memory::ReadLease;
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::room::Outcome;
use std::time::Instant;

/// A prefill room that is tried again when its path fails. It keeps what was pushed, and pushes it again into
/// each new try. Dropping it aborts the present one.
#[derive(Debug)]
#[must_use = "whoever waits for its outcome has it tried again"]
pub struct RetriedSend {
    tries: Tries,
    since: Instant,
    like: SendBuilder,
    /// Oldest first; there is one at least.
    rooms: Vec<SendRoom>,
    /// What was pushed: each try reads the pages by leases of its own.
    kept: Vec<Chunk>,
    /// How many of these the present try has.
    pushed: usize,
    finish: Option<Finish>,
    /// A new try that its shard has not answered for yet.
    starting: Option<Launched<SendRoom>>,
    /// The caller wants no more tries.
    over: bool,
}

/// What `finish` said.
#[derive(Debug)]
struct Finish {
    total: u64,
    aux: Option<ReadLease>,
    /// The present try was told.
    said: bool,
}

impl SendBuilder {
    /// Starts the room, to be tried again if the path to a receiver fails ([`Retry`]). The room's deadline is for
    /// all tries together.
    ///
    /// The receivers have to be started by
    /// [`ReceiveBuilder::start_retried`](crate::ReceiveBuilder::start_retried). A receiver that was done, and
    /// whose word of it was lost with the path, begins no new try, nor does one that has no other pages: then
    /// the last try here ends at the deadline.
    ///
    /// # Errors
    /// As [`SendBuilder::start`].
    pub async fn start_retried(self, retry: Retry) -> Result<RetriedSend, StartError> {
        let like = self.clone();
        let tries = Tries {
            retry,
            first: like.key().attempt,
            again: 0,
            deadline: like.time(),
        };
        let since = Instant::now();
        let room = self.start().await?;
        Ok(RetriedSend {
            tries,
            since,
            like,
            rooms: vec![room],
            kept: Vec::new(),
            pushed: 0,
            finish: None,
            starting: None,
            over: false,
        })
    }

    /// As [`SendBuilder::start_retried`], on a plain thread.
    ///
    /// # Errors
    /// As [`SendBuilder::start`].
    pub fn blocking_start_retried(self, retry: Retry) -> Result<RetriedSend, StartError> {
        block_on(self.start_retried(retry))
    }
}

impl RetriedSend {
    /// All tries, oldest first; the last one is the present one.
    pub fn rooms(&self) -> &[SendRoom] {
        &self.rooms
    }

    /// Hands a chunk over, waiting for room for it. Its lease is kept until all of it is over, for a new try
    /// may read its pages. If the future is dropped the chunk is kept nonetheless, and goes out with the next
    /// one, or while [`RetriedSend::outcome`] is waited for.
    ///
    /// # Errors
    /// The room is over, and is not tried again.
    pub async fn push(&mut self, chunk: Chunk) -> Result<(), Ended> {
        self.kept.push(chunk);
        loop {
            let Err(ended) = self.catch_up().await else {
                return Ok(());
            };
            if !self.next_try().await {
                return Err(ended);
            }
        }
    }

    /// As [`RetriedSend::push`], on a plain thread.
    ///
    /// # Errors
    /// The room is over, and is not tried again.
    pub fn blocking_push(&mut self, chunk: Chunk) -> Result<(), Ended> {
        block_on(self.push(chunk))
    }

    /// Says that no chunk follows, as [`SendRoom::finish`]; what it says again does not count. It goes out while
    /// [`RetriedSend::outcome`] is waited for, and what is wrong with it shows there.
    pub fn finish(&mut self, total_tokens: u64, aux: Option<ReadLease>) {
        if self.finish.is_none() {
            let (total, said) = (total_tokens, false);
            self.finish = Some(Finish { total, aux, said });
        }
    }

    /// Pushes what the present try has not yet, and waits for the outcome of the last try; starts those that it
    /// takes. It may be dropped and called again.
    pub async fn outcome(&mut self) -> Outcome {
        loop {
            // Its end shows below.
            let _ = self.catch_up().await;
            let outcome = self.room().outcome().await;
            if !self.next_try().await {
                return outcome;
            }
        }
    }

    /// As [`RetriedSend::outcome`], on a plain thread.
    pub fn blocking_outcome(&mut self) -> Outcome {
        block_on(self.outcome())
    }

    /// Ends the present try, and there is no other one.
    pub fn abort(&mut self, reason: impl Into<String>) {
        self.over = true;
        self.starting = None;
        self.room().abort(reason);
    }

    /// Waits until no try reads any page any more, and gives back what was pushed, in order, and the aux row.
    /// Aborts what is not over.
    pub async fn released(mut self) -> (Vec<ReadLease>, Option<ReadLease>) {
        self.abort("its pages are wanted back");
        for room in &self.rooms {
            drop(room.released().await);
        }
        let kept = std::mem::take(&mut self.kept).into_iter();
        let aux = self.finish.take().and_then(|finish| finish.aux);
        (kept.map(Chunk::into_lease).collect(), aux)
    }

    fn room(&self) -> &SendRoom {
        match self.rooms.last() {
            Some(room) => room,
            None => unreachable!("there is a room from the start"),
        }
    }

    /// Tells the present try what it was not told yet.
    async fn catch_up(&mut self) -> Result<(), Ended> {
        while let Some(chunk) = self.kept.get(self.pushed) {
            let room = self.room();
            let slot = room.reserve().await?;
            let again = chunk.again().map_err(|why| self.unusable(why))?;
            slot.push(again).map_err(|error| Ended {
                key: error.key,
                reason: error.reason,
            })?;
            self.pushed += 1;
        }
        let Some(Finish { total, aux, said }) = &self.finish else {
            return Ok(());
        };
        if *said {
            return Ok(());
        }
        let aux = aux
            .as_ref()
            .map(|lease| lease.pool().lease_read(lease.pages()));
        let aux = aux
            .transpose()
            .map_err(|why| self.unusable(why.to_string()))?;
        if let Err(error) = self.room().finish(*total, aux) {
            return Err(match error.why {
                FinishProblem::Ended(ended) => ended,
                why @ (FinishProblem::Twice(_) | FinishProblem::BadAux(_)) => {
                    self.unusable(why.to_string())
                }
            });
        }
        if let Some(finish) = &mut self.finish {
            finish.said = true;
        }
        Ok(())
    }

    /// Ends the present try for what is wrong with what it was to be told.
    fn unusable(&self, why: String) -> Ended {
        let room = self.room();
        let reason = Reason::new(Code::BadChunk, why);
        room.end(reason.clone());
        Ended {
            key: room.key(),
            reason,
        }
    }

    /// Starts the next try, if the present one's end says so.
    async fn next_try(&mut self) -> bool {
        let outcome = self.room().outcome().await;
        let next = self.tries.next(&outcome, self.since.elapsed());
        let Some(Next {
            attempt,
            retry_of,
            deadline,
        }) = next.filter(|_| !self.over)
        else {
            return false;
        };
        if self.starting.is_none() {
            let mut builder = self.like.clone().attempt(attempt).retry_of(retry_of);
            if let Some(left) = deadline {
                builder = builder.deadline(left);
            }
            match builder.launch(None).await {
                Ok(starting) => self.starting = Some(starting),
                Err(error) => return self.is_not_tried(attempt, &error),
            }
        }
        // Kept until the shard has answered: whoever drops this waits for the same try the next time.
        let answer = match &mut self.starting {
            Some(starting) => starting.answered().await,
            None => return false,
        };
        let starting = self.starting.take();
        match answer {
            Ok(()) => {
                self.rooms.extend(starting.map(|starting| starting.room));
                self.tries.again += 1;
                self.pushed = 0;
                if let Some(finish) = &mut self.finish {
                    finish.said = false;
                }
                true
            }
            Err(error) => self.is_not_tried(attempt, &error.kind),
        }
    }

    fn is_not_tried(&self, attempt: u32, error: &StartErrorKind) -> bool {
        let room = self.like.key().id;
        tracing::warn!(%room, attempt, %error, "a room is not tried again");
        false
    }
}
