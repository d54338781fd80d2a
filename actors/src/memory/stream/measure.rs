//! Which copy is faster here, and from which size on.
//!
//! Small samples of every way are taken in turn, of pieces that lie scattered and were put out of the
//! caches before, and each is compared with the `memcpy` of its own round, so that what else the
//! machine does falls on all of them alike. What cannot be told from noise stays `memcpy`.
#![allow(unsafe_code)] // Copies within its own buffers.

use super::choice::{DEFAULT_FROM, Path};
use super::{Copier, Unfenced, Wide};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Sizes of the pieces that are measured, in bytes.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 1 << 20];
/// Bytes of each of the two buffers.
const BUFFER: usize = 4 << 20;
const PAGE: usize = 4096;
/// Bytes of a sample.
const SAMPLE: usize = 512 << 10;
/// Fewer rounds than this say nothing.
const FEWEST: usize = 4;
const MOST: usize = 9;
/// No round begins after this.
const PATIENCE: Duration = Duration::from_millis(25);

/// Streaming must be at least this much faster, in three of four rounds and in the middle one.
const WINS: f64 = 1.05;
/// A larger size may be this much slower without taking it back: noise.
const LOSES: f64 = 0.97;

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CopyMeasurement {
    /// Bytes from which on streaming stores are faster; `None` for never.
    pub from: Option<u64>,
    /// Whether two streams in turn are faster than one.
    pub pairs: bool,
    /// Rounds that were taken. With fewer than 4 nothing was decided, and the default stays.
    pub rounds: usize,
    /// How long all of it took.
    pub took: Duration,
    /// What came out for each size, the smallest first.
    pub samples: Vec<CopySample>,
}

/// The middle of what was measured for pieces of one size, in bytes per nanosecond, which is GB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CopySample {
    /// Bytes of a piece.
    pub bytes: u64,
    /// With `memcpy`.
    pub memcpy: f64,
    /// With streaming stores, one piece after the other.
    pub one: f64,
    /// With streaming stores, two pieces (or the halves of one) in turn.
    pub two: f64,
}

/// What each way took for one size: as many rounds of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) memcpy: Vec<f64>,
    pub(super) one: Vec<f64>,
    pub(super) two: Vec<f64>,
}

pub(super) fn measure(wide: Option<Wide>) -> CopyMeasurement {
    let started = Instant::now();
    let mut times: [Times; SIZES.len()] = Default::default();
    let mut rounds = 0;
    if let Some(wide) = wide {
        let mut buffers = Buffers::new();
        while rounds < MOST && (rounds == 0 || started.elapsed() < PATIENCE) {
            for (size, times) in SIZES.into_iter().zip(&mut times) {
                for turn in 0..3 {
                    // Another one first in each round.
                    let (kept, pairs, from) = match (turn + rounds) % 3 {
                        0 => (&mut times.memcpy, true, usize::MAX),
                        1 => (&mut times.one, false, 0),
                        _ => (&mut times.two, true, 0),
                    };
                    let path = Path {
                        wide: Some(wide),
                        from,
                        pairs,
                    };
                    kept.push(buffers.sample(path, size));
                }
            }
            rounds += 1;
        }
    }
    let (from, pairs) = if rounds < FEWEST {
        (wide.map(|_| DEFAULT_FROM as u64), true)
    } else {
        decide(&SIZES, &times)
    };
    let samples = SIZES.into_iter().zip(&times).filter(|_| rounds > 0);
    CopyMeasurement {
        from,
        pairs,
        rounds,
        samples: samples
            .map(|(bytes, times)| CopySample {
                bytes: bytes as u64,
                memcpy: SAMPLE.max(bytes) as f64 / middle(times.memcpy.clone()),
                one: SAMPLE.max(bytes) as f64 / middle(times.one.clone()),
                two: SAMPLE.max(bytes) as f64 / middle(times.two.clone()),
            })
            .collect(),
        took: started.elapsed(),
    }
}

/// From which size on, and whether in pairs.
pub(super) fn decide(sizes: &[usize], times: &[Times]) -> (Option<u64>, bool) {
    let pairs_faster = times
        .iter()
        .filter(|t| middle(ratios(&t.one, &t.two)) > 1.0)
        .count();
    let pairs = pairs_faster * 2 > times.len();
    let mut from = None;
    // From the largest down: a size that loses takes back the smaller ones.
    for (size, times) in sizes.iter().zip(times).rev() {
        let mut ratios = ratios(&times.memcpy, if pairs { &times.two } else { &times.one });
        ratios.sort_by(f64::total_cmp);
        let (quarter, half) = (ratios[ratios.len() / 4], ratios[ratios.len() / 2]);
        if quarter > 1.0 && half >= WINS {
            from = Some(*size as u64);
        } else if half < LOSES {
            break;
        }
    }
    (from, pairs)
}

fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

struct Buffers {
    source: Vec<u8>,
    destination: Vec<u8>,
}

impl Buffers {
    fn new() -> Self {
        // Not zeroes, which could be pages that are all the same one.
        Buffers {
            source: vec![0x5A; BUFFER + PAGE],
            destination: vec![0xA5; BUFFER + PAGE],
        }
    }

    /// Nanoseconds of copying scattered pieces of this size that are in no cache.
    fn sample(&mut self, path: Path, size: usize) -> f64 {
        let pieces = (SAMPLE / size).max(1);
        let places = BUFFER / size;
        // Odd strides, and the places are a power of two: no place is used twice.
        let place = |i: usize, stride: usize| (i * stride + stride / 2) % places * size;
        let ends = |i: usize| (place(i, 389), place(i, 617));
        let source = first_page(&mut self.source);
        let destination = first_page(&mut self.destination);
        for i in 0..pieces {
            let (from, to) = ends(i);
            for (buffer, at) in [(source, from), (destination, to)] {
                // SAFETY: `place` gives a multiple of `size` below BUFFER, a multiple of `size`; and
                // there are BUFFER bytes from the first page on.
                let start = unsafe { buffer.add(at) };
                put_out(start, size);
            }
        }
        let unfenced = Unfenced::default();
        let started = Instant::now();
        let mut copier = Copier::with(path, &unfenced);
        for i in 0..pieces {
            let (from, to) = ends(i);
            // SAFETY: as above.
            let from = unsafe { source.add(from) };
            // SAFETY: as above.
            let to = unsafe { destination.add(to) };
            // SAFETY: `size` bytes in each of two buffers that are borrowed until the flush below and
            // do not overlap.
            unsafe { copier.copy(from, to, size) };
        }
        copier.flush();
        drop(unfenced);
        started.elapsed().as_nanos().max(1) as f64
    }
}

/// Where the buffer's first whole page begins; BUFFER bytes follow. Pools begin at pages, and where
/// source and destination are a few bytes apart modulo a page, every copy is slow.
fn first_page(buffer: &mut Vec<u8>) -> NonNull<u8> {
    let start = NonNull::from(buffer.as_mut_slice()).cast::<u8>();
    let off = (PAGE - start.addr().get() % PAGE) % PAGE;
    // SAFETY: less than a page, and the buffer is a page longer than BUFFER.
    unsafe { start.add(off) }
}

fn put_out(start: NonNull<u8>, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the callers give parts of their own buffers.
    unsafe {
        super::x86::put_out(start, bytes);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}
