//! What is said about pools in JSON.

use kvroom::{Order, PoolKind, PoolLayout, Quarantined};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// A pool to be registered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PoolSpec {
    /// Its name, 1 to 64 letters, digits, `.`, `_` and `-`; pools of two nodes are paired by it.
    pub(crate) name: String,
    /// What it holds.
    #[serde(default)]
    pub(crate) kind: Kind,
    /// How it lies in memory.
    #[serde(default)]
    pub(crate) order: Arrangement,
    /// Layers, from 1.
    pub(crate) layers: u32,
    /// Pages, from 1.
    pub(crate) pages: u32,
    /// Bytes of a page in one layer.
    pub(crate) page_bytes: u64,
    /// Tokens that a page holds.
    pub(crate) page_tokens: u32,
    /// Where its memory is.
    pub(crate) memory: MemorySpec,
    /// The process whose end ends the pool; of passed memory the one that passed it, if not said.
    pub(crate) owner: Option<Owner>,
}

/// Where a pool's memory is: one of the four.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemorySpec {
    /// With `path`: whether the file is made if it is not there. Alone: the daemon makes one, and says
    /// where.
    #[serde(default)]
    pub(crate) create: bool,
    /// A file in the daemon's folder of pools (`/dev/shm`).
    #[schema(value_type = Option<String>)]
    pub(crate) path: Option<PathBuf>,
    /// The process that has the memory open as descriptor `fd`: a memfd, sealed against shrinking.
    pub(crate) pid: Option<u32>,
    /// The number of that descriptor there.
    pub(crate) fd: Option<u32>,
    /// Memory of a CUDA device that another process has allocated: `owner` says which, since the memory
    /// goes with it.
    pub(crate) cuda: Option<CudaMemory>,
}

/// Memory of a CUDA device, by its IPC handle.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CudaMemory {
    /// The device, of those that `devices.ordinals` of the configuration names.
    pub(crate) device: DeviceName,
    /// CUDA's handle of the allocation (`cuIpcGetMemHandle`, 64 bytes) as hexadecimal digits.
    #[serde(default)]
    #[schema(
        required = true,
        min_length = 128,
        max_length = 128,
        pattern = "^[0-9a-fA-F]{128}$"
    )]
    pub(crate) handle: String,
    /// Where in the allocation the pool begins, in bytes.
    #[serde(default)]
    pub(crate) offset: u64,
    /// Bytes from there on that are the pool's; as many as its layout takes, at least.
    pub(crate) bytes: u64,
}

/// A device: its number, as the daemon counts those that it sees, or its UUID, which is the same in every
/// process (`GPU-…`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum DeviceName {
    /// Its number.
    Ordinal(u32),
    /// Its UUID.
    Uuid(String),
}

/// The process that owns a pool.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Owner {
    /// Its number, as the daemon's namespace of processes tells it.
    pub(crate) pid: u32,
}

/// What a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Pages of KV cache.
    #[default]
    Kv,
    /// Rows beside them, one a request.
    Aux,
}

/// How a pool lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Arrangement {
    /// All pages of layer 0, then all pages of layer 1.
    #[default]
    LayersFirst,
    /// All layers of page 0, then all layers of page 1.
    PagesFirst,
}

impl PoolSpec {
    /// The layout that it names.
    pub(crate) fn layout(&self) -> PoolLayout {
        PoolLayout {
            name: self.name.clone(),
            kind: match self.kind {
                Kind::Kv => PoolKind::Kv,
                Kind::Aux => PoolKind::Aux,
            },
            order: match self.order {
                Arrangement::LayersFirst => Order::LayersFirst,
                Arrangement::PagesFirst => Order::PagesFirst,
            },
            layers: self.layers,
            pages: self.pages,
            page_bytes: self.page_bytes,
            page_tokens: self.page_tokens,
        }
    }
}

/// A pool, as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PoolView {
    /// Its name.
    pub(crate) id: String,
    /// What it holds.
    pub(crate) kind: Kind,
    /// How it lies in memory.
    pub(crate) order: Arrangement,
    /// Layers.
    pub(crate) layers: u32,
    /// Pages.
    pub(crate) pages: u32,
    /// Bytes of a page in one layer.
    pub(crate) page_bytes: u64,
    /// Tokens that a page holds.
    pub(crate) page_tokens: u32,
    /// `private` (of the daemon alone), `shared` (a memfd), `file`, or `cuda` (a device's).
    pub(crate) backing: String,
    /// The file, if it is one.
    pub(crate) path: Option<String>,
    /// The device that it is on, if it is on one.
    pub(crate) device: Option<DeviceView>,
    /// By what engines on this host open it, if the daemon has allocated it on a device and it serves.
    pub(crate) cuda: Option<ExportedView>,
    /// Bytes of the device that are kept, since engines may have them open; 0 if its state is not `kept`.
    pub(crate) kept_bytes: u64,
    /// Whether the daemon made the file, and removes it when the pool is retired.
    pub(crate) created: bool,
    /// Pages that are leased; one that n rooms read counts n times.
    pub(crate) leased_pages: usize,
    /// Pages that writers of a former life of the pool may still write: nobody gets them yet.
    pub(crate) quarantined_pages: Vec<QuarantinedPages>,
    /// The process whose end ends it.
    pub(crate) owner: Option<OwnerView>,
    /// How far it is.
    pub(crate) state: PoolState,
    /// Why it is not serving, and what it still waits for.
    pub(crate) why: Option<String>,
    /// Rooms that were aborted because of that.
    pub(crate) rooms_aborted: usize,
}

/// The device of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct DeviceView {
    /// Its number, as the daemon counts those that it sees.
    pub(crate) ordinal: u32,
    /// Its UUID.
    pub(crate) uuid: String,
    /// Its model.
    pub(crate) name: String,
    /// Why it is lost: then nothing of the pool can be read or written any more.
    pub(crate) lost: Option<String>,
}

/// Memory of a device for other processes, in the words of `memory.cuda` of a pool that is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ExportedView {
    /// CUDA's handle of the allocation, for `cuIpcOpenMemHandle`, 64 bytes as hexadecimal digits.
    #[schema(min_length = 128, max_length = 128, pattern = "^[0-9a-fA-F]{128}$")]
    pub(crate) handle: String,
    /// Where in the allocation the pool begins, in bytes.
    pub(crate) offset: u64,
    /// Bytes from there on that are the pool's.
    pub(crate) bytes: u64,
}

/// How far a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PoolState {
    /// Pages of it can be leased.
    Serving,
    /// Its owner is dead: its rooms were aborted, and it goes when every lease is back.
    OwnerDied,
    /// It was asked to go, and does when every lease is back.
    Retiring,
    /// Nothing of it is used here any more, and its memory is kept: engines may have it open.
    Kept,
    /// Every page was back, and it went.
    Gone,
}

/// Pages that nobody gets yet, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct QuarantinedPages {
    /// In rising order.
    pub(crate) pages: Vec<u32>,
    /// Whom they wait for.
    pub(crate) why: String,
}

/// A pool's owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct OwnerView {
    /// Its number, as it was when the pool was registered.
    pub(crate) pid: u32,
    /// Whether it is not dead.
    pub(crate) alive: bool,
}

/// Groups quarantined pages by whom they wait for.
pub(super) fn quarantined(pages: &[Quarantined]) -> Vec<QuarantinedPages> {
    let mut groups: Vec<(Option<u32>, QuarantinedPages)> = Vec::new();
    for q in pages {
        match groups.iter_mut().find(|(writer, _)| *writer == q.writer) {
            Some((_, group)) => group.pages.push(q.page),
            None => {
                let why = match q.writer {
                    Some(pid) => format!(
                        "process {pid} may still write them for a previous life of the pool; they come \
                         back when it has left its gate or is dead"
                    ),
                    None => "some process that had gates in a previous life of the pool may still write \
                             them; they come back when all of those have left or are dead"
                        .to_owned(),
                };
                let pages = vec![q.page];
                groups.push((q.writer, QuarantinedPages { pages, why }));
            }
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}
