//! The yardstick of a fabric that copies once: the same pages between two mappings of the kind that
//! the pools are, by the best copies there are, with as many threads as lanes.
//!
//! ```text
//!   this thread      copy share 0 ──┐
//!   thread 1         copy share 1 ──┼─▶ the last one to end stops the clock
//!   …   (each waits for "go" without sleeping)
//! ```

use super::kernel::{self, Kernel};
use super::mapping::{Backing, Mapping};
use super::workload::Workload;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Two mappings in the layout of the workload's pools, and the request's pieces.
pub(crate) struct OneCopy {
    source: Mapping,
    destination: Mapping,
    /// Bytes of (source, destination), layer by layer in request order.
    pieces: Vec<(Range<usize>, Range<usize>)>,
    threads: usize,
}

/// Part of a request: where it comes from, and where it goes.
type Piece<'a> = (Range<usize>, &'a mut [u8]);

impl OneCopy {
    /// Maps and touches every page of both.
    ///
    /// # Errors
    /// The system gives no such memory.
    pub(crate) fn new(w: &Workload, backing: Backing, threads: u16) -> io::Result<OneCopy> {
        let bytes = w.pool_bytes() as usize;
        let threads = usize::from(threads);
        Ok(OneCopy {
            source: Mapping::new(backing, bytes, 0x5a)?,
            destination: Mapping::new(backing, bytes, 1)?,
            pieces: pieces(w, threads),
            threads,
        })
    }

    /// Copies the request once and says how long it took.
    pub(crate) fn run(&mut self, kernel: Kernel) -> Duration {
        let source = self.source.bytes();
        let mut shares = shares(&self.pieces, self.destination.bytes_mut(), self.threads);
        let mine = shares.pop().unwrap_or_default();
        let (ready, go) = (AtomicUsize::new(0), AtomicBool::new(false));
        let others = shares.len();
        thread::scope(|scope| {
            let threads: Vec<_> = shares
                .into_iter()
                .map(|share| {
                    scope.spawn(|| {
                        ready.fetch_add(1, Ordering::Release);
                        while !go.load(Ordering::Acquire) {
                            std::hint::spin_loop();
                        }
                        copy(kernel, source, share)
                    })
                })
                .collect();
            while ready.load(Ordering::Acquire) < others {
                thread::yield_now();
            }
            let started = Instant::now();
            go.store(true, Ordering::Release);
            let mine = copy(kernel, source, mine);
            let ends = threads.into_iter().filter_map(|t| t.join().ok());
            ends.fold(mine, Instant::max).duration_since(started)
        })
    }
}

/// Copies a share and says when that was done.
fn copy(kernel: Kernel, source: &[u8], share: Vec<Piece<'_>>) -> Instant {
    let mut share = share.into_iter().peekable();
    while let Some((from, to)) = share.next() {
        // Behind the last piece there is nothing to prefetch.
        let next = share
            .peek()
            .map_or(&[][..], |(next, _)| &source[next.clone()]);
        kernel.copy(to, &source[from], next);
    }
    kernel::fence();
    Instant::now()
}

/// The request's pages; in as many parts as threads where there are fewer pages than that.
fn pieces(w: &Workload, threads: usize) -> Vec<(Range<usize>, Range<usize>)> {
    let page_bytes = w.page_bytes as usize;
    let (from, to) = (w.source_slots(), w.destination_slots());
    let start = |layer: u32, slot: u32| {
        (layer as usize * w.pool_pages as usize + slot as usize) * page_bytes
    };
    let pages = w.layers as usize * from.len();
    let parts = threads.div_ceil(pages.max(1));
    // Whole blocks, so that each part begins where a streaming store may.
    let part = page_bytes.div_ceil(parts).next_multiple_of(4096);
    let mut pieces = Vec::with_capacity(pages * parts);
    for layer in 0..w.layers {
        for (&s, &d) in from.iter().zip(&to) {
            for offset in (0..page_bytes).step_by(part) {
                let len = part.min(page_bytes - offset);
                let (s, d) = (start(layer, s) + offset, start(layer, d) + offset);
                pieces.push((s..s + len, d..d + len));
            }
        }
    }
    pieces
}

/// Even shares of pieces that follow each other, one for each thread.
fn shares<'a>(
    pieces: &[(Range<usize>, Range<usize>)],
    destination: &'a mut [u8],
    threads: usize,
) -> Vec<Vec<Piece<'a>>> {
    // Cut the destination in the order of its addresses, then put the parts in request order.
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_unstable_by_key(|&i| pieces[i].1.start);
    let mut cut: Vec<Option<&mut [u8]>> = Vec::new();
    cut.resize_with(pieces.len(), || None);
    let (mut rest, mut at) = (destination, 0);
    for i in order {
        let to = &pieces[i].1;
        let (_, behind) = rest.split_at_mut(to.start - at);
        let (bytes, behind) = behind.split_at_mut(to.len());
        cut[i] = Some(bytes);
        (rest, at) = (behind, to.end);
    }
    let mut all = pieces.iter().zip(cut);
    let count = pieces.len();
    (0..threads)
        .map(|i| {
            let size = count * (i + 1) / threads - count * i / threads;
            let share = all.by_ref().take(size);
            share
                .filter_map(|((from, _), to)| Some((from.clone(), to?)))
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::workload;
    use super::*;

    fn small(name: &str, page_bytes: u64) -> Workload {
        let w = workload::find(name).unwrap();
        Workload {
            layers: w.layers.min(3),
            page_bytes,
            ..w
        }
    }

    #[test]
    fn exactly_the_destination_slots_are_written_by_every_kernel_and_number_of_threads() {
        for (w, threads) in [
            (small("a_32x64x16K", 256), 1),
            (small("a_32x64x16K", 64), 2),
            (small("d_1x1x256M", 10_000), 3),
        ] {
            for &kernel in Kernel::all() {
                for backing in [Backing::Private, Backing::Memfd { huge: false }] {
                    let mut yardstick = OneCopy::new(&w, backing, threads).unwrap();
                    assert!(yardstick.run(kernel) > Duration::ZERO);
                    let slots = w.destination_slots();
                    let page = w.page_bytes as usize;
                    for (i, page) in yardstick.destination.bytes().chunks(page).enumerate() {
                        let slot = i as u32 % w.pool_pages;
                        let expect = if slots.contains(&slot) { 0x5a } else { 1 };
                        assert!(page.iter().all(|&b| b == expect), "{kernel:?}: page {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn one_page_is_cut_for_two_threads_and_not_for_one() {
        let w = small("d_1x1x256M", 1 << 20);
        assert_eq!(pieces(&w, 1).len(), 1);
        let two = pieces(&w, 2);
        assert_eq!(two.len(), 2);
        assert_eq!(two[0].0.len(), two[1].0.len());
        let mut memory = vec![0; 1 << 20];
        let shares = shares(&two, &mut memory, 2);
        assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
    }
}
