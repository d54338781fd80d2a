//! The record of what is lent out to a life, and the only place where a [`Quiescence`] is made.
//!
//! ```text
//!   hold(lease) ─▶ owe(leg) … owe(leg) ─▶ address leaves / job is posted
//!                  meet(leg, witness) …  ◀─ gates, tickets, the session's receipts
//!                  seal()                    nothing new can be owed
//!                  quiet() ─▶ Quiescence     once, when sealed and nothing is owed
//!                  give_back(Quiescence) ─▶ leases
//! ```
//!
//! A debt is recorded before the thing that it stands for exists, and only a witness pays one. A
//! chunk's own lease may go back early, when no job carries it any more.

use crate::ids::{ChunkNo, LegNo};
use crate::room::Quiescence;

/// What a lease was lent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Held {
    /// Destination pages: the claim's section of that number.
    Section(u16),
    /// The aux row, source or destination.
    Aux,
    /// Source pages of a chunk.
    Chunk(ChunkNo),
}

/// One life's leases and debts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Custody<L, W> {
    leases: Vec<Lent<L>>,
    debts: Vec<Debt<W>>,
    sealed: bool,
    proven: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lent<L> {
    held: Held,
    lease: L,
    /// Jobs that carry it.
    owed: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Debt<W> {
    leg: LegNo,
    owed: u32,
    /// The last witness that paid.
    last: Option<W>,
}

/// A debt was to be made after the record was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("custody is sealed: this life may open no claim and post no job any more")]
pub struct Sealed;

impl<L, W> Default for Custody<L, W> {
    fn default() -> Self {
        Custody {
            leases: Vec::new(),
            debts: Vec::new(),
            sealed: false,
            proven: false,
        }
    }
}

impl<L, W> Custody<L, W> {
    /// Takes a lease in.
    pub fn hold(&mut self, held: Held, lease: L) {
        if self.leases.capacity() == 0 {
            self.leases.reserve_exact(1);
        }
        self.leases.push(Lent {
            held,
            lease,
            owed: 0,
        });
    }

    /// A claim is about to be opened on `leg`, or a job posted that reads `chunk`.
    pub fn owe(&mut self, leg: LegNo, carries: Option<Held>) -> Result<(), Sealed> {
        if self.sealed {
            return Err(Sealed);
        }
        match self.debts.iter_mut().find(|d| d.leg == leg) {
            Some(debt) => debt.owed += 1,
            None => {
                if self.debts.capacity() == 0 {
                    self.debts.reserve_exact(1);
                }
                self.debts.push(Debt {
                    leg,
                    owed: 1,
                    last: None,
                });
            }
        }
        if let Some(lent) = self.lent(carries) {
            lent.owed += 1;
        }
        Ok(())
    }

    /// A witness pays one debt of `leg`. Hands it back if nothing is owed there.
    pub fn meet(&mut self, leg: LegNo, carried: Option<Held>, witness: W) -> Result<(), W> {
        let Some(debt) = self.debts.iter_mut().find(|d| d.leg == leg && d.owed > 0) else {
            return Err(witness);
        };
        debt.owed -= 1;
        debt.last = Some(witness);
        if let Some(lent) = self.lent(carried) {
            lent.owed = lent.owed.saturating_sub(1);
        }
        Ok(())
    }

    /// Pays what a leg owes, or all legs, with nothing: what a rule that is turned off does.
    #[cfg(all(feature = "switches", debug_assertions))]
    pub(crate) fn forgive(&mut self, leg: Option<LegNo>) {
        let all = self.debts.iter_mut();
        all.filter(|d| leg.is_none_or(|leg| d.leg == leg))
            .for_each(|d| d.owed = 0);
    }

    /// From now on nothing new can be owed.
    pub fn seal(&mut self) {
        self.sealed = true;
    }

    /// Whether nothing new can be owed.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Whether the proof was made: it is with the room, or on its way there.
    pub(crate) fn is_proven(&self) -> bool {
        self.proven
    }

    /// The proof, once, when the record is sealed and nothing is owed.
    pub fn quiet(&mut self) -> Option<Quiescence<W>> {
        if !self.sealed || self.proven || self.owed() > 0 {
            return None;
        }
        self.proven = true;
        let witnesses = self.debts.drain(..).filter_map(|d| d.last).collect();
        Some(Quiescence::from_custody(witnesses))
    }

    /// The proof was lost with the actor that held it. What it said is still true: all debts were
    /// paid and no new one can be made. It may be made again.
    pub(crate) fn lost_proof(&mut self) {
        self.proven = false;
    }

    /// The leases, for the proof. The record is used up.
    pub fn give_back(self, _proof: &Quiescence<W>) -> Vec<(Held, L)> {
        self.leases
            .into_iter()
            .map(|lent| (lent.held, lent.lease))
            .collect()
    }

    /// The lease of a chunk that no job carries any more; none while one does.
    pub fn release(&mut self, held: Held) -> Option<L> {
        let at = self.leases.iter().position(|l| {
            l.held == held && (l.owed == 0 || crate::switched!(ReleaseOfPostedChunk))
        })?;
        Some(self.leases.swap_remove(at).lease)
    }

    /// Debts that are not paid.
    pub fn owed(&self) -> u32 {
        self.debts.iter().map(|d| d.owed).sum()
    }

    /// Legs that owe something, and how much.
    pub fn owing(&self) -> impl Iterator<Item = (LegNo, u32)> {
        self.debts
            .iter()
            .filter(|d| d.owed > 0)
            .map(|d| (d.leg, d.owed))
    }

    /// One lease.
    pub fn lease(&self, held: Held) -> Option<&L> {
        self.leases
            .iter()
            .rev()
            .find(|l| l.held == held)
            .map(|l| &l.lease)
    }

    /// What is held, to be lent on.
    pub fn leases_mut(&mut self) -> impl Iterator<Item = (Held, &mut L)> {
        self.leases.iter_mut().map(|l| (l.held, &mut l.lease))
    }

    /// What is held.
    pub fn leases(&self) -> impl Iterator<Item = (Held, &L)> {
        self.leases.iter().map(|l| (l.held, &l.lease))
    }

    fn lent(&mut self, held: Option<Held>) -> Option<&mut Lent<L>> {
        let held = held?;
        // The newest are asked for most.
        self.leases.iter_mut().rev().find(|l| l.held == held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type C = Custody<&'static str, u8>;
    const LEG: LegNo = LegNo(0);

    #[test]
    fn nothing_is_quiet_before_the_seal() {
        let mut c = C::default();
        assert!(c.quiet().is_none());
        c.seal();
        assert!(c.quiet().is_some());
    }

    #[test]
    fn the_proof_is_made_once() {
        let mut c = C::default();
        c.seal();
        assert!(c.quiet().is_some());
        assert!(c.quiet().is_none());
    }

    #[test]
    fn one_unpaid_debt_keeps_everything() {
        let mut c = C::default();
        c.hold(Held::Section(0), "pages");
        c.owe(LEG, None).unwrap();
        c.owe(LEG, None).unwrap();
        c.seal();
        c.meet(LEG, None, 1).unwrap();
        assert!(c.quiet().is_none());
        c.meet(LEG, None, 2).unwrap();
        let proof = c.quiet().unwrap();
        assert_eq!(proof.witnesses(), [2]);
        assert_eq!(c.give_back(&proof), [(Held::Section(0), "pages")]);
    }

    #[test]
    fn a_lease_is_found_by_what_it_is_held_for() {
        let mut c = C::default();
        c.hold(Held::Section(0), "first");
        c.hold(Held::Section(1), "second");
        assert_eq!(c.lease(Held::Section(0)), Some(&"first"));
        assert_eq!(c.lease(Held::Section(1)), Some(&"second"));
        assert_eq!(c.lease(Held::Aux), None);
    }

    #[test]
    fn each_leg_pays_its_own_debts() {
        let (one, other) = (LegNo(1), LegNo(2));
        let mut c = C::default();
        c.owe(one, None).unwrap();
        c.owe(other, None).unwrap();
        c.owe(other, None).unwrap();
        c.seal();
        c.meet(one, None, 1).unwrap();
        assert_eq!(c.meet(one, None, 9), Err(9), "it owes nothing any more");
        c.meet(other, None, 2).unwrap();
        assert!(c.quiet().is_none());
        c.meet(other, None, 3).unwrap();
        assert_eq!(c.quiet().unwrap().witnesses(), [1, 3]);
    }

    #[test]
    fn a_witness_that_nobody_waits_for_is_handed_back() {
        let mut c = C::default();
        assert_eq!(c.meet(LEG, None, 7), Err(7));
        c.owe(LEG, None).unwrap();
        c.meet(LEG, None, 1).unwrap();
        assert_eq!(c.meet(LEG, None, 2), Err(2));
    }

    #[test]
    fn a_sealed_record_takes_no_new_debt() {
        let mut c = C::default();
        c.seal();
        assert_eq!(c.owe(LEG, None), Err(Sealed));
    }

    #[test]
    fn a_chunk_goes_back_early_only_when_no_job_carries_it() {
        let mut c = C::default();
        let chunk = Held::Chunk(ChunkNo(3));
        c.hold(chunk, "source");
        c.owe(LEG, Some(chunk)).unwrap();
        assert_eq!(c.release(chunk), None);
        c.meet(LEG, Some(chunk), 1).unwrap();
        assert_eq!(c.release(chunk), Some("source"));
        assert_eq!(c.release(chunk), None);
    }

    #[test]
    fn a_leg_that_has_paid_is_not_among_those_that_owe() {
        let other = LegNo(1);
        let mut c = C::default();
        for leg in [LEG, other, other] {
            c.owe(leg, None).unwrap();
        }
        assert_eq!(c.owing().collect::<Vec<_>>(), [(LEG, 1), (other, 2)]);
        c.meet(LEG, None, 1).unwrap();
        assert_eq!(c.owing().collect::<Vec<_>>(), [(other, 2)]);
    }

    #[test]
    fn what_is_held_can_be_lent_on_and_stays_held() {
        let mut c = C::default();
        c.hold(Held::Section(0), "pages");
        c.hold(Held::Aux, "row");
        for (_, lease) in c.leases_mut() {
            *lease = "lent on";
        }
        let held: Vec<_> = c.leases().collect();
        assert_eq!(
            held,
            [(Held::Section(0), &"lent on"), (Held::Aux, &"lent on")]
        );
    }
}
