//! Sessions over sockets: nodes that find each other by address, lose each other and come back.
//! The rooms here move no data: what is shown is the session.
#![allow(clippy::unwrap_used)]

use kvroom::{Node, NodeBuilder, Outcome, Peer, Pool, RoomId};
use std::future::Future;
use std::time::Duration;

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
