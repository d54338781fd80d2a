//! What must hold in every world: one promise a file.
//!
//! Each keeps a record of its own, of facts alone, and shares nothing with what it judges.

mod bounded;
mod done_means_all;
mod heals;
mod late_write;
mod on_time;
mod one_end;
mod one_owner;
mod proof;
mod told_once;
mod torn_source;

use super::fact::Fact;

pub(crate) trait Invariant {
    /// The promise, as the contract names it.
    fn name(&self) -> &'static str;

    /// One more fact. An error says how the promise is broken by it.
    fn see(&mut self, now: u64, fact: &Fact) -> Result<(), String>;
}

pub(crate) fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<late_write::LateWrite>::default(),
        Box::<torn_source::TornSource>::default(),
        Box::<done_means_all::DoneMeansAll>::default(),
        Box::<one_owner::OneOwner>::default(),
        Box::<one_end::OneEnd>::default(),
        Box::<proof::Proof>::default(),
        Box::<on_time::OnTime>::default(),
        Box::<told_once::ToldOnce>::default(),
        Box::<bounded::Bounded>::default(),
        Box::<heals::Heals>::default(),
    ]
}
