//! The handshake of one connection: bytes in, bytes and steps out.
//!
//! ```text
//!   dialer                                 acceptor
//!     Hello ─────────────────────────────────▶          Hello is all that a stranger gets
//!       ◀───────────────────────────────── Hello
//!     Mac ───────────────────────────────────▶          only if both have a cluster key
//!       ◀─────────────────────────────────── Mac        and only for a Mac that is right
//!     ── Known: the caller gives its offer ──
//!     Offer ───────▶               ◀─────── Offer
//!
//!   higher incarnation                     lower incarnation: the decider
//!     Accept or Refused ─────────────────────▶
//!       ◀────────────────── Go, Crossed or Refused
//!
//!   dialer                                 acceptor
//!     DataHello ─────────────────────────────▶          a data connection, and all of its greeting
//! ```
//!
//! Rules:
//! - a node that accepts says nothing before it was greeted, and nothing but its Hello before the
//!   peer is proven. What speaks against a Hello both see, so nobody has to be told;
//! - what `out` holds is to be sent also when a call fails; then the connection is closed;
//! - one of the two decides, the same one whoever dialed: so connections that cross end as one;
//! - bytes behind the last message of the handshake are left to the caller;
//! - an error is the end: every later call fails.

use super::auth::{ClusterKey, Mac, Role, Transcript};
use super::hello::{self, Hello, Offer, Refusal, RefusalCode, SessionId};
use super::wire::{self, First, Greeting, GreetingReader, Verdict};
use crate::ids::Incarnation;
use std::mem;

mod error;
mod state;
#[cfg(test)]
mod tests;

use state::State;

pub use error::HandshakeError;
pub use state::Step;

/// One end of a handshake.
#[derive(Debug)]
pub struct Handshake {
    role: Role,
    key: Option<ClusterKey>,
    mine: Hello,
    /// This node's Hello as it was sent.
    said: Box<[u8]>,
    reader: GreetingReader,
    state: State,
}

impl Handshake {
    /// The end that opened the connection. Whether `mine` is keyed follows from `key`.
    pub fn dialer(mine: Hello, key: Option<ClusterKey>) -> Self {
        Self::new(Role::Dialer, mine, key)
    }

    /// The end that the connection came to. Whether `mine` is keyed follows from `key`.
    pub fn acceptor(mine: Hello, key: Option<ClusterKey>) -> Self {
        Self::new(Role::Acceptor, mine, key)
    }

    fn new(role: Role, mine: Hello, key: Option<ClusterKey>) -> Self {
        Handshake {
            role,
            mine: Hello {
                keyed: key.is_some(),
                ..mine
            },
            key,
            said: Box::default(),
            reader: GreetingReader::default(),
            state: State::New,
        }
    }

    /// Begins. A dialer's Hello is appended to `out`; an acceptor waits for it.
    ///
    /// # Errors
    /// This node's fault: its Hello may not be sent, or this is not the first call.
    pub fn start(&mut self, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        if !matches!(self.state, State::New) {
            return Err(self.misused("start"));
        }
        self.state = State::Over;
        if self.role == Role::Dialer {
            self.say_hello(out)?;
        }
        self.state = State::Greeting;
        Ok(())
    }

    /// Takes bytes off the front of `bytes`, up to the end of the message that makes a step. Send
    /// what is in `out` after each call, also after one that fails.
    ///
    /// # Errors
    /// Close the connection then; [`HandshakeError::fault`] says whose it is. Also this node's, if
    /// it is the caller's turn.
    pub fn take(&mut self, bytes: &mut &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        let result = self.steps(bytes, out);
        if result.is_err() {
            self.state = State::Over;
        }
        result
    }

    /// After [`Step::Known`]: says what this node has. `known` is the newest incarnation of the
    /// peer's name that this node has met in its life.
    ///
    /// # Errors
    /// This node's fault: the offer may not be sent, or it is not the time for it.
    pub fn offer(
        &mut self,
        mine: Offer,
        known: Option<Incarnation>,
        out: &mut Vec<u8>,
    ) -> Result<(), HandshakeError> {
        match self.leave() {
            State::Offering { theirs } => {
                let message = Greeting::Offer(mine);
                wire::encode_greeting(&message, out)?;
                let Greeting::Offer(mine) = message else {
                    unreachable!("it was made one above")
                };
                self.state = State::Reading {
                    theirs,
                    mine,
                    known,
                };
                Ok(())
            }
            state => Err(self.stay(state, "offer")),
        }
    }

    /// The decider, after [`Step::Accepted`]: this transport is attached. The handshake is over.
    ///
    /// # Errors
    /// This node's fault: it is not the time for it.
    pub fn go(&mut self, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        self.decide("go", Verdict::Go, out)
    }

    /// The decider, after [`Step::Accepted`]: there is another transport of this session. The
    /// handshake is over.
    ///
    /// # Errors
    /// This node's fault: it is not the time for it.
    pub fn crossed(&mut self, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        self.decide("crossed", Verdict::Crossed, out)
    }

    /// At any time after [`Step::Known`]: refuses, and tells the peer why. A long text is cut. The
    /// handshake is over.
    ///
    /// # Errors
    /// This node's fault: the peer is not proven, and may not be told anything; or the handshake is
    /// over.
    pub fn refuse(
        &mut self,
        code: RefusalCode,
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), HandshakeError> {
        match self.leave() {
            State::Offering { .. }
            | State::Reading { .. }
            | State::Hearing { .. }
            | State::Deciding
            | State::Awaiting => say_no(code, text, out),
            state => Err(self.stay(state, "refuse")),
        }
    }

    /// What this end waits for, for messages to people.
    pub fn waits_for(&self) -> &'static str {
        self.state.waits_for()
    }

    /// What it means that the peer closes the connection now.
    pub fn closed(&self) -> HandshakeError {
        match (&self.state, self.role) {
            (State::Proving { theirs, .. }, Role::Dialer) => HandshakeError::MacNotTaken {
                node: theirs.node.clone(),
            },
            _ => HandshakeError::Closed {
                expected: self.waits_for(),
            },
        }
    }

    fn steps(&mut self, bytes: &mut &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        loop {
            let step = match self.state {
                State::Greeting => match self.reader.first(bytes)? {
                    None => return Ok(Step::More),
                    Some(first) => self.begun(first, out)?,
                },
                State::Proving { .. }
                | State::Reading { .. }
                | State::Hearing { .. }
                | State::Awaiting => match self.reader.next(bytes, self.limit())? {
                    None => return Ok(Step::More),
                    Some(message) => self.heard(message, out)?,
                },
                State::New | State::Offering { .. } | State::Deciding | State::Over => {
                    return Err(self.misused("take"));
                }
            };
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// Most bytes that the next message may have.
    fn limit(&self) -> usize {
        match self.state {
            State::Reading { .. } => wire::OFFER_BYTES,
            _ => wire::STRANGER_BYTES,
        }
    }

    fn begun(&mut self, first: First, out: &mut Vec<u8>) -> Result<Option<Step>, HandshakeError> {
        match first.greeting {
            Greeting::Hello(theirs) => self.greeted(theirs, first.payload, out),
            Greeting::Data(data) if self.role == Role::Acceptor => {
                self.state = State::Over;
                Ok(Some(Step::Data(data)))
            }
            other => Err(self.out_of_order(&other)),
        }
    }

    fn greeted(
        &mut self,
        theirs: Hello,
        said: Box<[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step>, HandshakeError> {
        if self.role == Role::Acceptor {
            self.say_hello(out)?;
        }
        hello::greet(&self.mine, &theirs)?;
        let Some(key) = &self.key else {
            return Ok(Some(self.known(theirs)));
        };
        let mine = mem::take(&mut self.said);
        let (dialer, acceptor) = match self.role {
            Role::Dialer => (mine, said),
            Role::Acceptor => (said, mine),
        };
        let said = Transcript { dialer, acceptor };
        if self.role == Role::Dialer {
            say(Greeting::Mac(said.sign(key, self.role)), out)?;
        }
        self.state = State::Proving { theirs, said };
        Ok(None)
    }

    fn heard(
        &mut self,
        message: Greeting,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step>, HandshakeError> {
        match (self.leave(), message) {
            (State::Proving { theirs, said }, Greeting::Mac(mac)) => {
                self.proven(theirs, &said, &mac, out).map(Some)
            }
            (
                State::Reading {
                    theirs,
                    mine,
                    known,
                },
                Greeting::Offer(offer),
            ) => self.offered(theirs, &mine, offer, known, out),
            (
                State::Hearing {
                    theirs,
                    offer,
                    accepted,
                },
                Greeting::Verdict(Verdict::Accept { session }),
            ) => {
                same(accepted.session, session)?;
                self.state = State::Deciding;
                Ok(Some(Step::Accepted {
                    theirs,
                    offer: Box::new(offer),
                    accepted,
                    decider: true,
                }))
            }
            (State::Awaiting, Greeting::Verdict(Verdict::Go)) => Ok(Some(Step::Go)),
            (State::Awaiting, Greeting::Verdict(Verdict::Crossed)) => Ok(Some(Step::Crossed)),
            (
                State::Reading { .. } | State::Hearing { .. } | State::Awaiting,
                Greeting::Verdict(Verdict::Refused { code, text }),
            ) => Ok(Some(Step::Refused {
                code,
                text: text.replace(char::is_control, " "),
            })),
            (state, message) => {
                self.state = state;
                Err(self.out_of_order(&message))
            }
        }
    }

    /// The peer's MAC: the dialer's is checked before the acceptor sends its own.
    fn proven(
        &mut self,
        theirs: Hello,
        said: &Transcript,
        mac: &Mac,
        out: &mut Vec<u8>,
    ) -> Result<Step, HandshakeError> {
        let right = (self.key.as_ref()).filter(|key| said.verify(key, self.role.other(), mac));
        let Some(key) = right else {
            let node = theirs.node;
            return Err(Refusal::BadMac { node }.into());
        };
        if self.role == Role::Acceptor {
            say(Greeting::Mac(said.sign(key, self.role)), out)?;
        }
        Ok(self.known(theirs))
    }

    fn known(&mut self, theirs: Hello) -> Step {
        self.state = State::Offering {
            theirs: theirs.clone(),
        };
        Step::Known(theirs)
    }

    fn offered(
        &mut self,
        theirs: Hello,
        mine: &Offer,
        offer: Offer,
        known: Option<Incarnation>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step>, HandshakeError> {
        let accepted = match hello::accept((&self.mine, mine), (&theirs, &offer), known) {
            Ok(accepted) => accepted,
            Err(refusal) => {
                say_no(refusal.code(), &refusal.to_string(), out)?;
                return Err(refusal.into());
            }
        };
        if self.mine.incarnation < theirs.incarnation {
            self.state = State::Hearing {
                theirs,
                offer,
                accepted,
            };
            return Ok(None);
        }
        let session = accepted.session;
        say(Greeting::Verdict(Verdict::Accept { session }), out)?;
        self.state = State::Awaiting;
        Ok(Some(Step::Accepted {
            theirs,
            offer: Box::new(offer),
            accepted,
            decider: false,
        }))
    }

    fn decide(
        &mut self,
        called: &'static str,
        verdict: Verdict,
        out: &mut Vec<u8>,
    ) -> Result<(), HandshakeError> {
        match self.leave() {
            State::Deciding => say(Greeting::Verdict(verdict), out),
            state => Err(self.stay(state, called)),
        }
    }

    fn say_hello(&mut self, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let begin = out.len() + wire::PREFIX;
        wire::encode_first_greeting(&Greeting::Hello(self.mine.clone()), out)?;
        self.said = out[begin..].into();
        Ok(())
    }

    /// The state, with which the caller goes on; it is over if it does not.
    fn leave(&mut self) -> State {
        mem::replace(&mut self.state, State::Over)
    }

    /// A call that does not belong here changes nothing.
    fn stay(&mut self, state: State, called: &'static str) -> HandshakeError {
        self.state = state;
        self.misused(called)
    }

    fn misused(&self, called: &'static str) -> HandshakeError {
        HandshakeError::Misused {
            called,
            expected: self.waits_for(),
        }
    }

    fn out_of_order(&self, message: &Greeting) -> HandshakeError {
        HandshakeError::OutOfOrder {
            got: message.name(),
            expected: self.waits_for(),
        }
    }
}

fn say(message: Greeting, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
    Ok(wire::encode_greeting(&message, out)?)
}

fn say_no(code: RefusalCode, text: &str, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
    let text = text[..text.floor_char_boundary(wire::MAX_REFUSAL)].to_owned();
    say(Greeting::Verdict(Verdict::Refused { code, text }), out)
}

fn same(mine: SessionId, theirs: SessionId) -> Result<(), HandshakeError> {
    if mine == theirs {
        Ok(())
    } else {
        Err(HandshakeError::Disagreed { mine, theirs })
    }
}
