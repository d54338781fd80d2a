//! Another process of this machine, as a host sees it: who owns memory that was registered here.
//!
//! ```text
//!   OtherProcess::open(pid) ── pidfd ──▶ is_dead, ended: of that very process, whatever becomes of its number
//!        └── descriptor(n): /proc/PID/fd/N, opened between two looks at the pidfd
//! ```

use super::readable::Readable;
use crate::memory::{PidFd, proc_shows_this_namespace};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// One process of this machine, held by a descriptor: its number may be given to another one, and this
/// goes on to be of the first.
#[derive(Debug)]
pub struct OtherProcess {
    pid: u32,
    fd: PidFd,
}

impl OtherProcess {
    /// The process that has this number now, as numbers are told in the namespace of this process.
    ///
    /// # Errors
    /// There is none (`ESRCH`), it has ended already, or the kernel has no such descriptors (Linux before
    /// 5.3).
    pub fn open(pid: u32) -> io::Result<OtherProcess> {
        let fd = PidFd::of_number(pid)?;
        if fd.is_dead() {
            return Err(ended(pid));
        }
        Ok(OtherProcess { pid, fd })
    }

    /// Its number; another process's, perhaps, once this one is dead.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it is dead: it will never execute another instruction, in any thread. False if that
    /// cannot be found out.
    pub fn is_dead(&self) -> bool {
        self.fd.is_dead()
    }

    /// Ends when it is dead. Inside a tokio runtime; dropping the future harms nothing.
    ///
    /// # Errors
    /// The reactor's.
    pub async fn ended(&self) -> io::Result<()> {
        let readable = Readable::new(self.fd.as_fd().try_clone_to_owned()?)?;
        while !self.is_dead() {
            readable.again().await?;
        }
        Ok(())
    }

    /// The memory or file that descriptor `number` of the process is of, opened here to read and write.
    ///
    /// # Errors
    /// The system's: there is no such descriptor, or this process may not look into that one (another
    /// user's). `InvalidInput`: it is of no memory and no file. `NotFound`: the process ended meanwhile.
    /// `/proc` is that of another namespace.
    pub fn descriptor(&self, number: u32) -> io::Result<OwnedFd> {
        proc_shows_this_namespace()?;
        let path = format!("/proc/{}/fd/{number}", self.pid);
        // Pipes and devices are not even opened.
        if !fs::metadata(&path)?.is_file() {
            return Err(not_memory(number, self.pid));
        }
        let file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&path)?;
        // Its number was its own until here: the descriptor is that very process's.
        if self.is_dead() {
            return Err(ended(self.pid));
        }
        if !file.metadata()?.is_file() {
            return Err(not_memory(number, self.pid));
        }
        Ok(file.into())
    }
}

fn not_memory(number: u32, pid: u32) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("descriptor {number} of process {pid} is of no memory and no file"),
    )
}

fn ended(pid: u32) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("process {pid} has ended"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::AsRawFd;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    fn cat() -> Child {
        Command::new("/bin/cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_seen_by_who_waits_and_by_who_asks() {
        let mut child = cat();
        let process = OtherProcess::open(child.id()).unwrap();
        assert_eq!(process.pid(), child.id());
        assert!(!process.is_dead());
        let early = tokio::time::timeout(Duration::from_millis(20), process.ended()).await;
        assert!(early.is_err(), "it is alive");
        child.kill().unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(10), process.ended()).await;
        ended.unwrap().unwrap();
        assert!(process.is_dead());
        // Not reaped yet: it can be named, and is dead.
        assert!(OtherProcess::open(child.id()).is_err());
        child.wait().unwrap();
        let gone = OtherProcess::open(child.id());
        assert!(
            gone.is_err() || !gone.unwrap().is_dead(),
            "its number may be used again"
        );
        assert!(OtherProcess::open(0).is_err());
    }

    #[test]
    fn a_descriptor_of_another_process_is_opened_if_it_is_of_memory() {
        let path = std::env::temp_dir().join(format!("kvroom-passed-{}", std::process::id()));
        fs::write(&path, b"there").unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let me = OtherProcess::open(std::process::id()).unwrap();
        let number = file.as_raw_fd() as u32;
        let again = File::from(me.descriptor(number).unwrap());
        assert_eq!(again.metadata().unwrap().len(), 5);
        fs::remove_file(&path).unwrap();
        let pipe = {
            let mut child = cat();
            let process = OtherProcess::open(child.id()).unwrap();
            let pipe = process.descriptor(0).unwrap_err();
            let none = process.descriptor(999).unwrap_err();
            assert_eq!(none.kind(), io::ErrorKind::NotFound);
            // It serves on.
            child.stdin.as_mut().unwrap().write_all(b"a\n").unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap())
                .read_line(&mut line)
                .unwrap();
            assert_eq!(line, "a\n");
            child.kill().unwrap();
            child.wait().unwrap();
            let dead = process.descriptor(0).unwrap_err();
            assert_eq!(dead.kind(), io::ErrorKind::NotFound);
            pipe
        };
        assert_eq!(pipe.kind(), io::ErrorKind::InvalidInput);
        assert!(pipe.to_string().contains("no memory and no file"), "{pipe}");
    }
}
