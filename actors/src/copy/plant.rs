//! Lanes that do the wrong thing on purpose, so that an oracle can be shown to notice.
//!
//! Not part of any build of the library or the program: only examples and tests turn the feature on.

use crate::memory::{Pool, plant};

/// What a lane does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plant {
    /// It writes to a page of an aborted room after the room's memory was released.
    LateWrite,
    /// It reads a source page after its lease has gone back, and delivers what it reads.
    TornRead,
    /// It keeps source pages held for ever.
    Leak,
}

/// How much later the wrong thing is done.
pub(crate) const LATER: std::time::Duration = std::time::Duration::from_millis(40);

/// A wrong write that is due.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) from: Option<(Pool, u32, u32)>,
    pub(crate) to: Pool,
    pub(crate) layer: u32,
    pub(crate) page: u32,
}

impl Due {
    pub(crate) fn commit(self) {
        let size = usize::try_from(self.to.layout().page_bytes).unwrap_or(0);
        let mut bytes = vec![0xab; size];
        if let Some((pool, layer, page)) = self.from {
            // Whatever is there by now.
            let _ = pool.observe(layer, page, &mut bytes);
        }
        plant::write_late(&self.to, self.layer, self.page, &bytes);
    }
}
