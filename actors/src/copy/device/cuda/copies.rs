//! Many copies with one call of the driver, where it has one.
#![allow(unsafe_code)] // Calls the driver.

use super::super::backend::{RawCopy, Result};
use super::api::{Api, Copies, Ptr};
use super::identity::result;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpySrcAccessOrder,
};
use std::sync::atomic::{AtomicBool, Ordering};

const NOT_SUPPORTED: u32 = 801;

/// How copies are queued on one device.
pub(super) struct Copier {
    device: u32,
    /// The driver said that it cannot do batches here.
    one_by_one: AtomicBool,
}

impl Copier {
    pub(super) fn new(device: u32) -> Self {
        Copier {
            device,
            one_by_one: AtomicBool::new(false),
        }
    }

    /// Queues all of them; the context is current.
    pub(super) fn queue(&self, api: &Api, stream: Ptr, copies: &[RawCopy]) -> Result<()> {
        if let Some(code) = self.batch(api, stream, copies) {
            return result(self.device, "cuMemcpyBatchAsync", code);
        }
        for copy in copies {
            // SAFETY: both ranges are within memory that the work owns until an event behind it has
            // fired (`Backend`).
            let code = unsafe { (api.call.copy)(copy.to, copy.from, copy.bytes as usize, stream) };
            result(self.device, "cuMemcpyAsync", code)?;
        }
        Ok(())
    }

    /// What the driver says to all at once; nothing if it does not take them so.
    fn batch(&self, api: &Api, stream: Ptr, copies: &[RawCopy]) -> Option<u32> {
        if copies.len() < 2 || self.one_by_one.load(Ordering::Relaxed) {
            return None;
        }
        let mut to: Vec<CUdeviceptr> = copies.iter().map(|copy| copy.to).collect();
        let mut from: Vec<CUdeviceptr> = copies.iter().map(|copy| copy.from).collect();
        let mut bytes: Vec<usize> = copies.iter().map(|copy| copy.bytes as usize).collect();
        let nowhere = CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        // Sources are read in the order of the stream: what is queued before may write them.
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        let (mut begins, mut failed) = (0usize, 0usize);
        let n = copies.len();
        let (to, from, bytes) = (to.as_mut_ptr(), from.as_mut_ptr(), bytes.as_mut_ptr());
        let (one, first) = (&raw mut attributes, &raw mut begins);
        let code = match api.copies {
            Copies::OneByOne => return None,
            // SAFETY: three arrays of `n`, one attribute, which begins at copy 0; the ranges are
            // within memory that the work owns (`Backend`). The arrays are read before it returns.
            Copies::Batch(batch) => unsafe {
                batch(to, from, bytes, n, one, first, 1, &mut failed, stream)
            },
            // SAFETY: the same.
            Copies::BatchV2(batch) => unsafe { batch(to, from, bytes, n, one, first, 1, stream) },
        };
        if code == NOT_SUPPORTED {
            self.one_by_one.store(true, Ordering::Relaxed);
            return None;
        }
        Some(code)
    }
}
