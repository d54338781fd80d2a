//! One transfer through everything.

use kvroom::{Chunk, LocalHub, Node, Order, Outcome, Pool, PoolKind, PoolLayout, RoomId};

fn layout(pages: u32) -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 2,
        pages,
        page_bytes: 4096,
        page_tokens: 16,
    }
}

#[tokio::test]
async fn a_room_moves_its_pages_and_gives_both_leases_back() {
    let hub = LocalHub::new();
    let source = Pool::owned(layout(8)).unwrap();
    let destination = Pool::owned(layout(8)).unwrap();
    let prefill = Node::builder("p")
        .hub(&hub)
        .pool(source.clone())
        .start()
        .await
        .unwrap();
    let decode = Node::builder("d")
        .hub(&hub)
        .pool(destination.clone())
        .start()
        .await
        .unwrap();
    let peer = decode.connect("local://p").await.unwrap();
    let lease = destination.lease_write(&[3, 5]).unwrap();
    let receiver = decode
        .receive(RoomId(42))
        .from(&peer)
        .into(lease)
        .start()
        .await
        .unwrap();
    let mut pages = source.lease_write(&[0, 1]).unwrap();
    for layer in 0..2 {
        for page in 0..2 {
            pages
                .page_mut(layer, page)
                .fill(10 * layer as u8 + page as u8 + 1);
        }
    }
    let sender = prefill.send(RoomId(42)).start().await.unwrap();
    let slot = sender.reserve().await.unwrap();
    let pushed = slot
        .push(Chunk::tokens(0..32).pages(pages.into_read()))
        .unwrap();
    sender.finish(32, None).unwrap();
    assert_eq!(receiver.outcome().await, Outcome::Done);
    assert_eq!(sender.outcome().await, Outcome::Done);
    let back = receiver.released().await;
    for layer in 0..2 {
        for page in 0..2 {
            let want = 10 * layer as u8 + page as u8 + 1;
            assert!(back.leases[0].page(layer, page).iter().all(|b| *b == want));
        }
    }
    assert!(pushed.released().await.is_some());
    drop(back);
    assert_eq!(destination.leased_pages(), 0);
    let report = decode.shutdown().await;
    assert!(report.drained);
    assert!(prefill.shutdown().await.drained);
}
