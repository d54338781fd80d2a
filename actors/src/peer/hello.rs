//! What two nodes say of themselves, and what both conclude from it without asking further.
//!
//! ```text
//!   Hello ───────▶          ◀─────── Hello        to anybody: who is there
//!   Offer ───────▶          ◀─────── Offer        to a proven peer only: what it has
//!
//!   greet(mine, theirs):
//!     cannot work together ─▶ Refusal, naming who has to change what
//!     else                 ─▶ the newest protocol that both speak
//!   accept(mine, theirs, known): as greet, and
//!     pools do not fit     ─▶ Refusal::Layout
//!     lower incarnation    ─▶ Refusal::Superseded
//!     higher or unknown    ─▶ Fresh
//!     same, same session   ─▶ Resume
//!     same, other session  ─▶ Fresh, and the old session is lost
//! ```
//!
//! Both sides come to the same conclusion because each compares the same two pairs. Equal
//! incarnations are not enough to resume: when one side has given the session up, its numbers begin
//! again, and the other must not take them for numbers it has seen. So a session is named by the
//! nonces of the greetings it began with, and resumed only if both name the same one.
//!
//! A [`Hello`]'s encoding is the same in every protocol, or there would be nothing to negotiate
//! with. What is new in a protocol goes into capability bits or behind the Hello.

use crate::ids::{Incarnation, PoolId};
use kvroom_kernels::layout::cube::{self, CubeLayout, CubeMismatch};
use kvroom_kernels::layout::{Mismatch, PoolLayout, explain};
use serde::{Deserialize, Serialize};
use std::fmt;

mod refusal;
#[cfg(test)]
mod tests;

pub use refusal::{Fault, Refusal, RefusalCode};

/// The newest protocol that this build speaks.
pub const PROTOCOL: u32 = 6;
/// The oldest protocol that this build speaks.
pub const OLDEST_PROTOCOL: u32 = 6;
/// Longest name of a node or a pool in bytes.
pub const MAX_NAME: usize = 64;
/// Most pools in one greeting.
pub const MAX_POOLS: usize = 64;

/// What a node can do, as a set of bits. Bits that this build does not know are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capabilities(pub u32);

impl Capabilities {
    /// It answers an abort with `Quiesced` only when no write can happen any more. Mandatory.
    pub const QUIESCENCE: Capabilities = Capabilities(1);
    /// It can sum what it wrote into `Complete`.
    pub const CHECKSUM: Capabilities = Capabilities(1 << 1);
    /// It has UCX, and may use it with this peer.
    pub const UCX: Capabilities = Capabilities(1 << 3);
    /// It knows frames that say where on a device their bytes are, and how to ask for them. Nobody is asked
    /// who does not.
    pub const HANDED: Capabilities = Capabilities(1 << 2);
    /// Of this connection: nobody has asked for it, the node makes it to keep a session that it had.
    pub const BY_ITSELF: Capabilities = Capabilities(1 << 31);

    /// Both sets together.
    #[must_use]
    pub fn and(self, more: Capabilities) -> Capabilities {
        Capabilities(self.0 | more.0)
    }

    /// What both sets have.
    #[must_use]
    pub fn common(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 & other.0)
    }

    /// Whether all of `wanted` is here.
    pub fn has(self, wanted: Capabilities) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// The protocols that a node speaks: from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Protocols {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

impl Protocols {
    /// What this build speaks.
    pub const MINE: Protocols = Protocols {
        oldest: OLDEST_PROTOCOL,
        newest: PROTOCOL,
    };

    /// The newest that both speak.
    pub fn common(self, other: Protocols) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "{}", self.newest)
        } else {
            write!(f, "{} to {}", self.oldest, self.newest)
        }
    }
}

/// A session's name: the first eight bytes (little-endian) of the nonces of the two greetings that
/// it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId {
    /// Of the lower incarnation's.
    pub lower: u64,
    /// Of the higher incarnation's.
    pub higher: u64,
}

/// Random bytes, new for every greeting. From the system's generator: a nonce that can be foreseen
/// makes an old greeting good again.
pub type Nonce = [u8; 32];

/// Who a node is: the first message of each side on every transport, and all that a stranger
/// gets to see.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hello {
    /// Which protocols it speaks.
    pub protocols: Protocols,
    /// The node's name; 1 to [`MAX_NAME`] bytes.
    pub node: String,
    /// Its life.
    pub incarnation: Incarnation,
    /// New for every greeting.
    pub nonce: Nonce,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Whether it has a cluster key.
    pub keyed: bool,
}

/// What a node has, and what it would go on with. Told only to a peer that has proven to be one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Offer {
    /// Its pools; at most [`MAX_POOLS`], ids and names unique.
    pub pools: Vec<(PoolId, PoolLayout)>,
    /// What their bytes mean, of those of which that was said.
    pub contents: Vec<(PoolId, CubeLayout)>,
    /// How many claims the other side may open at once in a new session.
    pub credit: u32,
    /// The session that it would resume, if it still has one with this peer.
    pub resume: Option<SessionId>,
    /// Highest number received in order in that session; 0 without one.
    pub received: u64,
    /// With this the peer's data connections name themselves; random.
    pub token: u128,
    /// Where it runs, if it would share memory with a peer on the same host.
    pub host: Option<Host>,
    /// What it has of UCX, if both sides can.
    pub ucx: Option<UcxOffer>,
}

/// What a node offers of UCX, told to a proven peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UcxOffer {
    /// The version of its library: major, minor, patch. Not all mix.
    pub version: (u32, u32, u32),
    /// Whether it could use RDMA.
    pub rdma: bool,
    /// Whether it is to be used even without.
    pub always: bool,
    /// Whether senders are to write by themselves even without.
    pub one_sided: bool,
    /// The address of the worker that serves this session alone; at most [`MAX_WORKER`] bytes.
    pub worker: Vec<u8>,
    /// A word that the peer writes to find out whether it can.
    pub probe: FarKey,
    /// Its pools that can be written so.
    pub pools: Vec<(PoolId, FarKey)>,
}

/// Memory of a node that a peer may write through UCX.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FarKey {
    /// Where it begins.
    pub base: u64,
    /// What a put has to bring along; at most [`MAX_REMOTE_KEY`] bytes.
    pub key: Vec<u8>,
}

/// Longest [`UcxOffer::worker`] in bytes.
pub const MAX_WORKER: usize = 8 << 10;
/// Longest [`FarKey::key`] in bytes.
pub const MAX_REMOTE_KEY: usize = 1 << 10;

/// Where a node runs, told to a proven peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Host {
    /// The kernel's boot id: equal on both sides says that they run on one host.
    pub boot: [u8; 16],
    /// The name of a Unix socket in the abstract namespace at which the node listens, if it does; at
    /// most [`MAX_SOCKET`] bytes. A peer in another network namespace cannot reach it.
    pub socket: Option<String>,
    /// Which of its pools are in shared memory.
    pub shared: SharedPools,
}

/// What a node shares with a peer on the same host. Each table, ring and pool stands for one
/// descriptor that comes with it, in this order: the node's own pidfd and its doorbell (both if it is
/// willing), its gate table, the ring, the pools.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Link {
    /// It will share memory. If one side will not, nothing is shared and nothing else here counts.
    pub willing: bool,
    /// The gates of its claims; in a fresh session only.
    pub table: Option<LinkTable>,
    /// The ring for control frames; from the lower incarnation.
    pub ring: bool,
    /// Its pools that can be mapped.
    pub pools: Vec<LinkPool>,
}

/// The gate table in a [`Link`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkTable {
    /// How many gates it has.
    pub slots: u32,
    /// It is a file.
    pub file: bool,
}

/// One pool in a [`Link`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkPool {
    /// Which of the offered pools.
    pub pool: PoolId,
    /// It is a file, which nothing keeps from being cut.
    pub file: bool,
}

/// Longest name of a [`Host::socket`] in bytes.
pub const MAX_SOCKET: usize = 100;

/// Which pools of a node are in memory that a peer can map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SharedPools {
    /// None of them.
    None,
    /// Some of them.
    Some,
    /// All of them, and there is one.
    All,
}

/// Whether two nodes can share memory: they are on one host, and all pools of one of them at least can
/// be mapped. Both sides come to the same conclusion.
#[must_use]
pub fn share_memory(mine: &Offer, theirs: &Offer) -> bool {
    let (Some(mine), Some(theirs)) = (&mine.host, &theirs.host) else {
        return false;
    };
    let all = SharedPools::All;
    mine.boot == theirs.boot && (mine.shared == all || theirs.shared == all)
}

/// Who writes a receiver's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UcxMode {
    /// The sender, by puts: that it is out is for it to say.
    OneSided,
    /// The receiver, of what comes in messages, through its own gates.
    Messages,
}

/// How two nodes that both offered UCX go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UcxVerdict {
    /// Bytes go another way.
    No,
    /// Through it, if both can write each other's probe. With `always` nothing else will do.
    Try {
        /// One of both is to use it whatever it has.
        always: bool,
        /// How bytes go.
        mode: UcxMode,
    },
    /// Their libraries do not understand each other.
    Versions {
        /// One of both is to use it whatever it has.
        always: bool,
    },
}

/// Whether two nodes use UCX: one of them is to use it in any case, or both could use RDMA and do not
/// share memory. Both sides come to the same conclusion.
#[must_use]
pub fn use_ucx(mine: &Offer, theirs: &Offer) -> UcxVerdict {
    let (Some(a), Some(b)) = (&mine.ucx, &theirs.ucx) else {
        return UcxVerdict::No;
    };
    let always = a.always || b.always;
    if !always && (!(a.rdma && b.rdma) || share_memory(mine, theirs)) {
        return UcxVerdict::No;
    }
    match ucx_mixes(a.version, b.version) {
        true => {
            let both = |of: fn(&UcxOffer) -> bool| of(a) && of(b);
            let one_sided = both(|of| of.rdma) || both(|of| of.one_sided);
            let mode = match one_sided {
                true => UcxMode::OneSided,
                false => UcxMode::Messages,
            };
            UcxVerdict::Try { always, mode }
        }
        false => UcxVerdict::Versions { always },
    }
}

/// Whether two versions of UCX understand each other: those of one minor version. Its wire is not stable,
/// and libraries that do not mix do not say so: some hang, and some end the process.
#[must_use]
pub fn ucx_mixes(a: (u32, u32, u32), b: (u32, u32, u32)) -> bool {
    (a.0, a.1) == (b.0, b.1)
}

/// Whether two nodes are on one host, as far as both say.
#[must_use]
pub fn same_host(mine: &Offer, theirs: &Offer) -> bool {
    let (Some(mine), Some(theirs)) = (&mine.host, &theirs.host) else {
        return false;
    };
    mine.boot == theirs.boot
}

/// What the two greetings agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The session's name; put it in [`Offer::resume`] when the transport is lost.
    pub session: SessionId,
    /// The newest protocol that both speak.
    pub protocol: u32,
    /// What both can do.
    pub capabilities: Capabilities,
    /// How the session begins.
    pub start: Start,
}

/// How a session begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A new session. The peer's `credit` holds.
    Fresh {
        /// What became of what was there before.
        before: Before,
    },
    /// The session goes on: call `Session::resume` with this.
    Resume {
        /// Highest number that the peer has received in order.
        received: u64,
    },
}

/// What was there before a fresh session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing that this node knows of.
    Unknown,
    /// An older life of the peer: the outcomes of its rooms end, their leases do not.
    OlderIncarnation,
    /// A session with this very incarnation that one side has given up. Give it up here too, and
    /// send `Abort` again for every draining claim.
    LostSession,
}

/// Compares two Hellos, and gives the newest protocol that both nodes speak. Both sides come to
/// the same end, so that neither has to be told.
///
/// # Errors
/// [`Refusal`], of what a Hello can show.
pub fn greet(mine: &Hello, theirs: &Hello) -> Result<u32, Refusal> {
    let node = || theirs.node.clone();
    let Some(protocol) = mine.protocols.common(theirs.protocols) else {
        let (mine, theirs) = (mine.protocols, theirs.protocols);
        return Err(Refusal::Protocol {
            node: node(),
            mine,
            theirs,
        });
    };
    if theirs.incarnation == mine.incarnation {
        return Err(Refusal::SelfConnection { node: node() });
    }
    if mine.keyed != theirs.keyed {
        return Err(Refusal::OneKeyed {
            node: node(),
            lacking_here: !mine.keyed,
        });
    }
    if !mine.capabilities.has(Capabilities::QUIESCENCE) {
        return Err(Refusal::LacksQuiescence);
    }
    if !theirs.capabilities.has(Capabilities::QUIESCENCE) {
        return Err(Refusal::PeerLacksQuiescence { node: node() });
    }
    Ok(protocol)
}

/// Compares what both sides said. `known` is the newest incarnation of the peer's name that this
/// node has met in its life; whether there is a session to resume is said by this node's
/// [`Offer::resume`].
///
/// # Errors
/// [`Refusal`]; no session may be opened, and one that exists is untouched.
pub fn accept(
    (me, mine): (&Hello, &Offer),
    (them, theirs): (&Hello, &Offer),
    known: Option<Incarnation>,
) -> Result<Accepted, Refusal> {
    let protocol = greet(me, them)?;
    let node = || them.node.clone();
    if let Some(known) = known
        && them.incarnation < known
    {
        return Err(Refusal::Superseded {
            node: node(),
            known,
            theirs: them.incarnation,
        });
    }
    for (id, here) in &mine.pools {
        let there = theirs.pools.iter().find(|(_, l)| l.name == here.name);
        let Some((their_id, there)) = there else {
            continue;
        };
        let what = match (mine.content(*id), theirs.content(*their_id)) {
            // Cells need not be alike if both say what is in them.
            (Some(here), Some(there)) => cube::explain(here, there).err().map(|m| meaning(&m)),
            _ => explain(here, there).err().map(|m| in_words(&m)),
        };
        if let Some(what) = what {
            return Err(Refusal::Layout {
                node: node(),
                pool: here.name.clone(),
                what,
            });
        }
    }
    let capabilities = me.capabilities.common(them.capabilities);
    let same_life = known == Some(them.incarnation);
    if same_life
        && let Some(session) = mine.resume
        && theirs.resume == Some(session)
    {
        let start = Start::Resume {
            received: theirs.received,
        };
        return Ok(Accepted {
            session,
            protocol,
            capabilities,
            start,
        });
    }
    let before = match known {
        None => Before::Unknown,
        Some(_) if same_life => Before::LostSession,
        Some(_) => Before::OlderIncarnation,
    };
    let (lower, higher) = if me.incarnation < them.incarnation {
        (me, them)
    } else {
        (them, me)
    };
    Ok(Accepted {
        session: SessionId {
            lower: short(&lower.nonce),
            higher: short(&higher.nonce),
        },
        protocol,
        capabilities,
        start: Start::Fresh { before },
    })
}

impl Offer {
    /// What the bytes of a pool mean, if that is said.
    pub fn content(&self, pool: PoolId) -> Option<&CubeLayout> {
        let content = self.contents.iter().find(|(id, _)| *id == pool);
        content.map(|(_, content)| content)
    }
}

fn short(nonce: &Nonce) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *nonce;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

fn meaning(mismatch: &CubeMismatch) -> String {
    let differences = mismatch.differences.iter();
    let all: Vec<String> = differences
        .map(|d| format!("{} {} here, {} there", d.field, d.src, d.dst))
        .collect();
    all.join("; ")
}

fn in_words(mismatch: &Mismatch) -> String {
    let all: Vec<String> = mismatch
        .differences
        .iter()
        .map(|d| format!("{} {} here, {} there", d.field, d.src, d.dst))
        .collect();
    all.join("; ")
}
