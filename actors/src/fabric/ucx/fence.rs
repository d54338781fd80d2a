//! The fence table: what the end of a worker proves, for each transport of UCX.
//!
//! ```text
//!   transports that a worker may use ─▶ a row for each ─▶ all agree: that is the proof
//!                                                     └─ one has none, or another one: there is none
//! ```
//!
//! It is asked only where a sender writes by itself (puts). *Writes* are those of the peer into this
//! process; *reads* are those of this process's own sources. Endpoints are always made with error mode `PEER`:
//! without it `cma` lets a peer write whatever this process does. A transport that is not in the table
//! proves nothing.
//!
//! What was measured was so on one host with UCX 1.13, 1.16, 1.20 and 1.22: a peer with thousands of puts
//! under way, running, busy or stopped, and the pages watched for two seconds after.

/// What is a proof, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Its endpoints are closed by force, which ended well, and nobody lets the worker work any more. It is
    /// not destroyed: with replies pending UCX does not survive that on every transport.
    Left(&'static str),
    /// The worker was destroyed.
    Destroyed(&'static str),
    /// Nothing is.
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
    /// Why no peer may put over it at all.
    pub crashes: Option<&'static str>,
}

use Ruling::{Destroyed, Left, Refused};

const COPIED: Ruling = Left(
    "measured: after endpoints were closed by force, and that ended well, no source was read any more; this \
     process's own calls read it",
);

/// The table.
pub const TABLE: &[Row] = &[
    Row {
        transports: &["tcp"],
        writes: Left(
            "measured: a put is a message, and is written when this process lets the worker work; of what was \
             under way nothing landed after that",
        ),
        reads: COPIED,
        crashes: Some(
            "over tcp a peer that dies in the middle of puts ends this process, too, by an assertion of UCX \
             (measured: 122 of 180 times)",
        ),
    },
    Row {
        transports: &["posix", "sysv", "self"],
        writes: Left(
            "measured, as for tcp: puts into memory that UCX did not allocate are messages",
        ),
        reads: COPIED,
        crashes: None,
    },
    Row {
        transports: &["cma", "knem", "xpmem"],
        writes: Refused(
            "the peer's own CPU can write what is registered, and needs nothing of this process",
        ),
        reads: COPIED,
        crashes: None,
    },
    Row {
        transports: &["rc_verbs", "rc_mlx5", "dc_mlx5", "ud_verbs", "ud_mlx5"],
        writes: Destroyed(
            "by specification, not run: puts come to queue pairs of this worker alone, which are destroyed with \
             it, and a network card drops what is for a queue pair that is no more",
        ),
        reads: Destroyed(
            "by specification, not run: the queue pairs are destroyed with the worker, and a network card reads \
             nothing more for them",
        ),
        crashes: None,
    },
    Row {
        transports: &[
            "cuda_copy",
            "cuda_ipc",
            "gdr_copy",
            "rocm_copy",
            "rocm_ipc",
            "rocm_gdr",
            "ze_copy",
            "ze_ipc",
            "ze_gdr",
        ],
        writes: Refused("a device writes, and this process does not know when that ends"),
        reads: Refused("a device reads, and its queue is not the worker's"),
        crashes: None,
    },
    Row {
        transports: &["srd", "gga_mlx5"],
        writes: Refused("not looked at"),
        reads: Refused("not looked at"),
        crashes: None,
    },
];

/// The row of a transport.
pub fn row(transport: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.transports.contains(&transport))
}

/// How a worker has to end for that to be a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    Left,
    Destroyed,
}

/// What the end of a worker proves that may use any of some transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) writes: Option<Proof>,
    pub(super) reads: Option<Proof>,
    /// Why no peer may put at all.
    pub(super) crashes: Option<String>,
    /// Why there is no proof, for people.
    pub(super) why: String,
}

impl Verdict {
    pub(super) fn of(transports: &[String]) -> Verdict {
        let mut whys = Vec::new();
        let mut crashes = None;
        for name in transports {
            let Some(row) = row(name) else {
                whys.push(format!("{name}: not in the fence table"));
                continue;
            };
            for ruling in [row.writes, row.reads] {
                if let Refused(why) = ruling {
                    whys.push(format!("{name}: {why}"));
                }
            }
            if let Some(why) = row.crashes {
                crashes.get_or_insert_with(|| why.to_owned());
            }
        }
        let mut both = |what, of: fn(&Row) -> Ruling| {
            let agreed = agreed(transports, of);
            if agreed.is_none() && whys.is_empty() {
                whys.push(format!(
                    "{what}: these transports do not prove it in the same way"
                ));
            }
            agreed
        };
        let writes = both("writes", |row| row.writes);
        let reads = both("reads", |row| row.reads);
        // A worker ends in one way.
        let one_way = writes.is_none() || reads.is_none() || writes == reads;
        Verdict {
            writes: writes.filter(|_| one_way),
            reads,
            crashes,
            why: whys.join("; "),
        }
    }

    /// Whether a worker is destroyed in the end.
    pub(super) fn destroys(&self) -> bool {
        [self.writes, self.reads].contains(&Some(Proof::Destroyed))
    }
}

/// The proof that all transports have; of nothing nothing is known.
fn agreed(transports: &[String], of: fn(&Row) -> Ruling) -> Option<Proof> {
    let mut proofs = transports.iter().map(|name| match of(row(name)?) {
        Left(_) => Some(Proof::Left),
        Destroyed(_) => Some(Proof::Destroyed),
        Refused(_) => None,
    });
    let first = proofs.next()??;
    proofs.all(|proof| proof == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(names: &[&str]) -> Verdict {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Verdict::of(&names)
    }

    #[test]
    fn each_transport_has_one_row() {
        let all: Vec<_> = TABLE.iter().flat_map(|row| row.transports).collect();
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(all.len(), once.len());
    }

    #[test]
    fn transports_prove_what_each_of_them_proves() {
        let here = verdict(&["posix", "sysv", "self"]);
        assert_eq!(
            (here.writes, here.reads),
            (Some(Proof::Left), Some(Proof::Left))
        );
        assert!(!here.destroys() && here.crashes.is_none() && here.why.is_empty());
        let far = verdict(&["rc_mlx5", "ud_mlx5"]);
        assert_eq!(far.writes, Some(Proof::Destroyed));
        assert!(far.destroys());
        let mixed = verdict(&["rc_mlx5", "posix"]);
        assert_eq!((mixed.writes, mixed.reads), (None, None));
        assert!(mixed.why.contains("in the same way"), "{}", mixed.why);
    }

    #[test]
    fn what_is_not_in_the_table_or_refused_proves_nothing() {
        let cma = verdict(&["posix", "cma"]);
        assert_eq!((cma.writes, cma.reads), (None, Some(Proof::Left)));
        assert!(cma.why.starts_with("cma: "), "{}", cma.why);
        let unknown = verdict(&["posix", "brand_new"]);
        assert_eq!((unknown.writes, unknown.reads), (None, None));
        assert!(unknown.why.contains("brand_new: not in"), "{}", unknown.why);
        assert_eq!(verdict(&[]).writes, None);
        let device = verdict(&["cuda_ipc"]);
        assert_eq!((device.writes, device.reads), (None, None));
    }

    #[test]
    fn puts_over_tcp_are_refused() {
        assert!(
            verdict(&["tcp", "posix"])
                .crashes
                .unwrap()
                .contains("assertion of UCX")
        );
    }
}
