//! kvroom's own kernels on the host: by their twins, over the emulated memory.

use super::super::kernel::Launch;
use super::kernels::{HostKernel, IllegalAccess, Value, View};
use kvroom_kernels::cuda::{Kernel, PagesArgs, SlicesArgs, SumArgs};
use kvroom_kernels::twin::{Addressed, LaunchError, launched};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One of `kvroom-kernels`, as a launch of it is done by its host twin.
///
/// Arguments that no checked job gives are an illegal access, and so is an access that is not allowed.
/// Unlike a GPU's threads, launches in two streams do not add to the same sum at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Own(pub Kernel);

impl Own {
    /// All of them, by the names that they have in compiled code: for [`Config`](super::Config).
    #[must_use]
    pub fn all() -> BTreeMap<String, Arc<dyn HostKernel>> {
        let named = |kernel: Kernel| {
            let own: Arc<dyn HostKernel> = Arc::new(Own(kernel));
            (kernel.entry().to_owned(), own)
        };
        Kernel::ALL.into_iter().map(named).collect()
    }

    /// Bytes of its arguments, which are one structure by value.
    fn size(self) -> usize {
        match self.0 {
            Kernel::GatherPages | Kernel::ScatterPages => PagesArgs::SIZE,
            Kernel::ResliceHeads => SlicesArgs::SIZE,
            Kernel::ChecksumPages => SumArgs::SIZE,
        }
    }

    fn args(self, args: &[Value]) -> Result<&[u8], IllegalAccess> {
        Value::bytes(args, 0, self.size())
    }
}

impl HostKernel for Own {
    fn run(&self, _: &Launch, args: &[Value], memory: &View<'_>) -> Result<(), IllegalAccess> {
        launched(self.0, self.args(args)?, &mut &*memory).map_err(|error| match error {
            LaunchError::Access(access) => access,
            other => {
                let kernel = self.0.entry();
                tracing::debug!(kernel, error = %other, "an emulated launch is refused");
                IllegalAccess { at: 0, bytes: 0 }
            }
        })
    }

    fn moves(&self, args: &[Value]) -> u64 {
        self.args(args).map_or(0, |bytes| moved(self.0, bytes))
    }
}

/// Bytes that a launch with these arguments copies or sums.
fn moved(kernel: Kernel, args: &[u8]) -> u64 {
    let product = |of: &[u64]| of.iter().copied().fold(1, u64::saturating_mul);
    match kernel {
        Kernel::GatherPages | Kernel::ScatterPages => args.try_into().map_or(0, |bytes| {
            let a = PagesArgs::from_bytes(bytes);
            product(&[a.layers.into(), a.pages.into(), a.cell_bytes])
        }),
        Kernel::ResliceHeads => args.try_into().map_or(0, |bytes| {
            let a = SlicesArgs::from_bytes(bytes);
            let counts = [a.layers, a.rows, a.planes, a.heads].map(u64::from);
            product(&counts).saturating_mul(a.run_bytes)
        }),
        Kernel::ChecksumPages => args.try_into().map_or(0, |bytes| {
            let a = SumArgs::from_bytes(bytes);
            product(&[a.layers.into(), a.pages.into(), a.cell_bytes])
        }),
    }
}

impl Addressed for &View<'_> {
    type Error = IllegalAccess;

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), IllegalAccess> {
        let place = self.find(at, into.len() as u64)?;
        place.read(&mut |seen| into.copy_from_slice(seen));
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), IllegalAccess> {
        let place = self.find(at, from.len() as u64)?;
        place.write(&mut |to| to.copy_from_slice(from));
        Ok(())
    }
}
