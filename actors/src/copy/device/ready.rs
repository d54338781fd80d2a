//! Events by which an engine and the streams here tell each other that data is there.

use super::backend::{Handle, IpcBytes, Result};
use super::context::Inner;
use std::fmt;
use std::sync::Arc;

/// An event by which somebody says that data is there: an engine's, in this process or in another.
pub struct Ready {
    pub(super) context: Arc<Inner>,
    pub(super) event: Handle,
    /// Made or opened here, so destroyed here.
    own: bool,
}

impl Ready {
    pub(super) fn new(context: &Arc<Inner>, between_processes: bool) -> Result<Self> {
        context.usable()?;
        let event = context.note(context.backend.event_create(between_processes))?;
        Ok(Ready {
            context: Arc::clone(context),
            event,
            own: true,
        })
    }

    pub(super) fn open(context: &Arc<Inner>, bytes: &IpcBytes) -> Result<Self> {
        context.usable()?;
        let event = context.note(context.backend.event_open(bytes))?;
        Ok(Ready {
            context: Arc::clone(context),
            event,
            own: true,
        })
    }

    /// One that somebody else owns.
    #[cfg(feature = "cuda")]
    pub(super) fn of_engine(context: &Arc<Inner>, event: Handle) -> Self {
        Ready {
            context: Arc::clone(context),
            event,
            own: false,
        }
    }

    /// What another process of this host needs to open it.
    ///
    /// # Errors
    ///
    /// What the driver says; it must have been made for this.
    pub fn export(&self) -> Result<IpcBytes> {
        self.context.usable()?;
        self.context
            .note(self.context.backend.event_export(self.event))
    }

    /// Whether it has fired. One that was never recorded has.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn has_fired(&self) -> Result<bool> {
        self.context.usable()?;
        self.context
            .note(self.context.backend.event_query(self.event))
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if self.own {
            self.context
                .freed(self.context.backend.event_destroy(self.event));
        }
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").finish_non_exhaustive()
    }
}
