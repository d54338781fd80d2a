//! Which process: proof that one is dead, for good and without mistaking another for it.
//!
//! ```text
//!   ProcessId { boot, namespace, pid, started }  ──look──▶  Dead | Alive(PidFd) | Unknown
//! ```
//!
//! Rules:
//! - A number of a process alone proves nothing: numbers are used again. With the boot's id and the
//!   time at which the process started it names one process for ever.
//! - Numbers and times are relative to namespaces. What was named in another namespace of the same
//!   boot cannot be looked for here: nothing is known of it then, and nothing counts as dead.
//! - The kernel itself must say all of it. Containers may have another file mounted over the boot's id,
//!   or the /proc of another namespace: then nothing is known here, and no process is named from here.
//! - A pidfd is opened first and the start time read then, so that it is of that very process.

use super::sys;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

/// The id of this boot of this machine, which is the same in all its containers; `None` if the
/// kernel does not say, or something else is mounted where it would.
pub(crate) fn boot_id() -> Option<[u8; 16]> {
    static BOOT: OnceLock<Option<[u8; 16]>> = OnceLock::new();
    *BOOT.get_or_init(|| boot_id_in(Path::new("/proc")))
}

/// The boot id that the filesystem mounted at `proc` has itself.
fn boot_id_in(proc: &Path) -> Option<[u8; 16]> {
    let mut file = fs::File::open(proc.join("sys/kernel/random/boot_id")).ok()?;
    if file.metadata().ok()?.dev() != fs::metadata(proc).ok()?.dev() {
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    parse_boot_id(&text)
}

fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.trim().bytes().filter(|b| *b != b'-').collect();
    let mut id = [0; 16];
    if digits.len() != 2 * id.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, two) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?;
    }
    Some(id)
}

/// A descriptor of a process. It stays that process's, whatever becomes of its number.
#[derive(Debug)]
pub(crate) struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// Of this process.
    pub(crate) fn own() -> io::Result<PidFd> {
        PidFd::of(std::process::id())
    }

    /// One that another process sent. Fails unless it is of process `pid`, as numbered here.
    pub(crate) fn received(fd: OwnedFd, pid: u32) -> io::Result<PidFd> {
        match pid_of(fd.as_fd())? {
            Some(found) if found == i64::from(pid) && pid != 0 => Ok(PidFd { fd }),
            Some(found) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the descriptor is of process {found}, and was to be of process {pid}"),
            )),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the descriptor is not one of a process",
            )),
        }
    }

    fn of(pid: u32) -> io::Result<PidFd> {
        Ok(PidFd {
            fd: sys::pidfd(pid)?,
        })
    }

    /// Of the process that has this number now.
    pub(crate) fn of_number(pid: u32) -> io::Result<PidFd> {
        PidFd::of(pid)
    }

    /// Whether the process is dead: it will never execute another instruction, in any thread. False
    /// if that cannot be found out.
    pub(crate) fn is_dead(&self) -> bool {
        sys::readable(self.fd.as_fd()).unwrap_or(false)
    }

    /// Its number.
    #[cfg(test)]
    fn pid(&self) -> i64 {
        pid_of(self.as_fd()).unwrap().unwrap()
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn pid_of(fd: BorrowedFd<'_>) -> io::Result<Option<i64>> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    Ok(pid_of_fdinfo(&info))
}

/// The number in a pidfd's `fdinfo`: -1 if the process is gone, 0 if it cannot be seen from here.
fn pid_of_fdinfo(info: &str) -> Option<i64> {
    let line = info.lines().find_map(|l| l.strip_prefix("Pid:"))?;
    line.trim().parse().ok()
}

/// One process, for ever: numbers are used again, and this is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessId {
    /// The boot that it ran in.
    pub(crate) boot: [u8; 16],
    /// The namespaces in which its number and its time of start are told.
    pub(crate) namespace: u64,
    /// When it started, in clock ticks since the boot.
    pub(crate) started: u64,
    /// Its number.
    pub(crate) pid: u32,
}

/// What is known of a process.
#[derive(Debug)]
pub(crate) enum Life {
    /// Proven: it never executes an instruction again.
    Dead,
    /// It was alive a moment ago; this tells when it is not.
    Alive(PidFd),
    /// It cannot be looked for from here.
    Unknown,
}

impl ProcessId {
    /// Its length as bytes.
    pub(crate) const BYTES: usize = 40;

    /// Of this process.
    pub(crate) fn own() -> io::Result<ProcessId> {
        ProcessId::of(std::process::id())
    }

    /// Of the process that has this number now. Who holds a [`PidFd`] of it that is not dead
    /// afterwards knows that it is that one.
    pub(crate) fn of(pid: u32) -> io::Result<ProcessId> {
        Ok(ProcessId {
            boot: boot_id()
                .ok_or_else(|| io::Error::other("the kernel's own boot id is not to be had"))?,
            namespace: namespace()?,
            started: started(pid)?,
            pid,
        })
    }

    /// Whether it is named as one of this boot.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        boot_id() == Some(self.boot)
    }

    /// What has become of it.
    pub(crate) fn look(&self) -> Life {
        self.look_from(boot_id(), namespace().ok())
    }

    /// A descriptor of it; `None` if it is provably dead.
    ///
    /// # Errors
    ///
    /// If it cannot be found out.
    #[cfg(any(test, feature = "plant"))]
    pub(crate) fn open(&self) -> io::Result<Option<PidFd>> {
        match self.look() {
            Life::Dead => Ok(None),
            Life::Alive(fd) => Ok(Some(fd)),
            Life::Unknown => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("nothing can be found out here about process {}", self.pid),
            )),
        }
    }

    fn look_from(&self, boot: Option<[u8; 16]>, namespace: Option<u64>) -> Life {
        match boot {
            None => return Life::Unknown,
            Some(boot) if boot != self.boot => return Life::Dead,
            Some(_) => {}
        }
        if namespace != Some(self.namespace) || self.pid == 0 {
            return Life::Unknown;
        }
        // First the descriptor, then the time: if that is right, it is of that very process, since
        // a number stays its process's until that is reaped, and a dead one's descriptor says so.
        let fd = match PidFd::of(self.pid) {
            Ok(fd) => fd,
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Life::Dead,
            Err(_) => return Life::Unknown,
        };
        match started(self.pid) {
            Ok(started) if started == self.started && !fd.is_dead() => Life::Alive(fd),
            Ok(_) => Life::Dead,
            Err(_) if fd.is_dead() => Life::Dead,
            Err(_) => Life::Unknown,
        }
    }

    /// As it is kept in shared files: the boot, then three words, native.
    pub(crate) fn to_words(self) -> [u64; Self::BYTES / 8] {
        let half = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.boot[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        [
            half(0),
            half(8),
            self.namespace,
            self.started,
            u64::from(self.pid),
        ]
    }

    /// What [`ProcessId::to_words`] gave.
    pub(crate) fn from_words(words: [u64; Self::BYTES / 8]) -> ProcessId {
        let [low, high, namespace, started, pid] = words;
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&low.to_ne_bytes());
        boot[8..].copy_from_slice(&high.to_ne_bytes());
        ProcessId {
            boot,
            namespace,
            started,
            // A number that is none is nobody's: nothing can be found out about it.
            pid: u32::try_from(pid).unwrap_or(0),
        }
    }
}

/// The numbers of this process's namespaces of processes and of time, which are 32 bits each. Fails if
/// /proc is that of another namespace: numbers of processes mean others there.
fn namespace() -> io::Result<u64> {
    proc_shows_this_namespace()?;
    let number = |kind: &str| -> io::Result<Option<u64>> {
        match fs::read_link(format!("/proc/self/ns/{kind}")) {
            Ok(link) => Ok(namespace_of_link(&link.to_string_lossy())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    };
    let pid = number("pid")?.ok_or_else(|| io::Error::other("no namespace of processes"))?;
    // Kernels without namespaces of time have one time.
    Ok(pid << 32 | number("time")?.unwrap_or(0))
}

/// The number of this process's namespace of processes.
pub(super) fn pid_namespace() -> io::Result<u32> {
    Ok((namespace()? >> 32) as u32)
}

/// Fails if /proc is that of another namespace: numbers of processes mean others there.
pub(crate) fn proc_shows_this_namespace() -> io::Result<()> {
    shows(&fs::read_to_string("/proc/self/stat")?, std::process::id())
}

/// Whether this `/proc/self/stat` is of process `pid`, which is this one.
fn shows(stat: &str, pid: u32) -> io::Result<()> {
    match stat
        .split_once(' ')
        .map(|(number, _)| number.parse::<u32>())
    {
        Some(Ok(number)) if pid == number => Ok(()),
        _ => Err(io::Error::other(
            "/proc is that of another namespace of processes: mount this one's",
        )),
    }
}

/// The number in `pid:[4026531836]`.
fn namespace_of_link(link: &str) -> Option<u64> {
    let number = link.split_once('[')?.1.strip_suffix(']')?;
    number.parse::<u32>().ok().map(u64::from)
}

fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    started_in(&stat).ok_or_else(|| io::Error::other("/proc/PID/stat cannot be understood"))
}

/// Field 22 of `/proc/PID/stat`. The name (field 2) may hold spaces and brackets: fields are counted
/// from the last closing one.
fn started_in(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let rest = (3..=30)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(" ");
        for name in ["a", "a b", "a) S 1 (b", ")", "((", ""] {
            assert_eq!(
                started_in(&format!("7 ({name}) {rest}")),
                Some(22),
                "{name}"
            );
        }
        assert_eq!(started_in("7 (a) S 1"), None);
    }

    #[test]
    fn the_boot_id_is_sixteen_bytes_or_nothing() {
        let id = parse_boot_id("00010203-0405-0607-0809-0a0b0c0d0e0f\n");
        assert_eq!(
            id,
            Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
        );
        assert_eq!(parse_boot_id("00010203-0405-0607-0809-0a0b0c0d0e"), None);
        assert_eq!(parse_boot_id("0001020g-0405-0607-0809-0a0b0c0d0e0f"), None);
        assert!(boot_id().is_some_and(|id| id != [0; 16]));
    }

    #[test]
    fn a_boot_id_from_another_filesystem_than_proc_is_none() {
        let proc = Path::new("/proc");
        assert!(boot_id_in(proc).is_some());
        // The same text, but not of the filesystem that it should be of.
        let dir = std::env::temp_dir().join(format!("kvroom-boot-id-{}", std::process::id()));
        let path = dir.join("sys/kernel/random");
        fs::create_dir_all(&path).unwrap();
        let id = path.join("boot_id");
        std::os::unix::fs::symlink("/proc/sys/kernel/random/boot_id", &id).unwrap();
        let over = boot_id_in(&dir);
        fs::remove_file(&id).unwrap();
        fs::copy("/proc/sys/kernel/random/boot_id", &id).unwrap();
        let own = boot_id_in(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((over, own), (None, boot_id()));
    }

    #[test]
    fn who_cannot_trust_what_proc_says_takes_nobody_for_dead() {
        let me = ProcessId::own().unwrap();
        let dead = ProcessId {
            started: me.started + 1,
            ..me
        };
        assert!(me.is_of_this_boot());
        let other_boot = ProcessId {
            boot: [7; 16],
            ..me
        };
        assert!(!other_boot.is_of_this_boot());
        let here = Some(me.namespace);
        assert!(matches!(dead.look_from(Some(me.boot), here), Life::Dead));
        assert!(matches!(dead.look_from(Some(me.boot), None), Life::Unknown));
        for id in [dead, other_boot] {
            assert!(matches!(id.look_from(None, here), Life::Unknown));
        }
        assert!(shows("7 (a) S 1", 7).is_ok());
        for other in ["8 (a) S 1", "77 (a) S 1", "", "7"] {
            assert!(shows(other, 7).is_err(), "{other}");
        }
    }

    #[test]
    fn a_process_is_known_by_more_than_its_number() {
        let me = ProcessId::own().unwrap();
        assert!(matches!(me.look(), Life::Alive(fd) if fd.pid() == i64::from(std::process::id())));
        assert!(me.open().unwrap().is_some());
        let other_start = ProcessId {
            started: me.started + 1,
            ..me
        };
        assert!(matches!(other_start.look(), Life::Dead));
        assert!(other_start.open().unwrap().is_none());
        let other_boot = ProcessId {
            boot: [7; 16],
            ..me
        };
        assert!(matches!(other_boot.look(), Life::Dead));
        let elsewhere = ProcessId {
            namespace: me.namespace ^ 1,
            ..other_start
        };
        assert!(
            matches!(elsewhere.look(), Life::Unknown),
            "numbers of another namespace mean nothing here"
        );
        assert!(elsewhere.open().is_err());
        assert!(matches!(
            ProcessId::default().look_from(Some([0; 16]), Some(0)),
            Life::Unknown
        ));
        assert_eq!(ProcessId::from_words(me.to_words()), me);
    }

    #[test]
    fn a_dead_child_is_dead_before_and_after_it_is_reaped() {
        let mut child = std::process::Command::new("/bin/cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        let fd = id.open().unwrap().unwrap();
        assert!(!fd.is_dead());
        child.kill().unwrap();
        while !fd.is_dead() {
            std::thread::yield_now();
        }
        assert!(matches!(id.look(), Life::Dead), "a zombie executes nothing");
        child.wait().unwrap();
        assert!(matches!(id.look(), Life::Dead));
        assert!(fd.is_dead());
    }

    #[test]
    fn a_received_pidfd_must_be_of_the_process_that_it_is_said_to_be_of() {
        let pid = std::process::id();
        let own = || PidFd::own().unwrap().fd;
        assert_eq!(PidFd::received(own(), pid).unwrap().pid(), i64::from(pid));
        let wrong = PidFd::received(own(), pid + 1).unwrap_err().to_string();
        assert!(wrong.contains(&format!("of process {pid}")), "{wrong}");
        let file = fs::File::open("/proc/self/stat").unwrap();
        assert!(PidFd::received(file.into(), pid).is_err());
        assert_eq!(pid_of_fdinfo("pos:\t0\nPid:\t-1\nNSpid:\t-1\n"), Some(-1));
    }
}
