//! What two nodes on one host share: found by themselves, passed over a Unix socket.
//!
//! ```text
//!   offers: same boot id, pools that can be mapped ─▶ over tcp: the dialer changes to the Unix socket
//!                                                  └▶ over unix: Link + descriptors, both ways
//!   Link ─▶ pidfd, doorbell, gate table, ring, pools ─▶ checked ─▶ ShmRoute, ring
//! ```
//!
//! Rules:
//! - nothing is shared with a process that the kernel does not name as one of this user, or of the
//!   group that this node allows, or whose pidfd is not of that very process: without a pidfd nobody
//!   could prove that a writer is dead;
//! - whoever will not share says so, and then neither side does: the session goes over sockets. So does
//!   every session that begins while one side has a pool on a device: its peer could not write there;
//! - descriptors that come before the peer has proven itself are closed at once.

use super::greet::GreetError;
use super::shared::{NodeShared, Pools};
use crate::fabric::shm::ShmRoute;
use crate::fabric::stream::Stream;
use crate::ids::PoolId;
use crate::memory::{
    Backing, Bell, HugePages, NoteOwners, PidFd, ProcessId, RemoteGates, RemotePool, RingMemory,
    RingSide, SharedGates, SharedMemory, SharedOptions, TableMemory, Writer, boot_id, user,
};
use crate::peer::hello::{Host, Link, LinkPool, LinkTable, Offer, SharedPools};
use kvroom_kernels::layout::PoolLayout;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Descriptors in one message: those of every pool, and four more.
pub(crate) const MOST_FDS: usize = crate::peer::hello::MAX_POOLS + 4;

/// Tables and rings are small.
const PLAIN: SharedOptions = SharedOptions {
    huge: HugePages::Off,
    numa_node: None,
};

/// The mapped pools of a peer.
pub(crate) type RemotePools = BTreeMap<PoolId, Arc<RemotePool>>;

/// What was agreed with a peer on this host.
#[derive(Debug)]
pub(crate) struct Linked {
    /// Control frames of this transport go over it.
    pub(crate) ring: RingMemory,
    /// Rung by the peer.
    pub(crate) bell: Bell,
    /// Rung by this node.
    pub(crate) theirs: Arc<Bell>,
    /// The way of a fresh session's bytes.
    pub(crate) route: Option<ShmRoute>,
    /// The peer's pools.
    pub(crate) pools: RemotePools,
}

/// What this node would share, made before anything is said.
pub(crate) struct Ours {
    pidfd: PidFd,
    bell: Bell,
    /// Of a fresh session.
    table: Option<TableMemory>,
    /// If this is the lower incarnation.
    ring: Option<SharedMemory>,
    pools: Arc<Pools>,
    /// The node's counter.
    overwritten: Arc<AtomicU64>,
}

/// What this node says of the host it runs on.
pub(crate) fn host(node: &NodeShared, socket: Option<&str>) -> Option<Host> {
    if !node.net.shm {
        return None;
    }
    let pools = node.pools.borrow();
    let all = pools.pools.len();
    let can = pools.pools.iter().filter(|p| is_shared(p)).count();
    Some(Host {
        boot: boot_id()?,
        socket: socket.map(str::to_owned),
        shared: match can {
            0 => SharedPools::None,
            n if n == all => SharedPools::All,
            _ => SharedPools::Some,
        },
    })
}

fn is_shared(pool: &super::shared::NamedPool) -> bool {
    pool.pool.shared_memory().is_some()
}

/// Whether the process at the other end may share memory with this one; why not.
///
/// # Errors
/// In words.
pub(crate) fn may_share(node: &NodeShared, stream: &Stream) -> Result<ProcessId, String> {
    let Stream::Unix(unix) = stream else {
        return Err("the session is not over a Unix socket".into());
    };
    let peer = unix.peer_cred().map_err(|e| e.to_string())?;
    let (uid, gid) = (peer.uid(), peer.gid());
    let me = user();
    if uid != me && node.net.shm_group != Some(gid) {
        return Err(format!(
            "the peer runs as user {uid} and group {gid}, this node as user {me}: allow its group with \
             Net::shm_group, or run both as one user"
        ));
    }
    let pid = peer.pid().filter(|pid| *pid > 0).ok_or(
        "the kernel does not show the peer's process here (another pid namespace?)".to_owned(),
    )?;
    ProcessId::of(pid.unsigned_abs()).map_err(|e| format!("process {pid} of the peer: {e}"))
}

/// The name of a pool on a device, which a session over shared memory could not serve.
pub(crate) fn on_device(pools: &Pools) -> Option<&str> {
    let on_device = pools.pools.iter().find(|p| p.pool.device().is_some());
    on_device.map(|p| p.pool.layout().name.as_str())
}

impl Ours {
    /// Makes what this node shares; `decider` makes the ring.
    ///
    /// # Errors
    /// The system gave none; in words.
    pub(crate) fn make(
        node: &NodeShared,
        peer: &ProcessId,
        fresh: bool,
        decider: bool,
        pools: Arc<Pools>,
    ) -> Result<Ours, String> {
        if fresh && let Some(pool) = on_device(&pools) {
            return Err(format!(
                "pool {pool:?} is on a device, and no other process could write there by itself"
            ));
        }
        let told = |what: &'static str| move |e: &dyn std::fmt::Display| format!("{what}: {e}");
        let slots = node.limits.claims_per_peer;
        // Some of those that ended are still draining.
        let slots = slots.saturating_add(slots / 4).saturating_add(1);
        let slots = slots.min(u32::try_from(node.limits.gates).unwrap_or(u32::MAX));
        let bytes = TableMemory::bytes_of(slots);
        let table = if fresh {
            let memory = pools
                .gate_table(peer, bytes)
                .unwrap_or_else(|| SharedMemory::create("gates", bytes, &PLAIN))
                .map_err(|e| told("no memory for the gates")(&e))?;
            Some(TableMemory::create(memory, peer))
        } else {
            None
        };
        let ring = decider
            .then(|| SharedMemory::create("ring", RingMemory::bytes(), &PLAIN))
            .transpose()
            .map_err(|e| told("no memory for the ring")(&e))?;
        Ok(Ours {
            pidfd: PidFd::own().map_err(|e| told("no pidfd of this process")(&e))?,
            bell: Bell::new().map_err(|e| told("no eventfd")(&e))?,
            table,
            ring,
            pools,
            overwritten: Arc::clone(&node.stats.overwritten_words),
        })
    }

    /// What is said, and the descriptors that go with it.
    pub(crate) fn message(&self) -> (Link, Vec<BorrowedFd<'_>>) {
        let mut fds = vec![self.pidfd.as_fd(), self.bell.as_fd()];
        fds.extend(self.table.as_ref().map(TableMemory::fd));
        fds.extend(self.ring.as_ref().map(SharedMemory::fd));
        let mut pools = Vec::new();
        for named in &self.pools.pools {
            if let Some(memory) = named.pool.shared_memory() {
                fds.push(memory.fd());
                pools.push(LinkPool {
                    pool: named.id,
                    file: matches!(named.pool.backing(), Backing::File),
                });
            }
        }
        let link = Link {
            willing: true,
            table: self.table.as_ref().map(|t| LinkTable {
                slots: t.slots(),
                file: self.pools.gate_tables_are_files(),
            }),
            ring: self.ring.is_some(),
            pools,
        };
        (link, fds)
    }

    /// Puts together what both sides have shared.
    ///
    /// # Errors
    /// What the peer sent is not what it said, or cannot be used; in words.
    pub(crate) fn join(
        self,
        peer: &ProcessId,
        theirs: &Link,
        offer: &Offer,
        fds: Vec<OwnedFd>,
    ) -> Result<Linked, String> {
        let mut fds = fds.into_iter();
        let mut next = |what: &str| {
            fds.next()
                .ok_or_else(|| format!("no descriptor came for {what}"))
        };
        let pidfd = PidFd::received(next("its process")?, peer.pid).map_err(|e| e.to_string())?;
        let bell = Bell::received(next("its doorbell")?);
        let bell = bell.map_err(|e| format!("the doorbell of the peer: {e}"))?;
        let table = theirs
            .table
            .map(|said| next("its gate table").map(|fd| (said, fd)))
            .transpose()?;
        let ring = match (self.ring, theirs.ring) {
            (Some(ours), false) => RingMemory::new(ours, RingSide::Lower),
            (None, true) => {
                let memory = SharedMemory::receive(next("the ring")?, RingMemory::bytes());
                RingMemory::new(memory.map_err(|e| e.to_string())?, RingSide::Higher)
            }
            _ => return Err("both sides, or none of them, made the ring".into()),
        };
        let mut pools = RemotePools::new();
        for said in &theirs.pools {
            let fd = next("a pool")?;
            let Some((_, layout)) = offer.pools.iter().find(|(id, _)| *id == said.pool) else {
                return Err(format!("pool {} was not offered", said.pool.0));
            };
            pools.insert(said.pool, Arc::new(map(fd, said.file, layout)?));
        }
        let bell = Arc::new(bell);
        let route = match (self.table, table) {
            (Some(ours), Some((said, fd))) => {
                let bytes = TableMemory::bytes_of(said.slots);
                let memory = if said.file {
                    SharedMemory::receive_file(fd, bytes)
                } else {
                    SharedMemory::receive(fd, bytes)
                };
                let memory = memory.map_err(|e| format!("the gate table of the peer: {e}"))?;
                let table = TableMemory::open(memory).map_err(|e| e.to_string())?;
                let writer = Arc::new(Writer::new(pidfd));
                Some(ShmRoute {
                    ours: SharedGates::new(
                        ours.clone(),
                        Arc::clone(&writer),
                        Some(Arc::new(NoteOwners::new(ours))),
                    ),
                    theirs: Arc::new(RemoteGates::new(table, Arc::clone(&bell), self.overwritten)),
                    writer,
                    bell: Arc::new(self.bell.try_clone().map_err(|e| e.to_string())?),
                })
            }
            (None, None) => None,
            _ => return Err("one side begins a session and the other one goes on with one".into()),
        };
        Ok(Linked {
            ring: ring.map_err(|e| e.to_string())?,
            bell: self.bell,
            theirs: bell,
            route,
            pools,
        })
    }
}

/// Maps a pool of a peer.
///
/// # Errors
/// It cannot be mapped, or is smaller than its layout; in words.
pub(crate) fn map(fd: OwnedFd, file: bool, layout: &PoolLayout) -> Result<RemotePool, String> {
    let cells = u64::from(layout.layers) * u64::from(layout.pages);
    let bytes = cells
        .checked_mul(layout.page_bytes)
        .and_then(|b| usize::try_from(b).ok());
    let too_large = || format!("pool {:?} is larger than the address space", layout.name);
    let bytes = bytes.ok_or_else(too_large)?;
    let memory = if file {
        SharedMemory::receive_file(fd, bytes)
    } else {
        SharedMemory::receive(fd, bytes)
    };
    let memory = memory.map_err(|e| format!("pool {:?} of the peer: {e}", layout.name))?;
    RemotePool::new(memory, layout.clone()).ok_or_else(too_large)
}

/// Sends a message with descriptors, whole.
pub(crate) async fn send(
    stream: &Stream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), GreetError> {
    let lost = |e: io::Error| GreetError::Lost(e.to_string());
    let (mut rest, mut fds) = (bytes, fds);
    while !rest.is_empty() {
        let sent = stream.try_io(tokio::io::Interest::WRITABLE, || {
            crate::memory::send_with_fds(stream.as_fd(), rest, fds)
        });
        match sent {
            Ok(n) => {
                // They went with the first byte.
                fds = &[];
                rest = &rest[n.min(rest.len())..];
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                stream
                    .ready(tokio::io::Interest::WRITABLE)
                    .await
                    .map_err(lost)?;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(lost(e)),
        }
    }
    Ok(())
}
