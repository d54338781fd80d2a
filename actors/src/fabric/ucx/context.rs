//! A context of UCX: its settings, what it has, and the memory that peers may write.
//!
//! Rules:
//! - Everything here is on one thread: the types hold raw handles, and are not `Send`.
//! - What was registered stays so, and with it its memory, for as long as the process runs: taking a
//!   registration away does not stop a peer that writes there, and then the memory would be somebody else's.
//!   So a context is never cleaned up either.
#![allow(unsafe_code)] // Calls UCX.

use super::error::UcxError;
use crate::memory::Pool;
use crate::peer::hello::{FarKey, MAX_REMOTE_KEY};
use kvroom_ucx_sys::raw::{
    UCP_FEATURE_AM, UCP_FEATURE_RMA, UCP_FEATURE_WAKEUP, UCP_MEM_MAP_PARAM_FIELD_ADDRESS,
    UCP_MEM_MAP_PARAM_FIELD_LENGTH, UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE, UCP_PARAM_FIELD_FEATURES,
    UCS_MEMORY_TYPE_HOST, ucp_config_t, ucp_context_h, ucp_mem_map_params_t, ucp_params_t,
    ucs_status_t,
};
use kvroom_ucx_sys::{UCP_API, Ucx as Library, status, zeroed};
use std::ffi::{CStr, CString};
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

/// A setting of UCX, without its `UCX_`, and its value.
pub(super) type Setting = (&'static CStr, CString);

/// See the module.
pub(super) struct Context {
    library: Arc<Library>,
    raw: ucp_context_h,
    probe: FarKey,
}

/// An open stream of the C library into memory.
struct Text {
    stream: *mut libc::FILE,
    at: *mut libc::c_char,
    bytes: usize,
}

impl Context {
    /// Looks at the machine, as far as the settings say.
    ///
    /// # Errors
    /// [`UcxError::Call`]: UCX does not take a setting, or has nothing that it may use.
    pub(super) fn new(library: Arc<Library>, settings: &[Setting]) -> Result<Self, UcxError> {
        let call = &library.call;
        let mut config: *mut ucp_config_t = null_mut();
        // SAFETY: no prefix and no file are allowed; the configuration is written into this frame.
        let read = unsafe { (call.ucp_config_read)(null(), null(), &mut config) };
        done(&library, "ucp_config_read", read, "")?;
        let mut set = Ok(());
        for (name, value) in settings {
            // SAFETY: the configuration that was read, and texts that end with a zero byte.
            let status = unsafe { (call.ucp_config_modify)(config, name.as_ptr(), value.as_ptr()) };
            let advice = "; look at ucx.transports and ucx.devices";
            set = set.and(done(&library, "ucp_config_modify", status, advice));
        }
        let mut params: ucp_params_t = zeroed();
        params.field_mask = u64::from(UCP_PARAM_FIELD_FEATURES);
        params.features = u64::from(UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP);
        let (mut raw, (major, minor)) = (null_mut(), UCP_API);
        let made = set.and_then(|()| {
            // SAFETY: parameters whose mask says what is valid, and the configuration; the context is
            // written into this frame.
            let status =
                unsafe { (call.ucp_init_version)(major, minor, &params, config, &mut raw) };
            let advice =
                "; ucx.transports and ucx.devices have to leave something that this machine has";
            done(&library, "ucp_init", status, advice)
        });
        // SAFETY: read above, and not used any more.
        unsafe { (call.ucp_config_release)(config) };
        made?;
        let probe = FarKey {
            base: 0,
            key: Vec::new(),
        };
        Ok(Context {
            library,
            raw,
            probe,
        })
    }

    /// Registers what peers write to find out whether they can.
    ///
    /// # Errors
    /// UCX says no.
    pub(super) fn offer_probe(&mut self) -> Result<(), UcxError> {
        // Nobody reads it, and every peer may write it. It is never freed, since a peer may be late.
        let page = Box::leak(Box::new([0_u64; 8]));
        self.probe = self.map(NonNull::from(page).cast(), 64)?;
        Ok(())
    }

    /// Ends a context with which nothing was done.
    pub(super) fn discard(self) {
        // SAFETY: it has no workers, and nothing is registered.
        unsafe { (self.library.call.ucp_cleanup)(self.raw) };
    }

    pub(super) fn library(&self) -> &Arc<Library> {
        &self.library
    }

    pub(super) fn raw(&self) -> ucp_context_h {
        self.raw
    }

    /// A word that peers write to find out whether they can.
    pub(super) fn probe(&self) -> &FarKey {
        &self.probe
    }

    /// Lets peers write a pool, which is never let go of again.
    ///
    /// # Errors
    /// The pool is not in memory that the CPU reaches, or UCX says no.
    pub(super) fn register(&self, pool: Pool) -> Result<FarKey, UcxError> {
        let Some((at, bytes)) = pool.span() else {
            return Err(UcxError::Call {
                call: "ucp_mem_map",
                status: "the pool is on a device".into(),
                advice: "; pools on devices go over sockets or shared memory",
            });
        };
        // Also if it fails half way: what UCX has of it then nobody can say.
        let _kept = ManuallyDrop::new(pool);
        self.map(at, bytes)
    }

    /// Registers memory that is there as long as the process runs.
    fn map(&self, at: NonNull<u8>, bytes: u64) -> Result<FarKey, UcxError> {
        let (library, call) = (&self.library, &self.library.call);
        let mut params: ucp_mem_map_params_t = zeroed();
        let fields = UCP_MEM_MAP_PARAM_FIELD_ADDRESS
            | UCP_MEM_MAP_PARAM_FIELD_LENGTH
            | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
        params.field_mask = u64::from(fields);
        params.address = at.as_ptr().cast();
        // It is mapped, so it fits.
        params.length = bytes as usize;
        params.memory_type = UCS_MEMORY_TYPE_HOST;
        let mut mapped = null_mut();
        // SAFETY: the caller's memory, which is never freed; the handle is written into this frame.
        let status = unsafe { (call.ucp_mem_map)(self.raw, &params, &mut mapped) };
        let advice = "; with RDMA memory is pinned: look at `ulimit -l`";
        done(library, "ucp_mem_map", status, advice)?;
        let (mut packed, mut length) = (null_mut(), 0);
        // SAFETY: what was registered just now; key and length are written into this frame.
        let status = unsafe { (call.ucp_rkey_pack)(self.raw, mapped, &mut packed, &mut length) };
        done(library, "ucp_rkey_pack", status, "")?;
        // SAFETY: what UCX packed just now, of this length.
        let key = unsafe { std::slice::from_raw_parts(packed.cast::<u8>(), length) }.to_vec();
        // SAFETY: packed above, copied, and not used any more.
        unsafe { (call.ucp_rkey_buffer_release)(packed) };
        if key.len() > MAX_REMOTE_KEY {
            return Err(UcxError::Limit {
                what: "a remote key is longer than peers take",
                limit: "MAX_REMOTE_KEY",
                value: MAX_REMOTE_KEY,
            });
        }
        Ok(FarKey {
            base: at.as_ptr().expose_provenance() as u64,
            key,
        })
    }

    /// What UCX says of itself, for people, and for who looks for its transports.
    pub(super) fn describe(&self) -> String {
        let Some(text) = Text::new() else {
            return String::new();
        };
        // SAFETY: a context and an open stream.
        unsafe { (self.library.call.ucp_context_print_info)(self.raw, text.stream) };
        text.close()
    }
}

impl Text {
    fn new() -> Option<Box<Text>> {
        let mut text = Box::new(Text {
            stream: null_mut(),
            at: null_mut(),
            bytes: 0,
        });
        // SAFETY: both are in a box that outlives the stream.
        text.stream = unsafe { libc::open_memstream(&mut text.at, &mut text.bytes) };
        (!text.stream.is_null()).then_some(text)
    }

    fn close(self: Box<Self>) -> String {
        let text = Box::leak(self);
        // SAFETY: opened above, and closed once. It writes the box's fields, which nobody borrows.
        unsafe { libc::fclose(text.stream) };
        // SAFETY: leaked above, and not used any more under that name.
        let text = unsafe { Box::from_raw(text) };
        if text.at.is_null() {
            return String::new();
        }
        // SAFETY: a closed stream leaves so many bytes there.
        let bytes = unsafe { std::slice::from_raw_parts(text.at.cast::<u8>(), text.bytes) };
        let said = String::from_utf8_lossy(bytes).into_owned();
        // SAFETY: the C library allocated it for the caller, who frees it once.
        unsafe { libc::free(text.at.cast()) };
        said
    }
}

/// A status as a result.
pub(super) fn done(
    library: &Library,
    call: &'static str,
    status: ucs_status_t,
    advice: &'static str,
) -> Result<(), UcxError> {
    if !status::is_error(status) {
        return Ok(());
    }
    Err(UcxError::Call {
        call,
        status: library.describe(status),
        advice,
    })
}
