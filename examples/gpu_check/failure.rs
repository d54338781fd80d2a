//! Why a step failed.

use kvroom_actors::copy::device::{DeviceError, QueueError};
use kvroom_kernels::plan::cube::CubePlanError;
use kvroom_kernels::twin::{GridError, JobError};
use std::time::Duration;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The device's error.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A byte that is not what it has to be.
    #[error("WRONG BYTE: {0}")]
    Wrong(String),
    /// A room did what it must not, or an error of the runtime.
    #[error("rooms: {0}")]
    Room(String),
    /// Work did not end.
    #[error("work of the device did not end within {0:?}")]
    Late(Duration),
    /// The check's own shape.
    #[error("the check's own shape is refused: {0}")]
    Shape(String),
}

impl<T: Send + 'static> From<QueueError<T>> for Failure {
    fn from(refused: QueueError<T>) -> Failure {
        Failure::Device(refused.error)
    }
}

macro_rules! shape {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::Shape(error.to_string())
            }
        }
    )*};
}

shape!(JobError, GridError, CubePlanError);

/// A shape for a closure that queues, where only errors of the device can be told.
pub(crate) fn refused(error: &dyn std::fmt::Display) -> DeviceError {
    DeviceError::BadArgument {
        call: "a job's arguments",
        why: error.to_string(),
    }
}
