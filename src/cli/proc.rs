//! Small readers of `/proc`, shared by `doctor` and `bench`.

use super::exit::Failure;
use std::fs;
use std::time::Duration;

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All of it.
    pub(crate) total: u64,
    /// What can be given out without swapping, as the kernel estimates it.
    pub(crate) available: u64,
}

/// Reads a whole small text file; `None` if it is not there or not readable.
pub(crate) fn text(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Memory according to `/proc/meminfo`.
pub(crate) fn memory() -> Option<Memory> {
    let info = text("/proc/meminfo")?;
    Some(Memory {
        total: kib_field(&info, "MemTotal")? * 1024,
        available: kib_field(&info, "MemAvailable")? * 1024,
    })
}

/// A field of `/proc/meminfo`, `/proc/self/status` and their like; in KiB where the file says kB.
pub(crate) fn kib_field(info: &str, name: &str) -> Option<u64> {
    let line = info.lines().find(|l| l.split(':').next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Processor time that all threads of a process have taken that still run; of this one, if none is
/// named. In nanoseconds, as the scheduler counts it.
pub(crate) fn cpu_time(process: Option<u32>) -> Result<Duration, Failure> {
    let process = process.map_or("self".to_owned(), |id| id.to_string());
    let unreadable = || Failure::Failed(format!("cannot read /proc/{process}/task/*/schedstat"));
    let tasks = fs::read_dir(format!("/proc/{process}/task")).map_err(|_| unreadable())?;
    let mut sum = Duration::ZERO;
    for task in tasks.flatten() {
        // A thread that has just ended is no longer there.
        if let Ok(text) = fs::read_to_string(task.path().join("schedstat")) {
            let nanos = text.split_whitespace().next().and_then(|n| n.parse().ok());
            sum += Duration::from_nanos(nanos.ok_or_else(unreadable)?);
        }
    }
    if sum.is_zero() {
        return Err(unreadable());
    }
    Ok(sum)
}

/// Refuses work that needs more memory than is available; says who needs how much.
pub(crate) fn require_memory(what: &str, needed: u64) -> Result<(), Failure> {
    let Some(memory) = memory() else {
        return Ok(());
    };
    if needed <= memory.available {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{what} needs {} of memory and {} is available",
        bytes(needed),
        bytes(memory.available)
    )))
}

/// A number of bytes for people.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let info = "MemTotal:  100 kB\nMemAvailableX: 1 kB\nMemAvailable:  42 kB\n";
        assert_eq!(kib_field(info, "MemAvailable"), Some(42));
        assert_eq!(kib_field(info, "Mem"), None);
    }

    #[test]
    fn too_large_a_need_is_refused_by_name() {
        let e = require_memory("workload x", u64::MAX)
            .unwrap_err()
            .to_string();
        assert!(e.starts_with("workload x needs"), "{e}");
    }

    #[test]
    fn processor_time_that_is_taken_is_counted_and_a_process_that_is_not_there_is_an_error() {
        let before = cpu_time(None).unwrap();
        let started = std::time::Instant::now();
        while cpu_time(None).unwrap() < before + Duration::from_millis(20) {
            assert!(started.elapsed() < Duration::from_secs(60));
        }
        assert!(cpu_time(Some(u32::MAX)).is_err());
    }

    #[test]
    fn bytes_read_well() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(24_684_092 << 10), "23.5 GiB");
    }
}
