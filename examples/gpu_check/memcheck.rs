//! The kernels once more under compute-sanitizer, which sees accesses that happen to hit something.
//!
//! It runs this very program as a child, with `--part correct` and few shapes. A fault of the device is an
//! exit code of its own, and what it says is printed.

use crate::options::{Kind, Options};
use crate::steps::Steps;
use crate::table::{Row, Verdict};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "memcheck";
const TOOL: &str = "compute-sanitizer";
/// What it exits with if it saw something.
const SAW: i32 = 86;
const BOUND: Duration = Duration::from_secs(75);
/// Shapes of each kernel: it is some hundred times as slow.
const SHAPES: u32 = 12;
/// Bytes of what it says that are shown.
const SHOWN: u64 = 2000;

pub(crate) fn step(steps: &mut Steps, options: &Options) {
    let tool = options.sanitizer.clone().or_else(|| on_path(TOOL));
    let not_here = |said: &str| Row::new(NAME, said.to_owned(), "", Verdict::NotHere);
    if options.device == Kind::Emulated && options.sanitizer.is_none() {
        return steps.push(not_here("the emulated device checks each access itself"));
    }
    let Some(tool) = tool else {
        return steps.push(not_here("no compute-sanitizer on the PATH"));
    };
    let row = match run(&tool, options, BOUND.min(steps.left())) {
        Ok(row) => row,
        Err(error) => Row::failed(NAME, format!("{}: {error}", tool.display())),
    };
    steps.push(row);
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let usual = PathBuf::from("/usr/local/cuda/bin");
    let folders = std::env::split_paths(&path).chain([usual]);
    folders.map(|at| at.join(name)).find(|at| at.is_file())
}

fn run(tool: &Path, options: &Options, bound: Duration) -> std::io::Result<Row> {
    let log = std::env::temp_dir().join(format!("gpu_check-{}.memcheck", std::process::id()));
    let output = File::create(&log)?;
    let mut child = Command::new(tool)
        .args(["--tool", "memcheck", "--error-exitcode"])
        .arg(SAW.to_string())
        .arg(std::env::current_exe()?)
        .args(arguments(options))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    let ended = wait(&mut child, bound);
    let mut said = String::new();
    let read = File::open(&log)?.take(SHOWN).read_to_string(&mut said);
    // Both are for people only.
    let _ = (read, std::fs::remove_file(&log));
    Ok(match ended? {
        None => Row::failed(NAME, format!("it did not end within {bound:.0?}")),
        Some(status) if status.success() => {
            let said = format!("{SHAPES} shapes of each kernel, nothing seen");
            Row::new(NAME, said, "clean", Verdict::Ok)
        }
        Some(status) => {
            eprintln!("{TOOL} said:\n{said}");
            let why = match status.code() {
                Some(SAW) => "it saw an access that is not allowed; see above".to_owned(),
                _ => format!("the kernels failed under it ({status}); see above"),
            };
            Row::failed(NAME, why)
        }
    })
}

fn arguments(options: &Options) -> Vec<OsString> {
    let mut all: Vec<OsString> = [
        ("--device", options.device.word().to_owned()),
        ("--ordinal", options.ordinal.to_string()),
        ("--part", "correct".to_owned()),
        ("--shapes", SHAPES.to_string()),
        ("--seed", options.seed.to_string()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.into(), value.into()])
    .collect();
    // Cells of 64 KiB would take it minutes.
    all.push("--small".into());
    if let Some(code) = &options.code {
        all.extend(["--code".into(), code.into()]);
    }
    all
}

/// Waits for it, and ends it at the bound; none if it had to.
fn wait(child: &mut Child, bound: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + bound;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
