//! The kernels as a program of this machine.

use super::arena::{Case, Outcome};
use kvroom_kernels::cuda::Kernel;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SHIM: &str = include_str!("../../cuda/host/shim.h");
const MAIN: &str = include_str!("../../cuda/host/main.h");

pub(crate) struct Program {
    path: PathBuf,
}

impl Program {
    /// Compiles a source with the shim; none, said aloud, if there is no C++ compiler.
    pub(crate) fn build(name: &str, source: &str, defines: &[&str]) -> Option<Program> {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let text = path.with_extension("cpp");
        fs::write(
            &text,
            format!("{SHIM}\n{source}\n#line 1 \"main.h\"\n{MAIN}"),
        )
        .unwrap();
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        // `-w`: the pragmas are CUDA's.
        let command = Command::new(&compiler)
            .args(["-std=c++17", "-O1", "-w"])
            .args(defines)
            .arg(&text)
            .arg("-o")
            .arg(&path)
            .output();
        let Ok(ran) = command else {
            let why = format!("SKIPPED: no C++ compiler ({compiler}) runs here");
            assert!(
                std::env::var_os("KVROOM_REQUIRE_ALL").is_none_or(|v| v != "1"),
                "KVROOM_REQUIRE_ALL=1: {why}"
            );
            eprintln!("{why}");
            return None;
        };
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{name} does not compile: {said}");
        Some(Program { path })
    }

    /// Runs all cases in one process. If it ends early, the rest have no outcome.
    pub(crate) fn run(&self, cases: &[Case]) -> Vec<Outcome> {
        let input = self.path.with_extension("in");
        let mut file = BufWriter::new(File::create(&input).unwrap());
        for case in cases {
            let number = Kernel::ALL.iter().position(|kernel| *kernel == case.kernel);
            let head = [
                number.unwrap() as u32,
                case.blocks,
                case.threads,
                case.args.len() as u32,
            ];
            for field in head {
                file.write_all(&field.to_le_bytes()).unwrap();
            }
            let len = case.arena.bytes.len() as u64;
            file.write_all(&len.to_le_bytes()).unwrap();
            file.write_all(&case.args).unwrap();
            file.write_all(&case.arena.bytes).unwrap();
            file.write_all(&case.arena.marks).unwrap();
        }
        file.flush().unwrap();
        drop(file);
        let ran = Command::new(&self.path)
            .stdin(Stdio::from(File::open(&input).unwrap()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{}: {said}", ran.status);
        let mut rest = ran.stdout.as_slice();
        let mut outcomes = Vec::new();
        for case in cases {
            let mut take = |bytes: usize| {
                let (head, tail) = rest.split_at(bytes);
                rest = tail;
                head
            };
            let faults = u64::from_le_bytes(take(8).try_into().unwrap());
            let fault_at = u64::from_le_bytes(take(8).try_into().unwrap());
            let fault = String::from_utf8_lossy(take(64));
            let fault = fault.trim_end_matches('\0').to_string();
            let bytes = take(case.arena.bytes.len()).to_vec();
            outcomes.push(Outcome {
                faults,
                fault_at,
                fault,
                bytes,
            });
        }
        assert!(rest.is_empty());
        outcomes
    }
}
