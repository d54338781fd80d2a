//! Real libraries: each carries bytes between two workers of a process.
//!
//! They are those of `KVROOM_TEST_UCX_LIBRARIES` (paths with colons between them), or the one that the linker finds.
#![allow(unsafe_code)] // Calls UCX.

use crate::common::skip;
use crate::{asked, in_child};
use kvroom_ucx_sys::raw::*;
use kvroom_ucx_sys::status::{Started, is_error, is_over};
use kvroom_ucx_sys::{LoadError, UCP_API, Ucx, zeroed};
use std::cell::{Cell, RefCell};
use std::env;
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::slice::from_raw_parts;
use std::time::{Duration, Instant};

/// A call of UCX.
macro_rules! ucx {
    ($ucx:expr, $function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the types are checked; handles are live until the end of the test, which destroys them in
        // UCX's order; what is pointed to outlives the call, and for requests the flush behind them.
        unsafe { ($ucx.call.$function)($($argument),*) }
    };
}

#[test]
fn every_library_given_carries_puts_gets_and_messages_between_two_workers() {
    let test = "carry::every_library_given_carries_puts_gets_and_messages_between_two_workers";
    if let Some(library) = asked() {
        carry(&Ucx::open(Some(Path::new(&library))).unwrap());
        return;
    }
    let Some(given) = env::var_os("KVROOM_TEST_UCX_LIBRARIES") else {
        // Not by the linker's search alone: the library that the child has is the one to be told of.
        match Ucx::open(None) {
            Err(LoadError::Absent { why, .. }) => skip(&format!("no UCX is opened and run: {why}")),
            found => told(&in_child(test, found.unwrap().library().as_os_str())),
        }
        return;
    };
    let libraries: Vec<_> = env::split_paths(&given).collect();
    assert!(!libraries.is_empty());
    for library in libraries {
        told(&in_child(test, library.as_os_str()));
    }
}

#[test]
fn a_library_that_is_opened_leaves_handlers_of_faults_as_they_were() {
    let test = "carry::a_library_that_is_opened_leaves_handlers_of_faults_as_they_were";
    if let Some(library) = asked() {
        let faults = [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE];
        let before = faults.map(handler_of);
        Ucx::open(Some(Path::new(&library))).unwrap();
        assert_eq!(faults.map(handler_of), before);
        return;
    }
    let given = env::var_os("KVROOM_TEST_UCX_LIBRARIES");
    let given = given.unwrap_or_else(|| kvroom_ucx_sys::LIBRARY.into());
    for library in env::split_paths(&given) {
        if let (Err(LoadError::Absent { why, .. }), 1) =
            (Ucx::open(Some(&library)), env::split_paths(&given).count())
        {
            return skip(&format!("no UCX is opened: {why}"));
        }
        in_child(test, library.as_os_str());
    }
}

fn handler_of(signal: c_int) -> usize {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is set; what is there is written to a structure of this frame.
    assert_eq!(0, unsafe {
        libc::sigaction(signal, null(), action.as_mut_ptr())
    });
    // SAFETY: written by the call.
    unsafe { action.assume_init() }.sa_sigaction
}

/// What a child found out, for who runs the tests with `--nocapture`.
fn told(said: &str) {
    let line = said.lines().find(|line| line.contains(" carried "));
    eprintln!("{}", line.unwrap());
}

/// A worker, and what came to it.
struct Worker<'a> {
    ucx: &'a Ucx,
    worker: ucp_worker_h,
    messages: RefCell<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Worker<'_> {
    fn new(ucx: &Ucx, context: ucp_context_h) -> Box<Worker<'_>> {
        let mut params: ucp_worker_params_t = zeroed();
        params.field_mask = u64::from(UCP_WORKER_PARAM_FIELD_THREAD_MODE);
        params.thread_mode = UCS_THREAD_MODE_SINGLE;
        let mut worker = null_mut();
        good(
            ucx,
            ucx!(ucx, ucp_worker_create(context, &params, &mut worker)),
        );
        let made = Box::new(Worker {
            ucx,
            worker,
            messages: RefCell::default(),
        });
        let mut params: ucp_am_handler_param_t = zeroed();
        params.field_mask = u64::from(
            UCP_AM_HANDLER_PARAM_FIELD_ID
                | UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                | UCP_AM_HANDLER_PARAM_FIELD_CB
                | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        );
        params.id = 7;
        params.flags = UCP_AM_FLAG_WHOLE_MSG;
        params.cb = Some(came);
        params.arg = (&raw const *made).cast_mut().cast();
        good(
            ucx,
            ucx!(ucx, ucp_worker_set_am_recv_handler(worker, &params)),
        );
        made
    }

    fn progress(&self) {
        while ucx!(self.ucx, ucp_worker_progress(self.worker)) > 0 {}
    }
}

/// A message came to a worker.
extern "C" fn came(
    worker: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: what was registered: a box that outlives the worker, looked at by this thread alone.
    let worker = unsafe { &*worker.cast::<Worker<'_>>() };
    // SAFETY: UCX's own, for the length of this call.
    let attributes = unsafe { (*param).recv_attr };
    // It is small, so it came with its bytes.
    assert_eq!(attributes & u64::from(UCP_AM_RECV_ATTR_FLAG_RNDV), 0);
    // SAFETY: the same.
    let header = unsafe { from_raw_parts(header.cast::<u8>(), header_length) };
    // SAFETY: the same.
    let data = unsafe { from_raw_parts(data.cast::<u8>(), length) };
    let message = (header.to_vec(), data.to_vec());
    worker.messages.borrow_mut().push(message);
    UCS_OK
}

/// A request is over.
extern "C" fn over(_request: *mut c_void, status: ucs_status_t, ended: *mut c_void) {
    // SAFETY: the cell of `finish`, which waits for this.
    let ended = unsafe { &*ended.cast::<Cell<Option<ucs_status_t>>>() };
    ended.set(Some(status));
}

fn good(ucx: &Ucx, status: ucs_status_t) {
    assert!(!is_error(status), "{}", ucx.describe(status));
}

/// Starts a call, and progresses both workers until it is over.
fn finish(
    what: &str,
    workers: [&Worker<'_>; 2],
    start: impl FnOnce(*const ucp_request_param_t) -> ucs_status_ptr_t,
) {
    let ucx = workers[0].ucx;
    let ended = Cell::new(None);
    let mut param: ucp_request_param_t = zeroed();
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb = ucp_request_param_t__bindgen_ty_1 { send: Some(over) };
    param.user_data = (&raw const ended).cast_mut().cast();
    match Started::of(start(&param)) {
        Started::Failed(error) => panic!("{what}: {}", ucx.describe(error)),
        // Then there is no callback.
        Started::Done => assert_eq!(ended.get(), None, "{what}"),
        Started::InProgress(request) => {
            until(what, workers, || ended.get().is_some());
            let status = ucx!(ucx, ucp_request_check_status(request.as_ptr()));
            assert!(is_over(status));
            assert_eq!(Some(status), ended.get(), "{what}");
            good(ucx, status);
            ucx!(ucx, ucp_request_free(request.as_ptr()));
        }
    }
}

/// Progresses both until something is so; an error after a minute, which no machine needs.
fn until(what: &str, workers: [&Worker<'_>; 2], mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        workers.iter().for_each(|worker| worker.progress());
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{what} never ends"
        );
    }
}

extern "C" fn failed(_: *mut c_void, _: ucp_ep_h, status: ucs_status_t) {
    eprintln!("the endpoint failed: {status}");
    std::process::abort();
}

fn context(ucx: &Ucx) -> ucp_context_h {
    let mut config = null_mut();
    good(ucx, ucx!(ucx, ucp_config_read(null(), null(), &mut config)));
    let set = |name: &CStr, value: &CStr| {
        let status = ucx!(
            ucx,
            ucp_config_modify(config, name.as_ptr(), value.as_ptr())
        );
        good(ucx, status);
    };
    set(c"TLS", c"tcp,posix");
    set(c"MM_ERROR_HANDLING", c"y");
    let mut params: ucp_params_t = zeroed();
    params.field_mask = u64::from(UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED);
    params.features = u64::from(UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP);
    params.mt_workers_shared = 1;
    let mut context = null_mut();
    let (major, minor) = UCP_API;
    let status = ucx!(
        ucx,
        ucp_init_version(major, minor, &params, config, &mut context)
    );
    ucx!(ucx, ucp_config_release(config));
    good(ucx, status);
    context
}

fn carry(ucx: &Ucx) {
    let context = context(ucx);
    let mut attributes: ucp_context_attr_t = zeroed();
    attributes.field_mask = u64::from(UCP_ATTR_FIELD_REQUEST_SIZE | UCP_ATTR_FIELD_MEMORY_TYPES);
    good(ucx, ucx!(ucx, ucp_context_query(context, &mut attributes)));
    assert!(attributes.request_size > 0);
    assert_ne!(attributes.memory_types & (1 << UCS_MEMORY_TYPE_HOST), 0);
    let (writer, target) = (Worker::new(ucx, context), Worker::new(ucx, context));
    let both = [&*writer, &*target];

    // It can sleep.
    let mut descriptor: c_int = -1;
    good(
        ucx,
        ucx!(ucx, ucp_worker_get_efd(target.worker, &mut descriptor)),
    );
    assert!(descriptor > 2);

    // Memory and address of the target, as they would travel.
    let mut memory = vec![0_u8; 3 << 20];
    let address = memory.as_mut_ptr();
    let mut params: ucp_mem_map_params_t = zeroed();
    params.field_mask = u64::from(UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH);
    params.address = address.cast();
    params.length = memory.len();
    let mut mapped = null_mut();
    good(ucx, ucx!(ucx, ucp_mem_map(context, &params, &mut mapped)));
    let mut attributes: ucp_mem_attr_t = zeroed();
    attributes.field_mask = u64::from(UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH);
    good(ucx, ucx!(ucx, ucp_mem_query(mapped, &mut attributes)));
    assert!(attributes.address <= address.cast() && attributes.length >= memory.len());
    let (mut packed, mut bytes) = (null_mut(), 0);
    good(
        ucx,
        ucx!(ucx, ucp_rkey_pack(context, mapped, &mut packed, &mut bytes)),
    );
    // SAFETY: what was packed just now.
    let key = unsafe { from_raw_parts(packed.cast::<u8>(), bytes) }.to_vec();
    ucx!(ucx, ucp_rkey_buffer_release(packed));
    let (mut at, mut bytes) = (null_mut(), 0);
    good(
        ucx,
        ucx!(
            ucx,
            ucp_worker_get_address(target.worker, &mut at, &mut bytes)
        ),
    );
    // SAFETY: the address that was given just now.
    let whereabouts = unsafe { from_raw_parts(at.cast::<u8>(), bytes) }.to_vec();
    ucx!(ucx, ucp_worker_release_address(target.worker, at));

    let mut params: ucp_ep_params_t = zeroed();
    params.field_mask = u64::from(
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
            | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
            | UCP_EP_PARAM_FIELD_ERR_HANDLER,
    );
    params.address = whereabouts.as_ptr().cast();
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = Some(failed);
    let mut endpoint = null_mut();
    good(
        ucx,
        ucx!(ucx, ucp_ep_create(writer.worker, &params, &mut endpoint)),
    );
    let mut remote = null_mut();
    let status = ucx!(
        ucx,
        ucp_ep_rkey_unpack(endpoint, key.as_ptr().cast(), &mut remote)
    );
    good(ucx, status);

    // Pages of three sizes, one behind the other, with a hole that stays as it was.
    let bytes: Vec<u8> = (0..2 << 20).map(|n: u32| (n % 251) as u8 + 1).collect();
    let pages = [(0, 64), (4096, 16 << 10), (1 << 20, 1 << 20)];
    for (offset, length) in pages {
        let page = bytes[offset..][..length].as_ptr().cast();
        let to = (address.addr() + offset) as u64;
        finish("put", both, |param| {
            ucx!(ucx, ucp_put_nbx(endpoint, page, length, to, remote, param))
        });
    }
    finish("flush", both, |param| {
        ucx!(ucx, ucp_ep_flush_nbx(endpoint, param))
    });
    let mut expected = vec![0_u8; memory.len()];
    for (offset, length) in pages {
        expected[offset..][..length].copy_from_slice(&bytes[offset..][..length]);
    }
    // SAFETY: mapped by UCX and alive; nobody writes it after the flush.
    let landed = unsafe { from_raw_parts(address, memory.len()) };
    assert!(landed == expected, "what was put is not what is there");

    let mut back = vec![0_u8; 64 << 10];
    let (into, from) = (
        back.as_mut_ptr().cast(),
        (address.addr() + (1 << 20)) as u64,
    );
    finish("get", both, |param| {
        ucx!(
            ucx,
            ucp_get_nbx(endpoint, into, 64 << 10, from, remote, param)
        )
    });
    finish("flush", both, |param| {
        ucx!(ucx, ucp_worker_flush_nbx(writer.worker, param))
    });
    assert!(back == bytes[1 << 20..][..64 << 10]);

    let (header, body) = (b"header".as_slice(), b"a small message".as_slice());
    finish("message", both, |param| {
        let (header, length) = (header.as_ptr().cast(), header.len());
        let (body, count) = (body.as_ptr().cast(), body.len());
        ucx!(
            ucx,
            ucp_am_send_nbx(endpoint, 7, header, length, body, count, param)
        )
    });
    until("a message", both, || !target.messages.borrow().is_empty());
    assert_eq!(
        *target.messages.borrow(),
        [(header.to_vec(), body.to_vec())]
    );

    // Nothing is left to do: it can be armed, and a signal wakes it.
    until("arming", both, || {
        ucx!(ucx, ucp_worker_arm(target.worker)) == UCS_OK
    });
    assert!(!readable(descriptor));
    good(ucx, ucx!(ucx, ucp_worker_signal(target.worker)));
    assert!(readable(descriptor));

    finish("close", both, |param| {
        ucx!(ucx, ucp_ep_close_nbx(endpoint, param))
    });
    ucx!(ucx, ucp_rkey_destroy(remote));
    good(ucx, ucx!(ucx, ucp_mem_unmap(context, mapped)));
    ucx!(ucx, ucp_worker_destroy(writer.worker));
    ucx!(ucx, ucp_worker_destroy(target.worker));
    ucx!(ucx, ucp_cleanup(context));
    let (version, library) = (ucx.version(), ucx.library().display());
    let known = if version.is_tested() {
        ""
    } else {
        ", later than NEWEST_TESTED"
    };
    let bytes = memory.len();
    println!("UCX {version}{known} carried {bytes} bytes: {library}");
    assert_eq!(ucx.describe(UCS_OK), "Success");
}

/// Whether there is something to read.
fn readable(descriptor: c_int) -> bool {
    let mut asked = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure of this frame.
    unsafe { libc::poll(&mut asked, 1, 0) == 1 }
}
