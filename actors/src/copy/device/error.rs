//! Why a call of a device failed: who is at fault, and what to do.

use std::fmt;

/// An error that every later call of this context returns, too: the context is lost, for everybody
/// who shares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// The device's number on this host.
    pub device: u32,
    /// The call that returned it. The work that failed was often queued long before, and by anybody
    /// in the process.
    pub call: &'static str,
    /// The driver's number.
    pub code: u32,
    /// The driver's name for it.
    pub name: &'static str,
}

impl fmt::Display for Sticky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device {} is lost: {} returned {} ({})",
            self.device, self.call, self.name, self.code
        )
    }
}

/// Who has to do something about a [`DeviceError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Culprit {
    /// The machine: its driver, its devices, its libraries.
    Machine,
    /// Whoever shares the device's primary context: the engine, or kvroom.
    SharedContext,
    /// Whoever configured kvroom: there is not enough of something.
    Operator,
    /// The caller of this call.
    Caller,
}

/// Why a call of a device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no driver.
    #[error(
        "no CUDA driver: {library} could not be opened; install the driver, or use pools on the host"
    )]
    NoDriver {
        /// The library that was looked for.
        library: &'static str,
    },
    /// The driver lacks a function that is used.
    #[error(
        "{library} has no {symbol}: it is too old, or not the driver; CUDA 12.0 or later is needed"
    )]
    MissingSymbol {
        /// The library.
        library: &'static str,
        /// Its function.
        symbol: &'static str,
    },
    /// The driver is there and does not start, or has no such device.
    #[error("the CUDA driver does not work: {call} returned {name} ({code}); see `nvidia-smi`")]
    Broken {
        /// The call.
        call: &'static str,
        /// The driver's number.
        code: u32,
        /// The driver's name for it.
        name: &'static str,
    },
    /// There is no device of this number.
    #[error(
        "there is no device {ordinal}, only {count}; correct the number in the pool's settings"
    )]
    NoSuchDevice {
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The context is lost.
    #[error(
        "{0}; the context is shared with the engine, so either may have caused it, and neither can \
         use this device any more: restart the process"
    )]
    Lost(Sticky),
    /// There is not enough memory.
    #[error(
        "no {bytes} bytes of {kind} memory on device {device}; ask for fewer or smaller staging slots"
    )]
    OutOfMemory {
        /// The device's number.
        device: u32,
        /// `device` or `pinned`; `driver` if it was the driver's own.
        kind: &'static str,
        /// What was asked for; 0 if that is not known.
        bytes: u64,
    },
    /// A number of things is at its limit.
    #[error("{what} are limited to {limit}, and all are in use")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A range that is not within its memory.
    #[error("{bytes} bytes at {offset} are not within {of} bytes; this is a bug of the caller")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Bytes of the memory.
        of: u64,
    },
    /// An argument that the call does not take.
    #[error("{call}: {why}; this is a bug of the caller")]
    BadArgument {
        /// The call.
        call: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The code has no such kernel.
    #[error("the code has no kernel `{name}`; the caller names one that it did not load")]
    NoSuchKernel {
        /// The name.
        name: String,
    },
    /// What is asked for cannot be done on this device.
    #[error("{call} is not supported here ({name}, {code})")]
    NotSupported {
        /// The call.
        call: &'static str,
        /// The driver's number.
        code: u32,
        /// The driver's name for it.
        name: &'static str,
    },
    /// There is no compiler for kernels.
    #[error(
        "no NVRTC: {library} could not be opened; install CUDA's runtime compiler, or put it on the library path"
    )]
    NoCompiler {
        /// The library that was looked for.
        library: &'static str,
    },
    /// A kernel's source does not compile.
    #[error("the kernels of {program} do not compile ({name}, {code}): {log}")]
    Compile {
        /// Which source.
        program: String,
        /// NVRTC's number.
        code: u32,
        /// NVRTC's name for it.
        name: &'static str,
        /// What it says, cut at a few thousand bytes.
        log: String,
    },
    /// Anything else that the driver returned. The context goes on.
    #[error("{call} returned {name} ({code}) on device {device}")]
    Driver {
        /// The device's number.
        device: u32,
        /// The call.
        call: &'static str,
        /// The driver's number.
        code: u32,
        /// The driver's name for it.
        name: &'static str,
    },
    /// The driver did not answer in time.
    #[error("the CUDA driver did not answer within {0:?}; see `nvidia-smi` and the kernel's log")]
    Silent(std::time::Duration),
}

impl DeviceError {
    /// Who has to do something about it.
    #[must_use]
    pub fn culprit(&self) -> Culprit {
        match self {
            DeviceError::NoDriver { .. }
            | DeviceError::MissingSymbol { .. }
            | DeviceError::Broken { .. }
            | DeviceError::NoCompiler { .. }
            | DeviceError::NotSupported { .. }
            | DeviceError::Driver { .. }
            | DeviceError::Silent(_) => Culprit::Machine,
            DeviceError::Lost(_) => Culprit::SharedContext,
            DeviceError::NoSuchDevice { .. }
            | DeviceError::OutOfMemory { .. }
            | DeviceError::Limit { .. } => Culprit::Operator,
            DeviceError::OutOfRange { .. }
            | DeviceError::BadArgument { .. }
            | DeviceError::NoSuchKernel { .. }
            | DeviceError::Compile { .. } => Culprit::Caller,
        }
    }

    /// Whether the device's context is lost with it.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        matches!(self, DeviceError::Lost(_))
    }
}

/// What a number of the driver means. The names are CUDA's.
///
/// Numbers that newer drivers add are unknown here and end nothing but their call.
pub(crate) fn classify(device: u32, call: &'static str, code: u32, bytes: u64) -> DeviceError {
    let (name, sticky) = name_of(code);
    if sticky {
        return DeviceError::Lost(Sticky {
            device,
            call,
            code,
            name,
        });
    }
    match code {
        2 => DeviceError::OutOfMemory {
            device,
            kind: match call {
                "cuMemAlloc" => "device",
                "cuMemHostAlloc" => "pinned",
                _ => "driver",
            },
            bytes,
        },
        1 | 101 | 200 | 201 | 218 | 222 | 400 => DeviceError::BadArgument {
            call,
            why: format!("{name} ({code})"),
        },
        217 | 801 => DeviceError::NotSupported { call, code, name },
        3 | 34 | 100 | 802..=808 => DeviceError::Broken { call, code, name },
        _ => DeviceError::Driver {
            device,
            call,
            code,
            name,
        },
    }
}

/// CUDA's name of a result, and whether every later call of the context returns it, too ("the
/// process must be terminated and relaunched" in the driver's documentation).
fn name_of(code: u32) -> (&'static str, bool) {
    match code {
        1 => ("CUDA_ERROR_INVALID_VALUE", false),
        2 => ("CUDA_ERROR_OUT_OF_MEMORY", false),
        3 => ("CUDA_ERROR_NOT_INITIALIZED", false),
        4 => ("CUDA_ERROR_DEINITIALIZED", true),
        34 => ("CUDA_ERROR_STUB_LIBRARY", false),
        46 => ("CUDA_ERROR_DEVICE_UNAVAILABLE", false),
        100 => ("CUDA_ERROR_NO_DEVICE", false),
        101 => ("CUDA_ERROR_INVALID_DEVICE", false),
        200 => ("CUDA_ERROR_INVALID_IMAGE", false),
        201 => ("CUDA_ERROR_INVALID_CONTEXT", false),
        205 => ("CUDA_ERROR_MAP_FAILED", false),
        208 => ("CUDA_ERROR_ALREADY_MAPPED", false),
        209 => ("CUDA_ERROR_NO_BINARY_FOR_GPU", false),
        214 => ("CUDA_ERROR_ECC_UNCORRECTABLE", true),
        217 => ("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", false),
        218 => ("CUDA_ERROR_INVALID_PTX", false),
        220 => ("CUDA_ERROR_NVLINK_UNCORRECTABLE", true),
        222 => ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", false),
        400 => ("CUDA_ERROR_INVALID_HANDLE", false),
        500 => ("CUDA_ERROR_NOT_FOUND", false),
        600 => ("CUDA_ERROR_NOT_READY", false),
        700 => ("CUDA_ERROR_ILLEGAL_ADDRESS", true),
        701 => ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", false),
        702 => ("CUDA_ERROR_LAUNCH_TIMEOUT", true),
        704 => ("CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", false),
        709 => ("CUDA_ERROR_CONTEXT_IS_DESTROYED", true),
        710 => ("CUDA_ERROR_ASSERT", true),
        714 => ("CUDA_ERROR_HARDWARE_STACK_ERROR", true),
        715 => ("CUDA_ERROR_ILLEGAL_INSTRUCTION", true),
        716 => ("CUDA_ERROR_MISALIGNED_ADDRESS", true),
        717 => ("CUDA_ERROR_INVALID_ADDRESS_SPACE", true),
        718 => ("CUDA_ERROR_INVALID_PC", true),
        719 => ("CUDA_ERROR_LAUNCH_FAILED", true),
        721 => ("CUDA_ERROR_TENSOR_MEMORY_LEAK", true),
        800 => ("CUDA_ERROR_NOT_PERMITTED", false),
        801 => ("CUDA_ERROR_NOT_SUPPORTED", false),
        802 => ("CUDA_ERROR_SYSTEM_NOT_READY", false),
        803 => ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", false),
        804 => ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", false),
        805 => ("CUDA_ERROR_MPS_CONNECTION_FAILED", false),
        900 => ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", false),
        911 => ("CUDA_ERROR_EXTERNAL_DEVICE", true),
        999 => ("CUDA_ERROR_UNKNOWN", true),
        _ => ("an error that this build has no name for", false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_illegal_address_loses_the_context_and_says_that_it_is_shared() {
        let error = classify(3, "cuEventQuery", 700, 0);
        assert!(error.is_sticky());
        assert_eq!(error.culprit(), Culprit::SharedContext);
        let text = error.to_string();
        assert!(text.contains("device 3"), "{text}");
        assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
        assert!(text.contains("shared with the engine"), "{text}");
        assert!(text.contains("restart"), "{text}");
    }

    #[test]
    fn a_number_that_no_build_knows_is_an_error_of_its_call_alone() {
        for code in [0xffff_ffff, 913, 12_345] {
            let error = classify(0, "cuMemcpyAsync", code, 0);
            assert!(!error.is_sticky());
            assert!(error.to_string().contains(&code.to_string()));
        }
    }

    #[test]
    fn what_is_short_is_named_with_how_much_was_asked_for() {
        let text = classify(1, "cuMemHostAlloc", 2, 4096).to_string();
        assert!(text.contains("4096 bytes of pinned memory"), "{text}");
    }
}
