//! Pools in a device's memory that another process has allocated and names by its CUDA IPC handle.
//!
//! Rules: the process is held by a pidfd from before its handle is opened until the pool goes, since
//! nothing else tells that the memory is gone. No byte of an allocation is in two pools.

use super::memory::{Opened, Place, bad, process};
use super::shape::{CudaMemory, DeviceName, PoolSpec};
use crate::daemon::devices::{Devices, Named, Uuid, bytes_of};
use crate::daemon::http::Problem;
use kvroom::device::IpcMemory;

/// What is wrong with a request before anything is looked at.
pub(super) fn check(spec: &PoolSpec, cuda: &CudaMemory) -> Result<(), Problem> {
    named(cuda)?;
    memory(cuda)?;
    if spec.owner.is_none() {
        return Err(bad(
            "owner: memory of a device goes with the process that has allocated it: name that process, \
             {\"owner\": {\"pid\": …}}"
                .to_owned(),
        ));
    }
    if cuda.offset.checked_add(cuda.bytes).is_none() {
        return Err(bad(format!(
            "memory.cuda: {} bytes at offset {} are more than any allocation has",
            cuda.bytes, cuda.offset
        )));
    }
    let layout = spec.layout();
    layout.validate().map_err(|why| bad(why.to_string()))?;
    let cells = u64::from(layout.layers) * u64::from(layout.pages);
    match cells.checked_mul(layout.page_bytes) {
        Some(needed) if needed <= cuda.bytes => Ok(()),
        Some(needed) => Err(bad(format!(
            "memory.cuda.bytes: {} bytes are given, and the layout needs {needed}",
            cuda.bytes
        ))),
        None => Err(bad(
            "the layout is larger than any memory is: correct layers, pages or page_bytes"
                .to_owned(),
        )),
    }
}

/// Opens the memory of a request that [`check`] found nothing wrong with.
pub(super) async fn open(spec: &PoolSpec, devices: &Devices) -> Result<Opened, Problem> {
    let (Some(cuda), Some(owner)) = (&spec.memory.cuda, &spec.owner) else {
        return Err(Problem::defect("a pool on a device without its memory"));
    };
    let owner = process(owner.pid, "owner")?;
    let memory = memory(cuda)?;
    let pool = devices.import(&named(cuda)?, memory, spec.layout()).await?;
    Ok(Opened {
        pool,
        place: Place::Device,
        owner: Some(owner),
        spec: Some(spec.clone()),
        fresh: false,
    })
}

/// Whether two requests name a byte in common.
pub(super) fn overlap(one: &PoolSpec, other: &PoolSpec) -> bool {
    let (Some(one), Some(other)) = (&one.memory.cuda, &other.memory.cuda) else {
        return false;
    };
    let end = |of: &CudaMemory| of.offset.saturating_add(of.bytes);
    one.handle.eq_ignore_ascii_case(&other.handle)
        && one.offset < end(other)
        && other.offset < end(one)
}

/// Whether a request names this memory, which the daemon has given out itself.
pub(super) fn is_of(spec: &PoolSpec, own: &IpcMemory) -> bool {
    let cuda = spec.memory.cuda.as_ref();
    cuda.is_some_and(|cuda| bytes_of(&cuda.handle) == Some(own.handle))
}

/// The memory is another pool's.
pub(super) fn attached(name: &str) -> Problem {
    Problem::conflict(
        "pool-attached",
        "The memory is a pool of another runtime already",
        format!(
            "bytes of this allocation are in pool {name:?} already: retire it first, or name others"
        ),
    )
}

fn named(cuda: &CudaMemory) -> Result<Named, Problem> {
    match &cuda.device {
        DeviceName::Ordinal(ordinal) => Ok(Named::Ordinal(*ordinal)),
        DeviceName::Uuid(text) => match Uuid::read(text) {
            Some(uuid) => Ok(Named::Uuid(uuid)),
            None => Err(bad(
                "memory.cuda.device: a number, or a UUID as `nvidia-smi -L` shows it (GPU-…), is wanted"
                    .to_owned(),
            )),
        },
    }
}

fn memory(cuda: &CudaMemory) -> Result<IpcMemory, Problem> {
    if cuda.handle.is_empty() {
        return Err(bad(
            "memory.cuda.handle: the CUDA IPC handle of memory that a process has allocated is wanted; the daemon \
             allocates on a device for pools of its configuration only ([[pool]] with device = …)"
                .to_owned(),
        ));
    }
    let handle = bytes_of(&cuda.handle).ok_or_else(|| {
        bad(format!(
            "memory.cuda.handle: 128 hexadecimal digits are wanted, and {} bytes were given",
            cuda.handle.len()
        ))
    })?;
    Ok(IpcMemory {
        handle,
        offset: cuda.offset,
        bytes: cuda.bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::super::shape::{Arrangement, Kind, MemorySpec, Owner};
    use super::*;

    fn spec(offset: u64, bytes: u64) -> PoolSpec {
        PoolSpec {
            name: "kv".to_owned(),
            kind: Kind::Kv,
            order: Arrangement::LayersFirst,
            layers: 2,
            pages: 4,
            page_bytes: 4096,
            page_tokens: 16,
            memory: MemorySpec {
                cuda: Some(CudaMemory {
                    device: DeviceName::Ordinal(0),
                    handle: "0f".repeat(64),
                    offset,
                    bytes,
                }),
                ..MemorySpec::default()
            },
            owner: Some(Owner { pid: 1 }),
        }
    }

    fn refused(change: impl FnOnce(&mut PoolSpec)) -> String {
        let mut spec = spec(0, 32 << 10);
        assert_eq!(super::super::memory::check(&spec), Ok(()));
        change(&mut spec);
        super::super::memory::check(&spec).unwrap_err().detail
    }

    #[test]
    fn what_cannot_be_meant_is_named_before_a_driver_is_asked() {
        type Change = fn(&mut CudaMemory);
        let cuda: [(Change, &str); 6] = [
            (|c| c.handle = String::new(), "memory.cuda.handle"),
            (|c| c.handle = "0g".repeat(64), "memory.cuda.handle"),
            (|c| c.handle = "é".repeat(64), "memory.cuda.handle"),
            (
                |c| c.device = DeviceName::Uuid("GPU-1".into()),
                "memory.cuda.device",
            ),
            (
                |c| c.bytes -= 1,
                "32767 bytes are given, and the layout needs 32768",
            ),
            (|c| c.offset = u64::MAX, "more than any allocation"),
        ];
        for (change, says) in cuda {
            let why = refused(|spec| change(spec.memory.cuda.as_mut().unwrap()));
            assert!(why.contains(says), "{why}");
        }
        assert!(refused(|spec| spec.owner = None).starts_with("owner:"));
        assert!(refused(|spec| spec.page_bytes = u64::MAX).contains("can address"));
        assert!(refused(|spec| spec.layers = 0).contains("layers"));
        let both = refused(|spec| spec.memory.create = true);
        assert!(both.contains("one of"), "{both}");
    }

    #[test]
    fn pools_of_one_allocation_do_not_meet() {
        let one = spec(32 << 10, 32 << 10);
        for (offset, meets) in [(0, false), (1, true), (65_535, true), (65_536, false)] {
            assert_eq!(overlap(&one, &spec(offset, 32 << 10)), meets, "{offset}");
        }
        let mut other = spec(32 << 10, 1);
        assert!(overlap(&one, &other));
        other.memory.cuda.as_mut().unwrap().handle = "0F".repeat(64);
        assert!(overlap(&one, &other), "digits are the same in both cases");
        other.memory.cuda.as_mut().unwrap().handle = "ff".repeat(64);
        assert!(!overlap(&one, &other));
        other.memory.cuda = None;
        assert!(!overlap(&one, &other));
    }
}
