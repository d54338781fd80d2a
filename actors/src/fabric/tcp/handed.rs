//! Handed frames: between two processes of one host, bytes of a device stay on devices.
//!
//! ```text
//!   prefill                                              decode
//!   pages ─▶ slot of a ring on its device
//!            ring ── Ask: handle, pool ────────────────▶ the pool's device opens the handle
//!            yes, or no and why ◀────────────── Answer ──┘
//!            slot ── header, reference, trailer ───────▶ stay in the gate, far slot ─▶ pages
//!            free ◀─────────────────────── acknowledged ── event fired: marked, gate left
//! ```
//!
//! Nothing but the place of the bytes differs from a frame that has them: claim, gate, checks, trailer,
//! delivery and acknowledgement are the same. Why it keeps the contract:
//!
//! - S1: only the receiver's process writes its pages, by its own device, through the claim's gate, until
//!   its own event has fired. No proof about another process's device is needed, and so `WriterDead` is not.
//! - S2: the source's pages are read by the sender's own device, into its slot; that event is the sender's.
//! - S3: a job is whole when every frame was acknowledged, which is after the receiver's event. So what a
//!   slot had when its frame was sent is what landed: a slot is free again only when its job is over.
//! - A job that is over *without* having been acknowledged whole (aborted, refused, failed) frees its slot
//!   while a frame of it may be read still. What lands then is anything, in pages of a claim whose sender
//!   never says `Complete`: it is not `Done`, and its gate waits for the delivery like for any other.
//! - Therefore nothing is sent twice. Of a frame that a lost connection had not acknowledged nobody knows
//!   whether it is read still; were it sent again and acknowledged, its slot would be free while the first
//!   delivery reads it, and a claim that is `Done` would change. So such a frame fails its job.
//! - A frame whose job ends before its trailer went out gets a void trailer, and is not delivered.
//!
//! Who may: the sender asks for each ring and pool, once, over connections of a session of one host whose
//! greetings said that both sides know handed frames, and that the kernel says is of this user (or of the
//! group that may share memory). A peer that opens a ring can read and write all of it, also what is on
//! its way to others: like a peer that shares memory, it is trusted with that. Until the answer, and after
//! a no, bytes go as before; a no is logged once, with its reason. A pool that comes back under its name
//! elsewhere (on another device, on the host) makes a no of its yes: what was handed for it till then is
//! refused and costs its rooms, and is no violation.
//!
//! Rings are never freed while the process lives, since another process may have them open (the driver's
//! documentation calls freeing before that undefined). A receiver closes what it opened when the session is
//! over and no delivery uses it. What a driver does with a ring that is open when its exporter dies is not
//! known here: a delivery then ends by its event, or with a lost device.

use super::frame::{Answer, Ask, Note, Reference, RingName};
use super::staged::{FarRing, StagedSlot, Wake};
use crate::memory::TargetSection;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pairs of a ring and a pool that a peer is asked about, and that a peer may ask about.
pub(crate) const MOST_RINGS: usize = 64;

/// Handed frames of one peer that are on their way into pages at a time; the next one is not read before one of
/// them is over.
const MOST_LANDINGS: usize = 64;

/// So long jobs wait for an answer; then they go as bytes, until there is one.
const PATIENCE: Duration = Duration::from_secs(2);

/// How a job's bytes go to a pool of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hands {
    /// By reference.
    Yes,
    /// As bytes.
    No,
    /// It is about to be known.
    Soon,
}

/// What was agreed with one peer about handed frames, for all parts of its route.
pub(crate) struct Handing {
    /// The peer's name, for the log.
    peer: String,
    /// Why frames are not handed to this peer, nor taken from it.
    near: Result<(), String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By ring and pool of the peer.
    asked: BTreeMap<(u32, String), Asked>,
    /// By ring of the peer and pool of this node.
    opened: BTreeMap<(u32, String), Opened>,
    to_say: VecDeque<Note>,
    /// Handed frames that are on their way into pages.
    landings: usize,
    /// Who waits until there are fewer.
    waiting: Vec<Wake>,
    /// Has what is to be said said.
    voice: Option<Voice>,
    /// The limit was logged.
    full: bool,
    closed: bool,
}

enum Asked {
    Waits(RingName, Instant),
    Yes,
    No,
}

enum Opened {
    Soon,
    Yes(Arc<dyn FarRing>),
    No(String),
    /// It was a yes, and the pool has moved: frames that were sent before the no may still come.
    Moved(String),
}

type Voice = Arc<dyn Fn() + Send + Sync>;

/// What a question leads to.
pub(super) enum Question {
    /// The ring is to be opened.
    Open,
    /// It is answered, or will be.
    Known,
}

/// Why a reference leads nowhere.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Nowhere {
    /// It is none that this node has said yes to.
    Wrong(String),
    /// The pool is another one by now.
    Moved(String),
    /// The session is over.
    Over,
}

/// One of [`MOST_LANDINGS`]; given back when it is dropped.
pub(super) struct Landing(Arc<Handing>);

impl Drop for Landing {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.landings -= 1;
        let waiting = std::mem::take(&mut state.waiting);
        // With nothing locked: who is called may look here.
        drop(state);
        waiting.iter().for_each(|wake| wake());
    }
}

impl Handing {
    /// Room for one more handed frame on its way into pages; if there is none, `wake` is called when there may
    /// be, once.
    pub(super) fn lands(self: &Arc<Self>, wake: &Wake) -> Option<Landing> {
        let mut state = self.lock();
        if state.landings < MOST_LANDINGS {
            state.landings += 1;
            return Some(Landing(Arc::clone(self)));
        }
        if !state.waiting.iter().any(|one| Arc::ptr_eq(one, wake)) {
            state.waiting.push(Arc::clone(wake));
        }
        None
    }

    /// With a peer of this name; an error says why frames are not handed.
    pub(crate) fn new(peer: &str, near: Result<(), String>) -> Handing {
        Handing {
            peer: peer.to_owned(),
            near,
            state: Mutex::default(),
        }
    }

    /// Calls it when there is something to say.
    pub(super) fn speaks_by(&self, voice: Voice) {
        self.lock().voice = Some(voice);
    }

    /// Whether there is a point in having a ring for this peer.
    pub(crate) fn is_near(&self) -> bool {
        self.near.is_ok()
    }

    /// Whether bytes for this pool of the peer may be handed out of this ring. Asks, the first time.
    pub(crate) fn way(&self, ring: &RingName, pool: &str) -> Hands {
        if self.near.is_err() || !Note::holds_name(pool) {
            return Hands::No;
        }
        let mut state = self.lock();
        let key = (ring.number, pool.to_owned());
        match state.asked.get(&key) {
            Some(Asked::Yes) => return Hands::Yes,
            Some(Asked::No) => return Hands::No,
            Some(Asked::Waits(_, since)) if since.elapsed() < PATIENCE => return Hands::Soon,
            Some(Asked::Waits(..)) => return Hands::No,
            None => {}
        }
        if state.closed || state.asked.len() >= MOST_RINGS {
            if !state.closed && !std::mem::replace(&mut state.full, true) {
                tracing::warn!(
                    peer = self.peer,
                    pool,
                    "pages on devices do not go straight to further pools of this peer: it was asked about \
                     {MOST_RINGS} already, which is the limit"
                );
            }
            return Hands::No;
        }
        let waits = Asked::Waits(ring.clone(), Instant::now());
        let (ring, pool) = (ring.clone(), pool.to_owned());
        state.asked.insert(key, waits);
        self.say(state, Note::Ask(Ask { ring, pool }));
        Hands::Soon
    }

    /// Asks again what was asked over a connection that may be lost.
    pub(super) fn repeats(&self) {
        let mut state = self.lock();
        let waits = state
            .asked
            .iter()
            .filter_map(|((_, pool), asked)| match asked {
                Asked::Waits(ring, _) => Some(Note::Ask(Ask {
                    ring: ring.clone(),
                    pool: pool.clone(),
                })),
                _ => None,
            });
        let waits: Vec<Note> = waits.collect();
        // What is still to be said of it is said once.
        state.to_say.retain(|note| matches!(note, Note::Answer(_)));
        state.to_say.extend(waits);
    }

    /// The peer answers.
    ///
    /// # Errors
    /// It was not asked; in words.
    pub(super) fn answered(&self, answer: Answer) -> Result<(), String> {
        let (ring, peer) = (answer.ring, &self.peer);
        let mut state = self.lock();
        if state.closed {
            // Another part of the route has heard it first: nothing of what was asked is known any more.
            return Ok(());
        }
        let Some(asked) = state.asked.get_mut(&(ring, answer.pool.clone())) else {
            return Err(format!(
                "an answer about ring {ring} and pool {:?}, which was not asked",
                answer.pool
            ));
        };
        let pool = &answer.pool;
        match (&answer.no, &asked) {
            (None, Asked::Waits(..)) => {
                tracing::info!(peer, pool, "pages on devices go straight to this pool");
                *asked = Asked::Yes;
            }
            // Said twice, or before the pool moved.
            (None, _) | (Some(_), Asked::No) => {}
            (Some(why), _) => {
                tracing::info!(
                    peer,
                    pool,
                    why,
                    "pages on devices do not go straight to this pool; they go over sockets"
                );
                *asked = Asked::No;
            }
        }
        Ok(())
    }

    /// The peer asks.
    pub(super) fn question(&self, ask: &Ask) -> Question {
        let mut state = self.lock();
        let (ring, pool) = (ask.ring.number, ask.pool.clone());
        let key = (ring, pool.clone());
        let no = match (&self.near, state.opened.get(&key)) {
            (Err(why), _) => Some(why.clone()),
            (_, Some(Opened::Soon)) => return Question::Known,
            (_, Some(Opened::Yes(_))) => None,
            (_, Some(Opened::No(why) | Opened::Moved(why))) => Some(why.clone()),
            (Ok(()), None) if state.closed => return Question::Known,
            (Ok(()), None) if state.opened.len() < MOST_RINGS => {
                state.opened.insert(key, Opened::Soon);
                return Question::Open;
            }
            (Ok(()), None) => Some(format!(
                "the receiver has {MOST_RINGS} rings of this peer open or refused, which is the limit"
            )),
        };
        self.say(state, Note::Answer(Answer { ring, pool, no }));
        Question::Known
    }

    /// What came of opening a ring.
    pub(super) fn opened(&self, ring: u32, pool: String, came: Result<Arc<dyn FarRing>, String>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return drop(came);
        }
        let (opened, no) = match came {
            Ok(far) => (Opened::Yes(far), None),
            Err(why) => {
                let peer = &self.peer;
                tracing::info!(peer, pool, why, "a peer's device memory is not opened");
                (Opened::No(why.clone()), Some(why))
            }
        };
        state.opened.insert((ring, pool.clone()), opened);
        self.say(state, Note::Answer(Answer { ring, pool, no }));
    }

    /// The slot of a handed frame for a section, which is `staged` if it is on a device at all.
    pub(super) fn slot(
        &self,
        (section, staged): (&TargetSection, bool),
        reference: Reference,
        length: u32,
    ) -> Result<Box<dyn StagedSlot>, Nowhere> {
        let mut state = self.lock();
        if state.closed {
            return Err(Nowhere::Over);
        }
        let Reference { ring, offset } = reference;
        let far = state.opened.iter().find_map(|((of, _), opened)| {
            let Opened::Yes(far) = opened else {
                return None;
            };
            (staged && *of == ring && far.serves(section)).then(|| Arc::clone(far))
        });
        let Some(far) = far else {
            let pool = section.memory().layout().name.clone();
            let key = (ring, pool.clone());
            let Some(Opened::Yes(_) | Opened::Moved(_)) = state.opened.get(&key) else {
                return Err(Nowhere::Wrong(format!(
                    "a handed frame out of ring {ring} for pool {pool:?}, which was not taken"
                )));
            };
            // The pool has gone since, and another one of its name came: elsewhere, or on the host. Said for
            // each such frame, of which several may be on their way: what was said may be lost.
            let why = format!("pool {pool:?} is not where it was when the ring was taken");
            let was = state.opened.insert(key, Opened::Moved(why.clone()));
            let answer = Answer {
                ring,
                pool,
                no: Some(why.clone()),
            };
            self.say(state, Note::Answer(answer));
            // Closed with nothing locked.
            drop(was);
            return Err(Nowhere::Moved(why));
        };
        drop(state);
        let (bytes, end) = (far.bytes(), offset.checked_add(u64::from(length)));
        match end.filter(|end| *end <= bytes) {
            Some(end) => Ok(far.slot(offset..end)),
            None => Err(Nowhere::Wrong(format!(
                "a handed frame of {length} bytes at {offset} of ring {ring}, which has {bytes}"
            ))),
        }
    }

    /// What is to be said now.
    pub(super) fn next_note(&self) -> Option<Note> {
        self.lock().to_say.pop_front()
    }

    /// The session is over: nothing is opened any more, and what was is let go of.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let opened = std::mem::take(&mut state.opened);
        state.asked.clear();
        state.to_say.clear();
        state.voice = None;
        drop(state);
        drop(opened);
    }

    fn say(&self, mut state: MutexGuard<'_, State>, note: Note) {
        // One of each is enough, and an honest peer asks for no more than the limit: with one that asks and
        // does not read nothing piles up here.
        if !state.to_say.contains(&note) && state.to_say.len() < 4 * MOST_RINGS {
            state.to_say.push_back(note);
        }
        let voice = state.voice.clone();
        drop(state);
        if let Some(voice) = voice {
            voice();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Handing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let yes = |asked: &&Asked| matches!(asked, Asked::Yes);
        let open = |opened: &&Opened| matches!(opened, Opened::Yes(_));
        f.debug_struct("Handing")
            .field("near", &self.near)
            .field("hands_to", &state.asked.values().filter(yes).count())
            .field("takes_from", &state.opened.values().filter(open).count())
            .finish_non_exhaustive()
    }
}
