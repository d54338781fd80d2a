//! One pool of the table, and when it goes: a pure step over what is seen.

use super::memory::{Opened, Place};
use super::shape::{
    Arrangement, DeviceView, ExportedView, Kind, OwnerView, PoolSpec, PoolState, PoolView,
    quarantined,
};
use crate::daemon::devices::{Uuid, digits_of};
use kvroom::{Backing, Order, OtherProcess, Pool, PoolKind};
use std::sync::Arc;

/// One pool. Immutable: a changed one is another entry.
#[derive(Clone)]
pub(super) struct Entry {
    opened: Arc<Opened>,
    stage: Stage,
    /// Rooms that were aborted on its way out.
    aborted: usize,
    /// Whether somebody has said that no engine has its memory open any more.
    closed: bool,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It gives leases.
    Serving,
    /// Its owner is dead; it gives no more leases.
    OwnerDied,
    /// It was asked to go; it gives no more leases.
    Retiring,
    /// Nothing here uses it any more, and engines may: nobody can see whether they do.
    Kept,
}

/// What happens to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Somebody asked for it to go; with its rooms aborted, or at their end.
    Retire { abort: bool },
    /// Its owner is dead.
    OwnerDied,
    /// A look at it: this many pages are leased, and engines may have memory of the daemon's open.
    Look { leased: usize, open: bool },
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Do {
    /// Nothing.
    Nothing,
    /// Give no more leases; take it from the node.
    Retire,
    /// That, and abort the rooms that hold pages of it.
    RetireAndAbort,
    /// Abort the rooms that hold pages of it.
    Abort,
    /// Drop it, and what was made for it.
    Remove,
}

impl Stage {
    /// The next stage, and what it takes.
    pub(super) fn on(self, event: Event) -> (Stage, Do) {
        match (self, event) {
            (Stage::Serving, Event::Retire { abort: false }) => (Stage::Retiring, Do::Retire),
            (Stage::Serving, Event::Retire { abort: true }) => {
                (Stage::Retiring, Do::RetireAndAbort)
            }
            (Stage::Serving, Event::OwnerDied) => (Stage::OwnerDied, Do::RetireAndAbort),
            (Stage::Retiring, Event::OwnerDied) => (Stage::OwnerDied, Do::Abort),
            (Stage::Kept, Event::Retire { .. }) => (Stage::Kept, Do::Nothing),
            (stage, Event::Retire { abort: true }) => (stage, Do::Abort),
            (stage, Event::Retire { abort: false } | Event::OwnerDied) => (stage, Do::Nothing),
            (Stage::Serving, Event::Look { .. }) => (Stage::Serving, Do::Nothing),
            (stage, Event::Look { leased: 0, open }) => match open {
                true => (Stage::Kept, Do::Nothing),
                false => (stage, Do::Remove),
            },
            (stage, Event::Look { .. }) => (stage, Do::Nothing),
        }
    }
}

impl Entry {
    pub(super) fn new(opened: Opened) -> Entry {
        Entry {
            opened: Arc::new(opened),
            stage: Stage::Serving,
            aborted: 0,
            closed: false,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.opened.pool.layout().name
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.opened.pool
    }

    pub(super) fn opened(&self) -> &Opened {
        &self.opened
    }

    pub(super) fn owner(&self) -> Option<&Arc<OtherProcess>> {
        self.opened.owner.as_ref()
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether it was registered by the same words.
    pub(super) fn is_of(&self, spec: &PoolSpec) -> bool {
        self.opened.spec.as_ref() == Some(spec)
    }

    pub(super) fn at(&self, stage: Stage) -> Entry {
        Entry {
            stage,
            ..self.clone()
        }
    }

    pub(super) fn with_aborted(&self, more: usize) -> Entry {
        Entry {
            aborted: self.aborted + more,
            ..self.clone()
        }
    }

    pub(super) fn with_closed(&self) -> Entry {
        Entry {
            closed: true,
            ..self.clone()
        }
    }

    /// Whether engines may have memory open that the daemon has allocated: it was told to who asked, and
    /// nobody has said that all have closed it. To free it then is undefined, says the driver.
    pub(super) fn may_be_open(&self) -> bool {
        self.opened.exported().is_some() && !self.closed
    }

    /// Whether it goes by itself, sooner or later.
    pub(super) fn is_leaving(&self) -> bool {
        match self.stage {
            Stage::Serving => false,
            Stage::Kept => !self.may_be_open(),
            Stage::OwnerDied | Stage::Retiring => true,
        }
    }

    /// Bytes of a device that are kept for nothing else than that engines may have them open.
    pub(super) fn kept_bytes(&self) -> u64 {
        match (self.stage, self.pool().device_memory()) {
            (Stage::Kept, Some(memory)) => memory.bytes(),
            _ => 0,
        }
    }

    /// Why it gives no new leases.
    pub(super) fn refuses(&self) -> Option<String> {
        match self.stage {
            Stage::Serving => None,
            Stage::Retiring => Some("it is being retired".to_owned()),
            Stage::Kept => Some("it is retired".to_owned()),
            Stage::OwnerDied => Some(owner_died(self.owner().map_or(0, |o| o.pid()))),
        }
    }

    /// The number of its device, and why that is lost, if it is.
    pub(super) fn lost_device(&self) -> Option<(u32, String)> {
        let context = self.pool().device()?.context();
        let lost = context.lost()?;
        Some((context.identity().ordinal, lost.to_string()))
    }

    /// Why its memory is kept, and what frees it.
    pub(super) fn kept(&self) -> String {
        let (name, bytes) = (self.name(), self.kept_bytes());
        format!(
            "it is retired, and nothing here uses it; its {bytes} bytes of the device are kept, since engines may have \
             them open: when every engine has closed the handle, say so (DELETE /v1/pools/{name}?closed=true)"
        )
    }

    /// By what an engine opens it; nobody is to begin with that when it goes.
    fn exported(&self) -> Option<ExportedView> {
        let memory = self.opened.exported();
        let memory = memory.filter(|_| self.stage == Stage::Serving)?;
        Some(ExportedView {
            handle: digits_of(&memory.handle),
            offset: memory.offset,
            bytes: memory.bytes,
        })
    }

    fn device(&self) -> Option<DeviceView> {
        let context = self.pool().device()?.context();
        let identity = context.identity();
        Some(DeviceView {
            ordinal: identity.ordinal,
            uuid: Uuid(identity.uuid).to_string(),
            name: identity.name.clone(),
            lost: context.lost().map(ToString::to_string),
        })
    }

    pub(super) fn view(&self) -> PoolView {
        let (opened, layout) = (&self.opened, self.opened.pool.layout());
        let leased_pages = opened.pool.leased_pages();
        let quarantined_pages = quarantined(&opened.pool.quarantined());
        let why = self.refuses().map(|why| match (leased_pages, quarantined_pages.len()) {
            (0, 0) if self.stage == Stage::Kept => self.kept(),
            (0, 0) => format!("{why}; all of its pages are back, and it goes now"),
            (0, _) => format!(
                "{why}; it goes when the processes that may still write its quarantined pages are out or dead"
            ),
            (n, _) => format!("{why}; it goes when {n} leased pages are back, each on proof"),
        });
        let lost = self.lost_device().map(|(_, why)| {
            format!("{why}; what was being copied then has no end that can be proven: its pages stay leased")
        });
        let why = match (why, lost) {
            (Some(why), Some(lost)) => Some(format!("{why}; {lost}")),
            (why, lost) => why.or(lost),
        };
        PoolView {
            id: layout.name.clone(),
            kind: match layout.kind {
                PoolKind::Kv => Kind::Kv,
                PoolKind::Aux => Kind::Aux,
            },
            order: match layout.order {
                Order::LayersFirst => Arrangement::LayersFirst,
                Order::PagesFirst => Arrangement::PagesFirst,
            },
            layers: layout.layers,
            pages: layout.pages,
            page_bytes: layout.page_bytes,
            page_tokens: layout.page_tokens,
            backing: match (opened.pool.device(), opened.pool.backing()) {
                (Some(device), _) => device.context().identity().kind.word(),
                (None, Backing::Private) => "private",
                (None, Backing::Memfd { .. }) => "shared",
                (None, Backing::File) => "file",
            }
            .to_owned(),
            path: match &opened.place {
                Place::File { path, .. } => Some(path.display().to_string()),
                Place::Passed { .. } | Place::Own => None,
                Place::Device | Place::Allocated(_) => None,
            },
            device: self.device(),
            cuda: self.exported(),
            kept_bytes: self.kept_bytes(),
            created: opened.is_made_here(),
            leased_pages,
            quarantined_pages,
            owner: self.owner().map(|owner| OwnerView {
                pid: owner.pid(),
                alive: !owner.is_dead(),
            }),
            state: match self.stage {
                Stage::Serving => PoolState::Serving,
                Stage::OwnerDied => PoolState::OwnerDied,
                Stage::Retiring => PoolState::Retiring,
                Stage::Kept => PoolState::Kept,
            },
            why,
            rooms_aborted: self.aborted,
        }
    }
}

/// Why a pool whose owner is dead ends its rooms.
pub(super) fn owner_died(pid: u32) -> String {
    format!("its owner, process {pid}, is dead")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_goes_when_nothing_of_it_is_leased_and_it_gives_no_more() {
        let look = |leased| Event::Look {
            leased,
            open: false,
        };
        for stage in [Stage::OwnerDied, Stage::Retiring] {
            assert_eq!(stage.on(look(1)), (stage, Do::Nothing));
            assert_eq!(stage.on(look(0)), (stage, Do::Remove));
        }
        let serving = Stage::Serving;
        assert_eq!(serving.on(look(0)), (serving, Do::Nothing));
    }

    #[test]
    fn memory_that_engines_may_have_open_is_kept_when_all_is_back_until_they_have_closed_it() {
        let look = |leased, open| Event::Look { leased, open };
        let (serving, kept) = (Stage::Serving, Stage::Kept);
        for stage in [Stage::OwnerDied, Stage::Retiring] {
            assert_eq!(stage.on(look(1, true)), (stage, Do::Nothing));
            assert_eq!(stage.on(look(0, true)), (kept, Do::Nothing));
        }
        assert_eq!(serving.on(look(0, true)), (serving, Do::Nothing));
        assert_eq!(kept.on(look(0, true)), (kept, Do::Nothing));
        assert_eq!(kept.on(look(0, false)), (kept, Do::Remove));
        assert_eq!(kept.on(look(1, false)), (kept, Do::Nothing));
        for abort in [true, false] {
            let again = kept.on(Event::Retire { abort });
            assert_eq!(again, (kept, Do::Nothing), "it is asked again");
        }
    }

    #[test]
    fn rooms_are_aborted_when_the_owner_dies_and_otherwise_only_if_asked_for() {
        let retire = |abort| Event::Retire { abort };
        let (gone, asked) = (Stage::OwnerDied, Stage::Retiring);
        for (stage, event, after) in [
            (Stage::Serving, Event::OwnerDied, (gone, Do::RetireAndAbort)),
            (Stage::Serving, retire(false), (asked, Do::Retire)),
            (Stage::Serving, retire(true), (asked, Do::RetireAndAbort)),
            (asked, Event::OwnerDied, (gone, Do::Abort)),
            (asked, retire(true), (asked, Do::Abort)),
            (asked, retire(false), (asked, Do::Nothing)),
            (gone, retire(false), (gone, Do::Nothing)),
            (gone, retire(true), (gone, Do::Abort)),
            (gone, Event::OwnerDied, (gone, Do::Nothing)),
        ] {
            assert_eq!(stage.on(event), after, "{stage:?}, {event:?}");
        }
    }
}
