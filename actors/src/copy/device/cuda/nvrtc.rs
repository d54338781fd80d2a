//! Source of kernels to code for one architecture, by NVRTC, which is opened when it is needed.
//!
//! ```text
//!   key(source, options, architecture, driver) ─▶ in the cache? ─▶ image
//!                                                  └ no ─▶ libnvrtc.so ─▶ cubin for this architecture,
//!                                                          or PTX of the newest that it knows ─▶ cache
//! ```
#![allow(unsafe_code)] // Opens a library and calls it.

use super::super::backend::Result;
use super::super::error::DeviceError;
use super::super::kernel::Program;
use super::cache::{Cache, Key};
use cudarc::nvrtc::sys;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::panic::catch_unwind;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The library's name in errors.
const LIBRARY: &str = "libnvrtc.so";
/// Bytes of the compiler's log that an error has.
const LOG: usize = 4096;
/// Larger images are a mistake of the library.
const IMAGE: usize = 64 << 20;

type Ptr = *mut c_void;
type Code = c_uint;

/// Compiles kernels.
pub(super) struct Compiler {
    cache: Option<Cache>,
    /// One at a time: two contexts of a process want the same kernels, and the second finds them.
    compiling: Mutex<()>,
}

impl Compiler {
    pub(super) fn new(cache: Option<Cache>) -> Self {
        Compiler {
            cache,
            compiling: Mutex::new(()),
        }
    }

    /// A cubin or PTX for a device of this compute capability.
    pub(super) fn compile(
        &self,
        program: &Program,
        capability: (u32, u32),
        driver: u32,
    ) -> Result<Vec<u8>> {
        let key = Key::of(program, capability, driver);
        let _one = self
            .compiling
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = self.cache.as_ref().and_then(|cache| cache.get(&key)) {
            return Ok(image);
        }
        let image = compiler()?.compile(program, capability)?;
        if let Some(cache) = &self.cache {
            cache.put(&key, &image);
        }
        Ok(image)
    }
}

/// The version of the compiler that is there: major, minor.
pub(super) fn version() -> Result<(u32, u32)> {
    let api = compiler()?;
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: writes two numbers.
    let code = unsafe { (api.version)(&mut major, &mut minor) };
    check("nvrtcVersion", code)?;
    let of = |number| u32::try_from(number).unwrap_or(0);
    Ok((of(major), of(minor)))
}

macro_rules! table {
    ($( $field:ident = $symbol:literal: fn($($arg:ty),*); )*) => {
        /// The compiler's functions.
        struct Api {
            $( $field: unsafe extern "C" fn($($arg),*) -> Code, )*
        }

        impl Api {
            fn of(find: &dyn Fn(&[u8]) -> Option<Ptr>) -> Result<Self> {
                Ok(Api {
                    $( $field: {
                        let found = find(concat!($symbol, "\0").as_bytes());
                        let found = found.ok_or(DeviceError::MissingSymbol {
                            library: LIBRARY,
                            symbol: $symbol,
                        })?;
                        // SAFETY: not null, and the type is that of the function in NVRTC's header.
                        unsafe { transmute::<Ptr, unsafe extern "C" fn($($arg),*) -> Code>(found) }
                    }, )*
                })
            }
        }
    };
}

table! {
    version = "nvrtcVersion": fn(*mut c_int, *mut c_int);
    archs_count = "nvrtcGetNumSupportedArchs": fn(*mut c_int);
    archs = "nvrtcGetSupportedArchs": fn(*mut c_int);
    create = "nvrtcCreateProgram": fn(
        *mut Ptr, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    destroy = "nvrtcDestroyProgram": fn(*mut Ptr);
    compile = "nvrtcCompileProgram": fn(Ptr, c_int, *const *const c_char);
    ptx_size = "nvrtcGetPTXSize": fn(Ptr, *mut usize);
    ptx = "nvrtcGetPTX": fn(Ptr, *mut c_char);
    cubin_size = "nvrtcGetCUBINSize": fn(Ptr, *mut usize);
    cubin = "nvrtcGetCUBIN": fn(Ptr, *mut c_char);
    log_size = "nvrtcGetProgramLogSize": fn(Ptr, *mut usize);
    log = "nvrtcGetProgramLog": fn(Ptr, *mut c_char);
}

fn compiler() -> Result<&'static Api> {
    static COMPILER: OnceLock<Api> = OnceLock::new();
    if let Some(api) = COMPILER.get() {
        return Ok(api);
    }
    let absent = DeviceError::NoCompiler { library: LIBRARY };
    // SAFETY: opening the library runs its own initialisers and nothing else.
    if !unsafe { sys::is_culib_present() } {
        return Err(absent);
    }
    // Panics if the library went away since the question.
    let library = catch_unwind(|| {
        // SAFETY: as above; it stays open for ever.
        unsafe { sys::culib() }
    });
    let library = library.map_err(|_| absent)?;
    let api = Api::of(&|name| {
        // SAFETY: an address is taken, as an address.
        let found = unsafe { library.get::<Ptr>(name) };
        found.ok().map(|at| *at).filter(|at| !at.is_null())
    })?;
    Ok(COMPILER.get_or_init(|| api))
}

/// A program of NVRTC, destroyed when it is dropped.
struct Compiling<'a> {
    api: &'a Api,
    program: Ptr,
}

impl Drop for Compiling<'_> {
    fn drop(&mut self) {
        // SAFETY: it was created, and is not used any more.
        let _ = unsafe { (self.api.destroy)(&mut self.program) };
    }
}

impl Api {
    fn compile(&self, program: &Program, capability: (u32, u32)) -> Result<Vec<u8>> {
        let wanted = capability.0 * 10 + capability.1;
        let known = self.architectures()?;
        // An older compiler makes PTX of what it knows, which the driver compiles on.
        let (option, is_cubin) = if known.contains(&wanted) {
            (format!("--gpu-architecture=sm_{wanted}"), true)
        } else {
            let best = known.into_iter().filter(|known| *known <= wanted).max();
            let best = best.unwrap_or(wanted);
            (format!("--gpu-architecture=compute_{best}"), false)
        };
        let source = text("nvrtcCreateProgram", &program.source)?;
        let name = text("nvrtcCreateProgram", &program.name)?;
        let mut created = ptr::null_mut();
        // SAFETY: writes one pointer; both texts end with a zero byte and outlive the program; there
        // are no headers.
        let code = unsafe {
            (self.create)(
                &mut created,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        check("nvrtcCreateProgram", code)?;
        let compiling = Compiling {
            api: self,
            program: created,
        };
        let options = std::iter::once(&option).chain(&program.options);
        let options = options.map(|option| text("nvrtcCompileProgram", option));
        let options = options.collect::<Result<Vec<_>>>()?;
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: as many texts as are said, each with a zero byte at its end.
        let code = unsafe {
            (self.compile)(
                compiling.program,
                pointers.len() as c_int,
                pointers.as_ptr(),
            )
        };
        if code != 0 {
            let log = compiling.bytes(self.log_size, self.log, "nvrtcGetProgramLog");
            let mut log = log.unwrap_or_default();
            log.truncate(LOG);
            let log = String::from_utf8_lossy(&log);
            return Err(DeviceError::Compile {
                program: program.name.clone(),
                code,
                name: name_of(code),
                log: log.trim_end_matches(['\0', '\n']).to_owned(),
            });
        }
        if is_cubin {
            compiling.bytes(self.cubin_size, self.cubin, "nvrtcGetCUBIN")
        } else {
            compiling.bytes(self.ptx_size, self.ptx, "nvrtcGetPTX")
        }
    }

    /// The architectures it makes code for, as in 90 for `sm_90`.
    fn architectures(&self) -> Result<Vec<u32>> {
        let mut count: c_int = 0;
        // SAFETY: writes one number.
        check("nvrtcGetNumSupportedArchs", unsafe {
            (self.archs_count)(&mut count)
        })?;
        // A library that says something odd has as much room as it says, within reason.
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0).min(1 << 16)];
        if archs.is_empty() {
            return Ok(Vec::new());
        }
        // SAFETY: writes as many numbers as it has just said.
        check("nvrtcGetSupportedArchs", unsafe {
            (self.archs)(archs.as_mut_ptr())
        })?;
        Ok(archs
            .into_iter()
            .filter_map(|arch| u32::try_from(arch).ok())
            .collect())
    }
}

impl Compiling<'_> {
    /// Something of the program whose size is asked for first.
    fn bytes(
        &self,
        size: unsafe extern "C" fn(Ptr, *mut usize) -> Code,
        get: unsafe extern "C" fn(Ptr, *mut c_char) -> Code,
        call: &'static str,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: writes one number.
        check(call, unsafe { size(self.program, &mut bytes) })?;
        if bytes > IMAGE {
            return Err(DeviceError::BadArgument {
                call,
                why: format!("{bytes} bytes are more than kernels can have"),
            });
        }
        let mut out = vec![0u8; bytes];
        // SAFETY: writes as many bytes as it has just said.
        check(call, unsafe { get(self.program, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }
}

fn text(call: &'static str, of: &str) -> Result<CString> {
    CString::new(of).map_err(|_| DeviceError::BadArgument {
        call,
        why: "a zero byte in a text".to_owned(),
    })
}

fn check(call: &'static str, code: Code) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(DeviceError::Broken {
            call,
            code,
            name: name_of(code),
        }),
    }
}

fn name_of(code: Code) -> &'static str {
    match code {
        1 => "NVRTC_ERROR_OUT_OF_MEMORY",
        2 => "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        3 => "NVRTC_ERROR_INVALID_INPUT",
        4 => "NVRTC_ERROR_INVALID_PROGRAM",
        5 => "NVRTC_ERROR_INVALID_OPTION",
        6 => "NVRTC_ERROR_COMPILATION",
        7 => "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        11 => "NVRTC_ERROR_INTERNAL_ERROR",
        _ => "an error that this build has no name for",
    }
}
