//! Opens the library, and keeps nothing but what it is: its functions, its version, where it was found.
//!
//! A library is never closed again, not even one that turned out to be another: its initialisers have run,
//! and what UCX's leave behind (threads, handlers at exit and of signals, patched functions of the C
//! library) points into it.
#![allow(unsafe_code)] // Opens a library and asks it who it is.

use crate::error::LoadError;
use crate::log::{Ear, Push};
use crate::raw::{Functions, ucs_status_t};
use crate::signals::Kept;
use crate::table::Symbols;
use crate::version::{LEAST, Version};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::{MaybeUninit, transmute};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// What is looked for where the linker looks, unless a path is given.
pub const LIBRARY: &str = "libucp.so.0";

/// An open UCX. It stays open for ever, whatever becomes of this.
pub struct Ucx {
    /// Its functions. Which of them may be called when, and by whom, UCX's documentation says.
    pub call: Functions,
    version: Version,
    library: PathBuf,
    push: Option<Push>,
}

impl Ucx {
    /// Opens UCX: the library of this path, or [`LIBRARY`] where the linker looks (`LD_LIBRARY_PATH`, its
    /// cache, the usual directories). A name without a slash is looked for by the linker, too, and one that
    /// the process has loaded before is taken again.
    ///
    /// The file's code runs in this process, with all its rights, from the moment it is opened. UCX reads
    /// its own settings then (`UCX_…` in the environment), and at once, before anything is initialised:
    ///
    /// - patches `munmap` and its like in the C library, to hear of memory that goes (not with
    ///   `UCX_MEM_EVENTS=n`);
    /// - up to 1.19, takes SIGSEGV, SIGBUS, SIGILL and SIGFPE over from whoever had them. These are set again to
    ///   what they were: UCX's own report of a crash is not to be had here. Whoever sets one of them meanwhile, in
    ///   another thread, finds it as it was before.
    ///
    /// # Errors
    ///
    /// Those of [`LoadError`], each of which says what to do. A version that is newer than the tests know is
    /// none: see [`Version::is_tested`].
    pub fn open(path: Option<&Path>) -> Result<Arc<Ucx>, LoadError> {
        let asked = path.unwrap_or(Path::new(LIBRARY));
        let open = Open::new(asked)?;
        let Some(get_version) = open.find(c"ucp_get_version") else {
            return Err(LoadError::NotUcx {
                library: asked.to_owned(),
            });
        };
        let library = file_of(get_version).unwrap_or_else(|| asked.to_owned());
        let version = version(get_version);
        if version.major != LEAST.major && version > LEAST {
            let found = version;
            return Err(LoadError::OtherMajor { library, found });
        }
        if version < LEAST {
            return Err(LoadError::TooOld {
                library,
                found: version,
                least: LEAST,
            });
        }
        let call = match Functions::of(&open) {
            Ok(call) => call,
            Err(symbol) => {
                return Err(LoadError::MissingSymbol {
                    library,
                    symbol,
                    version,
                });
            }
        };
        let ucs = open.find(c"ucs_status_string").and_then(file_of);
        if let Some(ucs) = ucs.filter(|ucs| folder(ucs) != folder(&library)) {
            return Err(LoadError::Mixed { ucp: library, ucs });
        }
        // SAFETY: the library is UCX of a version that is known.
        let push = unsafe { Push::of(open.find(c"ucs_log_push_handler")) };
        Ok(Arc::new(Ucx {
            push,
            call,
            version,
            library,
        }))
    }

    /// What the library says it is. Both nodes of a pair must have the same, major and minor.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The file that was loaded, as the linker names it.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// What UCX says from now on the ear is told; else it goes to standard output, in the middle of what the
    /// program writes there. The first ear of a process counts, for every library. False if UCX cannot be
    /// heard here: then it goes on as by itself, and `UCX_LOG_FILE` in its environment says where to.
    pub fn listen(&self, ear: Ear) -> bool {
        let push = self.push.inspect(|push| push.listen(ear));
        push.is_some()
    }

    /// What UCX says of a status, for people.
    pub fn describe(&self, status: ucs_status_t) -> String {
        // SAFETY: it takes any number.
        let text = unsafe { (self.call.ucs_status_string)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: a text that ends with a zero byte: a constant, or for a number that UCX does not know a
        // buffer of its own that it writes anew, which at worst is torn, and copied here at once.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }
}

impl fmt::Debug for Ucx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ucx")
            .field("version", &self.version)
            .field("library", &self.library)
            .finish_non_exhaustive()
    }
}

/// A library that is open, and stays so.
struct Open(NonNull<c_void>);

impl Open {
    fn new(path: &Path) -> Result<Self, LoadError> {
        let absent = |why: String| LoadError::Absent {
            tried: path.to_owned(),
            why,
        };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| absent("the path has a zero byte".into()))?;
        // Every symbol is bound now, so that none is found missing in the middle of a transfer.
        let handle = {
            let _kept = Kept::now();
            // SAFETY: a text that ends with a zero byte. The library's initialisers run; whoever named it
            // trusts it, as `Ucx::open` says.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
        };
        NonNull::new(handle)
            .map(Open)
            .ok_or_else(|| absent(linker_said()))
    }
}

// SAFETY: the library is never closed, and `open` returns a table of it only if it says that it is UCX of a
// version whose API is the declared one; until then `ucp_get_version` alone is called.
unsafe impl Symbols for Open {
    fn find(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: an open library and a text that ends with a zero byte.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// Why the linker's last call on this thread failed.
fn linker_said() -> String {
    // SAFETY: no arguments; the text is this thread's until its next call of the linker.
    let said: *mut c_char = unsafe { libc::dlerror() };
    if said.is_null() {
        return "the linker does not say why".into();
    }
    // SAFETY: not null, ends with a zero byte, and is copied before the next call.
    let said = unsafe { CStr::from_ptr(said) };
    said.to_string_lossy().into_owned()
}

/// What `ucp_get_version`, found at this address, says.
fn version(at: NonNull<c_void>) -> Version {
    type GetVersion = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
    // SAFETY: it has had this type in every version of UCX, and no other library has the name.
    let get_version = unsafe { transmute::<*mut c_void, GetVersion>(at.as_ptr()) };
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: it writes three numbers, all of this frame.
    unsafe { get_version(&mut major, &mut minor, &mut release) };
    Version::new(major, minor, release)
}

/// The file that has this address, as the linker names it.
fn file_of(at: NonNull<c_void>) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; what is written is a structure of this frame.
    let known: c_int = unsafe { libc::dladdr(at.as_ptr(), info.as_mut_ptr()) };
    // SAFETY: raw pointers only, zero before they were written.
    let info = unsafe { info.assume_init() };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the linker's own text, which ends with a zero byte and stays as long as the library is loaded.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(OsStr::from_bytes(file.to_bytes()).into())
}

/// The real folder of a library.
fn folder(library: &Path) -> Option<PathBuf> {
    let real = std::fs::canonicalize(library).unwrap_or_else(|_| library.to_owned());
    real.parent().map(Path::to_owned)
}
