//! The fence table: what the end of a path proves, for each transport of UCX.
//!
//! ```text
//!   transports that a worker may use ─▶ a row for each ─▶ all accept: the end of the path is a proof
//!                                                     └─ one does not, or has no row: it is none
//! ```
//!
//! What is destroyed is the worker that serves one peer alone: its endpoints are closed by force, and then the
//! worker. *Writes* are those of the peer into this process; *reads* are those of this process's own sources.
//! A transport that is not in the table proves nothing.

/// Whether the end of a path is a proof, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// After it nothing is written (or read).
    Accepted(&'static str),
    /// It may be.
    Refused(&'static str),
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Transports, as UCX names them.
    pub transports: &'static [&'static str],
    /// Of the peer, into this process.
    pub writes: Ruling,
    /// By this process, of its sources.
    pub reads: Ruling,
}

use Ruling::{Accepted, Refused};

const COPIED: Ruling = Accepted(
    "the CPU reads the source within calls of the worker's own thread, and never after the worker is destroyed",
);
const QUEUE_PAIRS: Ruling = Accepted(
    "by specification, not run here: the worker's queue pairs are destroyed with it, and a network card reads \
     nothing more for a queue pair that is no more",
);

/// The table.
pub const TABLE: &[Row] = &[
    Row {
        transports: &["tcp"],
        writes: Accepted(
            "bytes are written by this process when the worker progresses; measured: nothing of thousands of \
             puts under way landed after the worker was destroyed",
        ),
        reads: COPIED,
    },
    Row {
        transports: &["posix", "sysv", "self"],
        writes: Accepted(
            "puts into memory that UCX did not allocate are messages, and are written when the worker \
             progresses; measured as for tcp",
        ),
        reads: COPIED,
    },
    Row {
        transports: &["cma"],
        writes: Accepted(
            "puts do not use it, they wait for the worker's progress as with posix; measured with page sizes up \
             to 1 MiB",
        ),
        reads: COPIED,
    },
    Row {
        transports: &["knem", "xpmem"],
        writes: Refused("the peer's own CPU writes what was registered, and needs nothing of this process for it"),
        reads: COPIED,
    },
    Row {
        transports: &[
            "rc_verbs", "rc_mlx5", "dc_mlx5", "ud_verbs", "ud_mlx5",
        ],
        writes: Accepted(
            "by specification, not run here: they come to queue pairs of the worker alone, which are destroyed \
             with it, and a network card drops what is for a queue pair that is no more",
        ),
        reads: QUEUE_PAIRS,
    },
    Row {
        transports: &[
            "cuda_copy", "cuda_ipc", "gdr_copy", "rocm_copy", "rocm_ipc", "rocm_gdr", "ze_copy", "ze_ipc",
            "ze_gdr",
        ],
        writes: Refused("a device writes, and this process does not know when that ends"),
        reads: Refused("a device reads, and its queue is not the worker's"),
    },
    Row {
        transports: &["srd", "gga_mlx5"],
        writes: Refused("not looked at"),
        reads: Refused("not looked at"),
    },
];

/// The row of a transport.
pub fn row(transport: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.transports.contains(&transport))
}

/// What the end of a worker proves that may use any of some transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) writes: bool,
    pub(super) reads: bool,
    /// Why not, for people.
    pub(super) why: String,
}

impl Verdict {
    pub(super) fn of(transports: &[String]) -> Verdict {
        let mut verdict = Verdict {
            // Of nothing nothing is known.
            writes: !transports.is_empty(),
            reads: !transports.is_empty(),
            why: String::new(),
        };
        for name in transports {
            let row = row(name);
            let says = |ruling: Option<Ruling>| matches!(ruling, Some(Accepted(_)));
            let (writes, reads) = (row.map(|row| row.writes), row.map(|row| row.reads));
            verdict.writes &= says(writes);
            verdict.reads &= says(reads);
            for refused in [writes, reads].into_iter().flatten() {
                if let Refused(why) = refused {
                    verdict.why.push_str(&format!("{name}: {why}; "));
                }
            }
            if row.is_none() {
                verdict.why.push_str(&format!("{name}: not in the fence table; "));
            }
        }
        verdict.why.truncate(verdict.why.trim_end_matches("; ").len());
        verdict
    }
}
