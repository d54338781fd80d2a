//! A peer with the cluster key that lies ends its own rooms and is named in the log; rooms with an
//! honest peer of the same node go on and complete, and no byte is placed that was not offered.
#![allow(clippy::unwrap_used)]

mod common;

use common::fake_peer::*;
use common::*;
use kvroom::actors::copy::schedule::Class;
use kvroom::actors::ids::{ClaimId, ClaimNo, PoolId};
use kvroom::actors::peer::message::{Body, Claim, ClaimTag, Frame};
use kvroom::actors::peer::wire::length_word;
use kvroom::{
    ClusterKey, Code, Deadlines, Limits, Net, NodeStats, Outcome, Peer, Reason, ReceiveRoom,
    RoomId, RoomKey, SendRoom, StateName,
};
use kvroom_kernels::coverage::Coverage;
use std::io::Write;
use std::net::TcpStream;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

const KEY: &str = "a key that both sides have";
const PAGE: u64 = 4096;

/// What the nodes of this process have logged.
fn log() -> &'static Mutex<Vec<u8>> {
    static LOG: OnceLock<&'static Mutex<Vec<u8>>> = OnceLock::new();
    LOG.get_or_init(|| {
        let log: &'static Mutex<Vec<u8>> = Box::leak(Box::default());
        let writer = move || Log(log);
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(writer)
            .init();
        log
    })
}

struct Log(&'static Mutex<Vec<u8>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Lines of the log that name this peer.
fn lines_that_name(name: &str) -> Vec<String> {
    let log = log().lock().unwrap();
    let log = String::from_utf8_lossy(&log);
    let lines = log.lines().filter(|line| line.contains(name));
    lines.map(str::to_owned).collect()
}

/// Waits for a warning or an error that names the peer and what it did.
async fn is_blamed(name: &str, words: &[&str]) {
    let blames = |line: &String| {
        let loud = line.contains("WARN") || line.contains("ERROR");
        loud && words.iter().all(|word| line.contains(word))
    };
    let what = format!("the log names {name} and {words:?}");
    until(&what, || lines_that_name(name).iter().any(blames)).await;
}

/// Two honest nodes with a room between them that is half done, while somebody lies to one of them.
struct Court {
    duo: Duo,
    receiver: ReceiveRoom,
    sender: SendRoom,
}

fn key() -> ClusterKey {
    ClusterKey::new(KEY).unwrap()
}

impl Court {
    async fn opens() -> Court {
        Court::within(Limits::default()).await
    }

    async fn within(limits: Limits) -> Court {
        log();
        let duo = Duo::with(Setup {
            over: Over::Tcp,
            net: Net {
                key: Some(key()),
                ..Net::default()
            },
            limits,
            deadlines: Deadlines {
                // What a liar leaves behind by going away.
                resume: Duration::from_millis(300),
                ..Deadlines::default()
            },
            ..Setup::default()
        })
        .await;
        let receiver = duo.receive(1, 0, &[0, 1]).await;
        let sender = duo.send(1, 0).await;
        let first = push(&sender, 0..TOKENS, duo.prefill.stamped(&[0], 1, 0)).await;
        assert!(within(first.released()).await.is_some());
        Court {
            duo,
            receiver,
            sender,
        }
    }

    /// A peer of the decode node, which is to send.
    fn sender(&self, name: &str) -> FakePeer {
        let pools = vec![kv(16, PAGE)];
        FakePeer::connect(&self.duo.decode.address, name, Some(key()), pools)
    }

    /// A peer of the prefill node, which is to receive.
    fn receiver(&self, name: &str) -> FakePeer {
        let pools = vec![kv(16, PAGE)];
        FakePeer::connect(&self.duo.prefill.address, name, Some(key()), pools)
    }

    /// A room of the decode node that expects its data from the liar, on pages with a canary.
    async fn room_from(&self, name: &str, liar: &mut FakePeer) -> (ReceiveRoom, Claim, Peer) {
        let node = &self.duo.decode.node;
        let peer = within(node.peer(name)).await.unwrap();
        let mut lease = self.duo.decode.pool.lease_write(&[6, 7]).unwrap();
        fill(&mut lease, CANARY, 0);
        let room = node.receive(RoomId(66)).from(&peer).into(lease);
        let room = within(room.start()).await.unwrap();
        let claim = liar.hear_claim();
        liar.say(Body::Bound { tag: claim.tag });
        (room, claim, peer)
    }

    /// The honest room completes, and a new one.
    async fn goes_on(self) {
        let Court {
            duo,
            receiver,
            sender,
        } = self;
        assert_eq!(receiver.try_outcome(), None);
        push(&sender, TOKENS..2 * TOKENS, duo.prefill.stamped(&[1], 1, 1)).await;
        sender.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(receiver.outcome()).await, Outcome::Done);
        verify(&within(receiver.released()).await.leases[0], 1, 0);
        assert_eq!(within(sender.outcome()).await, Outcome::Done);
        drop((receiver, sender));
        duo.moves(2, 0, &[2, 3], &[2, 3]).await;
        duo.end().await;
    }
}

/// What the pages of the liar's room hold before it writes.
const CANARY: u64 = 0xca_a1;

fn all_cells(pages: u32) -> Coverage {
    let mut all = Coverage::new();
    all.insert(0, 0..LAYERS, 0..pages).unwrap();
    all
}

/// Everything about a lie of a sender.
struct Scene<'a> {
    liar: &'a mut FakePeer,
    claim: &'a Claim,
    data: &'a mut TcpStream,
}

impl Scene<'_> {
    /// A frame that would be right.
    fn frame(&self) -> DataFrame {
        DataFrame::whole(self.claim, LAYERS, PAGE)
    }

    /// Sent as it is; the node may close the connection in the middle of it.
    fn data(&mut self, bytes: &[u8]) {
        let _ = self.data.write_all(bytes);
    }
}

/// After this lie of a sender its session is over, its room has ended with its pages back as they
/// were, its name is in the log, and the others go on.
async fn a_sender_is_found_out(name: &str, what: &str, lie: impl FnOnce(&mut Scene<'_>)) {
    let court = Court::opens().await;
    let mut liar = court.sender(name);
    let (room, claim, peer) = court.room_from(name, &mut liar).await;
    let mut data = liar.data(Class::Bulk, 0);
    lie(&mut Scene {
        liar: &mut liar,
        claim: &claim,
        data: &mut data,
    });
    let outcome = within(room.outcome()).await;
    assert_eq!(code(&outcome), Code::ProtocolViolation, "{outcome}");
    names(&text(&outcome), &[what]);
    let back = within(room.released()).await;
    verify(&back.leases[0], CANARY, 0);
    drop((back, room));
    liar.is_put_out();
    is_closed(&mut data);
    assert!(peer.is_up().is_err());
    is_blamed(name, &[what]).await;
    court.goes_on().await;
}

#[tokio::test]
async fn a_peer_that_tells_the_truth_is_served() {
    let court = Court::opens().await;
    let mut honest = court.sender("true sender");
    let (room, claim, peer) = court.room_from("true sender", &mut honest).await;
    let mut data = honest.data(Class::Bulk, 0);
    let frame = DataFrame::whole(&claim, LAYERS, PAGE);
    data.write_all(&frame.bytes(0x5a)).unwrap();
    // The acknowledgement of it.
    std::io::Read::read_exact(&mut data, &mut [0; 64]).unwrap();
    honest.say(Body::Complete {
        tag: claim.tag,
        total: 2 * TOKENS,
        coverage: all_cells(2),
        checksum: None,
    });
    assert_eq!(within(room.outcome()).await, Outcome::Done);
    let back = within(room.released()).await;
    for (layer, index) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert!(back.leases[0].page(layer, index).iter().all(|b| *b == 0x5a));
    }
    assert!(peer.is_up().is_ok());
    assert_eq!(
        lines_that_name("true sender")
            .iter()
            .filter(|l| l.contains("WARN"))
            .count(),
        0
    );
    drop((back, room));

    // And as a receiver.
    let mut honest = court.receiver("true receiver");
    let _large = honest.data(Class::Bulk, 0);
    // So few bytes go the way of small pieces.
    let mut data = honest.data(Class::Interactive, 0);
    let sender = court.duo.send(70, 0).await;
    let claim = honest.claim(RoomKey::new(70, 0), &[3]);
    let tag = claim.tag;
    honest.say(Body::Claim(Box::new(claim)));
    push(&sender, 0..TOKENS, court.duo.prefill.stamped(&[4], 9, 0)).await;
    sender.finish(TOKENS, None).unwrap();
    let mut header = [0; 64];
    std::io::Read::read_exact(&mut data, &mut header).unwrap();
    assert_eq!(&header[..5], b"KVRF\x01");
    let mut rest = vec![0; 2 * PAGE as usize + 16];
    std::io::Read::read_exact(&mut data, &mut rest).unwrap();
    assert!(holds(&rest[..PAGE as usize], 9, 0, 0));
    data.write_all(&ack_frame(Fate::Landed, 1..2)).unwrap();
    honest.hear_until(|body| matches!(body, Body::Complete { .. }).then_some(()));
    honest.say(Body::Accepted { tag });
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    drop(sender);
    court.goes_on().await;
}

#[tokio::test]
async fn data_for_pages_outside_the_claim_places_nothing_and_ends_the_session() {
    a_sender_is_found_out("liar of places", "places 1..3", |s| {
        let frame = DataFrame {
            places: 1..3,
            ..s.frame()
        };
        s.data(&frame.bytes(1));
    })
    .await;
}

#[tokio::test]
async fn data_for_layers_outside_the_pool_places_nothing_and_ends_the_session() {
    a_sender_is_found_out("liar of layers", "layers 1..3", |s| {
        let frame = DataFrame {
            layers: 1..3,
            ..s.frame()
        };
        s.data(&frame.bytes(1));
    })
    .await;
}

#[tokio::test]
async fn data_beyond_the_cells_it_names_places_nothing_and_ends_the_session() {
    a_sender_is_found_out("liar of positions", "bytes 4096..", |s| {
        let frame = DataFrame {
            position: PAGE,
            ..s.frame()
        };
        s.data(&frame.bytes(1));
    })
    .await;
    a_sender_is_found_out("liar of huge positions", "18446744073709547519", |s| {
        let frame = DataFrame {
            position: u64::MAX - 4096,
            ..s.frame()
        };
        s.data(&frame.bytes(1));
    })
    .await;
}

#[tokio::test]
async fn data_for_a_section_that_the_claim_does_not_have_ends_the_session() {
    a_sender_is_found_out("liar of sections", "section 3", |s| {
        let frame = DataFrame {
            section: 3,
            ..s.frame()
        };
        s.data(&frame.bytes(1));
    })
    .await;
}

#[tokio::test]
async fn a_data_frame_over_the_limit_ends_the_session_before_its_payload_is_read() {
    a_sender_is_found_out("liar of lengths", "16777217 bytes", |s| {
        let frame = DataFrame {
            length: (16 << 20) + 1,
            ..s.frame()
        };
        s.data(&frame.header());
    })
    .await;
    a_sender_is_found_out("liar of no length", "0 bytes", |s| {
        let frame = DataFrame {
            length: 0,
            ..s.frame()
        };
        s.data(&frame.header());
    })
    .await;
}

#[tokio::test]
async fn data_frames_out_of_number_end_the_session() {
    a_sender_is_found_out("liar of numbers", "data frame 5", |s| {
        let frame = DataFrame {
            seq: 5,
            ..s.frame()
        };
        s.data(&frame.header());
    })
    .await;
}

#[tokio::test]
async fn data_for_a_claim_of_another_peer_places_nothing_and_ends_the_session() {
    // The honest room's pages are compared at the end.
    a_sender_is_found_out("liar of claims", "another peer", |s| {
        let mut seq = 0;
        for claim in 1..s.claim.tag.id.number.0 {
            for gate in 0..8 {
                seq += 1;
                let frame = DataFrame {
                    seq,
                    claim,
                    gate,
                    places: 0..1,
                    length: PAGE as u32,
                    ..s.frame()
                };
                s.data(&frame.bytes(0xee));
            }
        }
        assert!(seq > 0, "the honest claim came first");
    })
    .await;
}

#[tokio::test]
async fn an_acknowledgement_of_data_that_was_never_sent_ends_the_session() {
    a_sender_is_found_out("liar of acks", "acknowledged frame 1", |s| {
        s.data(&ack_frame(Fate::Landed, 1..4))
    })
    .await;
}

#[tokio::test]
async fn a_message_in_the_wrong_direction_ends_the_session() {
    a_sender_is_found_out("liar of directions", "Accepted", |s| {
        let tag = s.claim.tag;
        s.liar.say(Body::Accepted { tag });
    })
    .await;
}

#[tokio::test]
async fn a_message_about_another_peers_claim_ends_the_session() {
    a_sender_is_found_out("liar of tags", "Bound", |s| {
        let id = ClaimId {
            sender: incarnation(),
            ..s.claim.tag.id
        };
        let tag = ClaimTag { id, ..s.claim.tag };
        s.liar.say(Body::Bound { tag });
    })
    .await;
}

#[tokio::test]
async fn an_acknowledgement_of_control_frames_that_were_never_sent_ends_the_session() {
    a_sender_is_found_out("liar of control acks", "acknowledge", |s| {
        s.liar.say_frame(&Frame {
            seq: 0,
            ack: 1 << 40,
            body: None,
        });
    })
    .await;
}

#[tokio::test]
async fn a_control_frame_over_the_limit_ends_the_session() {
    a_sender_is_found_out("liar of control lengths", "announced", |s| {
        let announced = length_word(kvroom::Limits::default().frame_bytes as u32 + 1);
        let mut bytes = announced.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[0; 12]);
        s.liar.raw(&bytes);
    })
    .await;
}

#[tokio::test]
async fn complete_without_the_bytes_ends_that_room_as_incomplete() {
    let court = Court::opens().await;
    for (i, (name, coverage)) in [
        ("liar of nothing", Coverage::new()),
        ("liar of everything", all_cells(2)),
    ]
    .into_iter()
    .enumerate()
    {
        let mut liar = court.sender(name);
        let node = &court.duo.decode.node;
        let peer = within(node.peer(name)).await.unwrap();
        let mut lease = court.duo.decode.pool.lease_write(&[6, 7]).unwrap();
        fill(&mut lease, CANARY, 0);
        let room = node.receive(RoomId(80 + i as u64)).from(&peer).into(lease);
        let room = within(room.start()).await.unwrap();
        let tag = liar.hear_claim().tag;
        liar.say(Body::Bound { tag });
        liar.say(Body::Complete {
            tag,
            total: 2 * TOKENS,
            coverage,
            checksum: None,
        });
        let outcome = within(room.outcome()).await;
        assert_ne!(outcome, Outcome::Done, "{name}");
        names(&text(&outcome), &["Coverage"]);
        let back = within(room.released()).await;
        verify(&back.leases[0], CANARY, 0);
        is_blamed(name, &["Coverage"]).await;
    }
    court.goes_on().await;
}

#[tokio::test]
async fn garbage_behind_the_handshake_ends_that_connection_and_costs_nobody_else() {
    let court = Court::opens().await;
    let mut liar = court.sender("liar of garbage");
    let (room, _, _) = court.room_from("liar of garbage", &mut liar).await;
    let mut data = liar.data(Class::Bulk, 0);
    let garbage: Vec<u8> = (0..4096u32).map(|i| (i * 31 % 251) as u8).collect();
    let _ = data.write_all(&garbage);
    is_closed(&mut data);
    // The connection is at fault, not the session.
    assert_eq!(room.try_outcome(), None);
    liar.raw(&[8, 0, 0, 0]);
    liar.raw(&garbage);
    liar.is_put_out();
    // It does not come back, so its session is given up.
    let outcome = within(room.outcome()).await;
    assert_ne!(outcome, Outcome::Done);
    let back = within(room.released()).await;
    verify(&back.leases[0], CANARY, 0);
    drop((back, room));
    is_blamed("liar of garbage", &["connection lost"]).await;
    court.goes_on().await;
}

#[tokio::test]
async fn data_for_claims_that_are_not_live_is_thrown_away_and_counted() {
    let court = Court::opens().await;
    let name = "sender of late bytes";
    let mut liar = court.sender(name);
    let (room, claim, peer) = court.room_from(name, &mut liar).await;
    let mut data = liar.data(Class::Bulk, 0);
    for (seq, (number, gate)) in [(1 << 40, claim.gate), (claim.tag.id.number.0, 1 << 30)]
        .into_iter()
        .enumerate()
    {
        let frame = DataFrame {
            seq: seq as u64 + 1,
            claim: number,
            gate,
            ..DataFrame::whole(&claim, LAYERS, PAGE)
        };
        data.write_all(&frame.bytes(1)).unwrap();
    }
    let node = &court.duo.decode.node;
    until_counts("both were late", node, |s| s.late_frames == 2).await;
    assert!(peer.is_up().is_ok());
    assert_eq!(room.try_outcome(), None);
    room.abort("seen enough");
    let tag = liar.hear_until(|body| match body {
        Body::Abort { tag, .. } => Some(tag),
        _ => None,
    });
    liar.say(Body::Quiesced {
        tag,
        landed: Coverage::new(),
    });
    let back = within(room.released()).await;
    verify(&back.leases[0], CANARY, 0);
    drop((back, room));
    court.goes_on().await;
}

#[tokio::test]
async fn a_receiver_that_calls_valid_data_void_ends_its_session_and_the_room_hears_of_it() {
    let court = Court::opens().await;
    let name = "liar of void";
    let mut liar = court.receiver(name);
    let mut data = liar.data(Class::Interactive, 0);
    let sender = court.duo.send(71, 0).await;
    let claim = liar.claim(RoomKey::new(71, 0), &[3]);
    liar.say(Body::Claim(Box::new(claim)));
    let chunk = push(&sender, 0..TOKENS, court.duo.prefill.stamped(&[4], 9, 0)).await;
    let mut frame = vec![0; 64 + 2 * PAGE as usize + 16];
    std::io::Read::read_exact(&mut data, &mut frame).unwrap();
    data.write_all(&ack_frame(Fate::Void, 1..2)).unwrap();
    let outcome = within(sender.outcome()).await;
    assert_eq!(code(&outcome), Code::ProtocolViolation, "{outcome}");
    assert!(within(chunk.released()).await.is_some());
    drop(sender);
    is_blamed(name, &["void"]).await;
    court.goes_on().await;
}

/// After this claim of a liar the prefill node says no: in words, or by ending the session. The
/// sender room that it was for is unharmed, and a true claim is served by it.
async fn a_claim_is_refused(name: &str, words: &[&str], lie: impl FnOnce(&mut Claim)) {
    let court = Court::opens().await;
    let sender = court.duo.send(90, 0).await;
    let chunk = push(&sender, 0..TOKENS, court.duo.prefill.stamped(&[4], 9, 0)).await;
    sender.finish(TOKENS, None).unwrap();
    let mut liar = court.receiver(name);
    let mut claim = liar.claim(RoomKey::new(90, 0), &[3]);
    lie(&mut claim);
    liar.say(Body::Claim(Box::new(claim)));
    loop {
        match liar.hear() {
            Some(Body::Failed { reason, .. }) => {
                names(&reason, words);
                break;
            }
            Some(Body::Bound { .. } | Body::Complete { .. }) => panic!("{name} is served"),
            Some(_) => {}
            None => {
                let peer = within(court.duo.prefill.node.peer(name)).await.unwrap();
                names(&peer.is_up().unwrap_err(), words);
                break;
            }
        }
    }
    is_blamed(name, words).await;
    assert_eq!(sender.try_outcome(), None, "the room was ended by {name}");
    let receiver = court.duo.receive(90, 0, &[5]).await;
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], 9, 0);
    assert_eq!(within(sender.outcome()).await, Outcome::Done);
    drop(within(chunk.released()).await);
    drop((receiver, sender));
    court.goes_on().await;
}

#[tokio::test]
async fn a_claim_on_pages_outside_the_liars_own_pool_is_refused() {
    a_claim_is_refused("liar of pages", &["16"], |claim| {
        claim.sections[0].pages = vec![16];
    })
    .await;
}

#[tokio::test]
async fn a_claim_on_a_pool_that_was_never_offered_is_refused() {
    a_claim_is_refused("liar of pools", &["pool"], |claim| {
        claim.sections[0].pool = PoolId(7);
    })
    .await;
}

#[tokio::test]
async fn a_claim_with_more_receivers_than_the_room_is_refused() {
    a_claim_is_refused("liar of receivers", &["receivers"], |claim| {
        claim.receivers = 3;
    })
    .await;
}

#[tokio::test]
async fn a_claim_with_more_receivers_than_the_limit_is_refused() {
    a_claim_is_refused("liar of many receivers", &["receivers"], |claim| {
        claim.receivers = 1_000;
        claim.rank = 999;
    })
    .await;
}

#[tokio::test]
async fn a_claim_with_a_rank_out_of_range_is_refused() {
    a_claim_is_refused("liar of ranks", &["rank"], |claim| claim.rank = 1).await;
}

#[tokio::test]
async fn a_claim_in_the_name_of_another_receiver_is_refused() {
    a_claim_is_refused("liar of names", &["claim"], |claim| {
        claim.tag.id.receiver = incarnation();
    })
    .await;
}

#[tokio::test]
async fn a_rank_that_is_claimed_twice_is_refused_and_the_first_keeps_it() {
    let court = Court::opens().await;
    let sender = court.duo.prefill.node.send(RoomId(91)).receivers(2);
    let sender = within(sender.start()).await.unwrap();
    push(&sender, 0..TOKENS, court.duo.prefill.stamped(&[4], 9, 0)).await;
    sender.finish(TOKENS, None).unwrap();
    let receive = |rank: u16, page: u32| {
        let lease = court.duo.decode.pool.lease_write(&[page]).unwrap();
        let room = court.duo.decode.node.receive(RoomId(91));
        let room = room.receivers(2).rank(rank).from(&court.duo.peer);
        room.into(lease).start()
    };
    let first = within(receive(0, 5)).await.unwrap();
    assert_eq!(within(first.outcome()).await, Outcome::Done);
    let mut liar = court.receiver("liar of a rank");
    let mut claim = liar.claim(RoomKey::new(91, 0), &[3]);
    claim.receivers = 2;
    liar.say(Body::Claim(Box::new(claim)));
    let reason = liar.hear_until(|body| match body {
        Body::Failed { reason, .. } => Some(reason),
        Body::Bound { .. } => panic!("it is served"),
        _ => None,
    });
    names(&reason, &["rank 0"]);
    is_blamed("liar of a rank", &["rank 0", "91#0"]).await;
    assert_eq!(sender.try_outcome(), None);
    // The second rank is served by a true receiver.
    let mut honest = court.receiver("true second rank");
    let mut claim = honest.claim(RoomKey::new(91, 0), &[3]);
    (claim.receivers, claim.rank) = (2, 1);
    honest.say(Body::Claim(Box::new(claim)));
    honest.hear_until(|body| matches!(body, Body::Bound { .. }).then_some(()));
    sender.abort("seen enough");
    drop(within(sender.released()).await);
    drop((first, sender));
    court.goes_on().await;
}

#[tokio::test]
async fn a_claim_number_that_does_not_rise_is_dead_on_arrival_and_counted() {
    let court = Court::opens().await;
    let mut liar = court.receiver("liar of old numbers");
    let mut claim = liar.claim(RoomKey::new(92, 0), &[3]);
    claim.tag.id.number = ClaimNo(9);
    liar.say(Body::Claim(Box::new(claim.clone())));
    for number in [9, 1] {
        claim.tag.room = RoomKey::new(92, number);
        claim.tag.id.number = ClaimNo(u64::from(number));
        liar.say(Body::Claim(Box::new(claim.clone())));
    }
    let node = &court.duo.prefill.node;
    until_stats("they are counted", node, |s| s.stale_messages == 2).await;
    assert_eq!(node.stats().await.early_claims, 1);
    for attempt in [9, 1] {
        let sender = court.duo.send(92, attempt).await;
        settle(&[node]).await;
        assert_eq!(sender.poll().state, StateName::Registered);
    }
    drop(liar);
    let gone = |s: &NodeStats| s.early_claims == 0;
    until_stats("its claims are gone", node, gone).await;
    court.goes_on().await;
}

#[tokio::test]
async fn a_claim_number_of_an_earlier_session_is_dead_in_the_next_one_of_the_same_life() {
    let court = Court::opens().await;
    let node = &court.duo.prefill.node;
    let (address, name) = (&court.duo.prefill.address, "liar of two sessions");
    let pools = || vec![kv(16, PAGE)];
    let mut liar = court.receiver(name);
    let mut claim = liar.claim(RoomKey::new(94, 9), &[3]);
    claim.tag.id.number = ClaimNo(9);
    liar.say(Body::Claim(Box::new(claim.clone())));
    until_stats("it waits", node, |s| s.early_claims == 1).await;
    let me = liar.me;
    drop(liar);
    // The session is not gone on with: another one begins, and ends what was of the first.
    let mut again = None;
    until("the first connection is known to be over", || {
        match FakePeer::connect_as(me, address, name, Some(key()), pools(), || ()) {
            Ok(peer) => again = Some(peer),
            Err(why) => assert_eq!(why, CROSSED),
        }
        again.is_some()
    })
    .await;
    let mut again = again.unwrap();
    until_stats("the first is over", node, |s| s.early_claims == 0).await;
    for number in [9, 1, 10] {
        claim.tag.room = RoomKey::new(94, 100 + number);
        claim.tag.id.number = ClaimNo(u64::from(number));
        again.say(Body::Claim(Box::new(claim.clone())));
    }
    until_stats("they are counted", node, |s| s.stale_messages == 2).await;
    until_stats("only a number that rises lives", node, |s| {
        s.early_claims == 1
    })
    .await;
    drop(again);
    until_stats("its claims are gone", node, |s| s.early_claims == 0).await;
    court.goes_on().await;
}

#[tokio::test]
async fn an_older_life_whose_greeting_took_longer_than_the_next_ones_is_told_that_it_is_over() {
    let court = Court::opens().await;
    let (address, name) = (&court.duo.prefill.address, "two lives of one name");
    let pools = || vec![kv(16, PAGE)];
    let (older, newer) = (incarnation(), incarnation());
    let mut new_peer = None;
    let refused = FakePeer::connect_as(older, address, name, Some(key()), pools(), || {
        let peer = FakePeer::connect_as(newer, address, name, Some(key()), pools(), || ());
        new_peer = Some(peer.unwrap());
    });
    let Err(why) = refused else {
        panic!("the older life has a session");
    };
    let mut new_peer = new_peer.unwrap();
    let peer = within(court.duo.prefill.node.peer(name)).await.unwrap();
    assert_eq!(
        (peer.incarnation(), peer.is_up().is_ok()),
        (newer, true),
        "{why}"
    );
    // Its session is whole: a claim of it waits.
    let claim = new_peer.claim(RoomKey::new(95, 0), &[3]);
    new_peer.say(Body::Claim(Box::new(claim)));
    let node = &court.duo.prefill.node;
    until_stats("its claim waits", node, |s| s.early_claims == 1).await;
    drop(new_peer);
    until_stats("its claims are gone", node, |s| s.early_claims == 0).await;
    court.goes_on().await;
}

#[tokio::test]
async fn more_claims_than_the_credit_end_the_session_and_leave_nothing() {
    let court = Court::opens().await;
    let name = "liar of credit";
    let mut liar = court.receiver(name);
    // Each waits for a send that never comes.
    for i in 0..20_000 {
        let claim = liar.claim(RoomKey::new(1_000 + i, 0), &[3]);
        liar.say(Body::Claim(Box::new(claim)));
    }
    liar.is_put_out();
    is_blamed(name, &["claims"]).await;
    let gone = |s: &NodeStats| s.early_claims == 0;
    until_stats("its claims are gone", &court.duo.prefill.node, gone).await;
    court.goes_on().await;
}

/// An abort of a claim that never was.
fn abort_of_nothing(liar: &mut FakePeer, room: u64) -> Body {
    let Claim { tag, .. } = liar.claim(RoomKey::new(room, 0), &[3]);
    let reason = Reason::from(Code::Requested);
    Body::Abort { tag, reason }
}

/// What aborts of nothing may make a node hold is some hundred frames here.
fn small() -> Limits {
    Limits {
        rooms: 16,
        frames_unacknowledged: 64,
        ..Limits::default()
    }
}

async fn has_reached_the_limit(court: Court, name: &str, mut liar: FakePeer) {
    liar.is_put_out();
    let peer = within(court.duo.prefill.node.peer(name)).await.unwrap();
    let words = ["frames_unacknowledged = 64", "rooms = 16", "acknowledge"];
    until("its session is over", || peer.is_up().is_err()).await;
    names(&peer.is_up().unwrap_err(), &words);
    is_blamed(name, &words).await;
    court.goes_on().await;
}

#[tokio::test]
async fn a_peer_that_aborts_what_never_was_and_does_not_read_ends_its_session() {
    let court = Court::within(small()).await;
    let name = "liar who does not read";
    let mut liar = court.receiver(name);
    for i in 0..20_000 {
        let body = abort_of_nothing(&mut liar, 1_000 + i);
        liar.say(body);
    }
    has_reached_the_limit(court, name, liar).await;
}

#[tokio::test]
async fn a_peer_that_aborts_what_never_was_and_does_not_acknowledge_ends_its_session() {
    let court = Court::within(small()).await;
    let name = "liar who does not acknowledge";
    let mut liar = court.receiver(name);
    let mut answers = 0;
    for i in 0..20_000 {
        let body = abort_of_nothing(&mut liar, 1_000 + i);
        liar.seq += 1;
        liar.say_frame(&Frame {
            seq: liar.seq,
            ack: 0,
            body: Some(body),
        });
        match liar.hear() {
            Some(Body::Quiesced { .. }) => answers += 1,
            Some(Body::GaveUp { reason }) => {
                assert_eq!(reason.code, Code::LimitReached, "{reason}");
                break;
            }
            Some(other) => panic!("{other:?}"),
            None => break,
        }
    }
    // Each was answered until there were too many, and no further.
    assert!((320..=330).contains(&answers), "{answers} answers");
    has_reached_the_limit(court, name, liar).await;
}

#[tokio::test]
async fn a_peer_that_aborts_what_never_was_and_acknowledges_is_only_answered() {
    let court = Court::within(small()).await;
    let mut honest = court.receiver("true aborter");
    for i in 0..2_000 {
        let body = abort_of_nothing(&mut honest, 1_000 + i);
        honest.say(body);
        honest.hear_until(|body| matches!(body, Body::Quiesced { .. }).then_some(()));
    }
    let peer = within(court.duo.prefill.node.peer("true aborter"))
        .await
        .unwrap();
    assert!(peer.is_up().is_ok());
    court.goes_on().await;
}
