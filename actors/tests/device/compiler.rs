//! Kernels from source: compiled when they are loaded, and kept on disk.

use crate::rig::{Rig, device, look};
use crate::standin::{FOLDER, built, in_child, in_child_with, link};
use kvroom_actors::copy::device::cuda::{Cache, CacheLimits, open, open_with, probe};
use kvroom_actors::copy::device::{Code, Culprit, DeviceError, Program};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn program(source: &str) -> Code {
    Code::Source(Program {
        name: "test.cu".to_owned(),
        source: source.to_owned(),
        options: vec!["--std=c++17".to_owned()],
    })
}

const SOURCE: &str = "extern \"C\" __global__ void add_to_bytes(char* to, long n, int by) {}";

#[test]
fn source_is_compiled_once_and_then_found_on_disk() {
    let test = "compiler::source_is_compiled_once_and_then_found_on_disk";
    in_child(test, &[], |rig| {
        let folder = PathBuf::from(env::var_os(FOLDER).unwrap()).join("cache");
        let cached = || Cache::at(&folder, CacheLimits::default());
        let context = open_with(0, Some(cached())).unwrap();
        for _ in 0..3 {
            let module = context.load(&program(SOURCE)).unwrap();
            module.kernel("add_to_bytes").unwrap();
            assert_eq!(rig.stats().compiles, 1);
        }
        // Another context, as of another process.
        let other = open_with(1, Some(cached())).unwrap();
        other.load(&program(SOURCE)).unwrap();
        assert_eq!(rig.stats().compiles, 1);
        let more = format!("{SOURCE} // more");
        other.load(&program(&more)).unwrap();
        assert_eq!(rig.stats().compiles, 2);
        // What is spoiled is made again.
        for file in fs::read_dir(&folder).unwrap() {
            fs::write(file.unwrap().path(), b"nothing").unwrap();
        }
        other.load(&program(SOURCE)).unwrap();
        assert_eq!(rig.stats().compiles, 3);
        // Nor is it needed.
        open(0).unwrap().load(&program(SOURCE)).unwrap();
        fs::write(folder.with_file_name("file"), b"").unwrap();
        let nowhere = Cache::at(
            folder.with_file_name("file").join("x"),
            CacheLimits::default(),
        );
        let context = open_with(0, Some(nowhere)).unwrap();
        context.load(&program(SOURCE)).unwrap();
        assert_eq!(rig.stats().compiles, 5);
    });
}

/// The real compiler's library, from PyPI (`nvidia-cuda-nvrtc-cu12`) in the Python of `KVROOM_PYTHON` or
/// `python3`; none, said aloud, if it is not installed.
fn real_compiler() -> Option<PathBuf> {
    let python = env::var("KVROOM_PYTHON").unwrap_or_else(|_| "python3".into());
    let ask = "import glob, nvidia.cuda_nvrtc as m; print(glob.glob(m.__path__[0] + '/lib/libnvrtc.so.*')[0])";
    let said = Command::new(&python).args(["-c", ask]).output();
    if let Ok(said) = said
        && said.status.success()
    {
        let path = String::from_utf8(said.stdout).unwrap();
        return Some(PathBuf::from(path.trim()));
    }
    let why = format!("SKIPPED: the real compiler is not run: {python} has no nvidia.cuda_nvrtc\n");
    let required = env::var_os("KVROOM_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "KVROOM_REQUIRE_ALL=1: {why}");
    // Not by a macro: what those print is kept from who runs the tests.
    let _ = std::io::stderr().write_all(why.as_bytes());
    None
}

#[test]
fn the_real_compiler_makes_a_cubin_for_the_device() {
    let test = "compiler::the_real_compiler_makes_a_cubin_for_the_device";
    let Some(real) = real_compiler() else {
        return;
    };
    let fill = |folder: &Path| {
        link(folder, &["libcuda.so.1", "libcuda.so"], &built());
        link(folder, &["libnvrtc.so"], &real);
        // What it opens itself is looked for by its own name.
        for file in fs::read_dir(real.parent().unwrap()).unwrap() {
            let file = file.unwrap();
            link(folder, &[file.file_name().to_str().unwrap()], &file.path());
        }
    };
    in_child_with(test, &[], &fill, |rig| {
        let folder = PathBuf::from(env::var_os(FOLDER).unwrap()).join("cache");
        let cache = Cache::at(&folder, CacheLimits::default());
        let context = open_with(0, Some(cache)).unwrap();
        // The stand-in loads no cubin, so it is looked for where it is kept.
        let error = context.load(&program(SOURCE)).unwrap_err();
        assert!(matches!(error, DeviceError::BadArgument { .. }), "{error}");
        let file = fs::read_dir(&folder).unwrap().next().unwrap().unwrap();
        let image = fs::read(file.path()).unwrap();
        assert!(image.windows(4).any(|bytes| bytes == b"\x7fELF"));
        assert_eq!(rig.stats().compiles, 0);
        let error = context
            .load(&program("__global__ void f() { no }"))
            .unwrap_err();
        let DeviceError::Compile { code: 6, log, .. } = &error else {
            panic!("{error}");
        };
        assert!(log.contains("identifier \"no\" is undefined"), "{log}");
    });
}

#[test]
fn a_compiler_that_does_not_know_the_device_makes_code_for_what_it_knows() {
    let test = "compiler::a_compiler_that_does_not_know_the_device_makes_code_for_what_it_knows";
    in_child(test, &[("STANDIN_ARCH", "80")], |_| {
        let folder = PathBuf::from(env::var_os(FOLDER).unwrap()).join("cache");
        let cache = Cache::at(&folder, CacheLimits::default());
        let context = open_with(0, Some(cache)).unwrap();
        context.load(&program(SOURCE)).unwrap();
        let file = fs::read_dir(&folder).unwrap().next().unwrap().unwrap();
        let image = fs::read(file.path()).unwrap();
        let image = String::from_utf8_lossy(&image);
        assert!(
            image.contains("--gpu-architecture=compute_80 --std=c++17"),
            "{image}"
        );
    });
}

#[test]
fn source_that_does_not_compile_is_an_error_with_what_the_compiler_says() {
    let test = "compiler::source_that_does_not_compile_is_an_error_with_what_the_compiler_says";
    in_child(test, &[], |rig| {
        let error = rig.context(0).load(&program("#error no")).unwrap_err();
        let DeviceError::Compile {
            program,
            code: 6,
            log,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(program, "test.cu");
        assert!(log.ends_with("#error directive"), "{log}");
        assert_eq!(error.culprit(), Culprit::Caller);
    });
}

#[test]
fn without_a_compiler_source_is_refused_and_the_device_goes_on() {
    let test = "compiler::without_a_compiler_source_is_refused_and_the_device_goes_on";
    let fill = |folder: &Path| link(folder, &["libcuda.so.1", "libcuda.so"], &built());
    in_child_with(test, &[], &fill, |rig| {
        let context = rig.context(0);
        match context.load(&program(SOURCE)) {
            Ok(_) => eprintln!("SKIPPED: this machine has NVRTC"),
            Err(error) => {
                assert!(matches!(error, DeviceError::NoCompiler { .. }), "{error}");
                assert!(probe(crate::rig::LONG).compiler.is_err());
            }
        }
        assert_eq!(look(&context, device(&context, &[1; 8])).1, [1; 8]);
    });
}

#[test]
fn an_image_that_is_none_is_refused() {
    let test = "compiler::an_image_that_is_none_is_refused";
    in_child(test, &[], |rig| {
        let error = rig
            .context(0)
            .load(&Code::Cubin(vec![1, 2, 3]))
            .unwrap_err();
        assert!(matches!(error, DeviceError::BadArgument { .. }), "{error}");
    });
}
