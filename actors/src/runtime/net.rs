//! How a node talks to nodes of other processes.

pub use crate::fabric::ucx::{OneSided, UcxError, UcxOptions, UcxUse};
pub use crate::peer::auth::{ClusterKey, KeyTooShort};
use std::fmt::Debug;
use std::time::Duration;

/// Addresses, the cluster's key, and how data connections are made. The defaults listen nowhere.
#[derive(Clone, Debug)]
pub struct Net {
    /// Where other nodes may connect: `tcp://HOST:PORT` (port 0 for any free one) or
    /// `unix:///PATH`.
    pub listen: Vec<String>,
    /// Without one, whoever can reach the address is a peer.
    pub key: Option<ClusterKey>,
    /// Data connections to each peer for large pieces, 1 to 64. There is one more for small ones.
    pub connections: u16,
    /// Congestion control of TCP connections, by the kernel's name for it; `None` for
    /// [`Net::PREFERRED_CONGESTION`] where the kernel allows it. One that was asked for and is not
    /// allowed is logged; then, as otherwise, the system's is used.
    pub congestion: Option<String>,
    /// Send and receive buffer of each connection for large pieces in bytes; `None` leaves it to the
    /// kernel.
    pub buffer: Option<u32>,
    /// The same of the connection for small pieces: kept small, so that little waits in it.
    pub interactive_buffer: Option<u32>,
    /// Whether each data frame carries a CRC32C of its payload, besides the one of its header.
    pub payload_crc: bool,
    /// Whether memory is shared with peers on this host. It is found out by itself which those are; a
    /// peer with which memory is shared is trusted with all of each shared pool.
    pub shm: bool,
    /// Besides processes of this node's own user, memory is shared with those of this group (their
    /// primary one).
    pub shm_group: Option<u32>,
    /// UCX.
    pub ucx: UcxOptions,
}

impl Net {
    /// Used if nothing else is said: on one host, and for messages that are waited for, the pacing of
    /// `bbr` costs more than half of the throughput and some latency.
    pub const PREFERRED_CONGESTION: &str = "cubic";
    /// Least and most of [`UcxOptions::window_bytes`].
    pub const UCX_WINDOW_BYTES: (u64, u64) = (4 << 10, 64 << 20);
    /// Least and most of [`UcxOptions::window_puts`].
    pub const UCX_WINDOW_PUTS: (u32, u32) = (1, 4_096);
    /// Least and most of [`UcxOptions::wire_up`], [`UcxOptions::flush`] and [`UcxOptions::close`].
    pub const UCX_TIMES: (Duration, Duration) =
        (Duration::from_millis(10), Duration::from_secs(600));
    /// Least and most of [`UcxOptions::after_failure`].
    pub const UCX_AFTER_FAILURE: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(3600));
    /// Least and most of [`UcxOptions::spin`].
    pub const UCX_SPIN: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(10));
    /// Least and most of [`UcxOptions::retired`].
    pub const UCX_RETIRED: (usize, usize) = (0, 65_536);

    /// Whether every option of UCX is within its bounds, also where it is not used.
    ///
    /// # Errors
    /// The first that is not.
    pub(crate) fn check_ucx(&self) -> Result<(), UcxBound> {
        let ucx = &self.ucx;
        within("ucx.window_bytes", ucx.window_bytes, Self::UCX_WINDOW_BYTES)?;
        within("ucx.window_puts", ucx.window_puts, Self::UCX_WINDOW_PUTS)?;
        within("ucx.wire_up", ucx.wire_up, Self::UCX_TIMES)?;
        within("ucx.flush", ucx.flush, Self::UCX_TIMES)?;
        within("ucx.close", ucx.close, Self::UCX_TIMES)?;
        let after = ucx.after_failure;
        within("ucx.after_failure", after, Self::UCX_AFTER_FAILURE)?;
        within("ucx.spin", ucx.spin, Self::UCX_SPIN)?;
        within("ucx.retired", ucx.retired, Self::UCX_RETIRED)
    }
}

/// An option of UCX that is beyond its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} is {given}; it must be {least} to {most}")]
pub struct UcxBound {
    /// Which: `ucx.` and its name in [`UcxOptions`].
    pub option: &'static str,
    /// What it is.
    pub given: String,
    /// The least that it may be.
    pub least: String,
    /// The most that it may be.
    pub most: String,
}

fn within<T: PartialOrd + Debug>(
    option: &'static str,
    given: T,
    (least, most): (T, T),
) -> Result<(), UcxBound> {
    if (&least..=&most).contains(&&given) {
        return Ok(());
    }
    Err(UcxBound {
        option,
        given: format!("{given:?}"),
        least: format!("{least:?}"),
        most: format!("{most:?}"),
    })
}

impl Default for Net {
    fn default() -> Self {
        Net {
            listen: Vec::new(),
            key: None,
            connections: 1,
            congestion: None,
            buffer: None,
            interactive_buffer: Some(256 << 10),
            payload_crc: false,
            shm: true,
            shm_group: None,
            ucx: UcxOptions::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::runtime::{NodeConfig, NodeError, Runtime};

    type Change = fn(&mut UcxOptions);

    #[test]
    fn a_node_with_an_option_of_ucx_beyond_its_bounds_is_not_started_and_names_it() {
        let wrong: [(Change, &str); 9] = [
            (
                |u| u.window_bytes = 4095,
                "ucx.window_bytes is 4095; it must be 4096 to 67108864",
            ),
            (
                |u| u.window_puts = 0,
                "ucx.window_puts is 0; it must be 1 to 4096",
            ),
            (
                |u| u.window_puts = 4097,
                "ucx.window_puts is 4097; it must be 1 to 4096",
            ),
            (
                |u| u.wire_up = Duration::ZERO,
                "ucx.wire_up is 0ns; it must be 10ms to 600s",
            ),
            (
                |u| u.flush = Duration::from_secs(601),
                "ucx.flush is 601s; it must be 10ms to 600s",
            ),
            (
                |u| u.close = Duration::ZERO,
                "ucx.close is 0ns; it must be 10ms to 600s",
            ),
            (
                |u| u.after_failure = Duration::from_secs(3_601),
                "ucx.after_failure is 3601s; it must be 0ns to 3600s",
            ),
            (
                |u| u.spin = Duration::from_secs(1),
                "ucx.spin is 1s; it must be 0ns to 10ms",
            ),
            (
                |u| u.retired = 65_537,
                "ucx.retired is 65537; it must be 0 to 65536",
            ),
        ];
        for (change, text) in wrong {
            let mut config = NodeConfig::new("bounds");
            change(&mut config.net.ucx);
            let error = Runtime::start(config).unwrap_err();
            assert!(matches!(error, NodeError::UcxBound(_)), "{error:?}");
            assert_eq!(error.to_string(), text);
        }
        let least = UcxOptions {
            window_bytes: 4096,
            window_puts: 1,
            wire_up: Duration::from_millis(10),
            spin: Duration::ZERO,
            retired: 0,
            ..UcxOptions::default()
        };
        for ucx in [UcxOptions::default(), least] {
            let net = Net {
                ucx,
                ..Net::default()
            };
            assert_eq!(net.check_ucx(), Ok(()));
        }
    }
}
