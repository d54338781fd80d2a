//! What systemd is told (`sd_notify`): one datagram to the socket that it names.
//!
//! `READY=1` when HTTP is served, `STOPPING=1` when the daemon was told to stop, and `WATCHDOG=1` twice
//! in each `WATCHDOG_USEC` as long as `/livez` is green: a daemon that is not alive is restarted.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// Says it to whoever started this process, or to nobody.
#[derive(Debug)]
pub(crate) struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    every: Option<Duration>,
}

impl Notifier {
    /// As `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` say.
    pub(crate) fn from_environment() -> Notifier {
        let get = |name| std::env::var(name).ok();
        Notifier::new(
            get("NOTIFY_SOCKET").as_deref(),
            get("WATCHDOG_USEC").as_deref(),
            get("WATCHDOG_PID").as_deref(),
        )
    }

    fn new(socket: Option<&str>, usec: Option<&str>, pid: Option<&str>) -> Notifier {
        let to = socket.filter(|name| !name.is_empty()).and_then(|name| {
            let open = || -> std::io::Result<_> { Ok((UnixDatagram::unbound()?, address(name)?)) };
            let opened = open();
            if let Err(error) = &opened {
                tracing::warn!(socket = name, %error, "systemd cannot be told anything");
            }
            let (socket, to) = opened.ok()?;
            // Nobody waits for whoever does not read.
            socket.set_nonblocking(true).ok()?;
            Some((socket, to))
        });
        let me = std::process::id();
        let mine = pid.is_none_or(|pid| pid.parse() == Ok(me));
        let usec = usec.filter(|_| mine).and_then(|usec| usec.parse().ok());
        let every = usec
            .filter(|usec| *usec > 0)
            .map(|usec| Duration::from_micros(usec) / 2);
        Notifier { to, every }
    }

    /// How often it wants to hear that the process lives.
    pub(crate) fn every(&self) -> Duration {
        self.every.unwrap_or(Duration::MAX)
    }

    /// HTTP is served.
    pub(crate) fn ready(&self) {
        self.say("READY=1");
    }

    /// The daemon was told to stop.
    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// The process lives.
    pub(crate) fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    fn say(&self, state: &str) {
        if let Some((socket, to)) = &self.to
            && let Err(error) = socket.send_to_addr(state.as_bytes(), to)
        {
            tracing::warn!(state, %error, "systemd was not told");
        }
    }
}

/// A path, or a name in the abstract namespace behind an `@`.
fn address(name: &str) -> std::io::Result<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(Path::new(name)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_abstract_socket_and_one_with_a_path_are_told() {
        let name = format!("kvroom-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let _ = std::fs::remove_file(&path);
        let by_path = path.to_str().unwrap().to_owned();
        for socket in [format!("@{name}"), by_path] {
            let systemd = UnixDatagram::bind_addr(&address(&socket).unwrap()).unwrap();
            systemd
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            let notifier = Notifier::new(Some(&socket), None, None);
            notifier.ready();
            notifier.alive();
            let mut heard = [0; 64];
            let n = systemd.recv(&mut heard).unwrap();
            assert_eq!(&heard[..n], b"READY=1");
            let n = systemd.recv(&mut heard).unwrap();
            assert_eq!(&heard[..n], b"WATCHDOG=1");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_watchdog_is_told_twice_in_its_time_and_only_by_the_process_that_is_meant() {
        let every = |usec, pid| Notifier::new(None, usec, pid).every();
        let me = std::process::id().to_string();
        assert_eq!(every(Some("4000000"), None), Duration::from_secs(2));
        assert_eq!(every(Some("4000000"), Some(&*me)), Duration::from_secs(2));
        assert_eq!(every(Some("4000000"), Some("1")), Duration::MAX);
        for nothing in [None, Some("0"), Some("soon")] {
            assert_eq!(every(nothing, None), Duration::MAX);
        }
    }
}
