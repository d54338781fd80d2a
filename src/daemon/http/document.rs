//! The OpenAPI document: what the routes say of themselves, and what is true of all of them.

use super::Problem;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{Content, InfoBuilder, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{PartialSchema, ToSchema};

/// What any route may answer.
const ALL: &[(&str, &str)] = &[
    ("400", "A part of the request cannot be read."),
    (
        "401",
        "Who asks is not known: a token is set and was not sent.",
    ),
    ("408", "The request was not sent and done in time."),
    (
        "421",
        "The header `Host` has a name that is not this machine's, and no token is set.",
    ),
    (
        "429",
        "More requests come than the rate allows; for a chunk, its room's window is full.",
    ),
    (
        "503",
        "`limit-reached`, naming the limit; `not-answering`, naming the part of the node; or `stopping`.",
    ),
];

/// What any route with a body may answer besides.
const WITH_BODY: &[(&str, &str)] = &[
    ("413", "The body is too large."),
    ("415", "The body is not said to be JSON."),
    ("422", "The body can be read, and cannot be meant."),
];

/// Adds what is true of all routes.
pub(super) fn complete(mut document: OpenApi) -> OpenApi {
    document.info = InfoBuilder::new()
        .title("kvroom")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Moves the KV cache of LLM requests between engines and proves when memory may be reused. \
             Every error is a problem document (RFC 9457) with a stable `code`. Numbers of 64 bits are \
             strings in answers; requests take strings and numbers.",
        ))
        .build();
    let components = document.components.get_or_insert_with(Default::default);
    let name = Problem::name().into_owned();
    components.schemas.insert(name, Problem::schema());
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            add(operation, ALL);
            if operation.request_body.is_some() {
                add(operation, WITH_BODY);
            }
        }
    }
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let all = [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.patch,
    ];
    all.into_iter().flatten()
}

fn add(operation: &mut Operation, answers: &[(&str, &str)]) {
    for (status, text) in answers {
        let responses = &mut operation.responses.responses;
        responses.entry((*status).to_owned()).or_insert_with(|| {
            let schema = Ref::from_schema_name(Problem::name());
            let content = Content::new(Some(RefOr::<utoipa::openapi::Schema>::Ref(schema)));
            let response = ResponseBuilder::new().description(*text);
            RefOr::T(
                response
                    .content("application/problem+json", content)
                    .build(),
            )
        });
    }
}
