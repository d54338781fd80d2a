//! A worker that serves one peer, its endpoints, and what was posted through them.
//!
//! ```text
//!   Worker ─ endpoints ─ put, put, put, flush ─▶ Flight ◀── callbacks, within `progress` ── UCX
//!                                                  └─ over when all have ended, or the worker is destroyed
//! ```
//!
//! Rules:
//! - What a callback changes are cells that it reaches by a pointer of its own. The worker keeps each
//!   [`Flight`] until it is over, whoever else drops it.
//! - The three ways in which a call can end are told apart in [`Flight::posted`], and nowhere else.
//! - A callback does not call back into this thread's code, and cannot unwind.
#![allow(unsafe_code)] // Calls UCX.

use super::context::{Context, done};
use super::error::UcxError;
use super::messages::Inlet;
use crate::peer::hello::{FarKey, MAX_WORKER};
use kvroom_ucx_sys::raw::{
    UCP_AM_FLAG_WHOLE_MSG, UCP_AM_HANDLER_PARAM_FIELD_ARG, UCP_AM_HANDLER_PARAM_FIELD_CB,
    UCP_AM_HANDLER_PARAM_FIELD_FLAGS, UCP_AM_HANDLER_PARAM_FIELD_ID, UCP_AM_RECV_ATTR_FLAG_RNDV,
    UCP_AM_SEND_FLAG_EAGER, UCP_EP_CLOSE_FLAG_FORCE, UCP_EP_PARAM_FIELD_ERR_HANDLER,
    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
    UCP_ERR_HANDLING_MODE_PEER, UCP_OP_ATTR_FIELD_CALLBACK, UCP_OP_ATTR_FIELD_FLAGS,
    UCP_OP_ATTR_FIELD_MEMORY_TYPE, UCP_OP_ATTR_FIELD_USER_DATA, UCP_WORKER_PARAM_FIELD_THREAD_MODE,
    UCS_ERR_BUSY, UCS_ERR_NOT_CONNECTED, UCS_MEMORY_TYPE_HOST, UCS_OK, UCS_THREAD_MODE_SINGLE,
    ucp_address_t, ucp_am_handler_param_t, ucp_am_recv_param_t, ucp_ep_h, ucp_ep_params_t,
    ucp_request_param_t, ucp_request_param_t__bindgen_ty_1, ucp_rkey_h, ucp_worker_h,
    ucp_worker_params_t, ucs_status_ptr_t, ucs_status_t,
};
use kvroom_ucx_sys::status::Started;
use kvroom_ucx_sys::{Ucx as Library, status, zeroed};
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null, null_mut};
use std::rc::Rc;

/// See the module.
pub(super) struct Worker {
    context: Rc<Context>,
    raw: ucp_worker_h,
    event: RawFd,
    address: Vec<u8>,
    endpoints: Vec<Endpoint>,
    keys: Vec<Known>,
    flights: RefCell<Vec<Rc<Flight>>>,
    /// What an endpoint failed with first; its handler has a pointer to it.
    failed: Rc<Cell<ucs_status_t>>,
    /// What comes goes there; the handler of messages has a pointer to it.
    inlet: Rc<Inlet>,
}

struct Endpoint {
    /// Null once it is being closed.
    raw: ucp_ep_h,
    closing: Option<Rc<Flight>>,
}

/// A key as it came, and what it is for each endpoint.
struct Known {
    key: Vec<u8>,
    remote: Vec<ucp_rkey_h>,
}

/// A key that was unpacked, of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyNo(usize);

/// Calls that were posted together, and whether they have ended.
pub(super) struct Flight {
    out: Cell<u32>,
    /// Nothing is posted with it any more.
    last: Cell<bool>,
    error: Cell<ucs_status_t>,
    /// What UCX reads.
    bytes: RefCell<Vec<u8>>,
    free: unsafe extern "C" fn(*mut c_void),
}

/// By which number messages come and go.
const MESSAGE: c_uint = 7;

/// Most keys of one peer.
pub(super) const MOST_KEYS: usize = 4096;

/// Zeroes behind what a peer sent, since UCX is not told where it ends.
const MARGIN: usize = 512;

impl Worker {
    /// A worker, with an address of its own.
    ///
    /// # Errors
    /// [`UcxError::Call`], mostly for want of descriptors or memory.
    pub(super) fn new(context: &Rc<Context>, inlet: &Rc<Inlet>) -> Result<Worker, UcxError> {
        let (library, call) = (context.library(), &context.library().call);
        let mut params: ucp_worker_params_t = zeroed();
        params.field_mask = u64::from(UCP_WORKER_PARAM_FIELD_THREAD_MODE);
        params.thread_mode = UCS_THREAD_MODE_SINGLE;
        let mut raw = null_mut();
        // SAFETY: a context, parameters whose mask says what is valid, and a handle in this frame.
        let status = unsafe { (call.ucp_worker_create)(context.raw(), &params, &mut raw) };
        done(
            library,
            "ucp_worker_create",
            status,
            "; look at `ulimit -n`",
        )?;
        // Destroyed from here on, if it fails.
        let mut worker = Worker {
            context: Rc::clone(context),
            raw,
            event: -1,
            address: Vec::new(),
            endpoints: Vec::new(),
            keys: Vec::new(),
            flights: RefCell::default(),
            failed: Rc::new(Cell::new(UCS_OK)),
            inlet: Rc::clone(inlet),
        };
        worker.listen()?;
        let mut fd: c_int = -1;
        // SAFETY: a worker of a context with wake-up, and a number in this frame.
        let status = unsafe { (call.ucp_worker_get_efd)(raw, &mut fd) };
        done(library, "ucp_worker_get_efd", status, "")?;
        worker.event = fd;
        let (mut at, mut length) = (null_mut::<ucp_address_t>(), 0);
        // SAFETY: a worker; address and length are written into this frame.
        let status = unsafe { (call.ucp_worker_get_address)(raw, &mut at, &mut length) };
        done(library, "ucp_worker_get_address", status, "")?;
        // SAFETY: what UCX gave just now, of this length.
        let address = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), length) };
        worker.address = address.to_vec();
        // SAFETY: given above, copied, and not used any more.
        unsafe { (call.ucp_worker_release_address)(raw, at) };
        if worker.address.len() > MAX_WORKER {
            return Err(UcxError::Limit {
                what: "the address of a worker is longer than peers take; name fewer in ucx.devices",
                limit: "MAX_WORKER",
                value: MAX_WORKER,
            });
        }
        Ok(worker)
    }

    /// Lets messages come.
    fn listen(&self) -> Result<(), UcxError> {
        let mut params: ucp_am_handler_param_t = zeroed();
        let fields = UCP_AM_HANDLER_PARAM_FIELD_ID
            | UCP_AM_HANDLER_PARAM_FIELD_FLAGS
            | UCP_AM_HANDLER_PARAM_FIELD_CB
            | UCP_AM_HANDLER_PARAM_FIELD_ARG;
        params.field_mask = u64::from(fields);
        params.id = MESSAGE;
        params.flags = UCP_AM_FLAG_WHOLE_MSG;
        params.cb = Some(came);
        params.arg = Rc::as_ptr(&self.inlet).cast_mut().cast();
        // SAFETY: a worker and parameters whose mask says what is valid. The inlet is dropped after the
        // worker is destroyed, so after the last call of the handler.
        let status = unsafe { (self.call().ucp_worker_set_am_recv_handler)(self.raw, &params) };
        done(self.library(), "ucp_worker_set_am_recv_handler", status, "")
    }

    /// Where a peer finds it.
    pub(super) fn address(&self) -> &[u8] {
        &self.address
    }

    /// Can be read when there is something to do, once it is armed.
    pub(super) fn event(&self) -> RawFd {
        self.event
    }

    /// Lets UCX work; whether it did anything.
    pub(super) fn progress(&self) -> bool {
        let mut worked = false;
        for _ in 0..TURNS {
            // SAFETY: a worker, on its thread, and not from within a callback.
            let did = unsafe { (self.call().ucp_worker_progress)(self.raw) };
            if did == 0 {
                break;
            }
            worked = true;
        }
        self.flights.borrow_mut().retain(|flight| !flight.is_over());
        worked
    }

    /// Makes its descriptor tell of what comes next. False if something has come already.
    ///
    /// # Errors
    /// [`UcxError::Call`].
    pub(super) fn arm(&self) -> Result<bool, UcxError> {
        // SAFETY: a worker of a context with wake-up.
        match unsafe { (self.call().ucp_worker_arm)(self.raw) } {
            UCS_ERR_BUSY => Ok(false),
            status => done(self.library(), "ucp_worker_arm", status, "").map(|()| true),
        }
    }

    /// A further endpoint at the peer's worker. Whether it is there only a flush says.
    ///
    /// # Errors
    /// [`UcxError::Call`]: the two have no transport in common, or the address is none.
    pub(super) fn connect(&mut self, address: &[u8]) -> Result<usize, UcxError> {
        let call = "ucp_ep_create";
        if address.len() < 8 {
            return Err(refused(call, "the peer's address is too short to be one"));
        }
        let address = with_margin(address);
        let mut params: ucp_ep_params_t = zeroed();
        let fields = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
            | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
            | UCP_EP_PARAM_FIELD_ERR_HANDLER;
        params.field_mask = u64::from(fields);
        params.address = address.as_ptr().cast();
        params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
        params.err_handler.cb = Some(failed);
        params.err_handler.arg = Rc::as_ptr(&self.failed).cast_mut().cast();
        let mut raw = null_mut();
        // SAFETY: a worker; parameters whose mask says what is valid. The cell is dropped after the
        // worker is destroyed, so after the last call of the handler.
        let status = unsafe { (self.call().ucp_ep_create)(self.raw, &params, &mut raw) };
        let advice =
            "; both sides need a transport in common that UCX can watch: look at ucx.transports";
        done(self.library(), call, status, advice)?;
        let closing = None;
        self.endpoints.push(Endpoint { raw, closing });
        Ok(self.endpoints.len() - 1)
    }

    /// Takes a key of the peer's, for each of its endpoints. The same key is taken once.
    ///
    /// # Errors
    /// It is none, or there are too many.
    pub(super) fn unpack(&mut self, key: &FarKey) -> Result<KeyNo, UcxError> {
        if let Some(at) = self.keys.iter().position(|known| known.key == key.key) {
            return Ok(KeyNo(at));
        }
        if self.keys.len() >= MOST_KEYS {
            return Err(UcxError::Limit {
                what: "a peer has offered more pools",
                limit: "MOST_KEYS",
                value: MOST_KEYS,
            });
        }
        let call = "ucp_ep_rkey_unpack";
        if !is_key(&key.key) {
            return Err(refused(call, "what the peer sent is no remote key"));
        }
        let padded = with_margin(&key.key);
        let key = key.key.clone();
        let remote = Vec::new();
        // Here from the beginning, so that what was unpacked is let go of with the worker in any case.
        self.keys.push(Known { key, remote });
        let at = self.keys.len() - 1;
        for endpoint in &self.endpoints {
            let mut raw = null_mut();
            if endpoint.raw.is_null() {
                return Err(refused(call, "the endpoint is closed"));
            }
            // SAFETY: an endpoint that is open, a key whose parts are within it, and a handle in this
            // frame.
            let status = unsafe {
                (self.call().ucp_ep_rkey_unpack)(endpoint.raw, padded.as_ptr().cast(), &mut raw)
            };
            done(self.context.library(), call, status, "")?;
            self.keys[at].remote.push(raw);
        }
        Ok(KeyNo(at))
    }

    /// Something to post with. It is over once [`Worker::flush`] was called with it and all has ended.
    pub(super) fn flight(&self) -> Rc<Flight> {
        self.flight_with(Vec::new())
    }

    fn flight_with(&self, bytes: Vec<u8>) -> Rc<Flight> {
        let flight = Rc::new(Flight {
            out: Cell::new(0),
            last: Cell::new(false),
            error: Cell::new(UCS_OK),
            bytes: RefCell::new(bytes),
            free: self.call().ucp_request_free,
        });
        self.flights.borrow_mut().push(Rc::clone(&flight));
        flight
    }

    /// Writes bytes of this process into the peer's memory.
    ///
    /// # Errors
    /// UCX refused it; nothing was posted.
    ///
    /// # Safety
    /// The bytes stay there, to be read by this process and by devices, until the flight is over or the
    /// worker was destroyed.
    pub(super) unsafe fn put(
        &self,
        endpoint: usize,
        (from, bytes): (NonNull<u8>, u64),
        (to, key): (u64, KeyNo),
        flight: &Rc<Flight>,
    ) -> Result<(), UcxError> {
        let raw = self.endpoints.get(endpoint).map_or(null_mut(), |e| e.raw);
        let key = self.keys.get(key.0).and_then(|k| k.remote.get(endpoint));
        let (Some(key), false) = (key, raw.is_null()) else {
            return Err(refused("ucp_put_nbx", "the endpoint is closed"));
        };
        let mut param = flight.begin();
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        param.memory_type = UCS_MEMORY_TYPE_HOST;
        let (from, bytes) = (from.as_ptr().cast(), bytes as usize);
        // SAFETY: an open endpoint and a key that it unpacked; the bytes are the caller's promise, and the
        // worker keeps the flight until its callback was called.
        let put = unsafe { (self.call().ucp_put_nbx)(raw, from, bytes, to, *key, &param) };
        flight.posted(self.library(), "ucp_put_nbx", put)
    }

    /// Writes a word of zeroes into the peer's memory.
    ///
    /// # Errors
    /// As [`Worker::put`].
    pub(super) fn write_word(
        &self,
        endpoint: usize,
        to: (u64, KeyNo),
        flight: &Rc<Flight>,
    ) -> Result<(), UcxError> {
        static WORD: u64 = 0;
        // SAFETY: it stays there for ever.
        unsafe { self.put(endpoint, (NonNull::from(&WORD).cast(), 8), to, flight) }
    }

    /// Sends bytes in one message. The flight is over when UCX has sent them, or cannot, which is then in it.
    /// Nothing of them is UCX's own header of a message, which it would copy.
    pub(super) fn send(&self, endpoint: usize, bytes: Vec<u8>) -> Rc<Flight> {
        let flight = self.flight_with(bytes);
        let raw = self.endpoints.get(endpoint).map_or(null_mut(), |e| e.raw);
        flight.last.set(true);
        if raw.is_null() {
            flight.fail(UCS_ERR_NOT_CONNECTED);
            return flight;
        }
        let mut param = flight.begin();
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        // In one go: its receiver has no second place for it.
        param.flags = UCP_AM_SEND_FLAG_EAGER;
        param.memory_type = UCS_MEMORY_TYPE_HOST;
        let (body, count) = {
            let bytes = flight.bytes.borrow();
            (bytes.as_ptr(), bytes.len())
        };
        // SAFETY: an open endpoint; the bytes are in the flight, which the worker keeps, and leaves alone, until
        // its callback was called.
        let send = unsafe {
            (self.call().ucp_am_send_nbx)(raw, MESSAGE, null(), 0, body.cast(), count, &param)
        };
        if let Err(error) = flight.posted(self.library(), "ucp_am_send_nbx", send) {
            tracing::debug!(%error, "a message was refused");
        }
        flight
    }

    /// Ends a flight: it is over when all that was put through this endpoint before has landed. That it
    /// cannot be known is in the flight.
    pub(super) fn flush(&self, endpoint: usize, flight: &Rc<Flight>) {
        let raw = self.endpoints.get(endpoint).map_or(null_mut(), |e| e.raw);
        flight.last.set(true);
        if raw.is_null() {
            return flight.fail(UCS_ERR_NOT_CONNECTED);
        }
        let param = flight.begin();
        // SAFETY: an open endpoint; the worker keeps the flight until its callback was called.
        let flush = unsafe { (self.call().ucp_ep_flush_nbx)(raw, &param) };
        if let Err(error) = flight.posted(self.library(), "ucp_ep_flush_nbx", flush) {
            tracing::debug!(%error, "a flush was refused");
        }
    }

    /// Begins to close its endpoints by force: what was posted ends, and no more is read.
    pub(super) fn close(&mut self) {
        for at in 0..self.endpoints.len() {
            let flight = self.flight();
            let Some(endpoint) = self.endpoints.get_mut(at) else {
                continue;
            };
            let raw = std::mem::replace(&mut endpoint.raw, null_mut());
            endpoint.closing.get_or_insert_with(|| Rc::clone(&flight));
            if raw.is_null() {
                flight.last.set(true);
                continue;
            }
            let mut param = flight.begin();
            param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
            param.flags = UCP_EP_CLOSE_FLAG_FORCE;
            // SAFETY: an endpoint that was open, and is not used any more.
            let close = unsafe { (self.call().ucp_ep_close_nbx)(raw, &param) };
            if let Err(error) = flight.posted(self.library(), "ucp_ep_close_nbx", close) {
                tracing::warn!(%error, "an endpoint was not closed in order");
            }
            flight.last.set(true);
        }
    }

    /// Whether closing its endpoints has ended, and well. Then no source is read any more, also not for calls
    /// of which UCX never says that they ended, as happens to flushes after the peer has failed.
    pub(super) fn is_out(&self) -> bool {
        let well = |flight: &Rc<Flight>| flight.is_over() && !flight.is_bad();
        let closed = |e: &Endpoint| e.closing.as_ref().is_some_and(well);
        self.endpoints.iter().all(closed)
    }

    /// How much of what was posted is under way.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        let flights = self.flights.borrow();
        flights.iter().filter(|flight| !flight.is_over()).count()
    }

    /// Whether nothing that was posted is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.flights.borrow().iter().all(|flight| flight.is_over())
    }

    /// What has not ended, for people.
    pub(super) fn describe(&self) -> String {
        let closing = self.endpoints.iter().filter_map(|e| e.closing.as_ref());
        let closing: Vec<_> = closing.map(|f| (f.out.get(), self.error_of(f))).collect();
        let out: u32 = self
            .flights
            .borrow()
            .iter()
            .map(|flight| flight.out.get())
            .sum();
        format!("closing {closing:?}, calls under way {out}")
    }

    /// What an endpoint failed with, if one did.
    pub(super) fn failed(&self) -> Option<String> {
        let status = self.failed.get();
        status::is_error(status).then(|| self.library().describe(status))
    }

    /// What went wrong with a flight, if anything did.
    pub(super) fn error_of(&self, flight: &Flight) -> Option<String> {
        let status = flight.error.get();
        status::is_error(status).then(|| self.library().describe(status))
    }

    /// Whether it has, or had, endpoints.
    pub(super) fn is_connected(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// Leaves it alone for ever: nobody lets it work any more, and nothing of it is freed.
    pub(super) fn abandon(self) {
        std::mem::forget(self);
    }

    fn library(&self) -> &Library {
        self.context.library()
    }

    fn call(&self) -> &kvroom_ucx_sys::Functions {
        &self.context.library().call
    }
}

/// Turns that UCX gets at once.
const TURNS: u32 = 32;

impl Drop for Worker {
    fn drop(&mut self) {
        for key in &self.keys {
            for remote in &key.remote {
                // SAFETY: unpacked by this worker, and not used any more.
                unsafe { (self.call().ucp_rkey_destroy)(*remote) };
            }
        }
        // SAFETY: made in `new`, and destroyed once. After this no callback is called, so flights and the
        // cell of the handler may go.
        unsafe { (self.call().ucp_worker_destroy)(self.raw) };
    }
}

impl Flight {
    /// Whether all that was posted with it has ended, well or not.
    pub(super) fn is_over(&self) -> bool {
        self.last.get() && self.out.get() == 0
    }

    /// Whether something went wrong.
    pub(super) fn is_bad(&self) -> bool {
        status::is_error(self.error.get())
    }

    /// The memory of what was sent; empty while UCX may read it.
    pub(super) fn take_bytes(&self) -> Vec<u8> {
        match self.is_over() {
            true => std::mem::take(&mut self.bytes.borrow_mut()),
            false => Vec::new(),
        }
    }

    /// Counts a call that is about to be made, and gives what it is to be made with.
    fn begin(&self) -> ucp_request_param_t {
        self.out.set(self.out.get() + 1);
        let mut param: ucp_request_param_t = zeroed();
        param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
        param.cb = ucp_request_param_t__bindgen_ty_1 { send: Some(over) };
        param.user_data = std::ptr::from_ref(self).cast_mut().cast();
        param
    }

    /// How the call came back: it is over, it failed, or its callback will be called.
    fn posted(
        &self,
        library: &Library,
        call: &'static str,
        came: ucs_status_ptr_t,
    ) -> Result<(), UcxError> {
        match Started::of(came) {
            Started::InProgress(_) => Ok(()),
            Started::Done => {
                self.out.set(self.out.get().saturating_sub(1));
                Ok(())
            }
            Started::Failed(status) => {
                self.out.set(self.out.get().saturating_sub(1));
                self.fail(status);
                done(library, call, status, "")
            }
        }
    }

    fn fail(&self, status: ucs_status_t) {
        if self.error.get() == UCS_OK {
            self.error.set(status);
        }
    }
}

/// A call of a flight has ended.
extern "C" fn over(request: *mut c_void, status: ucs_status_t, flight: *mut c_void) {
    // SAFETY: the flight that the call was made with, which its worker keeps until this was called for each
    // of its calls. It has nothing but cells, and callbacks are on the worker's thread.
    let flight = unsafe { &*flight.cast::<Flight>() };
    if status::is_error(status) {
        flight.fail(status);
    }
    let free = flight.free;
    flight.out.set(flight.out.get().saturating_sub(1));
    // SAFETY: the call came back with this request, and this was the last use of it.
    unsafe { free(request) };
}

/// A message came.
extern "C" fn came(
    inlet: *mut c_void,
    _: *const c_void,
    header: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: the inlet that was registered, which is dropped after the worker was destroyed. It has
    // nothing but cells, and callbacks are on the worker's thread.
    let inlet = unsafe { &*inlet.cast::<Inlet>() };
    // SAFETY: UCX's own, for the length of this call.
    let attributes = unsafe { (*param).recv_attr };
    let here = attributes & u64::from(UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
    let bytes = |at: *const c_void, length: usize| match at.is_null() || length == 0 {
        true => &[][..],
        // SAFETY: UCX's own, of this length, for the length of this call.
        false => unsafe { std::slice::from_raw_parts(at.cast::<u8>(), length) },
    };
    let handled = catch_unwind(AssertUnwindSafe(|| match here {
        true if header == 0 => inlet.came(bytes(data, length)),
        true => inlet.break_off("a message with a header of UCX's own"),
        // Its bytes are still with the sender, where this side does not fetch any.
        false => inlet.break_off("a message whose bytes did not come with it"),
    }));
    if handled.is_err() {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            inlet.break_off("this side panicked, which is a bug of kvroom");
        }));
    }
    UCS_OK
}

/// An endpoint failed.
extern "C" fn failed(cell: *mut c_void, _: ucp_ep_h, status: ucs_status_t) {
    // SAFETY: the cell that the endpoint was made with, which is dropped after the worker was destroyed.
    let cell = unsafe { &*cell.cast::<Cell<ucs_status_t>>() };
    if cell.get() == UCS_OK {
        cell.set(status);
    }
}

fn refused(call: &'static str, why: &str) -> UcxError {
    UcxError::Call {
        call,
        status: why.into(),
        advice: "",
    }
}

fn with_margin(bytes: &[u8]) -> Vec<u8> {
    let mut padded = Vec::with_capacity(bytes.len() + MARGIN);
    padded.extend_from_slice(bytes);
    padded.resize(bytes.len() + MARGIN, 0);
    padded
}

/// Whether this has the form of a packed key: which memory domains it has parts for, the memory's type, and
/// for each domain a length and as many bytes.
fn is_key(key: &[u8]) -> bool {
    let Some((map, rest)) = key.split_first_chunk::<8>() else {
        return false;
    };
    let Some((_, mut rest)) = rest.split_first() else {
        return false;
    };
    for _ in 0..u64::from_ne_bytes(*map).count_ones() {
        let Some((length, behind)) = rest.split_first() else {
            return false;
        };
        let Some(behind) = behind.get(usize::from(*length)..) else {
            return false;
        };
        rest = behind;
    }
    true
}
