//! On which processors a node's threads run.
//!
//! ```text
//!   Pinning ──check (before anything is started)──▶ each thread, as its first work: pin_this_thread
//! ```
//!
//! Rules: a thread pins itself, so that no id of a thread is ever guessed. What cannot be had is an
//! error of the start, and nothing is left running.
#![allow(unsafe_code)] // Two system calls that take a set of bits.

use std::fmt;
use std::io;

/// Processors for a node's threads, by the numbers that the kernel gives them. An empty list leaves
/// the threads where the scheduler puts them; with fewer processors than threads the list is gone
/// through again.
///
/// A pool's memory has its node by [`SharedOptions`](crate::memory::SharedOptions); where threads and
/// memory belong to one NUMA node, give both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinning {
    /// For the shards, in their order; one that an engine drives is on the engine's own thread, and
    /// stays where that is.
    pub shards: Vec<usize>,
    /// For the copy lanes, in their order.
    pub lanes: Vec<usize>,
}

/// A thread cannot run where it was to.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The caller: there is no such processor, or this process may not use it.
    #[error(
        "no thread can run on processor {cpu}: this process may use {allowed}; correct Pinning::{list}"
    )]
    NotAllowed {
        /// Which processor.
        cpu: usize,
        /// In which list of the [`Pinning`].
        list: &'static str,
        /// Those that the process may use.
        allowed: Cpus,
    },
    /// The system.
    #[error("a thread could not be put on processor {cpu}: {error}")]
    Refused {
        /// Which processor.
        cpu: usize,
        /// What the kernel said.
        error: io::Error,
    },
    /// The system.
    #[error("the kernel does not say which processors this process may use: {0}")]
    Unknown(io::Error),
}

/// A set of processors.
#[derive(Clone, PartialEq, Eq)]
pub struct Cpus {
    words: Box<[u64; WORDS]>,
}

/// More than any kernel is built for (8192).
const WORDS: usize = 128;

impl Cpus {
    fn none() -> Self {
        Cpus {
            words: Box::new([0; WORDS]),
        }
    }

    /// Whether `cpu` is one of them.
    pub fn contains(&self, cpu: usize) -> bool {
        self.words
            .get(cpu / 64)
            .is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Their numbers, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..WORDS * 64).filter(|cpu| self.contains(*cpu))
    }

    fn insert(&mut self, cpu: usize) {
        if let Some(word) = self.words.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
}

impl FromIterator<usize> for Cpus {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Cpus::none();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before: Option<(usize, usize)> = None;
        let mut comma = "";
        let mut say = |f: &mut fmt::Formatter<'_>, (first, last): (usize, usize)| {
            let mark = std::mem::replace(&mut comma, ",");
            if first == last {
                write!(f, "{mark}{first}")
            } else {
                write!(f, "{mark}{first}-{last}")
            }
        };
        for cpu in self.iter() {
            before = match before {
                Some((first, last)) if last + 1 == cpu => Some((first, cpu)),
                Some(run) => {
                    say(f, run)?;
                    Some((cpu, cpu))
                }
                None => Some((cpu, cpu)),
            };
        }
        match before {
            Some(run) => say(f, run),
            None => f.write_str("none"),
        }
    }
}

impl fmt::Debug for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpus({self})")
    }
}

impl Pinning {
    pub(super) fn check(&self) -> Result<(), PinError> {
        if self.shards.is_empty() && self.lanes.is_empty() {
            return Ok(());
        }
        let allowed = cpus_of_this_thread().map_err(PinError::Unknown)?;
        for (list, cpus) in [("shards", &self.shards), ("lanes", &self.lanes)] {
            if let Some(cpu) = cpus.iter().copied().find(|cpu| !allowed.contains(*cpu)) {
                return Err(PinError::NotAllowed { cpu, list, allowed });
            }
        }
        Ok(())
    }
}

/// The processor for the thread number `index` of a list.
pub(super) fn nth(list: &[usize], index: usize) -> Option<usize> {
    list.get(index % list.len().max(1)).copied()
}

/// Puts the calling thread, and those that it starts later, on one processor.
pub(super) fn pin_this_thread(cpu: usize) -> Result<(), PinError> {
    let set: Cpus = [cpu].into_iter().collect();
    let bytes = size_of_val(&*set.words);
    // SAFETY: the kernel reads `bytes` bytes of a set that is exactly so long and lives until it has
    // returned; 0 is the calling thread.
    let done = unsafe { libc::sched_setaffinity(0, bytes, set.words.as_ptr().cast()) };
    if done == 0 {
        Ok(())
    } else {
        let error = io::Error::last_os_error();
        Err(PinError::Refused { cpu, error })
    }
}

/// The processors on which the calling thread may run.
///
/// # Errors
/// What the kernel said.
pub fn cpus_of_this_thread() -> io::Result<Cpus> {
    let mut set = Cpus::none();
    let bytes = size_of_val(&*set.words);
    // SAFETY: the kernel writes at most `bytes` bytes into a set that is exactly so long and lives
    // until it has returned; 0 is the calling thread.
    let done = unsafe { libc::sched_getaffinity(0, bytes, set.words.as_mut_ptr().cast()) };
    if done == 0 {
        Ok(set)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_the_kernel_writes_them() {
        let set = |cpus: &[usize]| cpus.iter().copied().collect::<Cpus>().to_string();
        assert_eq!(set(&[]), "none");
        assert_eq!(set(&[3]), "3");
        assert_eq!(set(&[0, 1, 2, 5, 63, 64, 65, 8191]), "0-2,5,63-65,8191");
        assert_eq!(set(&[9000]), "none", "beyond what any kernel has");
    }

    #[test]
    fn a_list_is_gone_through_again_and_an_empty_one_pins_nothing() {
        assert_eq!(
            [0, 1, 2, 3].map(|i| nth(&[7, 9], i)),
            [Some(7), Some(9), Some(7), Some(9)]
        );
        assert_eq!(nth(&[], 3), None);
    }

    #[test]
    fn a_thread_that_was_pinned_runs_there_and_nowhere_else() {
        let allowed = cpus_of_this_thread().unwrap();
        let cpu = allowed.iter().last().unwrap();
        let after = std::thread::spawn(move || {
            pin_this_thread(cpu).unwrap();
            cpus_of_this_thread().unwrap()
        });
        assert_eq!(after.join().unwrap().iter().collect::<Vec<_>>(), [cpu]);
        assert_eq!(cpus_of_this_thread().unwrap(), allowed);
    }

    #[test]
    fn a_processor_that_there_is_not_is_named_with_its_list() {
        let allowed = cpus_of_this_thread().unwrap();
        let pinning = Pinning {
            shards: allowed.iter().collect(),
            lanes: vec![allowed.iter().next().unwrap(), 8191],
        };
        let error = pinning.check().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no thread can run on processor 8191"),
            "{error}"
        );
        assert!(error.to_string().contains("Pinning::lanes"), "{error}");
        let error = pin_this_thread(8191).unwrap_err();
        assert!(
            matches!(error, PinError::Refused { cpu: 8191, .. }),
            "{error}"
        );
    }
}
