//! The devices that are checked, with kvroom's kernels on them.

use crate::failure::Failure;
use crate::options::{Kind, Options, Plant};
use kvroom_actors::copy::device::emulated::{Config, HostKernel, Machine, Own, Value, View};
use kvroom_actors::copy::device::{
    Arg, Code, Context, DeviceError, Kernel, Launch, Priority, Program, Queue, Stream, cuda,
};
use kvroom_kernels::cuda::{self as kernels, PagesArgs, THREADS, blocks};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long the driver may take to say what it is.
const PROBE: Duration = Duration::from_secs(20);

/// One device.
pub(crate) struct Device {
    pub(crate) context: Context,
    /// In the order of `kernels::Kernel::ALL`.
    kernels: Vec<Kernel>,
}

/// All that are used: the one that was asked for, and one more for the pipeline, if there is one.
pub(crate) struct Devices {
    pub(crate) all: Vec<Device>,
    said: String,
}

impl Device {
    pub(crate) fn new(context: Context, code: &Code) -> Result<Device, DeviceError> {
        let module = context.load(code)?;
        let names = kernels::Kernel::ALL.map(kernels::Kernel::entry);
        let kernels = names
            .iter()
            .map(|name| module.kernel(name))
            .collect::<Result<_, _>>()?;
        Ok(Device { context, kernels })
    }

    pub(crate) fn stream(&self) -> Result<Stream, Failure> {
        Ok(self.context.stream(Priority::Usual)?)
    }

    /// As many blocks as run at once.
    pub(crate) fn launch(&self) -> Launch {
        Launch::line(blocks(self.context.identity().multiprocessors), THREADS)
    }

    /// Starts a kernel with the bytes of its arguments.
    pub(crate) fn start<'q>(
        &self,
        q: &mut Queue<'q>,
        kernel: kernels::Kernel,
        launch: &Launch,
        args: &[u8],
    ) -> Result<(), DeviceError> {
        let at = kernels::Kernel::ALL.iter().position(|one| *one == kernel);
        match at.and_then(|at| self.kernels.get(at)) {
            Some(loaded) => q.launch(loaded, launch, &[Arg::bytes(args)]),
            None => Err(DeviceError::NoSuchKernel {
                name: kernel.entry().to_owned(),
            }),
        }
    }
}

impl Devices {
    /// Opens them; else why there are none, for people.
    pub(crate) fn open(options: &Options) -> Result<Devices, String> {
        let code = code(options.code.as_deref())?;
        let (contexts, driver) = match options.device {
            Kind::Emulated => (emulated(options)?, String::new()),
            Kind::Cuda => gpus(options)?,
        };
        let named = |context: &Context| {
            let id = context.identity();
            let (major, minor) = id.capability;
            let gib = id.memory_bytes as f64 / f64::from(1 << 30);
            format!(
                "device {}: {}, compute capability {major}.{minor}, {} multiprocessors, {gib:.1} GiB",
                id.ordinal, id.name, id.multiprocessors
            )
        };
        let mut said: Vec<String> = contexts.iter().map(named).collect();
        said.insert(
            0,
            format!("gpu_check, --device {}{driver}", options.device.word()),
        );
        let all = contexts
            .into_iter()
            .map(|context| Device::new(context, &code));
        let all = all.collect::<Result<Vec<_>, _>>();
        Ok(Devices {
            all: all.map_err(|error| error.to_string())?,
            said: said.join("\n"),
        })
    }

    /// The one that was asked for.
    pub(crate) fn first(&self) -> &Device {
        &self.all[0]
    }

    /// The one that a pipeline ends on: another one, if there is one.
    pub(crate) fn last(&self) -> &Device {
        &self.all[self.all.len() - 1]
    }

    /// What they are, in a few lines.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }
}

/// What is compiled: a file that was carried here, or the source.
pub(crate) fn code(file: Option<&Path>) -> Result<Code, String> {
    let Some(file) = file else {
        return Ok(Code::Source(Program {
            name: "kvroom's kernels".to_owned(),
            source: kernels::SOURCE.to_owned(),
            options: kernels::OPTIONS
                .iter()
                .map(|word| (*word).to_owned())
                .collect(),
        }));
    };
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    // A cubin is an ELF file.
    Ok(match bytes.starts_with(b"\x7fELF") {
        true => Code::Cubin(bytes),
        false => Code::Ptx(bytes),
    })
}

fn emulated(options: &Options) -> Result<Vec<Context>, String> {
    let machine = Machine::new(Config {
        seed: options.seed,
        devices: 2,
        kernels: twins(options.plant),
        ..Config::default()
    });
    let contexts = [0, 1].map(|ordinal| machine.context(ordinal));
    let contexts = contexts.into_iter().collect::<Result<Vec<_>, _>>();
    contexts.map_err(|error| error.to_string())
}

/// The kernels of the emulated devices, one of them perhaps wrong.
fn twins(plant: Option<Plant>) -> BTreeMap<String, Arc<dyn HostKernel>> {
    let mut all = Own::all();
    let gather = kernels::Kernel::GatherPages;
    let wrong = move |launch: &Launch, args: &[Value], memory: &View<'_>| {
        Own(gather).run(launch, args, memory)?;
        let bytes = Value::bytes(args, 0, PagesArgs::SIZE)?;
        let staging = bytes
            .first_chunk()
            .map(PagesArgs::from_bytes)
            .map_or(0, |a| a.staging);
        memory.change(staging - 1, 1, &mut |byte| byte[0] ^= 1)
    };
    let never = |_: &Launch, _: &[Value], _: &View<'_>| loop {
        std::thread::park();
    };
    let planted: Option<Arc<dyn HostKernel>> = match plant {
        None => None,
        Some(Plant::WrongByte) => Some(Arc::new(wrong)),
        Some(Plant::NoEnd) => Some(Arc::new(never)),
    };
    all.extend(planted.map(|kernel| (gather.entry().to_owned(), kernel)));
    all
}

/// The contexts, and what the driver is.
fn gpus(options: &Options) -> Result<(Vec<Context>, String), String> {
    let found = cuda::probe(PROBE);
    let driver = found.driver.map_err(|error| error.to_string())?;
    let compiler = match (&options.code, found.compiler) {
        (Some(file), _) => format!("kernels from {}", file.display()),
        (None, Ok((major, minor))) => format!("kernels compiled here by NVRTC {major}.{minor}"),
        (None, Err(error)) => {
            return Err(format!(
                "{error}; or carry compiled kernels here and name them with --code"
            ));
        }
    };
    let first = cuda::open(options.ordinal).map_err(|error| error.to_string())?;
    let other = (0..driver.devices.len() as u32).find(|other| *other != options.ordinal);
    let mut contexts = vec![first];
    // A second one that does not work is none: the pipeline then ends where it begins.
    contexts.extend(other.and_then(|other| cuda::open(other).ok()));
    let (major, minor) = (driver.version / 1000, driver.version % 1000 / 10);
    Ok((
        contexts,
        format!(", driver for CUDA {major}.{minor}, {compiler}"),
    ))
}
