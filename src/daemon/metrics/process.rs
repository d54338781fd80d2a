//! What the kernel says of this process.

use std::fs;

/// How often the kernel's clock ticks in a second, as it tells processes.
const TICKS: f64 = 100.0;

/// Of this process; what cannot be read is missing.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) resident_bytes: Option<u64>,
    pub(super) threads: Option<u64>,
    pub(super) open_fds: Option<u64>,
    pub(super) cpu_seconds: Option<f64>,
}

/// Reads it.
pub(super) fn read() -> Process {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // One of them is open for looking.
    let open = fs::read_dir("/proc/self/fd").map(|all| (all.count() as u64).saturating_sub(1));
    Process {
        resident_bytes: field(&status, "VmRSS").map(|kib| kib * 1024),
        threads: field(&status, "Threads"),
        open_fds: open.ok(),
        cpu_seconds: cpu(&stat),
    }
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Fields 14 and 15; the name in front of them may hold anything.
fn cpu(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_threads_and_descriptors() {
        let process = read();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1 << 16));
        assert!(process.threads.is_some_and(|threads| threads >= 1));
        assert!(process.open_fds.is_some_and(|fds| fds >= 1));
        assert!(process.cpu_seconds.is_some());
    }

    #[test]
    fn processor_time_is_found_behind_a_name_that_holds_anything() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0";
        assert_eq!(cpu(stat), Some(3.0));
        assert_eq!(cpu("7 (a"), None);
    }
}
