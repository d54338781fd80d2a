//! GPUs: what the CUDA driver says it has, asked within a bound.
//!
//! The driver's library is opened and asked; no context is made, and no device does anything. One that does
//! not answer is left on its thread, and that is what is told.

use serde::Serialize;

/// What is known of CUDA here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Cuda {
    pub(crate) state: CudaState,
    /// The version that the driver is for, as in 12.8.
    pub(crate) driver: Option<String>,
    /// The version of NVRTC, the compiler for kernels.
    pub(crate) compiler: Option<String>,
    pub(crate) devices: Vec<Gpu>,
    pub(crate) detail: String,
}

/// What is known of the driver.
#[allow(dead_code, reason = "the build decides which of them there are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum CudaState {
    /// It answered, and has a device that works.
    #[serde(rename = "works")]
    Works,
    /// There is none, which is nothing bad.
    #[serde(rename = "absent")]
    Absent,
    /// It is there and is of no use.
    #[serde(rename = "broken")]
    Broken,
    #[serde(rename = "not in this build")]
    NotInBuild,
}

impl CudaState {
    /// The word for it in the table, the same as in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            CudaState::Works => "works",
            CudaState::Absent => "absent",
            CudaState::Broken => "broken",
            CudaState::NotInBuild => "not in this build",
        }
    }
}

/// One device.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "none is asked for"))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Gpu {
    pub(crate) ordinal: usize,
    pub(crate) name: Option<String>,
    /// Compute capability, as in 9.0.
    pub(crate) capability: Option<String>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) multiprocessors: Option<u32>,
    /// Why it cannot be used.
    pub(crate) problem: Option<String>,
}

impl Cuda {
    /// Whether the driver's library is open in this process.
    pub(crate) fn is_loaded(&self) -> bool {
        self.driver.is_some()
    }
}

/// Of a build that cannot ask.
#[cfg(not(feature = "cuda"))]
pub(crate) fn look() -> Cuda {
    Cuda {
        state: CudaState::NotInBuild,
        driver: None,
        compiler: None,
        devices: Vec::new(),
        detail: "built without cuda; no driver was looked for".to_owned(),
    }
}

/// Asks the driver.
#[cfg(feature = "cuda")]
pub(crate) fn look() -> Cuda {
    asked::said(kvroom::device::cuda::probe(asked::BOUND))
}

#[cfg(feature = "cuda")]
mod asked {
    use super::{Cuda, CudaState, Gpu};
    use kvroom::device::cuda::{Copies, Driver, Probe};
    use kvroom::device::{DeviceError, Identity};
    use std::time::Duration;

    /// How long the driver may take. It is some tenths of a second with several GPUs.
    pub(super) const BOUND: Duration = Duration::from_secs(3);

    /// What was found, for people and programs.
    pub(super) fn said(found: Probe) -> Cuda {
        let Probe { driver, compiler } = found;
        let nvrtc = match &compiler {
            Ok((major, minor)) => format!("NVRTC {major}.{minor}"),
            Err(error) => error.to_string(),
        };
        let compiler = compiler
            .ok()
            .map(|(major, minor)| format!("{major}.{minor}"));
        match driver {
            Ok(driver) => there(driver, compiler, &nvrtc),
            Err(error) => {
                let (state, detail) = match error {
                    DeviceError::NoDriver { library } => {
                        let detail = format!("no CUDA driver: {library} could not be opened");
                        (CudaState::Absent, detail)
                    }
                    other => (CudaState::Broken, other.to_string()),
                };
                Cuda {
                    state,
                    driver: None,
                    compiler,
                    devices: Vec::new(),
                    detail,
                }
            }
        }
    }

    fn there(driver: Driver, compiler: Option<String>, nvrtc: &str) -> Cuda {
        let version = format!("{}.{}", driver.version / 1000, driver.version % 1000 / 10);
        let copies = match driver.copies {
            Copies::Batch | Copies::BatchV2 => "many copies with one call",
            Copies::OneByOne => "a call for each copy",
        };
        let devices: Vec<Gpu> = driver.devices.into_iter().enumerate().map(gpu).collect();
        let usable = devices.iter().filter(|gpu| gpu.problem.is_none()).count();
        let state = match usable {
            0 => CudaState::Broken,
            _ => CudaState::Works,
        };
        let all = devices.len();
        Cuda {
            state,
            detail: format!(
                "driver for CUDA {version}, {copies}; {nvrtc}; {usable} of {all} devices can be used"
            ),
            driver: Some(version),
            compiler,
            devices,
        }
    }

    fn gpu((ordinal, found): (usize, Result<Identity, DeviceError>)) -> Gpu {
        match found {
            Ok(id) => Gpu {
                ordinal,
                name: Some(id.name),
                capability: Some(format!("{}.{}", id.capability.0, id.capability.1)),
                memory_bytes: Some(id.memory_bytes),
                multiprocessors: Some(id.multiprocessors),
                problem: None,
            },
            Err(error) => Gpu {
                ordinal,
                name: None,
                capability: None,
                memory_bytes: None,
                multiprocessors: None,
                problem: Some(error.to_string()),
            },
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn driver(devices: Vec<Result<Identity, DeviceError>>) -> Cuda {
            said(Probe {
                driver: Ok(Driver {
                    version: 12080,
                    copies: Copies::OneByOne,
                    devices,
                }),
                compiler: Err(DeviceError::NoCompiler {
                    library: "libnvrtc.so",
                }),
            })
        }

        #[test]
        fn a_driver_whose_devices_cannot_be_used_is_broken_and_says_which() {
            let broken = driver(vec![Err(DeviceError::Broken {
                call: "cuDeviceGetName",
                code: 46,
                name: "CUDA_ERROR_DEVICE_UNAVAILABLE",
            })]);
            assert_eq!(broken.state, CudaState::Broken);
            assert!(broken.is_loaded());
            let problem = broken.devices[0].problem.as_deref().unwrap();
            assert!(
                problem.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"),
                "{problem}"
            );
            assert!(
                broken.detail.contains("0 of 1 devices"),
                "{}",
                broken.detail
            );
            assert!(broken.detail.contains("no NVRTC"), "{}", broken.detail);
            assert_eq!(driver(Vec::new()).state, CudaState::Broken);
        }

        #[test]
        fn the_words_of_the_table_are_those_of_the_json() {
            for state in [
                CudaState::Works,
                CudaState::Absent,
                CudaState::Broken,
                CudaState::NotInBuild,
            ] {
                assert_eq!(serde_json::to_value(state).unwrap(), state.word());
            }
        }
    }
}
