//! The yardstick of fabric tcp: the same pages by plain TCP, without anything of kvroom.
//!
//! ```text
//!   receiver: one thread a connection          sender: one thread a connection
//!     "go" ───────────────────────────────────▶
//!     readv into 64 pages ◀──────────────────── writev of 64 pages    (1 MiB of a larger page)
//!     …                                         …
//!     "all read" ─────────────────────────────▶
//! ```
//!
//! Blocking sockets, no framing. Each connection carries an even share of the request, in request
//! order. The clock runs from the first "go" to the last "all read".

use super::exit::Failure;
use super::node::protocol::{RawAddress, RawServe};
use super::pair::failed;
use super::pattern::{self, Place};
use kvroom::Net;
use socket2::{Domain, Socket, Type};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Pages in one system call.
const PAGES: usize = 64;
/// Most of one page in one system call.
const PART: usize = 1 << 20;
/// How long to wait for the other side to connect, or for a repetition.
const PATIENCE: Duration = Duration::from_secs(60);

/// Part of a page and where it belongs.
struct Piece<B> {
    place: Place,
    bytes: B,
}

/// Serves the request to one receiver, in the background, until it closes its connections.
///
/// # Errors
/// Of the listening socket, and a shape that cannot be.
pub(crate) fn serve(shape: RawServe) -> io::Result<RawAddress> {
    check(&shape)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::Builder::new()
        .name("raw-tcp".into())
        .spawn(move || {
            if let Err(e) = send_all(&shape, &listener) {
                super::output::complain(&format!("raw TCP sender: {e}"));
            }
        })?;
    Ok(RawAddress { address })
}

fn send_all(shape: &RawServe, listener: &TcpListener) -> io::Result<()> {
    let mut buffer = buffer(shape);
    let mut shares = shares(pieces(&mut buffer, shape), shape.connections);
    for piece in shares.iter_mut().flatten() {
        pattern::fill(piece.bytes, shape.seed, piece.place);
    }
    let streams = (0..shape.connections)
        .map(|_| {
            let (stream, _) = listener.accept()?;
            prepare(&stream, shape.congestion.as_deref())?;
            Ok(stream)
        })
        .collect::<io::Result<Vec<_>>>()?;
    thread::scope(|scope| {
        for mut stream in streams {
            // The receiver says which share it wants here.
            let mut which = [0; 2];
            stream.read_exact(&mut which)?;
            let which = usize::from(u16::from_le_bytes(which));
            let share = shares
                .get_mut(which)
                .map(std::mem::take)
                .unwrap_or_default();
            scope.spawn(move || {
                // A receiver that closes is how this ends.
                let _ = send_share(&mut stream, &share);
            });
        }
        Ok(())
    })
}

fn send_share(stream: &mut TcpStream, share: &[Piece<&mut [u8]>]) -> io::Result<()> {
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        for group in groups(share) {
            let mut slices: Vec<IoSlice<'_>> =
                group.iter().map(|p| IoSlice::new(&*p.bytes)).collect();
            let mut left = &mut slices[..];
            while !left.is_empty() {
                let n = stream.write_vectored(left)?;
                if n == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                IoSlice::advance_slices(&mut left, n);
            }
        }
        stream.read_exact(&mut byte)?;
    }
}

fn receive_share(stream: &mut TcpStream, share: &mut [Piece<&mut [u8]>]) -> io::Result<()> {
    stream.write_all(&[1])?;
    for group in groups_mut(share) {
        let mut slices: Vec<IoSliceMut<'_>> = group
            .iter_mut()
            .map(|p| IoSliceMut::new(&mut *p.bytes))
            .collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let n = stream.read_vectored(left)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            IoSliceMut::advance_slices(&mut left, n);
        }
    }
    stream.write_all(&[1])
}

/// The receiving side: its buffer and threads live on a thread of their own until this is dropped.
pub(crate) struct Receiver {
    orders: Vec<mpsc::Sender<Order>>,
    answers: mpsc::Receiver<io::Result<Answer>>,
}

#[derive(Clone, Copy)]
enum Order {
    /// Move the share once.
    Run,
    /// Compare the share.
    Compare,
}

enum Answer {
    Ran { from: Instant, to: Instant },
    Differs(Option<Place>),
}

impl Receiver {
    /// Connects to what [`serve`] gave for the same shape, but for the slots, which are this side's.
    pub(crate) fn start(shape: RawServe, address: SocketAddr) -> Result<Receiver, Failure> {
        let wrong = failed("cannot start raw TCP");
        let streams = check(&shape).and_then(|()| connect(&shape, address));
        let streams = streams.map_err(wrong)?;
        let (tell, answers) = mpsc::channel();
        let (orders, taken): (Vec<_>, Vec<_>) = streams.iter().map(|_| mpsc::channel()).unzip();
        let work = move || {
            let mut buffer = buffer(&shape);
            let shares = shares(pieces(&mut buffer, &shape), shape.connections);
            thread::scope(|scope| {
                for ((mut stream, mut share), orders) in streams.into_iter().zip(shares).zip(taken)
                {
                    let tell = tell.clone();
                    scope.spawn(move || {
                        for order in orders {
                            let answer = obey(order, &mut stream, &mut share, shape.seed);
                            if tell.send(answer).is_err() {
                                return;
                            }
                        }
                    });
                }
                drop(tell);
            });
        };
        thread::Builder::new()
            .name("raw-tcp".into())
            .spawn(work)
            .map_err(failed("cannot start a thread for raw TCP"))?;
        Ok(Receiver { orders, answers })
    }

    /// Moves the request once and says how long it took.
    pub(crate) fn run(&self) -> Result<Duration, Failure> {
        let mut whole: Option<(Instant, Instant)> = None;
        for answer in self.order(Order::Run)? {
            if let Answer::Ran { from, to } = answer {
                let (first, last) = whole.unwrap_or((from, to));
                whole = Some((first.min(from), last.max(to)));
            }
        }
        let (first, last) = whole.ok_or_else(nothing)?;
        Ok(last.duration_since(first))
    }

    /// Fails unless every byte of the last repetition is what was sent.
    pub(crate) fn compare(&self) -> Result<(), Failure> {
        for answer in self.order(Order::Compare)? {
            if let Answer::Differs(Some(place)) = answer {
                return Err(Failure::Failed(format!(
                    "raw TCP lost bytes: layer {}, page {} of the request differs",
                    place.layer, place.index
                )));
            }
        }
        Ok(())
    }

    fn order(&self, order: Order) -> Result<Vec<Answer>, Failure> {
        for thread in &self.orders {
            thread.send(order).map_err(|_| nothing())?;
        }
        let answer = |_| {
            let answer = self.answers.recv_timeout(PATIENCE).map_err(|_| nothing())?;
            answer.map_err(failed("raw TCP"))
        };
        self.orders.iter().map(answer).collect()
    }
}

fn obey(
    order: Order,
    stream: &mut TcpStream,
    share: &mut [Piece<&mut [u8]>],
    seed: u64,
) -> io::Result<Answer> {
    match order {
        Order::Run => {
            let from = Instant::now();
            receive_share(stream, share)?;
            let to = Instant::now();
            Ok(Answer::Ran { from, to })
        }
        Order::Compare => {
            let differs = share
                .iter()
                .find(|p| !pattern::holds(p.bytes, seed, p.place));
            Ok(Answer::Differs(differs.map(|p| p.place)))
        }
    }
}

fn connect(shape: &RawServe, address: SocketAddr) -> io::Result<Vec<TcpStream>> {
    let one = |which: u16| {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        prepare(&stream, shape.congestion.as_deref())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&which.to_le_bytes())?;
        Ok(stream)
    };
    (0..shape.connections).map(one).collect()
}

fn prepare(stream: &TcpStream, congestion: Option<&str>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match congestion {
        Some(name) => socket2::SockRef::from(stream).set_tcp_congestion(name.as_bytes()),
        None => Ok(()),
    }
}

/// The congestion control of a TCP socket for which `name` was asked, or nothing.
///
/// # Errors
/// The kernel does not let this process use `name`.
pub(crate) fn congestion(name: Option<&str>) -> io::Result<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    match name {
        Some(name) => socket.set_tcp_congestion(name.as_bytes())?,
        // As the library does.
        None => drop(socket.set_tcp_congestion(Net::PREFERRED_CONGESTION.as_bytes())),
    }
    let bytes = socket.tcp_congestion()?;
    let name = bytes.split(|&b| b == 0).next().unwrap_or(&[]);
    Ok(String::from_utf8_lossy(name).into_owned())
}

fn check(shape: &RawServe) -> io::Result<()> {
    let bad = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what.to_owned()));
    let mut seen = std::collections::HashSet::new();
    if shape.connections == 0 || shape.connections > 64 {
        return bad("connections must be 1 to 64");
    }
    if shape.page_bytes == 0 || shape.layers == 0 || shape.slots.is_empty() {
        return bad("there is nothing to move");
    }
    if !shape
        .slots
        .iter()
        .all(|&s| s < shape.pool_pages && seen.insert(s))
    {
        return bad("a slot is outside the pool, or there twice");
    }
    let cells = u64::from(shape.layers) * u64::from(shape.pool_pages);
    match cells.checked_mul(shape.page_bytes) {
        Some(bytes) if bytes <= 1 << 38 => Ok(()),
        _ => bad("the pool is too large"),
    }
}

/// Memory of the workload's pool, every page touched.
fn buffer(shape: &RawServe) -> Vec<u8> {
    let cells = shape.layers as usize * shape.pool_pages as usize;
    vec![1; cells * shape.page_bytes as usize]
}

/// The request's pieces in request order, layer by layer.
fn pieces<'b>(buffer: &'b mut [u8], shape: &RawServe) -> Vec<Piece<&'b mut [u8]>> {
    let page_bytes = shape.page_bytes as usize;
    let mut pages: Vec<Option<&mut [u8]>> = buffer.chunks_mut(page_bytes).map(Some).collect();
    let mut pieces = Vec::new();
    for layer in 0..shape.layers {
        for (index, &slot) in (0..).zip(&shape.slots) {
            let cell = layer as usize * shape.pool_pages as usize + slot as usize;
            let page = pages
                .get_mut(cell)
                .and_then(Option::take)
                .unwrap_or_default();
            for (offset, bytes) in (0..).step_by(PART).zip(page.chunks_mut(PART)) {
                let place = Place {
                    layer,
                    index,
                    offset,
                };
                pieces.push(Piece { place, bytes });
            }
        }
    }
    pieces
}

/// Even shares, one for each connection, each of pieces that follow each other.
fn shares<B>(pieces: Vec<Piece<B>>, connections: u16) -> Vec<Vec<Piece<B>>> {
    let (all, n) = (pieces.len(), usize::from(connections));
    let mut pieces = pieces.into_iter();
    (0..n)
        .map(|i| {
            let size = all * (i + 1) / n - all * i / n;
            pieces.by_ref().take(size).collect()
        })
        .collect()
}

fn group_size<B: AsRef<[u8]>>(share: &[Piece<B>]) -> usize {
    // All pages of a request have one size; one of more than a part goes by itself.
    match share.first() {
        Some(piece) if piece.bytes.as_ref().len() >= PART => 1,
        _ => PAGES,
    }
}

fn groups<B: AsRef<[u8]>>(share: &[Piece<B>]) -> impl Iterator<Item = &[Piece<B>]> {
    share.chunks(group_size(share))
}

fn groups_mut<B: AsRef<[u8]>>(share: &mut [Piece<B>]) -> impl Iterator<Item = &mut [Piece<B>]> {
    let size = group_size(share);
    share.chunks_mut(size)
}

fn nothing() -> Failure {
    Failure::Failed("raw TCP: the other side ended, or was silent for a minute".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(connections: u16, page_bytes: u64, slots: &[u32]) -> RawServe {
        RawServe {
            layers: 2,
            slots: slots.to_vec(),
            page_bytes,
            pool_pages: 4,
            seed: 9,
            connections,
            congestion: None,
        }
    }

    #[test]
    fn every_byte_arrives_in_its_place_over_any_number_of_connections() {
        for (connections, page_bytes) in [(1, 64), (3, 4096), (2, PART as u64 + 8)] {
            let to = serve(shape(connections, page_bytes, &[3, 0, 1])).unwrap();
            let receiver =
                Receiver::start(shape(connections, page_bytes, &[2, 3, 0]), to.address).unwrap();
            // Nothing has come yet: it is seen that bytes differ.
            assert!(receiver.compare().is_err());
            for _ in 0..2 {
                assert!(receiver.run().unwrap() > Duration::ZERO);
                receiver.compare().unwrap();
            }
        }
    }

    #[test]
    fn a_large_page_is_cut_and_small_ones_go_64_at_a_time() {
        let s = RawServe {
            slots: (0..100).collect(),
            pool_pages: 100,
            layers: 1,
            ..shape(1, 64, &[])
        };
        let mut memory = buffer(&s);
        let p = pieces(&mut memory, &s);
        assert_eq!(groups(&p).map(<[_]>::len).collect::<Vec<_>>(), [64, 36]);
        let s = shape(1, 3 * PART as u64, &[1]);
        let mut memory = buffer(&s);
        let p = pieces(&mut memory, &s);
        assert_eq!(groups(&p).map(<[_]>::len).collect::<Vec<_>>(), [1; 6]);
    }

    #[test]
    fn shares_are_even_and_lose_nothing() {
        let s = shape(3, 64, &[0, 1, 2, 3]);
        let mut memory = buffer(&s);
        let shares = shares(pieces(&mut memory, &s), 3);
        assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3, 3]);
    }

    #[test]
    fn a_shape_that_cannot_be_is_refused() {
        for bad in [
            shape(0, 64, &[0]),
            shape(1, 0, &[0]),
            shape(1, 64, &[4]),
            shape(1, 64, &[1, 1]),
        ] {
            assert!(serve(bad).is_err());
        }
    }

    #[test]
    fn a_congestion_control_that_does_not_exist_is_an_error() {
        assert!(congestion(Some("no-such-one")).is_err());
        assert!(!congestion(None).unwrap().is_empty());
    }
}
