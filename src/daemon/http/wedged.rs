//! All routes, on a node of which a part stands still: each answers within a bound, and says who does
//! not.

use super::guard::Guard;
use super::{QUESTION, router};
use crate::daemon::App;
use crate::daemon::config::Config;
use crate::daemon::devices::Devices;
use crate::daemon::health::{Health, Watched};
use crate::daemon::tasks::Tasks;
use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, header};
use http_body_util::BodyExt;
use kvroom::actors::copy::plant::Brake;
use kvroom::actors::supervisor::actor::Inbound;
use kvroom::{
    Chunk, Deadlines, LocalHub, Node, NodeBuilder, Order, Pool, PoolKind, PoolLayout, RoomId,
};
use serde_json::{Value, json};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// The routes of a daemon that listens nowhere.
struct Routes {
    router: Router,
    app: App,
}

/// The only shard of a node, held in a turn until this is dropped.
struct Held {
    _until_dropped: mpsc::Sender<()>,
}

impl Held {
    fn shard_of(node: &Node) -> Held {
        let (release, released) = mpsc::channel::<()>();
        let (tell, inside) = mpsc::channel();
        let stand = Inbound::Ask(Box::new(move |_, _| {
            let _ = tell.send(());
            let _ = released.recv();
        }));
        assert!(node.runtime().inboxes()[0].put(stand).is_ok());
        inside.recv().unwrap();
        Held {
            _until_dropped: release,
        }
    }
}

impl Routes {
    async fn new() -> Routes {
        Routes::of(LocalHub::new(), |node| node).await
    }

    async fn of(hub: LocalHub, change: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Routes {
        let mut config = Config::default();
        config.health.canary = false;
        let node = Node::builder("wedged").hub(&hub).shards(1).lanes(1);
        let node = change(node).start().await.unwrap();
        let watched = Watched {
            node: node.clone(),
            hub,
            shm: false,
            ucx: config.ucx.options(),
            key: None,
            tasks: Tasks::new(),
            devices: Devices::new(&config.devices),
        };
        let devices = watched.devices.clone();
        let health = Health::start(watched, config.health.clone());
        let app = App::new(node, config, health, devices, None);
        let guard = Guard {
            token: None,
            known_by_certificate: false,
            rate: None,
            concurrent: Semaphore::new(100),
            max_concurrent: 100,
            request_timeout: Duration::from_secs(60),
            long_poll_max: Duration::from_secs(60),
        };
        let router = router(app.clone(), guard);
        Routes { router, app }
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path);
        let request = match body {
            None => request.body(Body::empty()),
            Some(body) => request
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(body.to_string())),
        };
        let answer = self.router.clone().oneshot(request.unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        // Metrics are no JSON.
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(Method::GET, path, None).await
    }

    async fn send(&self, id: u64) -> (u16, Value) {
        let body = json!({"role": "send", "id": id});
        self.ask(Method::POST, "/v1/rooms", Some(body)).await
    }

    async fn batch(&self, operations: Vec<Value>) -> (u16, Value) {
        let body = json!({"operations": operations});
        self.ask(Method::POST, "/v1/batch", Some(body)).await
    }

    /// Waits until a probe has this status, and gives the checks that fail.
    async fn red(&self, path: &str, wanted: u16) -> Vec<Value> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let (status, report) = self.get(path).await;
            if status == wanted {
                let checks = report["checks"].as_array().unwrap().iter();
                return checks.filter(|c| c["ok"] == false).cloned().collect();
            }
            assert!(Instant::now() < until, "{path} is {status}: {report}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(self) {
        assert!(self.app.node().shutdown().await.drained);
    }
}

#[track_caller]
fn names_the_shard((status, problem): (u16, Value)) {
    assert_eq!(
        (status, &problem["code"]),
        (503, &json!("not-answering")),
        "{problem}"
    );
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("shard 0 did not answer within"),
        "{detail}"
    );
    assert_eq!(problem["retry_after"], 1, "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_shard_that_stands_still_every_route_answers_and_names_it() {
    let daemon = Routes::new().await;
    assert_eq!(daemon.send(1).await.0, 201);
    let held = Held::shard_of(daemon.app.node());
    let began = Instant::now();

    let asking = ["/v1/node", "/v1/early-claims", "/v1/rooms?quarantined=true"];
    let answers = all(asking.map(|path| daemon.get(path)).into()).await;
    answers.into_iter().for_each(names_the_shard);
    // Who is not asked does not matter.
    for path in [
        "/v1/peers",
        "/v1/pools",
        "/v1/rooms",
        "/metrics",
        "/openapi.json",
    ] {
        assert_eq!(daemon.get(path).await.0, 200, "{path}");
    }
    // A room that was started is shown as it is known, and can be told to end.
    let (status, room) = daemon.get("/v1/rooms/1").await;
    let why = room["held_because"].as_str().unwrap_or_default();
    assert!(status == 200 && why.contains("has not answered"), "{room}");
    let (status, room) = daemon.ask(Method::DELETE, "/v1/rooms/1", None).await;
    assert_eq!((status, &room["released"]), (202, &json!(false)), "{room}");

    // One that is not is looked at in vain, by as many as like, and all of them hear why.
    let starting = daemon.send(2);
    let looking = async {
        // Its request has come when somebody else's look finds it.
        while daemon.get("/v1/rooms/2").await.0 == 404 {
            tokio::task::yield_now().await;
        }
        names_the_shard(daemon.get("/v1/rooms/2").await);
        names_the_shard(daemon.ask(Method::DELETE, "/v1/rooms/2", None).await);
        names_the_shard(daemon.get("/v1/rooms/2?wait=60s").await);
    };
    let (started, ()) = tokio::join!(starting, looking);
    names_the_shard(started);
    let bound = 9 * QUESTION + 2 * super::BEGINNING;
    assert!(began.elapsed() < bound, "{:?}", began.elapsed());

    // What was asked for meanwhile happens when the shard goes on.
    drop(held);
    for id in [1, 2] {
        let path = format!("/v1/rooms/{id}?wait=30s&for=released");
        let (status, room) = daemon.get(&path).await;
        assert_eq!((status, &room["released"]), (200, &json!(true)), "{room}");
        assert_eq!(room["outcome"]["code"], "Requested", "{room}");
    }
    assert_eq!(daemon.get("/v1/node").await.0, 200);
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_aborts_on_a_shard_that_stands_still_tells_every_room_and_ends() {
    let daemon = Routes::new().await;
    for id in 1..61 {
        assert_eq!(daemon.send(id).await.0, 201);
    }
    let held = Held::shard_of(daemon.app.node());
    let aborts: Vec<Value> = (1..61).map(|id| json!({"op": "abort", "id": id})).collect();
    let began = Instant::now();
    let (status, answer) = daemon.batch(aborts).await;
    let took = began.elapsed();
    assert_eq!(status, 200, "{answer}");
    // One wait for all of them: they would be a minute, one after the other.
    assert!(took < Duration::from_secs(20), "{took:?}");
    let results = answer["results"].as_array().unwrap();
    assert!(results.iter().all(|one| one["status"] == 202), "{answer}");
    drop(held);
    for id in 1..61 {
        let path = format!("/v1/rooms/{id}?wait=30s");
        let room = daemon.get(&path).await.1;
        assert_eq!(room["outcome"]["code"], "Requested", "{room}");
    }
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_batch_has_no_time_for_is_answered_one_by_one_and_was_not_begun() {
    let daemon = Routes::new().await;
    assert_eq!(daemon.send(1).await.0, 201);
    let held = Held::shard_of(daemon.app.node());
    // Each of these starts is waited for.
    let mut operations = Vec::new();
    for id in 10..15 {
        operations.push(json!({"op": "start", "role": "send", "id": id}));
        operations.push(json!({"op": "get", "id": 1}));
    }
    operations.push(json!({"op": "abort", "id": 1}));
    operations.push(json!({"op": "finish", "id": 1, "total": 0}));
    let began = Instant::now();
    let (status, answer) = daemon.batch(operations).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(25), "{took:?}");
    let results = answer["results"].as_array().unwrap();
    assert_eq!((status, results.len()), (200, 12), "{answer}");
    names_the_shard((503, results[0]["body"].clone()));
    for late in &results[4..] {
        assert_eq!(late["status"], 503, "{late}");
        assert_eq!(late["body"]["code"], "not-answering", "{late}");
        let detail = late["body"]["detail"].as_str().unwrap();
        assert!(detail.starts_with("it was not begun"), "{detail}");
    }
    drop(held);
    // As it says: the room was not told, and another one is not there.
    let room = daemon.get("/v1/rooms/1").await.1;
    assert_eq!(room["state"], "registered", "{room}");
    assert_eq!(daemon.get("/v1/rooms/14").await.0, 404);
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_of_many_counts_the_rooms_of_shards_that_answer_and_names_the_others() {
    let daemon = Routes::of(LocalHub::new(), |node| node.shards(2)).await;
    let on = |shard| {
        let node = daemon.app.node();
        (1..)
            .find(|id| node.shard_of(RoomId(*id)) == shard)
            .unwrap()
    };
    let (stuck, well) = (on(0), on(1));
    for id in [stuck, well] {
        assert_eq!(daemon.send(id).await.0, 201);
    }
    let held = Held::shard_of(daemon.app.node());
    let all = Some(json!({"all": true}));
    let (status, told) = daemon.ask(Method::POST, "/v1/aborts", all).await;
    let wanted = json!({"aborted": 1, "complete": false, "silent": ["shard 0"]});
    assert_eq!((status, told), (202, wanted));
    drop(held);
    for id in [stuck, well] {
        let path = format!("/v1/rooms/{id}?wait=30s");
        let room = daemon.get(&path).await.1;
        assert_eq!(room["outcome"]["code"], "Requested", "{room}");
    }
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_that_has_died_makes_the_daemon_not_ready_and_not_alive_by_its_name() {
    let daemon = Routes::new().await;
    assert!(
        daemon.red("/readyz", 200).await.is_empty() && daemon.red("/livez", 200).await.is_empty()
    );
    let (_, report) = daemon.get("/readyz").await;
    let checks = report["checks"].as_array().unwrap();
    for task in [
        "rooms keeper",
        "pools keeper",
        "sampler",
        "facts",
        "health task",
    ] {
        assert!(
            checks.iter().any(|check| check["name"] == task),
            "{task} is not looked at: {report}"
        );
    }
    daemon.app.rooms().panic().await;
    for path in ["/livez", "/readyz"] {
        let red = daemon.red(path, 503).await;
        assert_eq!(red[0]["name"], "rooms keeper", "{path}: {red:?}");
        let (why, action) = (&red[0]["why"], &red[0]["do"]);
        assert!(why.as_str().unwrap().contains("panicked"), "{why}");
        assert!(action.as_str().unwrap().contains("restart"), "{action}");
    }
    let (status, problem) = daemon.get("/v1/rooms").await;
    assert_eq!(
        (status, &problem["code"]),
        (500, &json!("defect")),
        "{problem}"
    );
    // On purpose is not red: nothing but the stop is.
    daemon.app.health().stop().await;
    assert!(daemon.red("/livez", 200).await.is_empty());
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_that_stands_still_makes_the_daemon_not_ready_then_not_alive_until_it_goes_on() {
    let daemon = Routes::new().await;
    assert!(daemon.red("/readyz", 200).await.is_empty());
    let (go_on, until) = mpsc::channel();
    daemon.app.rooms().stand(until).await;
    for path in ["/readyz", "/livez"] {
        let red = daemon.red(path, 503).await;
        assert_eq!(red[0]["name"], "rooms keeper", "{path}: {red:?}");
        let why = red[0]["why"].as_str().unwrap();
        assert!(why.contains("at one piece of work for"), "{why}");
    }
    drop(go_on);
    for path in ["/readyz", "/livez"] {
        assert!(daemon.red(path, 200).await.is_empty());
    }
    assert_eq!(daemon.send(1).await.0, 201);
    daemon.app.health().stop().await;
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_whose_start_is_a_defect_is_refused_and_its_key_is_free_again() {
    let daemon = Routes::new().await;
    let body = json!({"role": "send", "id": 1, "tag": "a planted defect"});
    let asked = daemon.ask(Method::POST, "/v1/rooms", Some(body));
    let asked = tokio::time::timeout(super::BEGINNING / 2, asked).await;
    let (status, problem) = asked.unwrap();
    assert_eq!(
        (status, &problem["code"]),
        (500, &json!("defect")),
        "{problem}"
    );
    assert_eq!(daemon.get("/v1/rooms/1").await.0, 404);
    assert_eq!(daemon.send(1).await.0, 201);
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_about_a_room_that_is_not_started_than_may_wait_are_refused_by_name() {
    let daemon = Routes::new().await;
    let held = Held::shard_of(daemon.app.node());
    let finish = || {
        let body = json!({"attempt": 0, "total": 0});
        daemon.ask(Method::POST, "/v1/rooms/3/finish", Some(body))
    };
    let starting = daemon.send(3);
    let asking = async {
        while finish().await.0 == 404 {
            tokio::task::yield_now().await;
        }
        let mut refused = 0;
        for (status, problem) in all((0..100).map(|_| finish()).collect()).await {
            assert_eq!(status, 503, "{problem}");
            refused += u32::from(problem["code"] == "limit-reached");
        }
        assert_eq!(refused, 37, "64 wait, one of them since before");
    };
    let (started, ()) = tokio::join!(starting, asking);
    names_the_shard(started);
    drop(held);
    daemon.app.node().shutdown().await;
}

/// All of them at once.
async fn all<T>(asked: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = asked.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in all.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(answer) = future.as_mut().poll(cx)
            {
                *done = Some(answer);
            }
        }
        if done.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_told_to_stop_starts_nothing_and_still_shows_what_there_is() {
    let daemon = Routes::new().await;
    assert_eq!(daemon.send(1).await.0, 201);
    daemon.app.stop();
    let pool = json!({"name": "kv", "kind": "kv", "order": "layers_first", "layers": 1, "pages": 1,
        "page_bytes": 4096, "page_tokens": 1, "memory": {"create": true}});
    for (path, body) in [
        ("/v1/rooms", json!({"role": "send", "id": 2})),
        ("/v1/peers", json!({"address": "tcp://127.0.0.1:1"})),
        ("/v1/pools", pool),
    ] {
        let (status, problem) = daemon.ask(Method::POST, path, Some(body)).await;
        assert_eq!(
            (status, &problem["code"]),
            (503, &json!("stopping")),
            "{path}: {problem}"
        );
    }
    let (_, node) = daemon.get("/v1/node").await;
    assert_eq!(
        (&node["stopping"], &node["stats"]["rooms_live"]),
        (&json!(true), &json!(1))
    );
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_a_peer_may_still_write_are_counted_with_it() {
    let layout = PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 1,
        pages: 4,
        page_bytes: 4096,
        page_tokens: 16,
    };
    let (hub, brake) = (LocalHub::new(), Brake::default());
    let (source, destination) = (
        Pool::owned(layout.clone()).unwrap(),
        Pool::owned(layout).unwrap(),
    );
    let (pool, drain) = (destination.clone(), Duration::from_millis(5));
    let daemon = Routes::of(hub.clone(), |node| {
        let deadlines = Deadlines {
            drain,
            ..Deadlines::default()
        };
        node.pool(pool).deadlines(deadlines)
    })
    .await;
    let planted = brake.clone();
    let prefill = Node::builder("prefill").hub(&hub).pool(source.clone());
    let prefill = prefill.configure(|config| config.brake = Some(planted));
    let prefill = prefill.start().await.unwrap();
    let peer = daemon.app.node().connect("local://prefill").await.unwrap();
    let pages = async || daemon.get("/v1/peers").await.1["peers"][0]["quarantined_pages"].clone();
    assert_eq!(pages().await, 0);

    let lease = destination.lease_write(&[1, 2]).unwrap();
    let receiver = daemon.app.node().receive(RoomId(1)).from(&peer).into(lease);
    let receiver = receiver.start().await.unwrap();
    let sender = prefill.send(RoomId(1)).start().await.unwrap();
    brake.hold_after(0);
    let slot = sender.reserve().await.unwrap();
    let chunk = Chunk::tokens(0..32).pages(source.lease_write(&[0, 3]).unwrap().into_read());
    let _pushed = slot.push(chunk).unwrap();
    let patience = Instant::now() + Duration::from_secs(30);
    while brake.held() == 0 {
        assert!(Instant::now() < patience, "no lane came to the gate");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    receiver.abort("enough");
    while pages().await != 2 {
        assert!(Instant::now() < patience, "{}", pages().await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    brake.release();
    drop(receiver.released().await);
    while pages().await != 0 {
        assert!(Instant::now() < patience, "{}", pages().await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(sender);
    daemon.end().await;
    assert!(prefill.shutdown().await.drained);
}
