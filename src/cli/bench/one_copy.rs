//! The yardstick of a fabric that copies once: the same pages between two pools that are made as the
//! nodes' are, by the best copies there are, with as many threads as lanes. Only the memory is the
//! runtime's; nothing of it runs while the clock does.
//!
//! ```text
//!   this thread      copy share 0 ──┐
//!   thread 1         copy share 1 ──┼─▶ the last one to end stops the clock
//!   …   (each waits for "go" without sleeping)
//! ```

use super::super::exit::Failure;
use super::super::pair;
use super::kernel::{self, Kernel};
use super::workload::Workload;
use kvroom::WriteLease;
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The request's pieces on both sides, layer by layer in request order.
pub(crate) struct OneCopy {
    source: Vec<WriteLease>,
    destination: Vec<WriteLease>,
    threads: usize,
}

/// Where a piece goes, where it comes from, and what comes after it.
type Piece<'a> = (&'a mut [u8], &'a [u8], &'a [u8]);

impl OneCopy {
    /// Makes two pools, of shared memory or not, and touches every page of the request in them.
    ///
    /// # Errors
    /// The system gives no such memory.
    pub(crate) fn new(w: &Workload, shared: bool, threads: u16) -> Result<OneCopy, Failure> {
        let threads = usize::from(threads);
        let side = |name: &str, slots: Vec<u32>, value: u8| {
            let part = part(w, threads);
            let pages = u32::try_from(w.pool_bytes() / part);
            let pages = pages.map_err(pair::failed("cannot make a pool"))?;
            // Pages in another shape, and at the same addresses as the nodes' have them.
            let pool = pair::new_pool(pair::named_layout(name, 1, pages, part), shared)?;
            let mut leases = pieces(w, &slots, part)
                .map(|page| pool.lease_write(&[page]))
                .collect::<Result<Vec<_>, _>>()
                .map_err(pair::failed("cannot lease a page"))?;
            for lease in &mut leases {
                lease.page_mut(0, 0).fill(value);
            }
            Ok::<_, Failure>(leases)
        };
        Ok(OneCopy {
            source: side("from", w.source_slots(), 0x5a)?,
            destination: side("to", w.destination_slots(), 1)?,
            threads,
        })
    }

    /// Copies the request once and says how long it took.
    pub(crate) fn run(&mut self, kernel: Kernel) -> Duration {
        let mut shares = self.shares();
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
                        copy(kernel, share)
                    })
                })
                .collect();
            while ready.load(Ordering::Acquire) < others {
                thread::yield_now();
            }
            let started = Instant::now();
            go.store(true, Ordering::Release);
            let mine = copy(kernel, mine);
            let ends = threads.into_iter().filter_map(|t| t.join().ok());
            ends.fold(mine, Instant::max).duration_since(started)
        })
    }

    /// Even shares of pieces that follow each other, one for each thread.
    fn shares(&mut self) -> Vec<Vec<Piece<'_>>> {
        let count = self.source.len();
        let from: Vec<&[u8]> = self.source.iter().map(|lease| lease.page(0, 0)).collect();
        // Behind the last piece there is nothing to prefetch.
        let next: Vec<&[u8]> = from
            .iter()
            .skip(1)
            .copied()
            .chain(iter::once(&[][..]))
            .collect();
        let to = self
            .destination
            .iter_mut()
            .map(|lease| lease.page_mut(0, 0));
        let mut all = to
            .zip(from)
            .zip(next)
            .map(|((to, from), next)| (to, from, next));
        (0..self.threads)
            .map(|i| {
                let size = count * (i + 1) / self.threads - count * i / self.threads;
                all.by_ref().take(size).collect()
            })
            .collect()
    }

    /// The pool of the destination.
    #[cfg(test)]
    fn pool(&self) -> &kvroom::Pool {
        self.destination[0].pool()
    }
}

/// Copies a share and says when that was done.
fn copy(kernel: Kernel, share: Vec<Piece<'_>>) -> Instant {
    for (to, from, next) in share {
        kernel.copy(to, from, next);
    }
    kernel::fence();
    Instant::now()
}

/// Bytes of a piece: a page, or as much less of it as gives every thread one, where that divides it.
fn part(w: &Workload, threads: usize) -> u64 {
    let pages = u64::from(w.layers) * u64::from(w.pages);
    let parts = (threads as u64).div_ceil(pages.max(1)).next_power_of_two();
    let part = w.page_bytes / parts;
    if part * parts == w.page_bytes {
        part
    } else {
        w.page_bytes
    }
}

/// Numbers of the request's pieces in a pool of one layer.
fn pieces(w: &Workload, slots: &[u32], part: u64) -> impl Iterator<Item = u32> {
    let parts = (w.page_bytes / part) as u32;
    let cells = (0..w.layers).flat_map(move |layer| {
        let first = layer * w.pool_pages;
        slots.iter().map(move |slot| first + slot)
    });
    cells.flat_map(move |cell| cell * parts..(cell + 1) * parts)
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
            (small("d_1x1x256M", 1 << 14), 3),
        ] {
            for &kernel in Kernel::all() {
                for shared in [false, true] {
                    let mut yardstick = OneCopy::new(&w, shared, threads).unwrap();
                    let pool = yardstick.pool().clone();
                    let before = pool.leased_pages();
                    assert!(yardstick.run(kernel) > Duration::ZERO);
                    let slots = w.destination_slots();
                    let part = pool.layout().page_bytes;
                    let mut seen = 0;
                    for page in 0..pool.layout().pages {
                        let cell = u64::from(page) * part / w.page_bytes;
                        let slot = (cell % u64::from(w.pool_pages)) as u32;
                        let mut bytes = vec![0; part as usize];
                        pool.observe(0, page, &mut bytes).unwrap();
                        let copied = bytes.iter().all(|&b| b == 0x5a);
                        assert_eq!(copied, slots.contains(&slot), "{kernel:?}: page {page}");
                        seen += usize::from(copied);
                    }
                    assert_eq!(seen, before);
                }
            }
        }
    }

    #[test]
    fn one_page_is_cut_for_two_threads_and_not_for_one() {
        let w = small("d_1x1x256M", 1 << 20);
        assert_eq!(part(&w, 1), 1 << 20);
        assert_eq!(part(&w, 2), 1 << 19);
        let mut two = OneCopy::new(&w, false, 2).unwrap();
        let shares = two.shares();
        assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
        // A page that cannot be cut goes to one thread.
        assert_eq!(part(&small("d_1x1x256M", 9), 2), 9);
        assert_eq!(part(&small("b_32x512x16K", 16_384), 2), 16_384);
    }
}
