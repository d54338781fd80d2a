//! The proof that a life is over for memory.

/// Every obligation of one life (each job ever posted, each claim ever opened) was met by a
/// witness, and no new one can be made. The only thing that ends a room.
///
/// Made by a custody record alone, when the last witness is in; cannot be made, copied (with real
/// witnesses) or taken apart anywhere else. It does not say whose record that was: the supervisor
/// hands it to the room of the same life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quiescence<W> {
    witnesses: Vec<W>,
}

impl<W> Quiescence<W> {
    pub(crate) fn from_custody(witnesses: Vec<W>) -> Self {
        Quiescence { witnesses }
    }

    /// The witnesses it rests on: for a receiver one for each claim; for a sender the last one of
    /// each leg (the earlier ones were consumed as their jobs came back). Empty if nothing was ever
    /// lent.
    pub fn witnesses(&self) -> &[W] {
        &self.witnesses
    }
}

#[cfg(any(test, feature = "plant"))]
impl<W> Quiescence<W> {
    /// A stand-in for tests of the machine by itself.
    #[doc(hidden)]
    pub fn for_tests(witnesses: Vec<W>) -> Self {
        Quiescence { witnesses }
    }
}
