//! The kernels compiled for GPUs, without one: NVRTC makes PTX, `ptxas` assembles it and says what
//! a thread takes.
//!
//! Both come from PyPI (`ptx/requirements.txt`), in the Python of `KVROOM_PYTHON` or `python3`.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use kvroom_kernels::cuda::{Kernel, OPTIONS, SOURCE};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_120"];

/// Registers of a thread, at most. 64 let four blocks of 256 threads run on a multiprocessor.
const fn most_registers(kernel: Kernel) -> u32 {
    match kernel {
        Kernel::GatherPages | Kernel::ScatterPages => 48,
        Kernel::ResliceHeads | Kernel::ChecksumPages => 64,
    }
}

/// Where PTX and what was said about it are; none, said aloud, if the packages are not installed.
fn compile(name: &str, source: &str, architectures: &[&str]) -> Option<PathBuf> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&out).unwrap();
    let file = out.join("kvroom.cu");
    fs::write(&file, source).unwrap();
    let python = std::env::var("KVROOM_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ptx/compile.py");
    let ran = Command::new(&python)
        .arg(script)
        .args([&file, &out])
        .args(architectures)
        .arg("--")
        .args(OPTIONS)
        .output();
    let why = match ran {
        Ok(ran) if ran.status.success() => return Some(out),
        Ok(ran) => {
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert_eq!(ran.status.code(), Some(3), "{said}");
            said
        }
        Err(error) => format!("{python}: {error}"),
    };
    let why = format!(
        "SKIPPED: the kernels are not compiled for GPUs: {}",
        why.trim()
    );
    assert!(
        std::env::var_os("KVROOM_REQUIRE_ALL").is_none_or(|v| v != "1"),
        "KVROOM_REQUIRE_ALL=1: {why}"
    );
    eprintln!("{why}");
    None
}

/// What `ptxas -v` says of one kernel: registers; bytes of stack, spilled stores, spilled loads.
fn usage(log: &str, kernel: Kernel) -> (u32, [u32; 3]) {
    let head = format!("Compiling entry function '{}'", kernel.entry());
    let (_, rest) = log.split_once(&head).unwrap();
    let numbers = |line: &str| -> Vec<u32> {
        line.split(|c: char| !c.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect()
    };
    let line = |with: &str| rest.lines().find(|line| line.contains(with)).unwrap();
    let memory = numbers(line("bytes stack frame"));
    let (_, registers) = line("registers").split_once("Used").unwrap();
    (numbers(registers)[0], memory.try_into().unwrap())
}

/// What is not as it has to be, of all kernels on one architecture.
fn complaints(out: &Path, architecture: &str) -> Vec<String> {
    let read = |ending| fs::read_to_string(out.join(architecture).with_extension(ending)).unwrap();
    let (ptx, log) = (read("ptx"), read("log"));
    let mut complaints = Vec::new();
    for kernel in Kernel::ALL {
        let name = kernel.entry();
        let (registers, memory) = usage(&log, kernel);
        let most = most_registers(kernel);
        eprintln!("{architecture} {name}: {registers} registers, {memory:?} bytes of local memory");
        if registers > most {
            complaints.push(format!("{name}: {registers} registers, at most {most}"));
        }
        if memory != [0; 3] {
            complaints.push(format!("{name}: stack, spill stores and loads {memory:?}"));
        }
        let (_, body) = ptx.split_once(&format!(".entry {name}(")).unwrap();
        let body = body.split(".entry ").next().unwrap();
        if !body.contains("ld.global.v4") {
            complaints.push(format!("{name}: no 16-byte load"));
        }
        if !body.contains("st.global.v4") && kernel != Kernel::ChecksumPages {
            complaints.push(format!("{name}: no 16-byte store"));
        }
    }
    complaints
}

#[test]
fn kernels_are_assembled_for_each_architecture_without_spills_and_with_16_byte_accesses() {
    let Some(out) = compile("ptx", SOURCE, &ARCHITECTURES) else {
        return;
    };
    for architecture in ARCHITECTURES {
        let none: [&str; 0] = [];
        assert_eq!(complaints(&out, architecture), none, "{architecture}");
    }
}

#[test]
fn registers_that_spill_and_narrow_accesses_are_noticed() {
    let bounds = "__launch_bounds__(THREADS, 4)";
    assert_eq!(SOURCE.matches(bounds).count(), 1);
    let crowded = SOURCE.replace(bounds, "__launch_bounds__(THREADS, 8)");
    let Some(out) = compile("ptx-crowded", &crowded, &["sm_90"]) else {
        return;
    };
    let found = complaints(&out, "sm_90");
    assert!(found.iter().any(|what| what.contains("spill")), "{found:?}");

    let head = "Word16 v;\n  asm volatile(\"ld.global.v4.u32";
    assert_eq!(SOURCE.matches(head).count(), 1);
    let narrow = "return Word16{load<u32>(at), load<u32>(at + 4), load<u32>(at + 8), \
                  load<u32>(at + 12)};\n  ";
    // Specialisations have to come before their first use.
    let declared = "template <typename T>\n__device__ __forceinline__ T load(u64 at);\n";
    assert_eq!(SOURCE.matches(declared).count(), 1);
    let first = format!("{declared}template <>\n__device__ u32 load<u32>(u64 at);\n");
    let source = SOURCE
        .replace(head, &format!("{narrow}{head}"))
        .replace(declared, &first);
    let Some(out) = compile("ptx-narrow", &source, &["sm_90"]) else {
        return;
    };
    let found = complaints(&out, "sm_90");
    assert!(
        found.iter().any(|what| what.contains("16-byte load")),
        "{found:?}"
    );
}
