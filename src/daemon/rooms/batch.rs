//! Many operations in one request.
//!
//! Operations are done in order; those of one kind that follow each other are done together, with one
//! wait. If the connection breaks in the middle, what was done stays done, and the same batch again
//! completes it. A batch has one bound for all of it: what a shard that stands still leaves no time for is
//! answered with `not-answering` and was not begun.

use super::request::{
    AbortOperation, Batch, ChunkOperation, FinishOperation, FinishRoom, MAX_BATCH, Operation,
    PushChunk,
};
use super::routes;
use super::table::Which;
use super::view::{BatchResult, BatchResults, ChunkTaken};
use super::wait;
use crate::daemon::App;
use crate::daemon::http::{Json, Problem};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// How long a batch may take, whatever is in it.
const BATCH: Duration = Duration::from_secs(15);

/// Does many operations in one request, in their order. All of them have 15 seconds; what is left then is
/// answered with 503, `not-answering`, each.
#[utoipa::path(post, path = "/v1/batch", tag = "rooms", request_body = Batch,
    responses((status = 200, description = "An answer for each operation, in their order.", body = BatchResults)))]
pub(super) async fn batch(
    State(app): State<App>,
    Json(batch): Json<Batch>,
) -> Result<Answer<BatchResults>, Problem> {
    let count = batch.operations.len();
    if count > MAX_BATCH {
        let text = format!(
            "{count} operations; a batch has at most {MAX_BATCH}: send the rest in another"
        );
        return Err(Problem::unusable(text));
    }
    let within = BATCH.min(app.config().http.request_timeout * 3 / 4);
    let until = Instant::now() + within;
    let mut results = Vec::with_capacity(count);
    let mut left = batch.operations.into_iter().peekable();
    while let Some(first) = left.next() {
        let mut run = vec![first];
        while let Some(more) = left.next_if(|more| kind(more) == kind(&run[0])) {
            run.push(more);
        }
        let these = run.len();
        let done = match Instant::now() < until {
            true => tokio::time::timeout_at(until, together(&app, run)).await,
            false => {
                let text = format!(
                    "it was not begun: operations before it took {within:?}, which is all the time of a batch; \
                     GET /readyz says more, then send it again, without those"
                );
                let late = || result::<()>(Err(not_answering(&text)));
                results.extend(std::iter::repeat_with(late).take(these));
                continue;
            }
        };
        match done {
            Ok(done) => results.extend(done),
            Err(_) => {
                let text = format!(
                    "it was not done within the {within:?} that a batch has, and may still happen: GET /readyz \
                     says more, then look, or send it again"
                );
                let late = || result::<()>(Err(not_answering(&text)));
                results.extend(std::iter::repeat_with(late).take(these));
            }
        }
    }
    Ok(Answer(BatchResults { results }))
}

fn not_answering(text: &str) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "not-answering",
        "A part of the node does not answer",
        text,
    )
    .retry_after(1)
}

/// What is done together.
#[derive(PartialEq, Eq)]
enum Kind {
    Start,
    Push,
    Abort,
    Get,
}

fn kind(operation: &Operation) -> Kind {
    match operation {
        Operation::Start(_) => Kind::Start,
        Operation::Chunk(_) | Operation::Finish(_) => Kind::Push,
        Operation::Abort(_) => Kind::Abort,
        Operation::Get(_) => Kind::Get,
    }
}

/// Operations of one kind. All are on their way to the keeper, in their order, before any is waited for.
async fn together(app: &App, run: Vec<Operation>) -> Vec<BatchResult> {
    let (mut starts, mut gets, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for operation in run {
        match operation {
            Operation::Start(room) => starts.push(room),
            Operation::Get(get) => gets.push(wait::which(get.id.0, get.attempt, get.role)),
            Operation::Chunk(chunk) => others.push(Other::Chunk(chunk)),
            Operation::Finish(finish) => others.push(Other::Finish(finish)),
            Operation::Abort(abort) => others.push(Other::Abort(abort)),
        }
    }
    let mut results = Vec::new();
    if !starts.is_empty() {
        let started = routes::start_all(app, starts).await;
        results.extend(started.into_iter().map(result));
    }
    results.extend(show(app, gets).await);
    results.extend(all(others.into_iter().map(|other| one(app, other))).await);
    results
}

async fn show(app: &App, which: Vec<Which>) -> Vec<BatchResult> {
    let seen = all(which.into_iter().map(|which| app.rooms().look(which))).await;
    let (mut rooms, mut problems) = (Vec::with_capacity(seen.len()), Vec::new());
    for seen in seen {
        match seen {
            Ok(seen) => {
                rooms.push(seen.room);
                problems.push(None);
            }
            Err(problem) => problems.push(Some(problem)),
        }
    }
    wait::complete(app.rooms(), app.node(), &mut rooms).await;
    let mut rooms = rooms.into_iter();
    let shown = problems.into_iter().filter_map(|problem| match problem {
        Some(problem) => Some(Err(problem)),
        None => rooms.next().map(|room| Ok((StatusCode::OK, room))),
    });
    shown.map(result).collect()
}

/// Awaits all of these, each begun in its order; what they give, in order.
async fn all<F: Future>(these: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut these: Vec<_> = these.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        let mut waits = false;
        for (one, given) in &mut these {
            if given.is_none() {
                match one.as_mut().poll(context) {
                    Poll::Ready(is) => *given = Some(is),
                    Poll::Pending => waits = true,
                }
            }
        }
        if waits {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    these.into_iter().filter_map(|(_, given)| given).collect()
}

/// An operation on one room that is there.
enum Other {
    Chunk(ChunkOperation),
    Finish(FinishOperation),
    Abort(AbortOperation),
}

async fn one(app: &App, operation: Other) -> BatchResult {
    match operation {
        Other::Chunk(operation) => {
            let ChunkOperation {
                id,
                attempt,
                tokens,
                layers,
                pool,
                pages,
                ready,
            } = operation;
            let chunk = PushChunk {
                attempt,
                tokens,
                layers,
                pool,
                pages,
                ready,
            };
            let pushed = routes::push(app, id.0, chunk).await;
            result(pushed.map(|(status, chunk)| (status, ChunkTaken { chunk })))
        }
        Other::Finish(operation) => {
            let FinishOperation {
                id,
                attempt,
                total,
                aux,
            } = operation;
            let finish = FinishRoom {
                attempt,
                total,
                aux,
            };
            result(routes::finished(app, id.0, finish).await)
        }
        Other::Abort(operation) => {
            let AbortOperation {
                id,
                attempt,
                role,
                reason,
            } = operation;
            let room = routes::abort(app, wait::which(id.0, attempt, role), reason).await;
            result(room.map(|room| (StatusCode::ACCEPTED, room)))
        }
    }
}

fn result<T: Serialize>(answer: Result<(StatusCode, T), Problem>) -> BatchResult {
    let (status, body) = match answer {
        Ok((status, body)) => (status.as_u16(), serde_json::to_value(body)),
        Err(problem) => (problem.status, serde_json::to_value(problem)),
    };
    BatchResult {
        status,
        body: body.unwrap_or_default(),
    }
}
