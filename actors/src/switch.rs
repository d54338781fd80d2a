//! Rules of the cores, each of which a test can turn off to show that a checker notices.
//!
//! ```text
//!   with(Switch::X, || search the model)      in a core:  if switched!(X) { break the rule }
//!        │                                                    │
//!        └── this thread, until the closure ends ─────────────┘
//! ```
//!
//! - Only a build with the feature `switches` and with debug assertions has them. Everywhere else
//!   `switched!` is the constant `false`, its block form is nothing at all, and this module is empty.
//! - Only the tests of this crate ask for the feature. Cargo unifies features, so whatever else a
//!   `cargo test` of the workspace builds has it too: the root crate, its examples, the program in
//!   `target/debug`. There every rule is kept, because nothing turns one off: `tests/purity.rs` allows
//!   only the model and the simulator to name a switch.
//! - A switch sits where the shipped code keeps the rule, and breaks that rule alone.
//! - Several may be off at once: some rules are kept twice, and only both together do harm.
//! - Bugs in what is around the cores (gates, lanes, fences, owners of sessions) are not here: the
//!   model and the simulator have stand-ins for those, with planted bugs of their own.

/// Whether a rule is turned off: `switched!(Name)`. With a block, `switched!(Name => { … })` does the
/// block then, and is compiled only where switches are.
#[cfg(all(feature = "switches", debug_assertions))]
macro_rules! switched {
    ($switch:ident) => {
        $crate::switch::is_off($crate::switch::Switch::$switch)
    };
    ($switch:ident => $broken:block) => {
        if $crate::switched!($switch) $broken
    };
}

/// No rule can be turned off in this build.
#[cfg(not(all(feature = "switches", debug_assertions)))]
macro_rules! switched {
    ($switch:ident) => {
        false
    };
    ($switch:ident => $broken:block) => {};
}

pub(crate) use switched;

#[cfg(all(feature = "switches", debug_assertions))]
pub use on::{Switch, is_off, with};

#[cfg(all(feature = "switches", debug_assertions))]
mod on {
    use std::cell::Cell;

    thread_local! {
        static OFF: Cell<u64> = const { Cell::new(0) };
    }

    /// Runs `f` with the rule of `switch` turned off on this thread, and of those around it.
    pub fn with<R>(switch: Switch, f: impl FnOnce() -> R) -> R {
        struct Restore(u64);
        impl Drop for Restore {
            fn drop(&mut self) {
                OFF.set(self.0);
            }
        }
        let before = OFF.get();
        let _restore = Restore(before);
        OFF.set(before | switch.bit());
        f()
    }

    /// Whether the rule of `switch` is turned off on this thread.
    pub fn is_off(switch: Switch) -> bool {
        OFF.get() & switch.bit() != 0
    }

    macro_rules! switches {
        ($($(#[doc = $text:literal])* $name:ident,)*) => {
            /// A rule, turned off: each says what then happens.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
            pub enum Switch { $($(#[doc = $text])* $name,)* }

            impl Switch {
                /// All of them.
                pub const ALL: &'static [Switch] = &[$(Switch::$name,)*];

                /// What then happens.
                pub const fn text(self) -> &'static str {
                    match self { $(Switch::$name => concat!($($text),*),)* }
                }
            }
        };
    }

    impl Switch {
        const fn bit(self) -> u64 {
            1 << self as u32
        }
    }

    const _: () = assert!(Switch::ALL.len() <= u64::BITS as usize);

    switches! {
        // S6, proof and not patience: a lease goes back on witnesses alone.
        /// The drain timer returns the leases of a life.
        ReleaseOnDrainTimer,
        /// A lost peer or session pays all debts of its legs.
        ReleaseOnPeerLost,
        /// A receiver that is done returns its lease without the witness of its gate.
        ReleaseOnDone,
        /// A claim that is withdrawn counts as never sent, before the session gave its receipt.
        ReleaseOnWithdrawal,
        /// A chunk's lease goes back when its jobs are posted, and not when they are over.
        ReleaseOfPostedChunk,
        /// A chunk's lease goes back when the first leg has it, and others are still to come.
        ReleaseAfterFirstLeg,
        /// A claim's debt is recorded when its number is known, after the address has left.
        CustodyAfterAddress,
        /// A crashed life is given back while its destination is being read for a checksum.
        ReleaseWhileSumming,
        /// A proof that was on its way to a room that panicked is not made again.
        ProofDiesWithRoom,

        // What senders say about copies, and what they count.
        /// A draining sender says `Quiesced` while its jobs are out.
        QuiescedWhileJobsOut,
        /// A job counts as landed when it is posted.
        CompleteWhenPosted,
        /// A job that a gate refused counts as landed.
        RefusedCountsAsLanded,
        /// A job that ended in an error counts as landed.
        ErroredCountsAsLanded,
        /// Both sides count cells, and do not look which.
        CoverageIsASum,
        /// A chunk that is pushed again is posted again.
        RepeatPosted,

        // S3, done means all, on both sides.
        /// A receiver is done when `Complete` comes, before its gates are closed and empty.
        DoneBeforeGateClosed,
        /// A sender is done with the first leg that accepted, however many there should be.
        DoneAfterFirstLeg,
        /// A sender is done when it has said `Complete`, before `Accepted` comes.
        DoneOnComplete,

        // S5, one end.
        /// An outcome is published again.
        OutcomeRepeated,
        /// The end of a leg is said again when its room panics.
        EndSaidTwice,

        // Which message is whose.
        /// A claim binds to a room of another attempt.
        UnequalAttemptsBind,
        /// An abort or an end of one attempt is remembered for all attempts of the room.
        TombstoneByRoomId,
        /// A message finds its leg by the room's id and the peer, whatever claim it names.
        MessageByRoomId,
        /// A message finds its leg by the claim's number alone, without incarnations and key.
        MessageByNumberAlone,
        /// A claim of a room that panicked is answered as if nobody knew it.
        PanickedClaimUnknown,
        /// A claim number at or below the session's mark is taken as a fresh one.
        MarkIgnored,
        /// An abort does not raise the session's mark.
        AbortLeavesNoMark,
        /// An abort goes out before what was queued before it, the claim itself among that.
        AbortOvertakesClaim,
        /// A frame that was received before is delivered again.
        DuplicateDelivered,

        // Sessions that end, and what must follow.
        /// A lost session does not fail its rooms.
        LostSessionKeepsRooms,
        /// The aborts of draining claims are not said again in the next session.
        AbortNotSentAgain,
        /// A resumed session does not send again what the last transport lost.
        NotSentAgain,

        // What must not be forgotten.
        /// A claim that comes before the local `send` is dropped.
        EarlyClaimDropped,
        /// An abort of a claim that waits for its `send` is not remembered for that `send`.
        EarlyAbortForgotten,
        /// A claim that gets its number while its room drains is left alone.
        LateNumberForgotten,
        /// An ended claim does not give its credit back.
        CreditKept,
        /// A claim is opened without a credit of the peer.
        ClaimWithoutCredit,
        /// The stall clock runs while nothing was posted.
        StallClockInQueue,
    }
}

#[cfg(all(test, feature = "switches", debug_assertions))]
mod tests {
    use super::{Switch, is_off, with};

    #[test]
    fn a_rule_is_off_within_the_closure_and_on_this_thread_alone() {
        let (a, b) = (Switch::ReleaseOnDrainTimer, Switch::StallClockInQueue);
        assert!(!is_off(a) && !is_off(b));
        with(a, || {
            with(b, || assert!(is_off(a) && is_off(b)));
            assert!(is_off(a) && !is_off(b));
            let elsewhere = std::thread::spawn(move || is_off(a)).join();
            assert!(!elsewhere.unwrap());
        });
        assert!(!is_off(a));
    }

    #[test]
    fn a_panic_within_turns_the_rule_on_again() {
        let a = Switch::ReleaseOnDone;
        let caught = std::panic::catch_unwind(|| with(a, || panic!("within")));
        assert!(caught.is_err() && !is_off(a));
    }

    #[test]
    fn each_switch_is_one_of_all_and_has_a_bit_of_its_own() {
        for (i, switch) in Switch::ALL.iter().enumerate() {
            let alone = |other: &Switch| is_off(*other) == (other == switch);
            assert!(with(*switch, || Switch::ALL.iter().all(alone)), "{i}");
            assert!(
                switch.text().ends_with('.'),
                "{switch:?}: {}",
                switch.text()
            );
        }
    }

    #[test]
    fn a_rule_that_is_turned_off_twice_is_off() {
        let a = Switch::ReleaseOnDone;
        with(a, || {
            with(a, || assert!(is_off(a)));
            assert!(is_off(a));
        });
        assert!(!is_off(a));
    }
}
