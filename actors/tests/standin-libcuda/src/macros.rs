//! How a function of the driver is written here.

/// Declares exported functions. Pointers that are given must be as CUDA's documentation says.
macro_rules! driver {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        /// # Safety
        ///
        /// As CUDA's documentation says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
            $crate::code(|| $body)
        }
    )*};
}

/// Writes a result of a function of the driver.
macro_rules! give {
    ($to:expr, $value:expr) => {{
        let value = $value;
        // SAFETY: passed on to the caller of the function.
        unsafe { $crate::put($to, value) }
    }};
}
