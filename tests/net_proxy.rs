//! The proxy of the network tests does what it is asked, and nothing else.
#![allow(clippy::unwrap_used)]

mod common;

use common::proxy::{Act, Proxy, Way};
use common::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

/// A connection through a proxy, from both ends.
struct Pipe {
    proxy: Proxy,
    near: TcpStream,
    far: TcpStream,
    listener: TcpListener,
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

impl Pipe {
    fn new() -> Pipe {
        Pipe::planned(|_| Vec::new())
    }

    fn planned(plan: impl FnMut(usize) -> common::proxy::Plan + Send + 'static) -> Pipe {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::tcp(&format!("tcp://{}", listener.local_addr().unwrap()));
        proxy.plan(plan);
        let near = TcpStream::connect(proxy.address().strip_prefix("tcp://").unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        Pipe {
            proxy,
            near: patient(near),
            far: patient(far),
            listener,
        }
    }

    /// What the far end reads of these bytes, up to `n`.
    fn up(&mut self, bytes: &[u8], n: usize) -> Vec<u8> {
        self.near.write_all(bytes).unwrap();
        let mut got = vec![0; n];
        self.far.read_exact(&mut got).unwrap();
        got
    }
}

/// Whether the stream ends with a reset, rather than in order.
fn ends_in_reset(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(0) => false,
        Ok(n) => panic!("{n} bytes"),
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[tokio::test]
async fn it_carries_both_ways_and_ends_as_its_ends_do() {
    let mut pipe = Pipe::new();
    assert_eq!(pipe.up(b"hello", 5), b"hello");
    pipe.far.write_all(b"and you").unwrap();
    pipe.near.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(pipe.far.read(&mut [0; 4]).unwrap(), 0);
    drop(pipe.far);
    let mut got = Vec::new();
    pipe.near.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"and you");
    let link = &pipe.proxy.links()[0];
    assert_eq!(link.came(Way::Up), 5);
    until("they are counted", || link.passed(Way::Down) == 7).await;
    drop(pipe.listener);
}

#[tokio::test]
async fn it_carries_between_unix_sockets() {
    let path = socket_path();
    let listener = UnixListener::bind(&path).unwrap();
    let front = socket_path();
    let proxy = Proxy::unix(&format!("unix://{}", path.display()), front.clone());
    let mut near = UnixStream::connect(&front).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.write_all(b"abc").unwrap();
    let mut got = [0; 3];
    far.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"abc");
    proxy.reset();
    assert_eq!(near.read(&mut [0; 4]).unwrap_or(0), 0);
    until("it is over", || !proxy.links()[0].is_open()).await;
    for path in [path, front] {
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test]
async fn a_reset_reaches_both_ends_as_a_reset() {
    let mut pipe = Pipe::new();
    pipe.up(b"x", 1);
    pipe.proxy.reset();
    assert!(ends_in_reset(&mut pipe.near));
    assert!(ends_in_reset(&mut pipe.far));
    until("it is over", || pipe.proxy.open().is_empty()).await;
}

#[tokio::test]
async fn a_reset_after_so_many_bytes_lets_just_these_through() {
    let mut pipe = Pipe::planned(|n| {
        assert_eq!(n, 0);
        vec![(Way::Up, 3, Act::Reset)]
    });
    assert_eq!(pipe.up(b"abcdef", 3), b"abc");
    assert!(ends_in_reset(&mut pipe.far));
    let link = pipe.proxy.link(0).await;
    until("they are counted", || link.passed(Way::Up) == 3).await;
}

#[test]
fn one_bit_of_one_byte_is_changed() {
    let mut pipe = Pipe::planned(|_| vec![(Way::Up, 2, Act::Flip(0x10))]);
    assert_eq!(pipe.up(b"aaaaa", 5), b"aaqaa");
    assert_eq!(pipe.proxy.links()[0].flipped(Way::Up), 1);
}

#[tokio::test]
async fn a_black_hole_takes_one_direction_and_leaves_the_other() {
    let mut pipe = Pipe::new();
    pipe.up(b"x", 1);
    let link = pipe.proxy.link(0).await;
    link.now(Way::Up, Act::Swallow);
    pipe.near.write_all(&vec![7; 1 << 20]).unwrap();
    until("all is swallowed", || link.came(Way::Up) == 1 + (1 << 20)).await;
    pipe.far.write_all(b"back").unwrap();
    let mut got = [0; 4];
    pipe.near.read_exact(&mut got).unwrap();
    link.heal();
    assert_eq!(pipe.up(b"y", 1), b"y");
    until("both are counted", || link.passed(Way::Up) == 2).await;
}

#[tokio::test]
async fn a_direction_that_is_stopped_holds_what_comes_and_loses_nothing() {
    let mut pipe = Pipe::planned(|_| vec![(Way::Up, 4, Act::Stop)]);
    assert_eq!(pipe.up(b"12345678", 4), b"1234");
    let link = pipe.proxy.link(0).await;
    until("it has stopped", || link.has_acted(Way::Up)).await;
    pipe.far.set_nonblocking(true).unwrap();
    assert!(pipe.far.read(&mut [0; 4]).is_err());
    pipe.far.set_nonblocking(false).unwrap();
    link.go_on(Way::Up);
    assert_eq!(pipe.up(b"", 4), b"5678");
}

#[tokio::test]
async fn a_control_connection_is_stopped_between_two_frames() {
    // Length, sum, and what follows; the first begins as a greeting does.
    let frame = |payload: &[u8]| {
        let mut bytes = (payload.len() as u32 | 0x5600_0000).to_le_bytes().to_vec();
        bytes.extend_from_slice(&[9; 4]);
        bytes.extend_from_slice(payload);
        bytes
    };
    let (first, second, third) = (frame(b"KVRM\0hello"), frame(b"two"), frame(b"three"));
    let mut pipe = Pipe::new();
    assert_eq!(pipe.up(&first, first.len()), first);
    let link = pipe.proxy.link(0).await;
    until("it is counted", || link.frames(Way::Up) == 1).await;
    link.after_frames(Way::Up, 1, Act::Stop);
    let rest = [second.clone(), third.clone()].concat();
    assert_eq!(pipe.up(&rest, second.len()), second);
    until("it stands", || link.has_acted(Way::Up)).await;
    assert_eq!(link.frames(Way::Up), 2);
    link.go_on(Way::Up);
    assert_eq!(pipe.up(b"", third.len()), third);
    // Nothing else is taken for frames.
    let mut other = Pipe::new();
    assert_eq!(other.up(b"abcdefghijklmnopq", 17), b"abcdefghijklmnopq");
    assert_eq!(other.proxy.link(0).await.frames(Way::Up), 0);
}

#[test]
fn a_half_close_ends_one_direction_in_order() {
    let mut pipe = Pipe::planned(|_| vec![(Way::Up, 2, Act::HalfClose)]);
    assert_eq!(pipe.up(b"abcd", 2), b"ab");
    assert!(!ends_in_reset(&mut pipe.far));
    pipe.far.write_all(b"still").unwrap();
    let mut got = [0; 5];
    pipe.near.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still");
}

#[test]
fn who_is_refused_gets_a_reset_and_no_number() {
    let pipe = Pipe::new();
    pipe.proxy.refuse(true);
    let at = pipe.proxy.address().strip_prefix("tcp://").unwrap();
    let mut refused = patient(TcpStream::connect(at).unwrap());
    assert!(ends_in_reset(&mut refused));
    assert_eq!((pipe.proxy.refused(), pipe.proxy.links().len()), (1, 1));
}
