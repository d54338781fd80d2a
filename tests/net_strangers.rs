//! Whoever can reach an address and is no peer: gets nothing, learns nothing, costs nothing.
#![allow(clippy::unwrap_used)]

mod common;

use common::fake_peer::*;
use common::process::resident_of;
use common::*;
use kvroom::actors::copy::schedule::Class;
use kvroom::actors::peer::handshake::{Handshake, Step};
use kvroom::actors::peer::wire::{DataHello, Greeting, encode_first_greeting};
use kvroom::{ClusterKey, Deadlines, LocalHub, Net, Outcome, PoolLayout, RoomId};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const KEY: &str = "a key that both sides have";

fn key() -> ClusterKey {
    ClusterKey::new(KEY).unwrap()
}

/// With the key, and with a pool whose name is nobody's business.
fn setup() -> Setup {
    Setup {
        over: Over::Tcp,
        net: Net {
            key: Some(key()),
            ..Net::default()
        },
        layout: PoolLayout {
            name: "secret-pool".into(),
            ..kv(16, 4096)
        },
        ..Setup::default()
    }
}

/// Everything that the node says until it closes the connection.
fn everything(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut some = [0; 4096];
    loop {
        match stream.read(&mut some) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&some[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                panic!("the node did not close the connection in {PATIENCE:?}")
            }
            Err(_) => return all,
        }
    }
}

/// The length that a message begins with, which is in the low 25 bits.
fn length_of(said: &[u8]) -> usize {
    (u32::from_le_bytes(*said.first_chunk().unwrap()) & 0x1ff_ffff) as usize
}

/// What was said is at most one message of the kind that strangers get, and names no pool.
#[track_caller]
fn is_a_hello_at_most(said: &[u8]) {
    let text = String::from_utf8_lossy(said);
    assert!(!text.contains("secret"), "{text:?}");
    if said.is_empty() {
        return;
    }
    let length = length_of(said);
    assert!(length <= 1_024, "{length}");
    assert_eq!(said.len(), 8 + length, "more than a Hello was said");
    assert_eq!(&said[8..16], b"KVRM\0\0\0\0", "it is no Hello");
}

/// The bytes that a dialer with this key says to a node, and the connection.
fn greet(address: &str, name: &str, key: Option<ClusterKey>) -> (Vec<u8>, TcpStream, String) {
    let mut stream = dial(address);
    let mut shake = Handshake::dialer(hello(name, incarnation()), key);
    let (mut said, mut out, mut ahead) = (Vec::new(), Vec::new(), Vec::new());
    shake.start(&mut out).unwrap();
    let _ = stream.write_all(&out);
    said.append(&mut out);
    let end = loop {
        let mut bytes = &ahead[..];
        let step = shake.take(&mut bytes, &mut out);
        let used = ahead.len() - bytes.len();
        ahead.drain(..used);
        let _ = stream.write_all(&out);
        said.append(&mut out);
        match step {
            Ok(Step::More) => {
                let mut some = [0; 4096];
                match stream.read(&mut some) {
                    Ok(n) if n > 0 => ahead.extend_from_slice(&some[..n]),
                    _ => break shake.closed().to_string(),
                }
            }
            Ok(Step::Known(_)) => break "known".into(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error.to_string(),
        }
    };
    (said, stream, end)
}

/// The node knows nobody but its peer, and serves it.
async fn nobody_came(duo: Duo) {
    let peers = duo.prefill.node.peers().await;
    let peers: Vec<&str> = peers.iter().map(|p| p.name()).collect();
    assert_eq!(peers, ["d"]);
    duo.moves(1_000, 0, &[0, 1], &[2, 3]).await;
    duo.end().await;
}

#[tokio::test]
async fn a_stranger_without_a_key_or_with_another_one_gets_a_hello_at_most() {
    let duo = Duo::with(setup()).await;
    let other = ClusterKey::new("a key that nobody else has").unwrap();
    for key in [None, Some(other)] {
        let (_, mut stream, end) = greet(&duo.prefill.address, "stranger", key);
        assert_ne!(end, "known");
        is_a_hello_at_most_of(&mut stream);
    }
    nobody_came(duo).await;
}

/// What comes after the Hello that was read already: nothing.
fn is_a_hello_at_most_of(stream: &mut TcpStream) {
    let rest = everything(stream);
    assert!(rest.is_empty(), "{rest:?}");
}

#[tokio::test]
async fn a_greeting_that_was_good_once_is_not_good_again() {
    let duo = Duo::with(setup()).await;
    let (said, stream, end) = greet(&duo.prefill.address, "overheard", Some(key()));
    assert_eq!(end, "known", "the greeting was good once");
    drop(stream);
    let mut again = dial(&duo.prefill.address);
    let _ = again.write_all(&said);
    is_a_hello_at_most(&everything(&mut again));
    nobody_came(duo).await;
}

#[tokio::test]
async fn a_mirror_is_no_peer() {
    let duo = Duo::with(setup()).await;
    // It has no key, and answers with what the node itself says.
    let mut stream = dial(&duo.prefill.address);
    let mut out = Vec::new();
    let mut shake = Handshake::dialer(hello("mirror", incarnation()), Some(key()));
    shake.start(&mut out).unwrap();
    stream.write_all(&out).unwrap();
    let mut said = vec![0; 8];
    stream.read_exact(&mut said).unwrap();
    let length = length_of(&said);
    said.resize(8 + length, 0);
    stream.read_exact(&mut said[8..]).unwrap();
    let _ = stream.write_all(&said);
    is_a_hello_at_most_of(&mut stream);
    // The same from the first byte on.
    let mut stream = dial(&duo.prefill.address);
    stream.write_all(&said).unwrap();
    is_a_hello_at_most(&everything(&mut stream));
    nobody_came(duo).await;
}

#[tokio::test]
async fn random_bytes_get_nothing_and_hurt_nobody() {
    let duo = Duo::with(setup()).await;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut good = Vec::new();
    let hello = Greeting::Hello(hello("random", incarnation()));
    encode_first_greeting(&hello, &mut good).unwrap();
    for round in 0..200 {
        let mut bytes: Vec<u8> = match round % 4 {
            // Nothing of it is right; a plausible length; a right message with a changed byte; an
            // enormous length.
            0 => (0..random() % 3_000).map(|_| random() as u8).collect(),
            1 => {
                let mut b = (random() as u32 % 900).to_le_bytes().to_vec();
                b.extend((0..1_000).map(|_| random() as u8));
                b
            }
            2 => {
                let mut b = good.clone();
                let at = random() as usize % b.len();
                b[at] ^= 1 << (random() % 8);
                b
            }
            _ => vec![0xff; 64],
        };
        if round == 3 {
            bytes = b"GET / HTTP/1.1\r\nHost: kvroom\r\n\r\n".to_vec();
        }
        let mut stream = dial(&duo.prefill.address);
        let _ = stream.write_all(&bytes);
        half_close(&stream);
        is_a_hello_at_most(&everything(&mut stream));
    }
    nobody_came(duo).await;
}

#[tokio::test]
async fn a_data_connection_with_a_wrong_token_is_closed_and_places_nothing() {
    let duo = Duo::with(setup()).await;
    let mut out = Vec::new();
    let hello = DataHello::new(12345, (Class::Bulk, 0), 1, Some(&key()));
    encode_first_greeting(&Greeting::Data(hello), &mut out).unwrap();
    let mut stream = dial(&duo.decode.address);
    stream.write_all(&out).unwrap();
    let _ = stream.write_all(&[1; 4096]);
    assert!(everything(&mut stream).is_empty());
    nobody_came(duo).await;
}

#[tokio::test]
async fn who_overheard_a_data_connection_opens_none_by_saying_it_again_or_without_the_key() {
    let duo = Duo::with(setup()).await;
    let peer = FakePeer::connect(&duo.decode.address, "overheard", Some(key()), Vec::new());
    let said = peer.data_hello(Class::Bulk, 0);
    let mut first = dial(&duo.decode.address);
    first.write_all(&said).unwrap();
    // The token is known to whoever listened; the key is not.
    let mut unsigned = Vec::new();
    let hello = DataHello::new(peer.token, (Class::Bulk, 0), u64::MAX, None);
    encode_first_greeting(&Greeting::Data(hello), &mut unsigned).unwrap();
    for again in [said, unsigned] {
        let mut stream = dial(&duo.decode.address);
        stream.write_all(&again).unwrap();
        assert!(everything(&mut stream).is_empty());
    }
    // The one that was there first is not displaced.
    first
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let still = first.read(&mut [0]).unwrap_err();
    assert!(matches!(
        still.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut
    ));
    nobody_came(duo).await;
}

#[tokio::test]
async fn a_handshake_that_stalls_or_drips_is_closed_at_its_deadline() {
    let connect = Duration::from_millis(300);
    let duo = Duo::with(Setup {
        deadlines: Deadlines {
            connect,
            ..Deadlines::default()
        },
        ..setup()
    })
    .await;
    let mut good = Vec::new();
    let greeting = Greeting::Hello(hello("staller", incarnation()));
    encode_first_greeting(&greeting, &mut good).unwrap();
    let mut stalled = Vec::new();
    // Nothing, some of a length, some of a Hello, and a Hello without what follows.
    for n in [0, 3, 30, good.len()] {
        let mut stream = dial(&duo.prefill.address);
        stream.write_all(&good[..n]).unwrap();
        stalled.push(stream);
    }
    // One byte now and then does not make the deadline start again.
    let start = Instant::now();
    let mut drip = dial(&duo.prefill.address);
    let mut dripped = 0;
    for byte in &good {
        if drip.write_all(std::slice::from_ref(byte)).is_err() {
            break;
        }
        dripped += 1;
        std::thread::sleep(Duration::from_millis(20));
        if start.elapsed() > 10 * connect {
            break;
        }
    }
    assert!(dripped < good.len(), "it could drip all of its Hello");
    assert!(start.elapsed() < 10 * connect, "it was never closed");
    stalled.push(drip);
    for mut stream in stalled {
        is_a_hello_at_most(&everything(&mut stream));
    }
    nobody_came(duo).await;
}

/// How many files this process may have open.
fn open_files() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let soft = line.unwrap().split_whitespace().nth(3).unwrap();
    soft.parse().unwrap_or(usize::MAX)
}

fn count(what: &str) -> usize {
    let all = std::fs::read_dir(format!("/proc/self/{what}")).unwrap();
    all.count()
}

#[tokio::test]
async fn ten_thousand_half_open_connections_cost_nothing_and_keep_no_peer_out() {
    const WANTED: usize = 10_000;
    let n = WANTED.min(open_files().saturating_sub(2_000));
    if n < WANTED {
        eprintln!("SCALED DOWN: {n} half-open connections instead of {WANTED}, for `ulimit -n`");
    }
    assert!(n >= 500, "`ulimit -n` is too low for this test");
    let setup = setup();
    let hub = LocalHub::new();
    let prefill = Side::start(&hub, "p", &setup, &Default::default()).await;
    let (files, tasks, memory) = (count("fd"), count("task"), resident_of("self"));
    let mut half_open = Vec::with_capacity(n);
    let flood = |half_open: &mut Vec<TcpStream>, n: usize| {
        for i in 0..n {
            let mut stream = dial(&prefill.address);
            if i % 2 == 0 {
                let _ = stream.write_all(b"\x10\x00");
            }
            half_open.push(stream);
        }
    };
    flood(&mut half_open, n / 2);
    // In the middle of it a peer comes.
    let decode = Side::start(&hub, "d", &setup, &Default::default()).await;
    let peer = within(decode.node.connect(&prefill.address)).await.unwrap();
    flood(&mut half_open, n - n / 2);
    for id in 0..20 {
        let lease = decode.pool.lease_write(&[0, 1]).unwrap();
        let room = decode.node.receive(RoomId(id)).from(&peer).into(lease);
        let receiver = within(room.start()).await.unwrap();
        let sender = within(prefill.node.send(RoomId(id)).start()).await.unwrap();
        push(&sender, 0..2 * TOKENS, prefill.stamped(&[4, 5], id, 0)).await;
        sender.finish(2 * TOKENS, None).unwrap();
        assert_eq!(within(receiver.outcome()).await, Outcome::Done);
        verify(&within(receiver.released()).await.leases[0], id, 0);
        drop(within(sender.released()).await);
    }
    // Only as many as may greet at once are open on the node's side, and nothing grows with them.
    let greetings = kvroom::Limits::default().greetings;
    let most = files + n + greetings + 100;
    until("the oldest are put out", || count("fd") <= most).await;
    assert!(count("task") <= tasks + 16, "{} threads", count("task"));
    let grown = resident_of("self").saturating_sub(memory);
    assert!(grown < 64 << 20, "{grown} bytes more");
    // The oldest of all was put out, without a word.
    let mut oldest = half_open.swap_remove(0);
    assert!(everything(&mut oldest).is_empty());
    drop(half_open);
    decode.quiet().await;
    prefill.quiet().await;
    assert!(within(decode.node.shutdown()).await.drained);
    assert!(within(prefill.node.shutdown()).await.drained);
}

#[tokio::test]
async fn a_node_whose_key_or_layout_differs_is_told_so_and_nobody_is_hurt() {
    let duo = Duo::with(setup()).await;
    let other = |net: Net, layout: PoolLayout| Setup {
        net,
        layout,
        ..setup()
    };
    let keyed = |key: Option<ClusterKey>| Net {
        key,
        ..Net::default()
    };
    let layout = setup().layout;
    let wrong = ClusterKey::new("a key that nobody else has").unwrap();
    let cases = [
        (other(keyed(Some(wrong)), layout.clone()), "key"),
        (other(keyed(None), layout.clone()), "key"),
        (
            other(
                keyed(Some(key())),
                PoolLayout {
                    page_bytes: 8192,
                    ..layout
                },
            ),
            "page_bytes",
        ),
    ];
    for (i, (setup, word)) in cases.into_iter().enumerate() {
        let name = format!("x{i}");
        let side = Side::start(&duo.hub, &name, &setup, &Default::default()).await;
        let error = within(side.node.connect(&duo.prefill.address)).await;
        let error = error.unwrap_err();
        names(&error, &[word]);
        // The other way round it hears the same.
        let error = within(duo.prefill.node.connect(&side.address)).await;
        let error = error.unwrap_err();
        names(&error, &[word]);
        assert!(within(side.node.shutdown()).await.drained);
    }
    nobody_came(duo).await;
}
