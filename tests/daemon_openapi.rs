//! The daemon's OpenAPI document against the daemon: each operation is asked, each answer is a documented
//! one, and nothing is served that the document does not have.
//!
//! `tests/schemathesis` asks whatever the document allows. This asks little, on purpose, and needs nothing
//! but the program.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;

use daemon::{Answer, Daemon};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// A daemon whose answers are compared with its document.
struct Documented {
    daemon: Daemon,
    document: Value,
    /// Operations that were asked, with the status of each answer.
    seen: BTreeSet<(String, String, u16)>,
}

impl Documented {
    fn start(args: &[&str]) -> Documented {
        let daemon = Daemon::start(args);
        let document = daemon.get("/openapi.json").expect(200);
        Documented {
            daemon,
            document,
            seen: BTreeSet::new(),
        }
    }

    /// The document's entries, by path.
    fn paths(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.document["paths"].as_object().unwrap().iter()
    }

    /// The path of the document that this one is asked by.
    fn template(&self, path: &str) -> Option<String> {
        let path = path.split('?').next().unwrap();
        let fits = |template: &str| {
            let (a, b) = (template.split('/'), path.split('/'));
            a.clone().count() == b.clone().count()
                && a.zip(b).all(|(a, b)| a == b || a.starts_with('{'))
        };
        let mut all: Vec<&String> = self.paths().map(|(path, _)| path).collect();
        // A path without a parameter is meant first.
        all.sort_by_key(|template| template.matches('{').count());
        all.into_iter().find(|template| fits(template)).cloned()
    }

    /// Asks, and compares the answer with the document.
    #[track_caller]
    fn ask(&mut self, method: &str, path: &str, body: Option<&Value>, wanted: u16) -> Answer {
        let answer = self.daemon.client().send(method, path, body);
        assert_eq!(answer.status, wanted, "{method} {path}: {}", answer.text());
        self.check(method, path, answer.status, answer.header("content-type"));
        answer
    }

    #[track_caller]
    fn check(&mut self, method: &str, path: &str, status: u16, kind: Option<&str>) {
        let template = self.template(path);
        let template = template.unwrap_or_else(|| panic!("the document does not have {path}"));
        let operation = &self.document["paths"][&template][method.to_ascii_lowercase()];
        assert!(
            operation.is_object(),
            "the document does not have {method} {template}"
        );
        let response = &operation["responses"][status.to_string()];
        assert!(
            response.is_object(),
            "{method} {template}: {status} is not documented"
        );
        let said = kind.map(|kind| kind.split(';').next().unwrap().trim());
        let kinds = response["content"].as_object();
        match (said, kinds) {
            (None, None) => {}
            (Some(said), Some(kinds)) if kinds.contains_key(said) => {}
            _ => panic!("{method} {template}, {status}: {said:?} is not one of {kinds:?}"),
        }
        let seen = (method.to_owned(), template, status);
        self.seen.insert(seen);
    }

    /// Operations of the document that were not asked with success.
    fn never_asked(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for (path, item) in self.paths() {
            for method in item.as_object().unwrap().keys() {
                let method = method.to_ascii_uppercase();
                let mut seen = self.seen.iter();
                if !seen.any(|(m, p, s)| *m == method && p == path && (200..400).contains(s)) {
                    missing.push(format!("{method} {path}"));
                }
            }
        }
        missing
    }
}

fn pool(name: &str, kind: &str) -> Value {
    json!({
        "name": name, "kind": kind, "layers": 2, "pages": 16, "page_bytes": 64, "page_tokens": 16,
        "memory": {"create": true},
    })
}

/// Removes what the daemons of a test made for pools that nobody retired.
struct Files(Vec<String>);

impl Drop for Files {
    fn drop(&mut self) {
        for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours = |node: &String| name.starts_with(&format!("kvroom:{node}:"));
            if self.0.iter().any(ours) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

#[test]
fn every_operation_of_the_document_is_served_and_answers_as_the_document_says() {
    let (left, right) = (
        format!("openapi-prefill-{}", std::process::id()),
        format!("openapi-decode-{}", std::process::id()),
    );
    let _files = Files(vec![left.clone(), right.clone()]);
    let prefill = Daemon::start(&["--name", &left, "--node-listen", "tcp://127.0.0.1:0"]);
    prefill.post("/v1/pools", &pool("kv", "kv")).expect(201);
    let mut decode = Documented::start(&["--name", &right]);

    pools(&mut decode);
    peers(&mut decode, &prefill, &left);
    sends(&mut decode);
    receives(&mut decode, &left);
    many(&mut decode, &left);
    the_rest(&mut decode);
    decode.ask("DELETE", &format!("/v1/peers/{left}"), None, 202);
    decode.ask("DELETE", "/v1/peers/nobody", None, 404);
    decode.ask("DELETE", "/v1/pools/kv?wait=10s&abort=true", None, 200);

    let missing = decode.never_asked();
    assert!(missing.is_empty(), "never asked with success: {missing:?}");
}

fn pools(decode: &mut Documented) {
    let kv = pool("kv", "kv");
    decode.ask("POST", "/v1/pools", Some(&kv), 201);
    decode.ask("POST", "/v1/pools", Some(&kv), 200);
    decode.ask("POST", "/v1/pools", Some(&pool("kv", "aux")), 409);
    let mut huge = pool("huge", "kv");
    huge["page_bytes"] = json!(1_u64 << 50);
    decode.ask("POST", "/v1/pools", Some(&huge), 503);
    decode.ask("POST", "/v1/pools", Some(&json!({"name": "x"})), 422);
    decode.ask("GET", "/v1/pools", None, 200);
    decode.ask("GET", "/v1/pools/kv", None, 200);
    decode.ask("GET", "/v1/pools/none", None, 404);
    decode.ask("POST", "/v1/pools", Some(&pool("brief", "kv")), 201);
    decode.ask("DELETE", "/v1/pools/brief", None, 202);
    decode.ask("DELETE", "/v1/pools/none", None, 404);
    decode.ask("DELETE", "/v1/pools/kv?wait=never", None, 400);
}

fn peers(decode: &mut Documented, prefill: &Daemon, name: &str) {
    let address = json!({"address": prefill.node_address()});
    let peer = decode.ask("POST", "/v1/peers", Some(&address), 201);
    assert_eq!(peer.json()["name"], name);
    let nobody = json!({"address": "tcp://127.0.0.1:1"});
    decode.ask("POST", "/v1/peers", Some(&nobody), 409);
    let wrong = json!({"address": "nonsense"});
    decode.ask("POST", "/v1/peers", Some(&wrong), 422);
    decode.ask("GET", "/v1/peers", None, 200);
}

fn sends(decode: &mut Documented) {
    let send = json!({"role": "send", "id": 1});
    decode.ask("POST", "/v1/rooms", Some(&send), 201);
    decode.ask("POST", "/v1/rooms", Some(&send), 200);
    let other = json!({"role": "send", "id": 1, "receivers": 2});
    decode.ask("POST", "/v1/rooms", Some(&other), 409);
    let chunk = json!({"tokens": [0, 16], "pool": "kv", "pages": [0]});
    decode.ask("POST", "/v1/rooms/1/chunks", Some(&chunk), 202);
    decode.ask("POST", "/v1/rooms/1/chunks", Some(&chunk), 200);
    decode.ask("POST", "/v1/rooms/2/chunks", Some(&chunk), 404);
    let total = json!({"total": 16});
    decode.ask("POST", "/v1/rooms/1/finish", Some(&total), 202);
    decode.ask("POST", "/v1/rooms/1/finish", Some(&total), 200);
    decode.ask("POST", "/v1/rooms/2/finish", Some(&total), 404);
    decode.ask("GET", "/v1/rooms/1", None, 200);
    decode.ask("GET", "/v1/rooms/1?wait=soon", None, 400);
    decode.ask("GET", "/v1/rooms/2", None, 404);
    decode.ask("DELETE", "/v1/rooms/1?reason=tested", None, 202);
    decode.ask("DELETE", "/v1/rooms/2", None, 404);
    decode.ask("GET", "/v1/rooms/1?wait=10s&for=released", None, 200);
    decode.ask("POST", "/v1/rooms/1/chunks", Some(&chunk), 409);
}

fn receives(decode: &mut Documented, prefill: &str) {
    let room = |id: u64, page: u32| json!({"role": "receive", "id": id, "from": [prefill], "pages": [{"pool": "kv", "pages": [page]}]});
    decode.ask("POST", "/v1/rooms", Some(&room(7, 3)), 201);
    decode.ask("POST", "/v1/rooms", Some(&room(8, 3)), 409);
    decode.ask("GET", "/v1/rooms?role=receive&limit=10", None, 200);
    decode.ask("GET", "/v1/rooms?limit=0", None, 400);
    let bad = json!({"role": "receive", "id": 9});
    decode.ask("POST", "/v1/rooms", Some(&bad), 422);
    let text = decode
        .daemon
        .client()
        .send_raw("POST", "/v1/rooms", Some("text/plain"), b"{}");
    decode.check(
        "POST",
        "/v1/rooms",
        text.status,
        text.header("content-type"),
    );
    let broken =
        decode
            .daemon
            .client()
            .send_raw("POST", "/v1/rooms", Some("application/json"), b"{");
    decode.check(
        "POST",
        "/v1/rooms",
        broken.status,
        broken.header("content-type"),
    );
}

fn many(decode: &mut Documented, prefill: &str) {
    let batch = json!({"operations": [
        {"op": "start", "role": "send", "id": 20},
        {"op": "chunk", "id": 20, "tokens": [0, 16], "pool": "kv", "pages": [1]},
        {"op": "finish", "id": 20, "total": 16},
        {"op": "get", "id": 20},
        {"op": "abort", "id": 20},
        {"op": "get", "id": 21},
    ]});
    let results = decode.ask("POST", "/v1/batch", Some(&batch), 200).json();
    let statuses: Vec<u64> = results["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [201, 202, 202, 200, 202, 404]);
    let odd = json!({"operations": [{"op": "dance"}]});
    decode.ask("POST", "/v1/batch", Some(&odd), 422);
    decode.ask("POST", "/v1/aborts", Some(&json!({"peer": prefill})), 202);
    decode.ask("POST", "/v1/aborts", Some(&json!({"peer": "nobody"})), 409);
    decode.ask("POST", "/v1/aborts", Some(&json!({})), 422);
    decode.ask("GET", "/v1/early-claims", None, 200);
}

fn the_rest(decode: &mut Documented) {
    decode
        .daemon
        .until("/readyz", |answer| answer.status == 200);
    for path in ["/livez", "/readyz", "/metrics", "/v1/node", "/openapi.json"] {
        decode.ask("GET", path, None, 200);
    }
    decode.ask("GET", "/v1/recording?limit=10", None, 200);
    decode.ask("GET", "/v1/recording?limit=0", None, 422);
    decode.ask("GET", "/v1/recording?since=yesterday", None, 400);
    let page = decode.ask("GET", "/", None, 200);
    let tag = page.header("etag").unwrap().to_owned();
    let again = raw(
        &decode.daemon,
        &format!("GET / HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {tag}\r\n\r\n"),
    );
    assert_eq!(again.status, 304);
    decode.check("GET", "/", 304, again.header("content-type"));
    decode.ask("GET", "/v1/events?types=nothing", None, 400);
    // Has no end: its beginning is looked at.
    let events = decode.daemon.events("/v1/events", None);
    decode.check("GET", "/v1/events", 200, events.head.header("content-type"));
    let stranger = raw(
        &decode.daemon,
        "GET /v1/node HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    );
    assert_eq!(stranger.status, 421);
    decode.check("GET", "/v1/node", 421, stranger.header("content-type"));
}

fn raw(daemon: &Daemon, request: &str) -> Answer {
    use std::io::Write;
    let mut stream = daemon::connect(daemon.http);
    stream.write_all(request.as_bytes()).unwrap();
    daemon::read_answer(&mut std::io::BufReader::new(stream)).unwrap()
}

/// What looks like a path of HTTP in the sources of the daemon, without its query, with something in
/// place of its parameters.
fn paths_in_the_sources(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths_in_the_sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for (at, _) in text.match_indices("\"/") {
                let literal = &text[at + 1..];
                let end = literal.find(['"', '?', '\\', '\n', ' ']).unwrap();
                let mut path = String::new();
                let mut inside = false;
                for c in literal[..end].chars() {
                    match c {
                        '{' => path.push('1'),
                        '}' | '*' => {}
                        c if !inside => path.push(c),
                        _ => {}
                    }
                    inside = (inside || c == '{') && c != '}';
                }
                found.insert(path);
            }
        }
    }
}

#[test]
fn nothing_is_served_that_the_document_does_not_have() {
    let served = Documented::start(&[]);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/daemon");
    let mut paths = BTreeSet::new();
    paths_in_the_sources(&sources, &mut paths);
    let mut found = BTreeSet::new();
    let mut client = served.daemon.client();
    for path in &paths {
        // No route knows this method: of what is there the answer says how it can be asked.
        let answer = client.send_raw("PATCH", path, None, b"");
        if answer.status == 404 {
            answer.expect_problem(404, "no-such-route");
            continue;
        }
        answer.expect_problem(405, "no-such-method");
        let template = served.template(path);
        let template = template.unwrap_or_else(|| panic!("{path} is served and not documented"));
        let allowed: BTreeSet<String> = answer
            .header("allow")
            .unwrap()
            .split(',')
            .map(|method| method.trim().to_ascii_lowercase())
            // Whoever may get something may ask for its head.
            .filter(|method| method != "head")
            .collect();
        let item = served.document["paths"][&template].as_object().unwrap();
        let documented: BTreeSet<String> = item.keys().cloned().collect();
        assert_eq!(allowed, documented, "{path}");
        found.insert(template);
    }
    // The search finds what there is: else it would say nothing.
    let documented: BTreeSet<String> = served.paths().map(|(path, _)| path.clone()).collect();
    assert_eq!(found, documented);
}

#[test]
fn the_document_refers_to_nothing_that_it_does_not_have_and_names_each_operation_once() {
    let served = Documented::start(&[]);
    let mut references = BTreeSet::new();
    collect_references(&served.document, &mut references);
    assert!(references.len() > 20, "{references:?}");
    for reference in &references {
        let pointer = reference.strip_prefix('#').unwrap();
        let there = served.document.pointer(pointer);
        assert!(there.is_some(), "{reference} is not in the document");
    }
    let mut ids = BTreeSet::new();
    for (path, item) in served.paths() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id), "{method} {path}: {id} is another one's too");
        }
    }
    assert_eq!(served.document["openapi"], "3.1.0");
}

#[test]
fn a_request_of_the_documented_form_matches_one_branch_and_its_tag_is_a_field_of_it() {
    let served = Documented::start(&[]);
    let schemas = &served.document["components"]["schemas"];
    // What takes no other field takes its tag all the same.
    let branches = schemas["StartRoom"]["oneOf"].as_array().unwrap();
    let roles: Vec<&Value> = branches
        .iter()
        .map(|branch| &branch["properties"]["role"]["enum"][0])
        .collect();
    assert_eq!(roles, ["receive", "send"]);
    for branch in branches {
        assert_eq!(branch["additionalProperties"], false, "{branch}");
        assert!(
            branch["required"]
                .as_array()
                .unwrap()
                .contains(&json!("role"))
        );
        assert!(branch["properties"]["id"].is_object(), "{branch}");
    }
    let operations = schemas["Operation"]["oneOf"].as_array().unwrap();
    let start = operations[0]["oneOf"].as_array().unwrap();
    assert_eq!(start[0]["properties"]["op"]["enum"][0], "start");
    assert_eq!(start[1]["properties"]["role"]["enum"][0], "send");
    assert_eq!(operations[1]["properties"]["op"]["enum"][0], "chunk");
    // A word is not an object.
    assert!(
        schemas["PeerView"]["properties"]["state"]
            .get("allOf")
            .is_none()
    );
}

fn collect_references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == "$ref" => drop(found.insert(text.to_owned())),
                    _ => collect_references(value, found),
                }
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect_references(item, found)),
        _ => {}
    }
}
