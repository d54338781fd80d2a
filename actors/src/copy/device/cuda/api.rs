//! The driver's functions, found by name in `libcuda.so.1` when they are first needed.
//!
//! cudarc finds and opens the library and has the types. Its own functions are not called: they panic
//! if the driver lacks one, and their results are a Rust enum, which a driver that is newer than the
//! bindings breaks with a number that the enum does not have. Here a result is a number.
#![allow(unsafe_code)] // Opens a library and takes functions from it.

use super::super::backend::Result;
use super::super::error::DeviceError;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemcpyAttributes};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::panic::catch_unwind;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The library's name in errors.
pub(super) const LIBRARY: &str = "libcuda.so.1";

/// A result of the driver.
pub(super) type Code = c_uint;
pub(super) type Device = c_int;
pub(super) type Ptr = *mut c_void;
type HostFn = unsafe extern "C" fn(Ptr);

/// Declares the table: the field, the function's name, and its type.
macro_rules! table {
    ($(
        $(#[$doc:meta])*
        $field:ident = $symbol:literal: fn($($arg:ty),* $(,)?);
    )*) => {
        /// Every function that is used and that every driver since CUDA 12.0 has.
        pub(super) struct Functions {
            $( $(#[$doc])* pub(super) $field: unsafe extern "C" fn($($arg),*) -> Code, )*
        }

        impl Functions {
            fn of(find: &dyn Fn(&[u8]) -> Option<Ptr>) -> Result<Self> {
                Ok(Functions {
                    $( $field: {
                        let found = find(concat!($symbol, "\0").as_bytes());
                        let found = found.ok_or(DeviceError::MissingSymbol {
                            library: LIBRARY,
                            symbol: $symbol,
                        })?;
                        // SAFETY: not null, and the type is that of the function in CUDA's headers.
                        unsafe { transmute::<Ptr, unsafe extern "C" fn($($arg),*) -> Code>(found) }
                    }, )*
                })
            }
        }
    };
}

table! {
    init = "cuInit": fn(c_uint);
    driver_version = "cuDriverGetVersion": fn(*mut c_int);
    device_count = "cuDeviceGetCount": fn(*mut c_int);
    device_get = "cuDeviceGet": fn(*mut Device, c_int);
    device_name = "cuDeviceGetName": fn(*mut c_char, c_int, Device);
    device_uuid = "cuDeviceGetUuid_v2": fn(*mut [u8; 16], Device);
    device_memory = "cuDeviceTotalMem_v2": fn(*mut usize, Device);
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_uint, Device);
    primary_retain = "cuDevicePrimaryCtxRetain": fn(*mut Ptr, Device);
    primary_release = "cuDevicePrimaryCtxRelease_v2": fn(Device);
    context_push = "cuCtxPushCurrent_v2": fn(Ptr);
    context_pop = "cuCtxPopCurrent_v2": fn(*mut Ptr);
    stream_create = "cuStreamCreateWithPriority": fn(*mut Ptr, c_uint, c_int);
    stream_destroy = "cuStreamDestroy_v2": fn(Ptr);
    stream_query = "cuStreamQuery": fn(Ptr);
    stream_wait = "cuStreamWaitEvent": fn(Ptr, Ptr, c_uint);
    event_create = "cuEventCreate": fn(*mut Ptr, c_uint);
    event_destroy = "cuEventDestroy_v2": fn(Ptr);
    event_record = "cuEventRecord": fn(Ptr, Ptr);
    event_query = "cuEventQuery": fn(Ptr);
    memory_alloc = "cuMemAlloc_v2": fn(*mut CUdeviceptr, usize);
    memory_free = "cuMemFree_v2": fn(CUdeviceptr);
    memory_range = "cuMemGetAddressRange_v2": fn(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    host_alloc = "cuMemHostAlloc": fn(*mut Ptr, usize, c_uint);
    host_free = "cuMemFreeHost": fn(Ptr);
    copy = "cuMemcpyAsync": fn(CUdeviceptr, CUdeviceptr, usize, Ptr);
    host_call = "cuLaunchHostFunc": fn(Ptr, HostFn, Ptr);
    module_load = "cuModuleLoadData": fn(*mut Ptr, *const c_void);
    module_unload = "cuModuleUnload": fn(Ptr);
    module_function = "cuModuleGetFunction": fn(*mut Ptr, Ptr, *const c_char);
    launch = "cuLaunchKernel": fn(
        Ptr, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Ptr, *mut Ptr, *mut Ptr,
    );
    ipc_memory = "cuIpcGetMemHandle": fn(*mut IpcHandle, CUdeviceptr);
    ipc_memory_open = "cuIpcOpenMemHandle_v2": fn(*mut CUdeviceptr, IpcHandle, c_uint);
    ipc_memory_close = "cuIpcCloseMemHandle": fn(CUdeviceptr);
    ipc_event = "cuIpcGetEventHandle": fn(*mut IpcHandle, Ptr);
    ipc_event_open = "cuIpcOpenEventHandle": fn(*mut Ptr, IpcHandle);
    peer_possible = "cuDeviceCanAccessPeer": fn(*mut c_int, Device, Device);
    peer_enable = "cuCtxEnablePeerAccess": fn(Ptr, c_uint);
}

/// A handle of IPC as C passes it: a structure, by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// The batch copy of CUDA 12.8: all destinations, all sources, all sizes, attributes, which of them
/// begin where, how many attributes, which copy failed.
pub(super) type Batch = unsafe extern "C" fn(
    *mut CUdeviceptr,
    *mut CUdeviceptr,
    *mut usize,
    usize,
    *mut CUmemcpyAttributes,
    *mut usize,
    usize,
    *mut usize,
    Ptr,
) -> Code;

/// The same since CUDA 13, which does not say which copy failed.
pub(super) type BatchV2 = unsafe extern "C" fn(
    *mut CUdeviceptr,
    *mut CUdeviceptr,
    *mut usize,
    usize,
    *mut CUmemcpyAttributes,
    *mut usize,
    usize,
    Ptr,
) -> Code;

/// How many copies go with one call.
#[derive(Clone, Copy)]
pub(super) enum Copies {
    Batch(Batch),
    BatchV2(BatchV2),
    OneByOne,
}

/// A driver that is open and has started.
pub(super) struct Api {
    pub(super) call: Functions,
    pub(super) copies: Copies,
    /// As in 12080 for 12.8.
    pub(super) version: u32,
}

/// The driver, opened at the first call. One that could not be opened is tried again.
pub(super) fn driver() -> Result<&'static Api> {
    static DRIVER: OnceLock<Api> = OnceLock::new();
    static OPENING: Mutex<()> = Mutex::new(());
    if let Some(api) = DRIVER.get() {
        return Ok(api);
    }
    let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(api) = DRIVER.get() {
        return Ok(api);
    }
    let api = open()?;
    Ok(DRIVER.get_or_init(|| api))
}

fn open() -> Result<Api> {
    let absent = DeviceError::NoDriver { library: LIBRARY };
    // SAFETY: opening the driver's library runs its own initialisers and nothing else.
    if !unsafe { sys::is_culib_present() } {
        return Err(absent);
    }
    // Panics if the library went away since the question.
    let library = catch_unwind(|| {
        // SAFETY: as above; the library stays open for ever.
        unsafe { sys::culib() }
    });
    let library = library.map_err(|_| absent)?;
    let find = |name: &[u8]| {
        // SAFETY: an address is taken, as an address.
        let found = unsafe { library.get::<Ptr>(name) };
        found.ok().map(|at| *at).filter(|at| !at.is_null())
    };
    let call = Functions::of(&find)?;
    let broken = |name, code| match code {
        0 => Ok(()),
        code => Err(match super::super::error::classify(0, name, code, 0) {
            DeviceError::Driver {
                call, code, name, ..
            } => DeviceError::Broken { call, code, name },
            other => other,
        }),
    };
    // SAFETY: the first call of the driver; it may be made again, and by others, too.
    broken("cuInit", unsafe { (call.init)(0) })?;
    let mut version: c_int = 0;
    // SAFETY: writes one number.
    let code = unsafe { (call.driver_version)(&mut version) };
    broken("cuDriverGetVersion", code)?;
    Ok(Api {
        copies: copies(&find),
        call,
        version: u32::try_from(version).unwrap_or(0),
    })
}

/// The batch copy that this driver has.
fn copies(find: &dyn Fn(&[u8]) -> Option<Ptr>) -> Copies {
    if let Some(batch) = find(b"cuMemcpyBatchAsync\0") {
        // SAFETY: the type is that of the function in the headers of 12.8 and 12.9. Drivers keep what
        // a name means; the later one has another name.
        return Copies::Batch(unsafe { transmute::<Ptr, Batch>(batch) });
    }
    match find(b"cuMemcpyBatchAsync_v2\0") {
        // SAFETY: the same, since 13.0.
        Some(batch) => Copies::BatchV2(unsafe { transmute::<Ptr, BatchV2>(batch) }),
        None => Copies::OneByOne,
    }
}
