//! What a node says of UCX.

use super::node::Node;
use kvroom_actors::runtime::UcxError;

/// UCX, as a node found it when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UcxFacts {
    /// The version of the library: major, minor, release.
    pub version: (u32, u32, u32),
    /// Whether one of its transports on this machine is RDMA.
    pub rdma: bool,
}

impl Node {
    /// What came of opening UCX when the node started: `None` if it was not to be used.
    ///
    /// # Errors
    /// Why it is not used, though it might have been ([`UcxUse::Rdma`](crate::UcxUse::Rdma)): it says
    /// what to do. A node that is to use it in any case is not started without it.
    pub fn ucx(&self) -> Option<Result<UcxFacts, UcxError>> {
        let found = self.shared().ucx.as_ref()?;
        Some(match found {
            Ok(ucx) => Ok(UcxFacts {
                version: ucx.version(),
                rdma: ucx.has_rdma(),
            }),
            Err(error) => Err(error.clone()),
        })
    }
}
