//! Resident memory of this process, as the kernel counts it.

use super::super::exit::Failure;
use super::super::proc;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Resident bytes now.
pub(crate) fn resident() -> Result<u64, Failure> {
    of("self")
}

/// Resident bytes of another process now.
pub(crate) fn of_process(id: u32) -> Result<u64, Failure> {
    of(&id.to_string())
}

fn of(process: &str) -> Result<u64, Failure> {
    let statm = proc::text(&format!("/proc/{process}/statm"));
    let pages = statm.and_then(|t| second_number(&t));
    let page_size = fs::read("/proc/self/auxv")
        .ok()
        .and_then(|auxv| page_size(&auxv));
    match (pages, page_size) {
        (Some(pages), Some(size)) => Ok(pages * size),
        _ => Err(Failure::Failed(format!(
            "cannot read resident memory from /proc/{process}"
        ))),
    }
}

/// Resident bytes once they no longer change by more than 0.1 %: work that was started before may
/// still be under way on other threads. Gives up waiting, not measuring, after `patience`.
pub(crate) fn settled(patience: Duration) -> Result<u64, Failure> {
    let started = Instant::now();
    let mut before = resident()?;
    let mut calm = 0;
    while calm < 4 && started.elapsed() < patience {
        thread::sleep(Duration::from_millis(50));
        let now = resident()?;
        calm = if now.abs_diff(before) <= before / 1000 {
            calm + 1
        } else {
            0
        };
        before = now;
    }
    Ok(before)
}

/// The page size in what the kernel told this process at its start: pairs of native words.
fn page_size(auxv: &[u8]) -> Option<u64> {
    const AT_PAGESZ: usize = 6;
    const WORD: usize = size_of::<usize>();
    let word = |bytes: &[u8]| bytes.try_into().ok().map(usize::from_ne_bytes);
    auxv.chunks_exact(2 * WORD)
        .find(|pair| word(&pair[..WORD]) == Some(AT_PAGESZ))
        .and_then(|pair| word(&pair[WORD..]))
        .map(|size| size as u64)
}

fn second_number(statm: &str) -> Option<u64> {
    statm.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_touched_is_resident() {
        let before = resident().unwrap();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident().unwrap();
        assert!(after >= before + (60 << 20), "{before} then {after}");
        assert!(settled(Duration::from_secs(2)).unwrap() >= after - (8 << 20));
        drop(block);
    }
}
