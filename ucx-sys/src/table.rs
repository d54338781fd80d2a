//! Declarations of functions as a table of pointers, which is filled from an open library.
#![allow(unsafe_code)] // Takes functions from a library.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// Finds a symbol of the open library, or nothing.
///
/// # Safety
///
/// What `find` gives for a name of UCX's API is that function, and stays so for ever.
pub(crate) unsafe trait Symbols {
    /// Where the symbol of this name is.
    fn find(&self, name: &CStr) -> Option<NonNull<c_void>>;
}

/// Makes `Functions` of a block of declarations as they would stand in `unsafe extern "C"`.
macro_rules! functions {
    ($( pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)?; )*) => {
        /// Every function of UCX that is used, each found by its name.
        ///
        /// Calling one is unsafe: UCX's documentation says what it asks of its caller.
        #[derive(Clone, Copy)]
        pub struct Functions {
            $( pub $name: unsafe extern "C" fn($($arg: $type),*) $(-> $result)?, )*
        }

        impl Functions {
            /// All of them, or the name of the first that is not there.
            pub(crate) fn of(symbols: &dyn crate::table::Symbols) -> Result<Self, &'static str> {
                Ok(Functions {
                    $( $name: {
                        let name = crate::table::terminated(concat!(stringify!($name), "\0"));
                        let found = symbols.find(name).ok_or(stringify!($name))?;
                        // SAFETY: by the promise of `Symbols` it is this function, and the type is the
                        // one that UCX's headers declare. A pointer to a function is as large as others.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($arg: $type),*) $(-> $result)?,
                            >(found.as_ptr())
                        }
                    }, )*
                })
            }
        }
    };
}
pub(crate) use functions;

/// A text that ends with its only zero byte, as names of the table do.
pub(crate) const fn terminated(text: &str) -> &CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        // An empty name is of no symbol.
        Err(_) => c"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Functions;
    use std::cell::RefCell;

    /// Has every symbol but one, at an address that nobody calls.
    struct AllBut(&'static str, RefCell<Vec<String>>);

    // SAFETY: not kept: the table that comes of it is dropped without a call.
    unsafe impl Symbols for AllBut {
        fn find(&self, name: &CStr) -> Option<NonNull<c_void>> {
            let name = name.to_str().unwrap();
            self.1.borrow_mut().push(name.to_owned());
            (name != self.0).then_some(NonNull::dangling())
        }
    }

    #[test]
    fn every_function_is_looked_for_and_one_that_is_not_there_is_named() {
        let all = AllBut("", RefCell::default());
        assert!(Functions::of(&all).is_ok());
        let names = all.1.into_inner();
        assert_eq!(names.len(), size_of::<Functions>() / size_of::<usize>());
        for name in names {
            assert!(
                name.starts_with("ucp_") || name.starts_with("ucs_"),
                "{name}"
            );
            let name: &'static str = name.leak();
            let missing = Functions::of(&AllBut(name, RefCell::default()));
            assert_eq!(missing.err(), Some(name));
        }
    }
}
