//! Sessions over sockets: nodes that find each other by address, lose each other and come back.
//! The rooms here move no data: what is shown is the session.
#![allow(clippy::unwrap_used)]

mod common;

use common::{TOKENS, kv, push};
use kvroom::{
    ClusterKey, Code, ConnectError, Deadlines, Limits, Node, NodeBuilder, Outcome, Peer, PeerState,
    Pool, RoomId,
};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(30);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap()
}

fn node(name: &str) -> NodeBuilder {
    let layout = kvroom::PoolLayout {
        name: "kv".into(),
        kind: kvroom::PoolKind::Kv,
        order: kvroom::Order::LayersFirst,
        layers: 1,
        pages: 4,
        page_bytes: 4096,
        page_tokens: 16,
    };
    Node::builder(name).pool(Pool::owned(layout).unwrap())
}

async fn listening(name: &str, at: &str) -> Node {
    node(name).listen(at).start().await.unwrap()
}

fn unix(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("kvroom-{}-{name}.sock", std::process::id()));
    format!("unix://{}", path.display())
}

/// A whole room without data, from `prefill` to `decode`.
async fn room(id: u64, prefill: &Node, decode: &Node, peer: &Peer) {
    let receiver = decode.receive(RoomId(id)).from(peer).start();
    let receiver = within(receiver).await.unwrap();
    let sender = within(prefill.send(RoomId(id)).start()).await.unwrap();
    sender.finish(0, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done, "room {id}");
    assert_eq!(within(sender.outcome()).await, Outcome::Done, "room {id}");
}

#[tokio::test]
async fn two_nodes_meet_over_tcp_and_over_a_unix_socket() {
    for at in ["tcp://127.0.0.1:0", "tcp://[::1]:0", &unix("meet")] {
        let prefill = listening("p", at).await;
        let decode = node("d").start().await.unwrap();
        let peer = within(decode.connect(&prefill.addresses()[0]))
            .await
            .unwrap();
        assert_eq!(
            (peer.name(), peer.incarnation()),
            ("p", prefill.incarnation())
        );
        for id in 0..10 {
            room(id, &prefill, &decode, &peer).await;
        }
        assert!(within(decode.shutdown()).await.drained);
        assert!(within(prefill.shutdown()).await.drained);
    }
}

/// Deadlines that a test can wait for.
fn quick() -> Deadlines {
    Deadlines {
        ping: Duration::from_millis(50),
        liveness: Duration::from_millis(400),
        backoff_first: Duration::from_millis(5),
        backoff_most: Duration::from_millis(50),
        ..Deadlines::default()
    }
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let patience = tokio::time::timeout(PATIENCE, async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(patience.await.is_ok(), "never: {what}");
}

/// A way to a node that can be cut, and closed for a while.
struct Forwarder {
    address: String,
    task: JoinHandle<()>,
    open: Arc<Mutex<Option<Vec<JoinHandle<()>>>>>,
}

impl Forwarder {
    async fn to(address: &str) -> Forwarder {
        let to = address.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let connections = Arc::clone(&open);
        let task = tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let to = to.clone();
                if let Some(open) = &mut *connections.lock().unwrap() {
                    open.push(tokio::spawn(async move {
                        let mut far = TcpStream::connect(to).await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }));
                }
            }
        });
        Forwarder {
            address,
            task,
            open,
        }
    }

    /// Cuts every connection.
    fn cut(&self) {
        for connection in self.open.lock().unwrap().iter_mut().flatten() {
            connection.abort();
        }
    }

    /// Cuts, and lets nobody through until it is opened again.
    fn close(&self) {
        self.cut();
        *self.open.lock().unwrap() = None;
    }

    fn open(&self) {
        *self.open.lock().unwrap() = Some(Vec::new());
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.cut();
        self.task.abort();
    }
}

fn names(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

async fn end(nodes: &[&Node]) {
    for node in nodes {
        let report = within(node.shutdown()).await;
        assert!(report.drained, "{report:?}");
    }
}

#[tokio::test]
async fn an_address_where_nobody_is_is_an_error_at_once_that_names_it() {
    let d = node("d").start().await.unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", gone.local_addr().unwrap());
    drop(gone);
    for address in [address, unix("nobody")] {
        let error = within(d.connect(&address)).await.unwrap_err();
        assert!(
            matches!(error, ConnectError::Unreachable { .. }),
            "{error:?}"
        );
        names(&error.to_string(), &[&address]);
    }
    end(&[&d]).await;
}

#[tokio::test]
async fn a_node_that_cannot_listen_does_not_start_and_says_where() {
    let first = listening("a", "tcp://127.0.0.1:0").await;
    let taken = first.addresses()[0].clone();
    for (address, words) in [
        (taken.as_str(), [taken.as_str(), "cannot listen"]),
        ("tcp://127.0.0.1", ["tcp://127.0.0.1", "HOST:PORT"]),
        ("local://a", ["local://a", "hub"]),
        (
            "unix:///no/such/folder/s",
            ["/no/such/folder/s", "cannot listen"],
        ),
    ] {
        let error = node("b").listen(address).start().await.unwrap_err();
        names(&error.to_string(), &words);
    }
    end(&[&first]).await;
}

#[tokio::test]
async fn a_unix_socket_is_gone_with_its_node_and_taken_over_from_a_dead_one() {
    let at = unix("file");
    let path = at.strip_prefix("unix://").unwrap().to_owned();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let p = listening("p", &at).await;
    let error = node("q").listen(&at).start().await.unwrap_err();
    names(&error.to_string(), &[&path, "in use"]);
    assert!(std::fs::exists(&path).unwrap());
    end(&[&p]).await;
    assert!(!std::fs::exists(&path).unwrap());
}

fn key(byte: u8) -> ClusterKey {
    ClusterKey::new([byte; 32]).unwrap()
}

#[tokio::test]
async fn only_nodes_with_the_same_key_or_both_without_one_meet() {
    for (acceptor, dialer, words) in [
        (Some(1), Some(1), None),
        (Some(1), Some(2), Some("cluster keys differ")),
        (Some(1), None, Some("no cluster key")),
        (None, Some(1), Some("no cluster key")),
    ] {
        let keyed = |name, byte: Option<u8>| match byte {
            Some(byte) => node(name).cluster_key(key(byte)),
            None => node(name),
        };
        let p = keyed("p", acceptor).listen("tcp://127.0.0.1:0");
        let p = p.start().await.unwrap();
        let d = keyed("d", dialer).start().await.unwrap();
        let met = within(d.connect(&p.addresses()[0])).await;
        match words {
            None => room(1, &p, &d, &met.unwrap()).await,
            Some(words) => {
                let error = met.unwrap_err();
                assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
                names(&error.to_string(), &["\"p\"", words]);
                assert!(p.peers().await.is_empty(), "a stranger is no peer");
                until("it is counted", async || {
                    p.stats().await.greetings_refused > 0
                })
                .await;
            }
        }
        end(&[&d, &p]).await;
    }
}

#[tokio::test]
async fn layouts_that_do_not_fit_are_refused_with_what_differs() {
    let p = listening("p", "tcp://127.0.0.1:0").await;
    let layout = kvroom::PoolLayout {
        name: "kv".into(),
        kind: kvroom::PoolKind::Kv,
        order: kvroom::Order::LayersFirst,
        layers: 3,
        pages: 4,
        page_bytes: 4096,
        page_tokens: 16,
    };
    let odd = Node::builder("odd").pool(Pool::owned(layout).unwrap());
    let odd = odd.start().await.unwrap();
    let error = within(odd.connect(&p.addresses()[0])).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }));
    names(&error.to_string(), &["kv", "layers", "3", "1"]);
    end(&[&odd, &p]).await;
}

#[tokio::test]
async fn connecting_again_by_any_address_gives_the_session_that_is_there() {
    let p = node("p").listen("tcp://127.0.0.1:0").listen(&unix("again"));
    let p = p.start().await.unwrap();
    let d = node("d").start().await.unwrap();
    let first = within(d.connect(&p.addresses()[0])).await.unwrap();
    for address in p.addresses() {
        let again = within(d.connect(address)).await.unwrap();
        assert_eq!(again.id(), first.id());
    }
    assert_eq!(d.stats().await.sessions_opened, 1);
    assert_eq!(d.stats().await.transports_lost, 0);
    room(1, &p, &d, &first).await;
    end(&[&d, &p]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_that_connect_to_each_other_at_once_end_up_with_one_session() {
    for round in 0..25 {
        let a = listening("a", "tcp://127.0.0.1:0").await;
        let b = listening("b", &unix("both")).await;
        let tasks: Vec<_> = [(&a, &b), (&b, &a)]
            .into_iter()
            .cycle()
            .take(8)
            .map(|(from, to)| {
                let (from, address) = (from.clone(), to.addresses()[0].clone());
                tokio::spawn(async move { from.connect(&address).await })
            })
            .collect();
        let mut peers = Vec::new();
        for task in tasks {
            peers.push(within(task).await.unwrap().unwrap());
        }
        room(1, &b, &a, &peers[0]).await;
        room(2, &a, &b, &peers[1]).await;
        for node in [&a, &b] {
            let stats = node.stats().await;
            assert_eq!(node.peers().await.len(), 1, "round {round}");
            assert_eq!(
                (stats.sessions_opened, stats.transports_lost),
                (1, 0),
                "round {round}: {stats:?}"
            );
        }
        assert!(peers.iter().all(|p| p.is_up().is_ok()), "round {round}");
        tokio::join!(a.shutdown(), b.shutdown());
    }
}

#[tokio::test]
async fn a_session_goes_on_over_another_connection_when_its_own_is_cut() {
    let p = node("p").deadlines(quick()).listen("tcp://127.0.0.1:0");
    let p = p.start().await.unwrap();
    let d = node("d").deadlines(quick()).start().await.unwrap();
    let way = Forwarder::to(&p.addresses()[0]).await;
    let peer = within(d.connect(&way.address)).await.unwrap();
    let waiting = d.receive(RoomId(1_000)).from(&peer).start().await.unwrap();
    for round in 0..20 {
        way.cut();
        // Rooms that begin before anybody has noticed, and while there is no connection.
        room(round, &p, &d, &peer).await;
        until("it is up", async || peer.is_up().is_ok()).await;
    }
    assert_eq!(waiting.try_outcome(), None);
    let sender = p.send(RoomId(1_000)).start().await.unwrap();
    sender.finish(0, None).unwrap();
    assert_eq!(within(waiting.outcome()).await, Outcome::Done);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    for node in [&d, &p] {
        let stats = node.stats().await;
        assert_eq!(stats.sessions_opened, 1, "{stats:?}");
        assert!(
            stats.sessions_resumed > 0 && stats.transports_lost > 0,
            "{stats:?}"
        );
        assert_eq!((stats.done, stats.aborted), (21, 0));
    }
    end(&[&d, &p]).await;
}

#[tokio::test]
async fn a_session_that_is_not_resumed_in_time_is_over_and_a_new_one_follows() {
    let deadlines = Deadlines {
        resume: Duration::from_millis(200),
        ..quick()
    };
    let p = node("p").deadlines(deadlines.clone());
    let p = p.listen("tcp://127.0.0.1:0").start().await.unwrap();
    let d = node("d").deadlines(deadlines).start().await.unwrap();
    let way = Forwarder::to(&p.addresses()[0]).await;
    let peer = within(d.connect(&way.address)).await.unwrap();
    room(1, &p, &d, &peer).await;
    let waiting = d.receive(RoomId(2)).from(&peer).start().await.unwrap();
    way.close();
    until("it is noticed", async || {
        matches!(peer.state(), PeerState::Resuming(_))
    })
    .await;
    assert_eq!(waiting.try_outcome(), None);
    match within(waiting.outcome()).await {
        Outcome::Aborted(reason) => {
            assert_eq!(reason.code, Code::SessionLost);
            names(&reason.text, &["\"p\"", "Deadlines::resume"]);
        }
        Outcome::Done => panic!("there is no sender"),
    }
    until("the other side too", async || {
        matches!(p.peers().await[0].state(), PeerState::Down(_))
    })
    .await;
    way.open();
    assert!(within(peer.wait_up()).await, "the same life");
    room(3, &p, &d, &peer).await;
    assert_eq!(d.stats().await.sessions_opened, 2);
    end(&[&d, &p]).await;
}

#[tokio::test]
async fn a_disconnect_ends_the_rooms_of_both_sides_and_nobody_connects_by_itself() {
    let p = node("p").deadlines(quick()).listen("tcp://127.0.0.1:0");
    let p = p.start().await.unwrap();
    let d = node("d").deadlines(quick()).start().await.unwrap();
    for round in 0..10 {
        let peer = within(d.connect(&p.addresses()[0])).await.unwrap();
        room(10 * round, &p, &d, &peer).await;
        let waiting = d.receive(RoomId(10 * round + 1)).from(&peer).start();
        let waiting = waiting.await.unwrap();
        let back = p.peer("d").await.unwrap();
        // From the side that dialed, and from the other one.
        if round % 2 == 0 {
            within(d.disconnect(&peer)).await;
        } else {
            within(p.disconnect(&back)).await;
        }
        match within(waiting.outcome()).await {
            Outcome::Aborted(reason) => assert_eq!(reason.code, Code::SessionLost, "{reason:?}"),
            Outcome::Done => panic!("there is no sender"),
        }
        until("both know", async || {
            peer.is_up().is_err() && back.is_up().is_err()
        })
        .await;
        names(&peer.is_up().unwrap_err(), &["on purpose"]);
        names(&back.is_up().unwrap_err(), &["on purpose"]);
    }
    let opened = d.stats().await.sessions_opened;
    assert_eq!(opened, 10, "one for each connect");
    end(&[&d, &p]).await;
}

#[tokio::test]
async fn a_disconnect_that_was_not_heard_is_told_to_whoever_comes_back_by_itself() {
    let p = node("p").deadlines(quick()).listen("tcp://127.0.0.1:0");
    let p = p.start().await.unwrap();
    let d = node("d").deadlines(quick()).start().await.unwrap();
    let way = Forwarder::to(&p.addresses()[0]).await;
    let peer = within(d.connect(&way.address)).await.unwrap();
    let back = p.peer("d").await.unwrap();
    way.close();
    until("both have noticed", async || {
        peer.is_up().is_err() && back.is_up().is_err()
    })
    .await;
    within(p.disconnect(&back)).await;
    way.open();
    until("it is told", async || {
        matches!(peer.state(), PeerState::Down(_))
    })
    .await;
    names(&peer.is_up().unwrap_err(), &["on purpose"]);
    assert_eq!(p.stats().await.sessions_opened, 1);
    // Asked for, it is there again.
    let again = within(d.connect(&way.address)).await.unwrap();
    assert_eq!(again.id(), peer.id());
    room(1, &p, &d, &again).await;
    end(&[&d, &p]).await;
}

#[tokio::test]
async fn a_node_that_comes_back_under_its_address_is_connected_to_by_itself() {
    let p = listening("p", "tcp://127.0.0.1:0").await;
    let address = p.addresses()[0].clone();
    let d = node("d").deadlines(quick()).start().await.unwrap();
    let mut peer = within(d.connect(&address)).await.unwrap();
    let mut p = p;
    for round in 0..3 {
        room(10 * round, &p, &d, &peer).await;
        let waiting = d.receive(RoomId(10 * round + 1)).from(&peer).start();
        let waiting = waiting.await.unwrap();
        end(&[&p]).await;
        match within(waiting.outcome()).await {
            // Its claim is refused by a node that goes, or its peer says goodbye.
            Outcome::Aborted(reason) => assert!(
                matches!(reason.code, Code::NodeShutdown | Code::PeerLost),
                "{reason:?}"
            ),
            Outcome::Done => panic!("there is no sender"),
        }
        p = listening("p", &address).await;
        let life = p.incarnation();
        until("it is connected to again", async || {
            let now = d.peer("p").await.unwrap();
            now.incarnation() == life && now.is_up().is_ok()
        })
        .await;
        assert!(
            !within(peer.wait_up()).await,
            "the old life never comes back"
        );
        let now = d.peer("p").await.unwrap();
        assert_ne!(now.id(), peer.id());
        peer = now;
    }
    room(100, &p, &d, &peer).await;
    end(&[&d, &p]).await;
}

#[tokio::test]
async fn a_peer_that_is_silent_is_lost_and_one_that_answers_is_not() {
    let p = node("p").deadlines(quick()).listen("tcp://127.0.0.1:0");
    let p = p.start().await.unwrap();
    let d = node("d").deadlines(quick()).start().await.unwrap();
    // Both idle for several times their liveness: they ask, and answer.
    let peer = within(d.connect(&p.addresses()[0])).await.unwrap();
    tokio::time::sleep(3 * quick().liveness).await;
    assert_eq!(d.stats().await.transports_lost, 0);
    assert!(peer.is_up().is_ok());
    // A way that takes everything and gives nothing back.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hole = format!("tcp://{}", listener.local_addr().unwrap());
    let to = p.addresses()[0].strip_prefix("tcp://").unwrap().to_owned();
    let silent = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let swallow = Arc::clone(&silent);
    let task = tokio::spawn(async move {
        loop {
            let (near, _) = listener.accept().await.unwrap();
            let far = TcpStream::connect(&to).await.unwrap();
            for (mut from, mut to) in [(near, far)]
                .map(|(near, far)| {
                    let (near_r, near_w) = near.into_split();
                    let (far_r, far_w) = far.into_split();
                    [(near_r, far_w), (far_r, near_w)]
                })
                .into_iter()
                .flatten()
            {
                let swallow = Arc::clone(&swallow);
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = from.read(&mut buffer).await {
                        if !swallow.load(std::sync::atomic::Ordering::SeqCst) {
                            let _ = to.write_all(&buffer[..n]).await;
                        }
                    }
                });
            }
        }
    });
    let e = node("e").deadlines(quick()).start().await.unwrap();
    let peer = within(e.connect(&hole)).await.unwrap();
    room(1, &p, &e, &peer).await;
    silent.store(true, std::sync::atomic::Ordering::SeqCst);
    let back = p.peer("e").await.unwrap();
    let lost = |peer: &Peer| match peer.state() {
        PeerState::Resuming(why) => why,
        other => format!("{other:?}"),
    };
    // Whoever is the first to notice closes it, and that is what the other one sees.
    until("silence is noticed", async || {
        [&peer, &back]
            .iter()
            .any(|p| lost(p).contains("Deadlines::liveness"))
    })
    .await;
    silent.store(false, std::sync::atomic::Ordering::SeqCst);
    assert!(within(peer.wait_up()).await);
    room(2, &p, &e, &peer).await;
    assert_eq!(e.stats().await.sessions_opened, 1);
    task.abort();
    end(&[&e, &d, &p]).await;
}

#[tokio::test]
async fn pools_that_come_and_go_are_known_at_the_other_side() {
    let p = node("p").deadlines(quick()).listen("tcp://127.0.0.1:0");
    let p = p.start().await.unwrap();
    let d = node("d").deadlines(quick()).start().await.unwrap();
    let way = Forwarder::to(&p.addresses()[0]).await;
    let peer = within(d.connect(&way.address)).await.unwrap();
    let layout = |name: &str| kvroom::PoolLayout {
        name: name.into(),
        kind: kvroom::PoolKind::Kv,
        order: kvroom::Order::LayersFirst,
        layers: 1,
        pages: 4,
        page_bytes: 512,
        page_tokens: 16,
    };
    // While connected, and while the connection is cut.
    for (round, cut) in [false, true, false, true].into_iter().enumerate() {
        let name = format!("extra-{round}");
        if cut {
            way.close();
            until("it is noticed", async || peer.is_up().is_err()).await;
        }
        let add = async |node: &Node| {
            let pool = Pool::owned(layout(&name)).unwrap();
            node.add_pool(pool.clone()).await.unwrap();
            pool
        };
        let from = add(&p).await;
        add(&d).await;
        // The second of this name: its claims name another number than the first one's would.
        d.retire_pool(&name).await.unwrap();
        let to = add(&d).await;
        if cut {
            way.open();
        }
        // A claim on a pool that was not announced is refused.
        let id = RoomId(round as u64);
        let lease = to.lease_write(&[0]).unwrap();
        let receiver = d.receive(id).from(&peer).into(lease).start().await.unwrap();
        let sender = within(p.send(id).start()).await.unwrap();
        let mut source = from.lease_write(&[1]).unwrap();
        common::fill(&mut source, 5, 0);
        push(&sender, 0..16, source.into_read()).await;
        sender.finish(16, None).unwrap();
        assert_eq!(within(receiver.outcome()).await, Outcome::Done);
        common::verify(&within(receiver.released()).await.leases[0], 5, 0);
    }
    assert_eq!(d.stats().await.sessions_opened, 1);
    end(&[&d, &p]).await;
}

/// Threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[tokio::test]
async fn a_greeting_that_stalls_is_put_out_and_random_bytes_are_refused() {
    let deadlines = Deadlines {
        connect: Duration::from_millis(300),
        ..quick()
    };
    let p = node("p").deadlines(deadlines).listen("tcp://127.0.0.1:0");
    let p = p.start().await.unwrap();
    let at = p.addresses()[0].strip_prefix("tcp://").unwrap().to_owned();
    let mut silent = TcpStream::connect(&at).await.unwrap();
    let mut noise = TcpStream::connect(&at).await.unwrap();
    noise.write_all(&[0xa5; 4096]).await.unwrap();
    let mut buffer = Vec::new();
    let _ = within(noise.read_to_end(&mut buffer)).await;
    assert!(
        buffer.is_empty(),
        "nothing is said to whoever is no node: {buffer:?}"
    );
    let n = within(silent.read_to_end(&mut buffer)).await.unwrap();
    assert_eq!(n, 0, "closed in silence after Deadlines::connect");
    assert!(p.peers().await.is_empty());
    assert_eq!(p.stats().await.greetings_refused, 1);
    end(&[&p]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_who_connect_and_say_nothing_keep_nobody_out() {
    let limits = Limits {
        greetings: 16,
        ..Limits::default()
    };
    let p = node("p").limits(limits).listen("tcp://127.0.0.1:0");
    let p = p.start().await.unwrap();
    let at = p.addresses()[0].strip_prefix("tcp://").unwrap().to_owned();
    let before = threads();
    let flood = tokio::spawn(async move {
        let mut open = std::collections::VecDeque::new();
        for n in 0..6_000_u32 {
            match TcpStream::connect(&at).await {
                Ok(stream) => open.push_back(stream),
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
            if open.len() > 400 {
                open.pop_front();
            }
            if n % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        open
    });
    let mut met = 0;
    while !flood.is_finished() {
        let d = node("d").start().await.unwrap();
        let peer = within(d.connect(&p.addresses()[0])).await.unwrap();
        room(met, &p, &d, &peer).await;
        end(&[&d]).await;
        met += 1;
    }
    assert!(met > 0);
    let open = within(flood).await.unwrap();
    let stats = p.stats().await;
    assert!(stats.greetings_put_out > 500, "{stats:?}");
    assert!(
        threads() <= before + 2,
        "{} threads, {before} before",
        threads()
    );
    drop(open);
    end(&[&p]).await;
}

/// Somebody who greets as a node does, and then only listens.
async fn fake_peer(at: &str, name: String, started_ns: u64) -> TcpStream {
    greeted(at, name, started_ns).await.0
}

/// The same, with the token that names its data connections.
async fn greeted(at: &str, name: String, started_ns: u64) -> (TcpStream, u128) {
    use kvroom::actors::peer::handshake::{Handshake, Step};
    use kvroom::actors::peer::hello::{Capabilities, Hello, Offer, Protocols};
    let mut nonce = [0; 32];
    nonce[..8].copy_from_slice(&started_ns.to_le_bytes());
    let hello = Hello {
        protocols: Protocols::MINE,
        node: name,
        incarnation: kvroom::Incarnation {
            started_ns,
            nonce: 7,
        },
        nonce,
        capabilities: Capabilities::QUIESCENCE,
        keyed: false,
    };
    let mut stream = TcpStream::connect(at).await.unwrap();
    let mut handshake = Handshake::dialer(hello, None);
    let (mut out, mut got) = (Vec::new(), Vec::new());
    let mut token = 0;
    handshake.start(&mut out).unwrap();
    loop {
        stream.write_all(&out).await.unwrap();
        out.clear();
        let mut rest = got.as_slice();
        let step = handshake.take(&mut rest, &mut out).unwrap();
        let taken = got.len() - rest.len();
        got.drain(..taken);
        match step {
            Step::More if out.is_empty() => {
                assert!(stream.read_buf(&mut got).await.unwrap() > 0);
            }
            Step::More => {}
            Step::Known(_) => {
                let offer = Offer {
                    pools: Vec::new(),
                    contents: Vec::new(),
                    credit: 1,
                    resume: None,
                    received: 0,
                    token: 1,
                    host: None,
                    ucx: None,
                };
                handshake.offer(offer, None, &mut out).unwrap();
            }
            Step::Accepted { decider, offer, .. } => {
                token = offer.token;
                if decider {
                    handshake.go(&mut out).unwrap();
                    stream.write_all(&out).await.unwrap();
                    return (stream, token);
                }
            }
            Step::Go => return (stream, token),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_thousand_peers_take_no_thread_each_and_a_room_goes_through_meanwhile() {
    const PEERS: u64 = 1_024;
    let deadlines = Deadlines {
        ping: Duration::from_secs(600),
        liveness: Duration::from_secs(6_000),
        ..Deadlines::default()
    };
    let p = node("p").deadlines(deadlines).listen("tcp://127.0.0.1:0");
    let p = p.start().await.unwrap();
    let d = node("d").start().await.unwrap();
    let peer = within(d.connect(&p.addresses()[0])).await.unwrap();
    let at = p.addresses()[0].strip_prefix("tcp://").unwrap().to_owned();
    let before = threads();
    let mut peers = Vec::new();
    for n in 0..PEERS {
        // Lives older and newer than the node's: either side decides.
        let started = if n % 2 == 0 { 1 + n } else { u64::MAX - n };
        peers.push(within(fake_peer(&at, format!("fake-{n}"), started)).await);
    }
    until("all are up", async || {
        let known = p.peers().await;
        known.len() as u64 == PEERS + 1 && known.iter().all(|p| p.is_up().is_ok())
    })
    .await;
    // Other tests of this process come and go: a thread each would still show.
    let more = threads().saturating_sub(before);
    assert!(more < 256, "{more} threads more for {PEERS} peers");
    for id in 0..10 {
        room(id, &p, &d, &peer).await;
    }
    drop(peers);
    until("all are gone but one", async || {
        p.peers().await.iter().filter(|p| p.is_up().is_ok()).count() == 1
    })
    .await;
    room(10, &p, &d, &peer).await;
    end(&[&d, &p]).await;
}

#[tokio::test]
async fn pages_arrive_over_data_connections_that_are_made_again_when_they_are_cut() {
    const PAGES: u32 = 40;
    let pool = || Pool::owned(kv(PAGES, 64 << 10)).unwrap();
    for at in ["tcp://127.0.0.1:0", &unix("data")] {
        let (from, to) = (pool(), pool());
        let p = Node::builder("p").pool(from.clone()).deadlines(quick());
        let p = p.listen(at).start().await.unwrap();
        let d = Node::builder("d").pool(to.clone()).deadlines(quick());
        let d = d.start().await.unwrap();
        let address = p.addresses()[0].clone();
        let way = match at.starts_with("tcp") {
            true => Some(Forwarder::to(&address).await),
            false => None,
        };
        let address = way.as_ref().map_or(&address, |way| &way.address);
        let peer = within(d.connect(address)).await.unwrap();
        let all: Vec<u32> = (0..PAGES).collect();
        for round in 0..10_u64 {
            let mut source = from.lease_write(&all).unwrap();
            common::fill(&mut source, round, 0);
            let lease = to.lease_write(&all).unwrap();
            let receiver = d.receive(RoomId(round)).from(&peer).into(lease).start();
            let receiver = within(receiver).await.unwrap();
            let sender = within(p.send(RoomId(round)).start()).await.unwrap();
            push(&sender, 0..TOKENS * u64::from(PAGES), source.into_read()).await;
            if let Some(way) = &way {
                way.cut();
            }
            sender.finish(TOKENS * u64::from(PAGES), None).unwrap();
            let outcome = within(receiver.outcome()).await;
            if outcome != Outcome::Done {
                let rooms = (p.rooms().await, d.rooms().await);
                let peers = (p.peer("d").await.unwrap(), d.peer("p").await.unwrap());
                let (p, d) = (p.stats().await, d.stats().await);
                panic!("{at} {round}: {outcome}\n{rooms:#?}\n{peers:?}\n{p:#?}\n{d:#?}");
            }
            assert_eq!(
                within(sender.outcome()).await,
                Outcome::Done,
                "{at} {round}"
            );
            common::verify(&within(receiver.released()).await.leases[0], round, 0);
        }
        let stats = d.stats().await;
        assert_eq!(stats.sessions_opened, 1);
        assert_eq!(stats.done, 10);
        end(&[&d, &p]).await;
    }
}

#[tokio::test]
async fn a_session_that_comes_up_after_its_greeting_ran_out_of_time_is_whole() {
    use kvroom::actors::runtime::{NodeConfig, Runtime};
    use kvroom::actors::supervisor::actor::Inbound;
    let p = listening("p", "tcp://127.0.0.1:0").await;
    let way = Forwarder::to(&p.addresses()[0]).await;
    let mut config = NodeConfig::new("d");
    config.shards = Some(1);
    config.deadlines.connect = Duration::from_millis(1_500);
    let d = Runtime::start(config).unwrap();
    // The shard's thread is that of its peers too: nobody takes the transport.
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (held_tx, held) = tokio::sync::oneshot::channel();
    let hold = Inbound::Ask(Box::new(move |_, _| {
        let _ = held_tx.send(());
        let _ = released.recv();
    }));
    assert!(d.inboxes()[0].put(hold).is_ok());
    within(held).await.unwrap();
    let error = within(d.connect(&way.address)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Silent { .. }), "{error:?}");
    let connections = || way.open.lock().unwrap().as_ref().map_or(0, Vec::len);
    assert_eq!(connections(), 1, "the greeting's own");
    drop(release);
    // Its own, one for small pieces and one for large ones.
    until("data connections are there", async || connections() == 3).await;
    let info = d.peers().await.remove(0);
    assert_eq!(*info.state.borrow(), PeerState::Up);
    // It is kept, too, and its data connections are made again with it.
    way.cut();
    until("it is resumed", async || {
        d.shared().stats.read().sessions_resumed > 0
    })
    .await;
    within(d.stop()).await;
    end(&[&p]).await;
}

#[tokio::test]
async fn a_server_that_closes_at_once_is_not_flooded_and_the_error_says_what_it_did() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counter = Arc::clone(&count);
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            drop(stream);
        }
    });
    let deadlines = Deadlines {
        connect: Duration::from_secs(1),
        ..Deadlines::default()
    };
    let d = node("d").deadlines(deadlines).start().await.unwrap();
    let error = within(d.connect(&address)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Silent { .. }), "{error:?}");
    let text = error.to_string();
    names(&text, &[&address, "did not answer"]);
    assert!(
        ["clos", "broke"].iter().any(|word| text.contains(word)),
        "{text}"
    );
    // 50 ms, twice as long each time.
    let count = count.load(std::sync::atomic::Ordering::SeqCst);
    assert!((1..=10).contains(&count), "{count}");
    task.abort();
    end(&[&d]).await;
}

#[tokio::test]
async fn a_token_binds_no_more_data_connections_than_a_session_can_have() {
    use kvroom::Class;
    use kvroom::actors::peer::wire::{DataHello, Greeting, encode_first_greeting};
    let p = listening("p", "tcp://127.0.0.1:0").await;
    let at = p.addresses()[0].strip_prefix("tcp://").unwrap().to_owned();
    let (_control, token) = within(greeted(&at, "d".into(), 1)).await;
    let mut taken = Vec::new();
    let mut refused = 0;
    for (class, index, fits) in [
        (Class::Bulk, 63, true),
        (Class::Interactive, 0, true),
        (Class::Bulk, 64, false),
        (Class::Interactive, 1, false),
        (Class::Bulk, u16::MAX, false),
    ] {
        let hello = DataHello::new(token, (class, index), 1, None);
        let mut bytes = Vec::new();
        encode_first_greeting(&Greeting::Data(hello), &mut bytes).unwrap();
        let mut stream = TcpStream::connect(&at).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        if fits {
            taken.push(stream);
        } else {
            let n = within(stream.read_to_end(&mut bytes)).await.unwrap_or(0);
            assert_eq!(n, 0, "{class:?} {index}");
            refused += 1;
            until("it is counted", async || {
                p.stats().await.greetings_refused == refused
            })
            .await;
        }
    }
    for mut stream in taken {
        let closed = tokio::time::timeout(Duration::from_millis(50), stream.read_u8()).await;
        assert!(closed.is_err(), "{closed:?}");
    }
    end(&[&p]).await;
}
