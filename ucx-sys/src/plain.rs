//! Structures of zeros, which is how each of UCX's begins: its mask says what else is valid.
#![allow(unsafe_code)] // Zero bytes as a value.

use crate::raw;
use std::mem::MaybeUninit;

/// A structure of C of which all zero bytes are a value.
///
/// # Safety
///
/// They are: integers, raw pointers, and functions that may be null.
pub unsafe trait Plain {}

/// A structure of zeros: nothing in it is valid yet.
pub fn zeroed<T: Plain>() -> T {
    // SAFETY: that is what `Plain` says.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

macro_rules! plain {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: integers, raw pointers, callbacks in an `Option`, and arrays, unions and structures
            // of these.
            unsafe impl Plain for raw::$name {}
        )*
    };
}

plain!(
    ucs_sock_addr,
    ucp_mem_attr,
    ucp_err_handler,
    ucp_ep_params,
    ucs_cpu_set_t,
    ucp_params,
    ucp_context_attr,
    ucp_worker_attr,
    ucp_worker_params,
    ucp_mem_map_params,
    ucp_request_param_t,
    ucp_am_handler_param,
    ucp_ep_attr,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_of_zeros_has_no_valid_field_and_no_callback() {
        let params: raw::ucp_ep_params_t = zeroed();
        assert_eq!(params.field_mask, 0);
        assert!(params.address.is_null() && params.err_handler.cb.is_none());
        let request: raw::ucp_request_param_t = zeroed();
        assert_eq!((request.op_attr_mask, request.flags), (0, 0));
    }
}
