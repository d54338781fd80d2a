//! Two ends in one process, each with its own mapping of the ring.

use super::*;
use crate::memory::{RingSide, SharedMemory, SharedOptions};
use crate::peer::transport::{Connection, Source, Transport};
use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// A ring's bytes in one direction.
const FULL: usize = 256 << 10;

struct Pair {
    low: RingConnection,
    high: RingConnection,
    /// What rings the one and the other.
    bells: [Bell; 2],
    /// To lie with.
    memory: SharedMemory,
    /// To write to the higher end's socket with.
    socket: UnixStream,
}

fn pair() -> Pair {
    let memory =
        SharedMemory::create("ring", RingMemory::bytes(), &SharedOptions::default()).unwrap();
    let ring = |side| {
        let fd = memory.fd().try_clone_to_owned().unwrap();
        RingMemory::new(
            SharedMemory::receive(fd, RingMemory::bytes()).unwrap(),
            side,
        )
        .unwrap()
    };
    let (a, b) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    let socket = a.try_clone().unwrap();
    let bells = [Bell::new().unwrap(), Bell::new().unwrap()];
    let [low, high] = [0, 1].map(|i: usize| bells[i].try_clone().unwrap());
    let [to_low, to_high] = [0, 1].map(|i: usize| Arc::new(bells[i].try_clone().unwrap()));
    Pair {
        low: RingConnection {
            socket: Detached::Unix(a),
            ring: ring(RingSide::Lower),
            bell: low,
            theirs: to_high,
        },
        high: RingConnection {
            socket: Detached::Unix(b),
            ring: ring(RingSide::Higher),
            bell: high,
            theirs: to_low,
        },
        bells,
        memory,
        socket,
    }
}

fn open(connection: RingConnection) -> (Transport, Source) {
    Connection::Ring(Box::new(connection)).open().unwrap()
}

/// Runs it on a thread of its own with a reactor, and gives up loudly.
fn run<R: Send>(test: impl AsyncFnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let most = Duration::from_secs(20);
                tokio::time::timeout(most, test()).await.expect("it hangs")
            })
        });
        thread
            .join()
            .unwrap_or_else(|e| std::panic::resume_unwind(e))
    })
}

/// Sends these bytes as one batch.
fn send(to: &mut Transport, bytes: &[u8]) -> Sent {
    let mut rest = Some(bytes);
    to.send(|_, out| {
        out.extend_from_slice(rest.take().unwrap_or_default());
        false
    })
}

async fn next(from: &mut Source) -> Result<Vec<u8>, String> {
    let (mut bytes, len) = from.next().await?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Polls once: whether it is done.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(out) => Poll::Ready(Some(out)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Lets everything on this thread that can run do so.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i % 251) as u8).collect()
}

#[test]
fn what_is_sent_comes_in_order_over_many_laps() {
    let Pair { low, high, .. } = pair();
    run(async || {
        let (mut to, _keep) = open(low);
        let (_back, mut from) = open(high);
        let bytes = pattern(5 * FULL + 123);
        let want = bytes.clone();
        let sending = tokio::task::spawn_local(async move {
            let mut batches = bytes.chunks(1000);
            loop {
                let sent =
                    to.send(|_, out| batches.next().map(|b| out.extend_from_slice(b)).is_some());
                match sent {
                    Sent::All => return (to, _keep),
                    Sent::Blocked => to.room().await,
                    Sent::Lost(e) => panic!("{e}"),
                }
            }
        });
        let mut came = Vec::new();
        while came.len() < want.len() {
            came.extend(next(&mut from).await.unwrap());
        }
        assert!(came == want, "other bytes came");
        drop(sending.await.unwrap());
        assert_eq!(
            next(&mut from).await,
            Err("the other side closed it".into())
        );
    });
}

#[test]
fn the_last_word_of_a_greeting_goes_before_the_ring_is_open_and_not_over_it() {
    let Pair { low, high, .. } = pair();
    run(async || {
        let (mut to, _keep) = open(low);
        to.first(b"go".to_vec());
        assert!(matches!(send(&mut to, b"frame"), Sent::All));
        let Detached::Unix(socket) = &high.socket else {
            panic!()
        };
        let mut word = [0; 8];
        let n = { socket }.read(&mut word).unwrap();
        assert_eq!(&word[..n], b"go");
        let (_back, mut from) = open(high);
        assert_eq!(next(&mut from).await.unwrap(), b"frame");
        assert!(to.is_socket(), "it can be resumed like one");
    });
}

#[test]
fn a_reader_that_sleeps_is_rung_once_and_one_that_is_awake_is_not() {
    let Pair {
        low, high, bells, ..
    } = pair();
    run(async || {
        let (mut to, _keep) = open(low);
        let (_back, mut from) = open(high);
        assert!(matches!(send(&mut to, b"a"), Sent::All));
        assert_eq!(bells[1].count(), 0, "nobody waits");
        assert_eq!(next(&mut from).await.unwrap(), b"a");
        {
            let mut waits = pin!(next(&mut from));
            assert!(poll_once(waits.as_mut()).await.is_none());
            for bytes in [b"b", b"c", b"d"] {
                assert!(matches!(send(&mut to, bytes), Sent::All));
            }
            assert_eq!(bells[1].count(), 1, "once, and not for each");
            assert_eq!(waits.await.unwrap(), b"bcd");
        }
        assert!(matches!(send(&mut to, b"e"), Sent::All));
        assert_eq!(bells[1].count(), 1, "nobody waits any more");
        assert_eq!(next(&mut from).await.unwrap(), b"e");
    });
}

#[test]
fn a_reader_that_sleeps_in_the_reactor_is_woken_by_the_bell_alone() {
    let Pair { low, high, .. } = pair();
    let (asleep, wake) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            run(async move || {
                let (mut to, mut from) = open(low);
                wake.recv().unwrap();
                assert!(matches!(send(&mut to, b"wake"), Sent::All));
                assert_eq!(next(&mut from).await.unwrap(), b"awake");
            });
        });
        run(async || {
            let (mut back, mut from) = open(high);
            let mut waits = pin!(next(&mut from));
            assert!(poll_once(waits.as_mut()).await.is_none());
            asleep.send(()).unwrap();
            assert_eq!(waits.await.unwrap(), b"wake");
            assert!(matches!(send(&mut back, b"awake"), Sent::All));
        });
    });
}

#[test]
fn two_threads_that_sleep_between_all_words_lose_none() {
    const WORDS: u32 = 20_000;
    let Pair { low, high, .. } = pair();
    let side = |connection: RingConnection, begins: bool| {
        run(async move || {
            let (mut to, mut from) = open(connection);
            let mut turn = u32::from(!begins);
            let mut came = Vec::new();
            if begins {
                assert!(matches!(send(&mut to, &0u32.to_le_bytes()), Sent::All));
            }
            while turn + 2 <= WORDS {
                came.extend(next(&mut from).await.unwrap());
                while came.len() >= 4 {
                    let word: Vec<u8> = came.drain(..4).collect();
                    let word = u32::from_le_bytes(word.try_into().unwrap());
                    turn = word;
                    if word < WORDS {
                        let answer = (word + 1).to_le_bytes();
                        assert!(matches!(send(&mut to, &answer), Sent::All));
                    }
                }
            }
            to.linger().await;
            turn
        })
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| side(high, false));
        let ours = side(low, true);
        let theirs = other.join().unwrap();
        assert!(ours.max(theirs) >= WORDS - 1, "{ours}, {theirs}");
    });
}

#[test]
fn a_full_ring_blocks_and_its_writer_is_rung_when_there_is_room() {
    let Pair {
        low, high, bells, ..
    } = pair();
    run(async || {
        let (mut to, _keep) = open(low);
        let (_back, mut from) = open(high);
        let bytes = pattern(FULL + 1000);
        assert!(matches!(send(&mut to, &bytes), Sent::Blocked));
        let mut asked = false;
        let sent = to.send(|_, _| {
            asked = true;
            false
        });
        assert!(matches!(sent, Sent::Blocked));
        assert!(!asked, "frames behind bytes that wait");
        let mut room = pin!(to.room());
        assert!(poll_once(room.as_mut()).await.is_none());
        assert_eq!(bells[0].count(), 0);
        let mut came = next(&mut from).await.unwrap();
        assert_eq!(bells[0].count(), 1);
        came.extend(next(&mut from).await.unwrap());
        assert_eq!(bells[0].count(), 1, "rung before");
        room.await;
        assert!(matches!(send(&mut to, b"!"), Sent::All));
        while came.len() < bytes.len() + 1 {
            came.extend(next(&mut from).await.unwrap());
        }
        assert!(came[..bytes.len()] == bytes && came[bytes.len()..] == *b"!");
    });
}

#[test]
fn a_thread_that_is_driven_is_not_rung_and_finds_what_is_there_with_one_look() {
    let Pair {
        low, high, bells, ..
    } = pair();
    run(async || {
        let (mut to, _keep) = open(low);
        let (_back, mut from) = open(high);
        assert!(spin::driven(true));
        let reading = tokio::task::spawn_local(async move {
            let first = next(&mut from).await.unwrap();
            (first, next(&mut from).await.unwrap())
        });
        settle().await;
        assert!(!spin::look(), "nothing is there");
        assert!(matches!(send(&mut to, b"a"), Sent::All));
        assert_eq!(bells[1].count(), 0, "the thread looks by itself");
        settle().await;
        assert!(spin::look());
        assert!(!spin::look(), "it was told");
        settle().await;
        // About to sleep: from here on it is rung.
        assert!(spin::driven(false));
        assert!(matches!(send(&mut to, b"b"), Sent::All));
        assert_eq!(bells[1].count(), 1);
        let (a, b) = reading.await.unwrap();
        assert_eq!((a.as_slice(), b.as_slice()), (&b"a"[..], &b"b"[..]));
    });
}

#[test]
fn a_driven_thread_does_not_go_to_sleep_over_something() {
    let Pair { low, high, .. } = pair();
    run(async || {
        let (mut to, _keep) = open(low);
        let (_back, mut from) = open(high);
        spin::driven(true);
        let reading = tokio::task::spawn_local(async move { next(&mut from).await.unwrap() });
        settle().await;
        assert!(matches!(send(&mut to, b"a"), Sent::All));
        assert!(!spin::driven(false), "something is there");
        assert_eq!(reading.await.unwrap(), b"a");
    });
}

#[test]
fn a_spinning_thread_is_not_rung_until_it_sleeps() {
    let Pair {
        low, high, bells, ..
    } = pair();
    run(async || {
        let spinning =
            tokio::task::spawn_local(spin::run(Some(spin::MOST), spin::Rings::default()));
        settle().await;
        let (to, _keep) = open(low);
        let (_back, mut from) = open(high);
        let reading = tokio::task::spawn_local(async move {
            let mut all = Vec::new();
            while all.len() < 3 {
                all.extend(next(&mut from).await.unwrap());
            }
            all
        });
        settle().await;
        // What is sent keeps the sending thread awake, and that is this one: so past the transport.
        let Transport::Ring(sink) = &to else { panic!() };
        spin::stay_awake();
        assert_eq!(sink.line.write(b"a").unwrap(), 1);
        assert_eq!(
            bells[1].count(),
            0,
            "it looks by itself, though it slept before"
        );
        for (n, byte) in [(1, b"b"), (2, b"c")] {
            while spin::is_awake() {
                tokio::task::yield_now().await;
            }
            assert_eq!(sink.line.write(byte).unwrap(), 1);
            assert_eq!(bells[1].count(), n, "it sleeps");
            settle().await;
        }
        assert_eq!(reading.await.unwrap(), b"abc");
        spinning.abort();
    });
}

#[test]
fn threads_spin_by_default_only_as_long_as_their_node_has_a_ring() {
    let Pair { low, .. } = pair();
    run(async || {
        let spinning = tokio::task::spawn_local(spin::run(None, spin::Rings::default()));
        settle().await;
        spin::stay_awake();
        assert!(!spin::is_awake());
        let ends = open(low);
        spin::stay_awake();
        assert!(spin::is_awake());
        while spin::is_awake() {
            tokio::task::yield_now().await;
        }
        drop(ends);
        spin::stay_awake();
        assert!(!spin::is_awake());
        spinning.abort();
    });
}

#[test]
fn what_was_said_before_the_socket_ended_is_read_before_the_loss() {
    let Pair {
        low, high, socket, ..
    } = pair();
    drop(socket);
    run(async || {
        let (mut to, keep) = open(low);
        let (_back, mut from) = open(high);
        let mut waits = Box::pin(async {
            let first = next(&mut from).await;
            (first, from)
        });
        assert!(poll_once(waits.as_mut()).await.is_none());
        // The beginning of a frame, and then nothing.
        let bytes = pattern(100_000);
        assert!(matches!(send(&mut to, &bytes), Sent::All));
        drop((to, keep));
        let (first, mut from) = waits.await;
        let mut came = first.unwrap();
        while came.len() < bytes.len() {
            came.extend(next(&mut from).await.unwrap());
        }
        assert!(came == bytes);
        assert_eq!(
            next(&mut from).await,
            Err("the other side closed it".into())
        );
    });
}

#[test]
fn a_reader_that_sleeps_hears_that_the_socket_has_ended() {
    let Pair {
        low, high, socket, ..
    } = pair();
    drop(socket);
    run(async || {
        let (_back, mut from) = open(high);
        let mut waits = pin!(next(&mut from));
        assert!(poll_once(waits.as_mut()).await.is_none());
        drop(low);
        assert_eq!(waits.await, Err("the other side closed it".into()));
    });
}

#[test]
fn a_wrong_cursor_loses_the_transport_and_blames_the_peer() {
    let Pair {
        low, high, memory, ..
    } = pair();
    run(async || {
        let (mut to, _keep) = open(low);
        let (_back, mut from) = open(high);
        let mut waits = pin!(next(&mut from));
        assert!(poll_once(waits.as_mut()).await.is_none());
        // Tail and head of the direction from lower to higher; see the ring's module.
        memory.word(0).unwrap().store(1 << 40, Ordering::Relaxed);
        memory.word(128).unwrap().store(1 << 40, Ordering::Relaxed);
        // The lower end believes its own tail, and finds a head beyond it when it asks.
        let lost = match send(&mut to, &vec![0; FULL + 1]) {
            Sent::Lost(e) => e,
            Sent::Blocked => {
                to.room().await;
                match send(&mut to, b"") {
                    Sent::Lost(e) => e,
                    other => panic!("{other:?}"),
                }
            }
            Sent::All => panic!("more than fits"),
        };
        assert_eq!(lost.kind(), io::ErrorKind::InvalidData);
        assert!(lost.to_string().contains("the peer is at fault"), "{lost}");
        memory.word(0).unwrap().store(1 << 40, Ordering::Relaxed);
        let why = waits.await.unwrap_err();
        assert!(why.contains("the peer is at fault"), "{why}");
    });
}

#[test]
fn last_words_are_read_though_they_are_more_than_fits() {
    let Pair {
        low, high, socket, ..
    } = pair();
    drop(socket);
    run(async || {
        let (mut to, keep) = open(low);
        let (back, mut from) = open(high);
        let bytes = pattern(3 * FULL);
        let mut rest = bytes.chunks(4096);
        to.send_last(4 << 20, |_, out| {
            rest.next().map(|b| out.extend_from_slice(b)).is_some()
        });
        drop(keep);
        let lingering = tokio::task::spawn_local(to.linger());
        let mut came = Vec::new();
        let why = loop {
            match next(&mut from).await {
                Ok(bytes) => came.extend(bytes),
                Err(why) => break why,
            }
        };
        assert!(came == bytes, "{} of {} bytes", came.len(), bytes.len());
        assert_eq!(why, "the other side closed it");
        settle().await;
        assert!(!lingering.is_finished(), "the other side has not closed");
        drop((back, from));
        lingering.await.unwrap();
    });
}

#[test]
fn last_words_to_a_peer_that_is_gone_end() {
    let Pair {
        low, high, socket, ..
    } = pair();
    drop(socket);
    run(async || {
        let (mut to, keep) = open(low);
        let mut rest = Some(pattern(2 * FULL));
        to.send_last(4 << 20, |_, out| {
            rest.take().map(|b| out.extend_from_slice(&b)).is_some()
        });
        drop(keep);
        let lingering = tokio::task::spawn_local(to.linger());
        settle().await;
        assert!(!lingering.is_finished());
        drop(high);
        lingering.await.unwrap();
    });
}

#[test]
fn a_pools_descriptor_is_there_when_the_frame_that_tells_of_it_is() {
    let Pair { low, high, .. } = pair();
    run(async || {
        let (mut to, _keep) = open(low);
        let (back, mut from) = open(high);
        let bells = [Bell::new().unwrap(), Bell::new().unwrap()];
        for (pool, bell) in [7, 9].into_iter().zip(&bells) {
            to.send_descriptor(pool, bell.as_fd()).unwrap();
        }
        assert!(matches!(send(&mut to, b"seven"), Sent::All));
        assert_eq!(next(&mut from).await.unwrap(), b"seven");
        let came = Bell::from(back.take_descriptor(7).unwrap());
        came.ring();
        assert_eq!((bells[0].count(), bells[1].count()), (1, 0));
        assert!(back.take_descriptor(7).is_none() && back.take_descriptor(8).is_none());
        let came = Bell::from(back.take_descriptor(9).unwrap());
        came.ring();
        assert_eq!(bells[1].count(), 1);
        // The connection goes on.
        assert!(matches!(send(&mut to, b"more"), Sent::All));
        assert_eq!(next(&mut from).await.unwrap(), b"more");
    });
}

#[test]
fn anything_else_on_the_socket_loses_the_transport_and_blames_the_peer() {
    for (what, fds, says) in [
        (&b"P\0\0\0\0"[..], 0, "no pool with a descriptor"),
        (b"X\0\0\0\0", 1, "no pool with a descriptor"),
        (b"P\0\0\0\0", 2, "more descriptors than"),
    ] {
        let Pair {
            low, high, socket, ..
        } = pair();
        run(async || {
            let _low = open(low);
            let (_back, mut from) = open(high);
            let fd = std::fs::File::open("/dev/null").unwrap();
            let n = send_with_fds(socket.as_fd(), what, &vec![fd.as_fd(); fds]).unwrap();
            assert_eq!(n, what.len());
            let why = next(&mut from).await.unwrap_err();
            assert!(why.contains(says), "{why}");
        });
    }
    // A part of a message is no message, and no loss before the socket ends.
    let Pair {
        low, high, socket, ..
    } = pair();
    run(async || {
        let _low = open(low);
        let (_back, mut from) = open(high);
        (&socket).write_all(b"P\0").unwrap();
        let mut waits = pin!(next(&mut from));
        for _ in 0..100 {
            assert!(poll_once(waits.as_mut()).await.is_none());
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn descriptors_of_pools_that_nobody_tells_of_are_bounded() {
    let Pair { low, high, .. } = pair();
    run(async || {
        let (to, _keep) = open(low);
        let (back, mut from) = open(high);
        let fd = std::fs::File::open("/dev/null").unwrap();
        for pool in 0..=MAX_POOLS as u32 {
            // Heard now and then, as a session does; the socket holds a few hundred.
            to.send_descriptor(pool, fd.as_fd()).unwrap();
            assert!(back.take_descriptor(u32::MAX).is_none());
        }
        let why = next(&mut from).await.unwrap_err();
        assert!(why.contains("that it does not tell of"), "{why}");
    });
}
