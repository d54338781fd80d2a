//! Where a handshake is, and what its caller does next.

use crate::ids::Incarnation;
use crate::peer::auth::Transcript;
use crate::peer::hello::{Accepted, Hello, Offer, RefusalCode};
use crate::peer::wire::DataHello;

/// What the caller has to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// All bytes were taken; read more.
    More,
    /// The peer is proven, or there is no key to prove. Call [`super::Handshake::offer`], or
    /// [`super::Handshake::refuse`] it.
    Known(Hello),
    /// Both offers fit. The decider calls [`super::Handshake::go`], [`super::Handshake::crossed`] or
    /// [`super::Handshake::refuse`]; the other one, which has said that it accepts, goes on reading.
    Accepted {
        /// Who the peer is.
        theirs: Hello,
        /// What it has.
        offer: Box<Offer>,
        /// How the session begins or goes on. The peer has the same name for it.
        accepted: Accepted,
        /// Whether it is this node that decides.
        decider: bool,
    },
    /// The decider has attached the transport: attach it too. The handshake is over.
    Go,
    /// The decider has another transport of this session: close this one, and see whether the other
    /// one comes up. The handshake is over.
    Crossed,
    /// The peer refuses. The handshake is over; close the connection.
    Refused {
        /// What kind it is.
        code: RefusalCode,
        /// In the peer's words; without control characters.
        text: String,
    },
    /// Acceptor only: it is a data connection, and what follows are its frames. Nothing was or is
    /// to be answered; that the token is right is the caller's to check.
    Data(DataHello),
}

#[derive(Debug)]
pub(super) enum State {
    /// [`super::Handshake::start`] comes next.
    New,
    /// The peer's Hello comes next.
    Greeting,
    /// The peer's Mac comes next.
    Proving { theirs: Hello, said: Transcript },
    /// The caller's offer comes next.
    Offering { theirs: Hello },
    /// The peer's offer comes next.
    Reading {
        theirs: Hello,
        mine: Offer,
        known: Option<Incarnation>,
    },
    /// The decider, before the peer said whether it accepts.
    Hearing {
        theirs: Hello,
        offer: Offer,
        accepted: Accepted,
    },
    /// The decider; the caller's verdict comes next.
    Deciding,
    /// Not the decider; the peer's verdict comes next.
    Awaiting,
    /// Nothing comes next.
    Over,
}

impl State {
    /// What comes next, for messages to people.
    pub(super) fn waits_for(&self) -> &'static str {
        match self {
            State::New => "start",
            State::Greeting => "the peer's Hello",
            State::Proving { .. } => "the peer's Mac",
            State::Offering { .. } => "this node's offer",
            State::Reading { .. } => "the peer's Offer",
            State::Hearing { .. } => "the peer's Accept or Refused",
            State::Deciding => "this node's verdict",
            State::Awaiting => "the peer's Go, Crossed or Refused",
            State::Over => "nothing: the handshake is over",
        }
    }
}
