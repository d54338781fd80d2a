//! Facts about the machine, read from `/proc`, `/sys` and `/etc`, by pure parsers.

use super::super::proc;
use serde::Serialize;
use std::thread;

/// The operating system.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Os {
    /// Its name as it calls itself.
    pub(crate) name: Option<String>,
    /// The kernel's release.
    pub(crate) kernel: Option<String>,
    /// The processor architecture this program was built for.
    pub(crate) arch: &'static str,
}

/// Processors.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cpu {
    /// That are online.
    pub(crate) cores: Option<usize>,
    /// That this process may use: affinity and container quota are taken into account.
    pub(crate) usable: Option<usize>,
}

/// Memory in bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) total_bytes: Option<u64>,
    pub(crate) available_bytes: Option<u64>,
    /// The limit of this process's own control group, if it has one.
    pub(crate) cgroup_limit_bytes: Option<u64>,
}

/// Huge pages.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HugePages {
    /// Size of one of the default kind.
    pub(crate) size_bytes: Option<u64>,
    /// Reserved ones.
    pub(crate) total: Option<u64>,
    /// Of those, unused ones.
    pub(crate) free: Option<u64>,
    /// The kernel's mode for transparent ones: always, madvise or never.
    pub(crate) transparent: Option<String>,
}

/// The file system behind POSIX shared memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DevShm {
    pub(crate) mounted: bool,
    pub(crate) fstype: Option<String>,
    /// Its size as given when it was mounted; how much of it is free is not looked up.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) detail: String,
}

/// Process file descriptors, with which a dead peer is proven dead.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Pidfd {
    /// By the kernel's version; a container may forbid the call all the same.
    pub(crate) supported: Option<bool>,
    pub(crate) detail: String,
}

/// Congestion controls of TCP.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Tcp {
    /// The one that a socket has if nothing is said.
    pub(crate) congestion: Option<String>,
    /// Those that are loaded.
    pub(crate) available: Option<Vec<String>>,
    /// Those that a process without privilege may choose.
    pub(crate) allowed: Option<Vec<String>>,
}

/// Copies between pools of this host, as they were measured just now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Copies {
    /// The widest stores past the caches that this processor has and kvroom uses.
    pub(crate) instructions: Option<&'static str>,
    /// Bytes from which on a run is copied with them; none for never.
    pub(crate) streaming_from_bytes: Option<u64>,
    /// Whether two runs are copied together.
    pub(crate) pairs: bool,
    /// How long the measurement took, in milliseconds, and how many rounds it had.
    pub(crate) measured_ms: f64,
    pub(crate) rounds: usize,
    /// What came out, the smallest pieces first.
    pub(crate) sizes: Vec<CopySize>,
}

/// Scattered pieces of one size, in GB/s.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CopySize {
    pub(crate) bytes: u64,
    pub(crate) memcpy: f64,
    pub(crate) streaming: f64,
    pub(crate) streaming_two: f64,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) os: Os,
    pub(crate) cpu: Cpu,
    pub(crate) memory: Memory,
    pub(crate) huge_pages: HugePages,
    pub(crate) dev_shm: DevShm,
    pub(crate) pidfd: Pidfd,
    pub(crate) tcp: Tcp,
    pub(crate) copies: Copies,
}

/// Looks at this machine.
pub(crate) fn look() -> Machine {
    let kernel = proc::text("/proc/sys/kernel/osrelease").map(|t| t.trim().to_owned());
    let memory = proc::memory();
    let meminfo = proc::text("/proc/meminfo").unwrap_or_default();
    let thp = proc::text("/sys/kernel/mm/transparent_hugepage/enabled");
    Machine {
        pidfd: pidfd(kernel.as_deref()),
        os: Os {
            name: proc::text("/etc/os-release").and_then(|t| pretty_name(&t)),
            kernel,
            arch: std::env::consts::ARCH,
        },
        cpu: Cpu {
            cores: proc::text("/sys/devices/system/cpu/online").and_then(|t| count_list(&t)),
            usable: thread::available_parallelism().ok().map(usize::from),
        },
        memory: Memory {
            total_bytes: memory.map(|m| m.total),
            available_bytes: memory.map(|m| m.available),
            cgroup_limit_bytes: cgroup_limit(),
        },
        huge_pages: huge_pages(&meminfo, thp.as_deref()),
        dev_shm: dev_shm(proc::text("/proc/mounts").as_deref()),
        tcp: tcp(),
        copies: copies(),
    }
}

fn copies() -> Copies {
    let measured = kvroom::measure_copies();
    let facts = kvroom::copy_facts();
    let rate = |gb_per_s: f64| (gb_per_s * 100.0).round() / 100.0;
    Copies {
        instructions: facts.instructions,
        streaming_from_bytes: facts.from,
        pairs: facts.pairs,
        measured_ms: rate(measured.took.as_secs_f64() * 1e3),
        rounds: measured.rounds,
        sizes: (measured.samples.iter())
            .map(|s| CopySize {
                bytes: s.bytes,
                memcpy: rate(s.memcpy),
                streaming: rate(s.one),
                streaming_two: rate(s.two),
            })
            .collect(),
    }
}

fn tcp() -> Tcp {
    let words = |which: &str| {
        let text = proc::text(&format!("/proc/sys/net/ipv4/tcp_{which}"))?;
        Some(
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    };
    let current = words("congestion_control");
    Tcp {
        congestion: current.and_then(|w| w.into_iter().next()),
        available: words("available_congestion_control"),
        allowed: words("allowed_congestion_control"),
    }
}

fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release
        .lines()
        .find_map(|l| l.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches(['"', '\'']).to_owned())
}

/// How many numbers a list like `0-3,8` names.
fn count_list(list: &str) -> Option<usize> {
    let mut count = 0usize;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

fn cgroup_limit() -> Option<u64> {
    let groups = proc::text("/proc/self/cgroup")?;
    let path = groups.lines().find_map(|l| l.strip_prefix("0::"))?;
    proc::text(&format!("/sys/fs/cgroup{path}/memory.max"))?
        .trim()
        .parse()
        .ok()
}

fn huge_pages(meminfo: &str, transparent: Option<&str>) -> HugePages {
    HugePages {
        size_bytes: proc::kib_field(meminfo, "Hugepagesize").map(|kib| kib * 1024),
        total: proc::kib_field(meminfo, "HugePages_Total"),
        free: proc::kib_field(meminfo, "HugePages_Free"),
        transparent: transparent.and_then(|t| {
            let (_, rest) = t.split_once('[')?;
            Some(rest.split_once(']')?.0.to_owned())
        }),
    }
}

fn dev_shm(mounts: Option<&str>) -> DevShm {
    let absent = |mounted, detail: &str| DevShm {
        mounted,
        fstype: None,
        size_bytes: None,
        detail: detail.to_owned(),
    };
    let Some(mounts) = mounts else {
        return absent(false, "/proc/mounts cannot be read");
    };
    // The last mount on a place is the one that is seen there.
    let Some(line) = mounts
        .lines()
        .rfind(|l| l.split(' ').nth(1) == Some("/dev/shm"))
    else {
        return absent(false, "nothing is mounted at /dev/shm");
    };
    let mut fields = line.split(' ').skip(2);
    let fstype = fields.next().map(str::to_owned);
    let options = fields.next().unwrap_or_default();
    let size_bytes = options
        .split(',')
        .find_map(|o| o.strip_prefix("size="))
        .and_then(size);
    let detail = match size_bytes {
        Some(_) => "size as mounted; free space not looked up",
        None => "mounted without a size; for tmpfs that is half of the memory",
    };
    DevShm {
        mounted: true,
        fstype,
        size_bytes,
        detail: detail.to_owned(),
    }
}

/// Bytes of a mount option's size: a number, with k, m or g.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor: u64 = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn pidfd(kernel: Option<&str>) -> Pidfd {
    const NEEDED: (u32, u32) = (5, 3);
    let found = kernel.and_then(version);
    let detail = match found {
        None => "the kernel's version is unknown".to_owned(),
        Some((major, minor)) => {
            let verb = if (major, minor) >= NEEDED {
                "has"
            } else {
                "lacks"
            };
            format!("by its version, kernel {major}.{minor} {verb} pidfd_open (5.3 and later)")
        }
    };
    Pidfd {
        supported: found.map(|v| v >= NEEDED),
        detail,
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_named_without_its_quotes() {
        let text = "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(
            pretty_name(text).as_deref(),
            Some("Debian GNU/Linux 12 (bookworm)")
        );
    }

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!(count_list("0-1\n"), Some(2));
        assert_eq!(count_list("0-3,8,10-11"), Some(7));
        assert_eq!(count_list("3-1"), None);
        assert_eq!(count_list(""), None);
    }

    #[test]
    fn pidfd_follows_the_kernels_version() {
        assert_eq!(pidfd(Some("5.2.21")).supported, Some(false));
        assert_eq!(pidfd(Some("5.3-rc1")).supported, Some(true));
        assert_eq!(pidfd(Some("6.18.44-fc-v657")).supported, Some(true));
        assert_eq!(pidfd(Some("unknown")).supported, None);
        assert_eq!(pidfd(None).supported, None);
    }

    #[test]
    fn the_last_mount_at_dev_shm_counts() {
        let mounts = "tmpfs /dev/shm tmpfs rw,size=64k 0 0\n\
                      tmpfs /dev/shm tmpfs rw,relatime,size=24684092k 0 0\n\
                      tmpfs /dev/shm/x tmpfs rw,size=1k 0 0\n";
        let shm = dev_shm(Some(mounts));
        assert_eq!(
            (shm.mounted, shm.size_bytes),
            (true, Some(24_684_092 << 10))
        );
        assert_eq!(shm.fstype.as_deref(), Some("tmpfs"));
    }

    #[test]
    fn dev_shm_that_is_absent_or_of_unknown_size_is_said_so() {
        assert!(!dev_shm(Some("proc /proc proc rw 0 0\n")).mounted);
        let shm = dev_shm(Some("tmpfs /dev/shm tmpfs rw 0 0\n"));
        assert_eq!((shm.mounted, shm.size_bytes), (true, None));
        assert!(shm.detail.contains("half"));
        assert_eq!(size("50%"), None);
    }

    #[test]
    fn the_mode_of_transparent_huge_pages_is_the_one_in_brackets() {
        let info = "HugePages_Total:       4\nHugePages_Free:        3\nHugepagesize:   2048 kB\n";
        let h = huge_pages(info, Some("always [madvise] never\n"));
        assert_eq!(
            (h.size_bytes, h.total, h.free),
            (Some(2 << 20), Some(4), Some(3))
        );
        assert_eq!(h.transparent.as_deref(), Some("madvise"));
    }
}
