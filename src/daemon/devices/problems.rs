//! What is wrong with a device, or with what is asked of it, as problem documents.

use super::{Named, Uuid};
use crate::daemon::config::of_the_daemon;
use crate::daemon::http::Problem;
use axum::http::StatusCode;
use kvroom::device::{Culprit, DeviceError};
use std::time::Duration;

/// The machine's or the operator's fault: another time, or another daemon.
fn not_here(detail: String) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "device-unavailable",
        "The device cannot be used",
        detail,
    )
}

/// The request's fault.
pub(super) fn no_pool(detail: String) -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "bad-pool",
        "The pool cannot be registered like this",
        detail,
    )
}

/// The device is lost, for everybody who shares its context in this process.
pub(crate) fn lost(ordinal: u32, why: &str) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "device-lost",
        "The device is lost",
        format!(
            "{why}; no pool on device {ordinal} can serve any more: restart this daemon when no page of it may be \
             in use"
        ),
    )
}

/// Why a device cannot be used for a pool. In the words of the configuration; a request is told in its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// `devices.ordinals` names others only.
    #[error("device {device} may not be used, only {allowed:?}: add {ordinal} to devices.ordinals")]
    NotAllowed {
        /// As it was named; with its number, if that was not it.
        device: String,
        /// Its number.
        ordinal: u32,
        /// Those that may be used.
        allowed: Vec<u32>,
    },
    /// `devices.ordinals` is empty.
    #[error("no device may be used: name those that may in devices.ordinals")]
    NoneAllowed,
    /// This process sees no such device.
    #[error(
        "this daemon sees no device {uuid}; it sees {}: see CUDA_VISIBLE_DEVICES of the daemon",
        listed(.there)
    )]
    NoSuchUuid {
        /// What was asked for.
        uuid: Uuid,
        /// Those that it sees.
        there: Vec<(u32, Uuid)>,
    },
    /// Anything else: the driver, the device, its memory.
    #[error("{}", .0.detail)]
    Failed(Problem),
}

impl Unusable {
    /// The configuration does not name it.
    pub(super) fn not_allowed(named: &Named, ordinal: u32, allowed: Vec<u32>) -> Unusable {
        if allowed.is_empty() {
            return Unusable::NoneAllowed;
        }
        let device = match named {
            Named::Ordinal(ordinal) => ordinal.to_string(),
            Named::Uuid(uuid) => format!("{uuid}, which is number {ordinal} here,"),
        };
        Unusable::NotAllowed {
            device,
            ordinal,
            allowed,
        }
    }

    /// As the answer of a request that named it.
    pub(super) fn of_request(self) -> Problem {
        match self {
            Unusable::NotAllowed { .. } => no_pool(format!(
                "memory.cuda.device: {self} in the configuration of the daemon, or correct the request"
            )),
            Unusable::NoneAllowed => no_pool(
                "memory.cuda: this daemon may use no device: name those that it may in devices.ordinals of its \
                 configuration"
                    .to_owned(),
            ),
            Unusable::NoSuchUuid { .. } => no_pool(format!("memory.cuda.device: {self}")),
            Unusable::Failed(problem) => problem,
        }
    }
}

impl From<Problem> for Unusable {
    fn from(problem: Problem) -> Self {
        Unusable::Failed(problem)
    }
}

fn listed(there: &[(u32, Uuid)]) -> String {
    let there: Vec<String> = there.iter().map(|(n, of)| format!("{n}: {of}")).collect();
    match there.as_slice() {
        [] => "none".to_owned(),
        some => some.join(", "),
    }
}

/// The driver does not come back.
pub(super) fn silent(who: &str, within: Duration) -> Problem {
    let text = format!(
        "{who} did not answer within {within:?} (devices.driver_timeout): the driver hangs, or other calls of it do; \
         see `nvidia-smi` and the kernel's log, and try again"
    );
    not_here(text).retry_after(5)
}

/// It could not be started.
pub(super) fn unavailable(ordinal: Option<u32>, error: &DeviceError) -> Problem {
    let keys = match error {
        DeviceError::OutOfMemory { .. } | DeviceError::Limit { .. } => {
            " (devices.slots, devices.slot_bytes, devices.streams)"
        }
        DeviceError::NoSuchDevice { .. } => " (devices.ordinals)",
        _ => "",
    };
    let text = of_the_daemon(&format!("{error}{keys}"));
    match (error, ordinal) {
        (DeviceError::Lost(sticky), Some(ordinal)) => lost(ordinal, &sticky.to_string()),
        (_, Some(ordinal)) => not_here(format!("device {ordinal}: {text}")),
        (_, None) => not_here(text),
    }
}

/// There is no memory for a pool of the daemon's own.
pub(super) fn not_allocated(ordinal: u32, error: &DeviceError) -> Problem {
    match error {
        DeviceError::OutOfMemory { bytes, .. } => not_here(format!(
            "device {ordinal} has no {bytes} bytes of memory left: make the pool smaller, or see with `nvidia-smi` \
             who has it"
        )),
        error => unavailable(Some(ordinal), error),
    }
}

/// The driver gives no handle of it.
pub(super) fn not_exported(ordinal: u32, error: &DeviceError) -> Problem {
    match error {
        DeviceError::NotSupported { .. } | DeviceError::Driver { .. } => not_here(format!(
            "device {ordinal}: the driver gives no handle for memory there: {}; no engine could open it: have the \
             engine allocate the pool's memory, or take a pool on the host",
            told(error)
        )),
        error => unavailable(Some(ordinal), error),
    }
}

/// The driver did not open the memory.
pub(super) fn not_imported(ordinal: u32, error: &DeviceError) -> Problem {
    match error {
        DeviceError::OutOfRange { offset, bytes, of } => no_pool(format!(
            "memory.cuda: {bytes} bytes at offset {offset} are not within the allocation of the handle, which has \
             {of}: correct offset and bytes"
        )),
        DeviceError::BadArgument { .. } | DeviceError::Driver { .. } => no_pool(format!(
            "memory.cuda.handle: the driver does not open it on device {ordinal}: {}; it has to be of an allocation \
             of cuMemAlloc that is there still, on this device, in another process of this host than the daemon",
            told(error)
        )),
        error => unavailable(Some(ordinal), error),
    }
}

/// The driver did not open the event.
pub(super) fn no_event(ordinal: u32, error: &DeviceError) -> Problem {
    match (error.culprit(), error) {
        (Culprit::Caller, _) | (_, DeviceError::Driver { .. }) => Problem::unusable(format!(
            "ready: the driver does not open the event on device {ordinal}: {}; it has to be of an event made for \
             other processes (cudaEventInterprocess) that is there still, in another process of this host",
            told(error)
        )),
        _ => unavailable(Some(ordinal), error),
    }
}

/// Without whose bug it is: the caller is not the one who reads this.
fn told(error: &DeviceError) -> String {
    let text = error.to_string();
    let end = text.find("; this is a bug");
    text[..end.unwrap_or(text.len())].to_owned()
}
