//! Many operations in one request.
//!
//! Operations are done in order; starts that follow each other are done together, with one wait. If
//! the connection breaks in the middle, what was done stays done, and the same batch again completes it.

use super::request::{
    AbortOperation, Batch, ChunkOperation, FinishOperation, FinishRoom, GetOperation, MAX_BATCH,
    Operation, PushChunk, StartRoom,
};
use super::routes;
use super::view::{BatchResult, BatchResults, ChunkTaken};
use super::wait;
use crate::daemon::App;
use crate::daemon::http::{Json, Problem};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

/// Does many operations in one request, in their order.
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
    let mut results = Vec::with_capacity(count);
    let mut starts = Vec::new();
    for operation in batch.operations {
        if let Operation::Start(room) = operation {
            starts.push(room);
            continue;
        }
        start(&app, std::mem::take(&mut starts), &mut results).await;
        results.push(one(&app, operation).await);
    }
    start(&app, starts, &mut results).await;
    Ok(Answer(BatchResults { results }))
}

async fn start(app: &App, rooms: Vec<StartRoom>, results: &mut Vec<BatchResult>) {
    if rooms.is_empty() {
        return;
    }
    let started = routes::start_all(app, rooms).await;
    results.extend(started.into_iter().map(result));
}

async fn one(app: &App, operation: Operation) -> BatchResult {
    match operation {
        Operation::Start(room) => {
            let mut started = routes::start_all(app, vec![room]).await;
            result(started.pop().unwrap_or_else(|| Err(Problem::stopping())))
        }
        Operation::Chunk(operation) => {
            let ChunkOperation {
                id,
                attempt,
                tokens,
                layers,
                pool,
                pages,
            } = operation;
            let chunk = PushChunk {
                attempt,
                tokens,
                layers,
                pool,
                pages,
            };
            let pushed = routes::push(app, id.0, chunk).await;
            result(pushed.map(|(status, chunk)| (status, ChunkTaken { chunk })))
        }
        Operation::Finish(operation) => {
            let FinishOperation {
                id,
                attempt,
                total,
                aux,
            } = operation;
            result(
                routes::finished(
                    app,
                    id.0,
                    FinishRoom {
                        attempt,
                        total,
                        aux,
                    },
                )
                .await,
            )
        }
        Operation::Abort(operation) => {
            let AbortOperation {
                id,
                attempt,
                role,
                reason,
            } = operation;
            let room = routes::abort(app, wait::which(id.0, attempt, role), reason).await;
            result(room.map(|room| (StatusCode::ACCEPTED, room)))
        }
        Operation::Get(GetOperation { id, attempt, role }) => {
            let room = routes::show(app, wait::which(id.0, attempt, role), None).await;
            result(room.map(|room| (StatusCode::OK, room)))
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
