//! The kernels that there are: their names, and what they do. Those of kvroom are there by their twins.

use crate::state::{LAUNCH_FAILED, State};
use kvroom_kernels::cuda::{Kernel, PagesArgs, SlicesArgs, SumArgs};
use kvroom_kernels::twin::{Addressed, LaunchError, launched};

/// One of kvroom's own.
fn own(name: &str) -> Option<Kernel> {
    Kernel::ALL
        .into_iter()
        .find(|kernel| kernel.entry() == name)
}

/// How many arguments of which width a kernel has.
pub(crate) fn widths(name: &str) -> Option<&'static [usize]> {
    if let Some(kernel) = own(name) {
        return Some(match kernel {
            Kernel::GatherPages | Kernel::ScatterPages => &[PagesArgs::SIZE],
            Kernel::ResliceHeads => &[SlicesArgs::SIZE],
            Kernel::ChecksumPages => &[SumArgs::SIZE],
        });
    }
    match name {
        // target, bytes, value
        "add_to_bytes" => Some(&[8, 8, 4]),
        // target, source, bytes
        "reverse_bytes" => Some(&[8, 8, 8]),
        // a structure of target, bytes, value, and 4 bytes of nothing
        "add_by_structure" => Some(&[24]),
        // an address
        "poke" => Some(&[8]),
        _ => None,
    }
}

/// Runs one of them.
pub(crate) fn run(state: &State, name: &str, args: &[u64]) -> Result<(), u32> {
    if let Some(kernel) = own(name) {
        let bytes: Vec<u8> = args.iter().flat_map(|word| word.to_le_bytes()).collect();
        return launched(kernel, &bytes, &mut &*state).map_err(|error| match error {
            LaunchError::Access(code) => code,
            _ => LAUNCH_FAILED,
        });
    }
    match (name, args) {
        ("add_to_bytes", [target, bytes, value]) => {
            let mut all = read(state, *target, *bytes)?;
            all.iter_mut()
                .for_each(|byte| *byte = byte.wrapping_add(*value as u8));
            write(state, *target, &all)
        }
        ("add_by_structure", args) => run(state, "add_to_bytes", args),
        ("reverse_bytes", [target, source, bytes]) => {
            let mut all = read(state, *source, *bytes)?;
            all.reverse();
            write(state, *target, &all)
        }
        ("poke", [at]) => write(state, *at, &[1]),
        _ => Err(719),
    }
}

impl Addressed for &State {
    type Error = u32;

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), u32> {
        into.copy_from_slice(&read(self, at, into.len() as u64)?);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), u32> {
        write(self, at, from)
    }
}

fn read(state: &State, at: u64, bytes: u64) -> Result<Vec<u8>, u32> {
    let _held = state.find(at, bytes)?;
    // SAFETY: within a mapping that is held, copied at once; see `State::copy`.
    Ok(unsafe { std::slice::from_raw_parts(at as *const u8, bytes as usize) }.to_vec())
}

fn write(state: &State, at: u64, bytes: &[u8]) -> Result<(), u32> {
    let _held = state.find(at, bytes.len() as u64)?;
    // SAFETY: within a mapping that is held; the source is a vector of this library.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    Ok(())
}
