//! NVRTC's functions. What they make of a source is a list of its kernels' names.

use crate::state::{lock, setting, state};
use crate::{code, put};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};

const INVALID_INPUT: u32 = 3;
const INVALID_PROGRAM: u32 = 4;
const COMPILATION: u32 = 6;

#[derive(Clone, Default)]
struct Program {
    source: String,
    options: String,
    image: Vec<u8>,
    log: Vec<u8>,
}

fn programs() -> &'static Mutex<HashMap<u64, Program>> {
    static PROGRAMS: OnceLock<Mutex<HashMap<u64, Program>>> = OnceLock::new();
    PROGRAMS.get_or_init(Mutex::default)
}

fn program(handle: *mut c_void) -> Result<Program, u32> {
    let programs = lock(programs());
    programs
        .get(&(handle as u64))
        .cloned()
        .ok_or(INVALID_PROGRAM)
}

/// # Safety
///
/// Both may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> u32 {
    code(|| {
        // SAFETY: passed on to the caller.
        unsafe { put(major, 12) }?;
        // SAFETY: passed on to the caller.
        unsafe { put(minor, 8) }
    })
}

/// # Safety
///
/// `count` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> u32 {
    // SAFETY: passed on to the caller.
    code(|| unsafe { put(count, 1) })
}

/// # Safety
///
/// `archs` has room for as many numbers as were told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetSupportedArchs(archs: *mut c_int) -> u32 {
    let arch = setting("STANDIN_ARCH").unwrap_or(90);
    // SAFETY: passed on to the caller.
    code(|| unsafe { put(archs, arch as c_int) })
}

/// # Safety
///
/// `handle` may be written; `source` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    handle: *mut *mut c_void,
    source: *const c_char,
    _name: *const c_char,
    headers: c_int,
    _sources: *const *const c_char,
    _names: *const *const c_char,
) -> u32 {
    code(|| {
        if source.is_null() || headers != 0 {
            return Err(INVALID_INPUT);
        }
        // SAFETY: not null, and a text, says the caller.
        let source = unsafe { CStr::from_ptr(source) };
        let number = state().number();
        let program = Program {
            source: source.to_string_lossy().into_owned(),
            ..Program::default()
        };
        lock(programs()).insert(number, program);
        // SAFETY: passed on to the caller.
        unsafe { put(handle, number as *mut c_void) }
    })
}

/// # Safety
///
/// `handle` points to a program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(handle: *mut *mut c_void) -> u32 {
    code(|| {
        if handle.is_null() {
            return Err(INVALID_PROGRAM);
        }
        // SAFETY: not null, and the caller's.
        let number = unsafe { handle.read() } as u64;
        let gone = lock(programs()).remove(&number);
        gone.map(|_| ()).ok_or(INVALID_PROGRAM)
    })
}

/// # Safety
///
/// `options` are as many texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    handle: *mut c_void,
    count: c_int,
    options: *const *const c_char,
) -> u32 {
    code(|| {
        let mut program = program(handle)?;
        for nth in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: within the array, says the caller.
            let option = unsafe { options.add(nth) };
            // SAFETY: the same.
            let option = unsafe { option.read() };
            // SAFETY: a text, says the caller.
            let option = unsafe { CStr::from_ptr(option) };
            program.options += &option.to_string_lossy();
            program.options.push(' ');
        }
        state().compiles.fetch_add(1, Ordering::SeqCst);
        let failed = program.source.contains("#error");
        if failed {
            program.log = b"test(1): error: #error directive\n".to_vec();
        }
        let mut image = format!("// {}\n", program.options);
        // kvroom's own kernels begin with a macro.
        let heads = ["__global__ void ", "\nKVROOM_KERNEL "];
        let parts = heads.map(|head| program.source.split(head).skip(1));
        for part in parts.into_iter().flatten() {
            let name = part.split('(').next().unwrap_or_default();
            image += &format!(".entry {name}(\n");
        }
        program.image = image.into_bytes();
        lock(programs()).insert(handle as u64, program);
        if failed { Err(COMPILATION) } else { Ok(()) }
    })
}

macro_rules! told {
    ($($size:ident, $get:ident, $of:ident;)*) => {$(
        /// # Safety
        ///
        /// `size` may be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $size(handle: *mut c_void, size: *mut usize) -> u32 {
            // With a zero byte at the end.
            // SAFETY: passed on to the caller.
            code(|| unsafe { put(size, program(handle)?.$of.len() + 1) })
        }

        /// # Safety
        ///
        /// `to` has room for as many bytes as were told.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(handle: *mut c_void, to: *mut c_char) -> u32 {
            code(|| {
                let mut bytes = program(handle)?.$of.clone();
                // SAFETY: passed on to the caller; this has one byte, or more.
                unsafe { put(to, 0) }?;
                bytes.push(0);
                // SAFETY: as many bytes as were told.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
                Ok(())
            })
        }
    )*};
}

told! {
    nvrtcGetPTXSize, nvrtcGetPTX, image;
    nvrtcGetCUBINSize, nvrtcGetCUBIN, image;
    nvrtcGetProgramLogSize, nvrtcGetProgramLog, log;
}
