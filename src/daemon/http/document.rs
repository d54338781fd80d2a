//! The OpenAPI document: what the routes say of themselves, and what is true of all of them.
//!
//! ```text
//!   #[utoipa::path] of each route ─▶ complete ─▶ to_json ─▶ GET /openapi.json
//!                                      │            └ tagged objects that take no other field, in one piece
//!                                      └ what any route may answer; the document's own route
//! ```

use super::Problem;
use serde_json::{Map, Value, json};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, InfoBuilder, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{PartialSchema, ToSchema};

/// How who asks is known.
const TOKEN: &str = "token";

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

/// What any route may answer without a body: the request did not come to where problems are told.
const BARE: &[(&str, &str)] = &[(
    "431",
    "The line and the headers are larger than `http.max_header_bytes`. There is no body.",
)];

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
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "The token of `http.token_file`, if the daemon has one.",
        ));
    components.add_security_scheme(TOKEN, SecurityScheme::Http(token.build()));
    // Without a token whoever reaches it may ask.
    document.security = Some(vec![
        SecurityRequirement::default(),
        SecurityRequirement::new(TOKEN, Vec::<String>::new()),
    ]);
    let name = Problem::name().into_owned();
    components.schemas.insert(name, Problem::schema());
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            add(operation, ALL);
            for (status, text) in BARE {
                let response = ResponseBuilder::new().description(*text).build();
                let responses = &mut operation.responses.responses;
                responses.insert((*status).to_owned(), RefOr::T(response));
            }
            if operation.request_body.is_some() {
                add(operation, WITH_BODY);
            }
        }
    }
    document
}

/// The document as it is served.
pub(super) fn to_json(document: &OpenApi) -> Vec<u8> {
    let mut value = serde_json::to_value(document).unwrap_or_default();
    if let Some(Value::Object(schemas)) = value.pointer_mut("/components/schemas") {
        let before = schemas.clone();
        for schema in schemas.values_mut() {
            in_one_piece(schema, &before);
        }
    }
    serde_json::to_vec(&value).unwrap_or_default()
}

/// An object that takes no other field, and a tag beside it, are each right and match nothing together: the tag
/// is the other field. The tag becomes a field of the object.
fn in_one_piece(schema: &mut Value, all: &Map<String, Value>) {
    let Some(Value::Array(branches)) = schema.get_mut("oneOf") else {
        return;
    };
    for branch in branches {
        if let Some([object, tag]) = branch["allOf"].as_array().map(Vec::as_slice)
            && let Some(mut joined) = joined(object, tag, all)
        {
            if let Some(text) = branch.get("description") {
                joined["description"] = text.clone();
            }
            *branch = joined;
        }
    }
}

/// The object with the tag's fields; none if it is not one that takes no other field.
fn joined(object: &Value, tag: &Value, all: &Map<String, Value>) -> Option<Value> {
    let name = object["$ref"].as_str();
    let name = name.and_then(|name| name.strip_prefix("#/components/schemas/"));
    let mut object = name.map_or(object, |name| &all[name]).clone();
    if object.get("oneOf").is_some() {
        in_one_piece(&mut object, all);
        let branches = object["oneOf"].as_array()?.iter();
        let branches: Option<Vec<Value>> = branches.map(|one| joined(one, tag, all)).collect();
        return Some(json!({ "oneOf": branches? }));
    }
    if object.get("additionalProperties") != Some(&Value::Bool(false)) {
        return None;
    }
    for (name, schema) in tag["properties"].as_object()? {
        object["properties"][name] = schema.clone();
        object["required"]
            .as_array_mut()?
            .push(name.as_str().into());
    }
    Some(object)
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
