//! Lanes that do the wrong thing on purpose, so that an oracle can be shown to notice.
//!
//! Not part of any build of the library or the program: only examples and tests turn the feature on.

use crate::memory::Pool;
pub use crate::memory::plant::near;
use crate::memory::plant::{self, Wrong};
use crate::runtime::pulse::Part;
use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

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
    pub(crate) to: Wrong,
    pub(crate) layer: u32,
    pub(crate) page: u32,
}

impl Due {
    pub(crate) fn commit(self) {
        let size = self.to.page_bytes();
        let mut bytes = vec![0xab; size];
        if let Some((pool, layer, page)) = self.from {
            // Whatever is there by now.
            let _ = pool.observe(layer, page, &mut bytes);
        }
        self.to.write_late(self.layer, self.page, &bytes);
    }
}

/// Holds lanes inside the gate of a piece, so that a test can have a copy in flight for as long as it
/// needs one. Clones are the same brake; one brake may be on several nodes and lanes.
#[derive(Clone, Debug)]
pub struct Brake(Arc<(Mutex<Braking>, Condvar)>);

#[derive(Debug)]
struct Braking {
    /// Pieces that may still pass.
    pass: u64,
    /// How often it was released.
    releases: u64,
    /// Lanes that stand inside a gate now.
    held: usize,
}

impl Default for Brake {
    /// A brake that is off.
    fn default() -> Self {
        let off = Braking {
            pass: u64::MAX,
            releases: 0,
            held: 0,
        };
        Brake(Arc::new((Mutex::new(off), Condvar::new())))
    }
}

impl Brake {
    /// Lets this many more pieces pass, all lanes together; then every lane that enters a gate stays
    /// in it. `u64::MAX` is no limit. A lane that is held already stays held.
    pub fn hold_after(&self, pieces: u64) {
        self.lock().pass = pieces;
    }

    /// Lets everything pass, and those go on that are held.
    pub fn release(&self) {
        self.release_for(u64::MAX);
    }

    /// Lets those go on that are held, and this many more pieces pass.
    pub fn release_for(&self, pieces: u64) {
        let mut braking = self.lock();
        braking.pass = pieces;
        braking.releases += 1;
        // They are let go of now, even if they have not run yet.
        braking.held = 0;
        self.0.1.notify_all();
    }

    /// Whether it lets everything pass.
    fn is_off(&self) -> bool {
        self.lock().pass == u64::MAX
    }

    /// How many lanes stand inside a gate now.
    pub fn held(&self) -> usize {
        self.lock().held
    }

    fn lock(&self) -> MutexGuard<'_, Braking> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self) {
        let mut braking = self.lock();
        if braking.pass > 0 {
            if braking.pass != u64::MAX {
                braking.pass -= 1;
            }
            return;
        }
        let before = braking.releases;
        braking.held += 1;
        while braking.releases == before {
            braking = self
                .0
                .1
                .wait(braking)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What a shard must know of the lanes that it posts to: one that copies small jobs itself would
/// slip past a brake, or a plant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    brake: Option<Brake>,
    plant: Option<Plant>,
}

impl Watched {
    pub(crate) fn new(brake: Option<Brake>, plant: Option<Plant>) -> Self {
        Watched { brake, plant }
    }

    /// Whether every job is for a lane now.
    pub(crate) fn lanes_only(&self) -> bool {
        self.plant.is_some() || self.brake.as_ref().is_some_and(|brake| !brake.is_off())
    }
}

/// The environment variable that names a folder: while there is a file `lane-0` in it, lane 0 of every
/// node of this process stands still inside the gate of the next piece that it copies, and while there
/// is a `shard-0`, that shard stands still in its next turn, and with a `node` the node's own task. So a test can plant a wedge in a program
/// that it runs. No build for use has this: see the features of this crate; and nothing that is built
/// without debug assertions has it, so no release build, of an example either, whatever its features.
pub const WEDGE: &str = "KVROOM_PLANT_WEDGE";

fn wedges() -> Option<&'static std::path::Path> {
    if !cfg!(debug_assertions) {
        return None;
    }
    static FOLDER: std::sync::OnceLock<Option<std::path::PathBuf>> = std::sync::OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder: Option<std::path::PathBuf> = std::env::var_os(WEDGE).map(Into::into);
        if let Some(folder) = &folder {
            tracing::warn!(folder = %folder.display(), "parts of this process stand still when {WEDGE} says so");
        }
        folder
    });
    folder.as_deref()
}

fn wedge_of(part: &Part) -> Option<std::path::PathBuf> {
    Some(wedges()?.join(part.to_string().replace(' ', "-")))
}

/// A file with the word `panic` in it is taken away, and is a panic in place of a standstill. That somebody
/// stands still is told by a file `….held` beside it.
fn stand_still(while_there: &std::path::Path) {
    if !while_there.exists() {
        return;
    }
    let held = while_there.with_extension("held");
    let _ = std::fs::write(&held, "");
    while while_there.exists() {
        let word = std::fs::read_to_string(while_there).unwrap_or_default();
        if word.trim() == "panic" && std::fs::remove_file(while_there).is_ok() {
            panic!("planted");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let _ = std::fs::remove_file(held);
}

/// This thread is this lane's, which may be told to stand still.
pub(crate) fn put_wedge(lane: &Part) {
    WEDGED.with(|w| *w.borrow_mut() = wedge_of(lane));
}

/// Stands still as long as this part is told to.
pub(crate) fn wedge(part: &Part) {
    if let Some(file) = wedge_of(part) {
        stand_still(&file);
    }
}

thread_local! {
    /// The file while which this thread's lane stands still.
    static WEDGED: RefCell<Option<std::path::PathBuf>> = const { RefCell::new(None) };
    /// What the network lanes of this thread do wrong, and how often they still may.
    static WRONG: RefCell<(Option<Plant>, u32)> = const { RefCell::new((None, 0)) };
    /// The brake of this thread's lane.
    static BRAKE: RefCell<Option<Brake>> = const { RefCell::new(None) };
}

/// Makes the network lanes of this thread do something wrong, a few times: far fewer than once a
/// frame, or nothing right would happen at all.
pub(crate) fn put_plant(plant: Option<Plant>) {
    WRONG.with(|w| *w.borrow_mut() = (plant, 64));
}

fn may(wanted: Plant) -> bool {
    WRONG.with(|w| {
        let (plant, left) = &mut *w.borrow_mut();
        let may = *plant == Some(wanted) && *left > 0;
        *left -= u32::from(may);
        may
    })
}

/// A frame for this page begins to arrive: perhaps it is written to again, when it is too late.
pub(crate) fn frame_begins(to: impl FnOnce() -> Option<Pool>, layer: u32, page: u32) {
    if may(Plant::LateWrite)
        && let Some(to) = to()
    {
        let due = Due {
            from: None,
            to: Wrong::Here(to),
            layer,
            page,
        };
        actix::spawn(async move {
            tokio::time::sleep(LATER).await;
            due.commit();
        });
    }
}

/// A job comes to a network lane: perhaps its source is kept.
pub(crate) fn job_comes(ticket: &crate::memory::Ticket) {
    if may(Plant::Leak) {
        plant::keep_source(ticket);
    }
}

/// Puts a brake on the lane of this thread.
pub(crate) fn put_brake(brake: Option<Brake>) {
    BRAKE.with(|b| *b.borrow_mut() = brake);
}

/// A lane is inside a gate, and has not written yet.
pub(crate) fn inside_a_gate() {
    WEDGED.with(|w| {
        if let Some(file) = &*w.borrow() {
            stand_still(file);
        }
    });
    let brake = BRAKE.with(|b| b.borrow().clone());
    if let Some(brake) = brake {
        brake.pass();
    }
}
