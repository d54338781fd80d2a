//! The program that checks a machine's GPU, on machines without one: over threads in place of a device, and
//! over the CUDA backend with a stand-in for its driver.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

#[path = "../examples/gpu_check/samples.rs"]
#[allow(dead_code)] // The program uses the rest.
mod samples;
mod standin;
#[path = "../examples/gpu_check/table.rs"]
#[allow(dead_code)]
mod table;

use standin::{COMPILER, DRIVER, Folder};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;
use table::{Row, Verdict};

/// The built example, or none if only some of the targets were built.
fn program() -> Option<PathBuf> {
    // target/PROFILE/deps/gpu_check-HASH, beside target/PROFILE/examples/.
    let here = std::env::current_exe().unwrap();
    let profile = here.parent().unwrap().parent().unwrap();
    let path = profile.join("examples").join("gpu_check");
    if path.is_file() {
        return Some(path);
    }
    let text = format!("{} was not built: run `cargo test`", path.display());
    assert!(std::env::var_os("KVROOM_REQUIRE_ALL").is_none(), "{text}");
    // Not by a macro: what those print is kept from who runs the tests.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {text}");
    None
}

/// The rows of a table: name and verdict.
fn rows(ran: &Output) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(&ran.stdout);
    let head = text.lines().position(|line| line.starts_with("check "));
    let head = head.unwrap_or_else(|| panic!("no table: {ran:?}"));
    let at = text.lines().nth(head).unwrap().find("verdict").unwrap();
    let rows = text
        .lines()
        .skip(head + 1)
        .take_while(|line| line.len() > at);
    rows.map(|line| {
        let verdict = line[at..].split("  ").next().unwrap();
        (line[..at].trim().to_owned(), verdict.to_owned())
    })
    .collect()
}

fn verdict<'a>(rows: &'a [(String, String)], name: &str) -> &'a str {
    let row = rows.iter().find(|row| row.0.starts_with(name));
    &row.unwrap_or_else(|| panic!("no {name:?} in {rows:?}")).1
}

const CORRECT: [&str; 5] = [
    "gather_pages = twin",
    "scatter_pages = twin",
    "reslice_heads = twin",
    "reslice_heads = plan",
    "checksum_pages = twin",
];

#[test]
fn over_threads_every_kernel_and_the_pipeline_are_right() {
    let Some(program) = program() else { return };
    let arguments = ["--device", "emulated", "--small", "--shapes", "4"];
    let ran = Command::new(program).args(arguments).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let rows = rows(&ran);
    for name in CORRECT
        .into_iter()
        .chain(["pipeline, emulated: both directions"])
    {
        assert_eq!(verdict(&rows, name), "ok", "{name}");
    }
    for name in [
        "gather, cells of 4 KiB",
        "reslice 4 to 2, 64 KiB",
        "pipeline, emulated: of",
    ] {
        assert_eq!(verdict(&rows, name), "no bar", "{name}");
    }
    assert_eq!(verdict(&rows, "rooms: aborts in mid-pipeline"), "ok");
    assert_eq!(verdict(&rows, "memcheck"), "not here");
    assert_eq!(rows.len(), CORRECT.len() + 9 + 2 + 2);
}

#[test]
fn over_the_cuda_backend_and_a_stand_in_every_step_runs() {
    let Some(program) = program() else { return };
    let folder = Folder::with("every-step", &[DRIVER[0], DRIVER[1], COMPILER]);
    let ran = folder
        .command(program)
        // No sanitizer of this machine.
        .env("PATH", folder.path())
        .args(["--small", "--shapes", "3"])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("stand-in device 0"), "{said}");
    assert!(said.contains("compiled here by NVRTC 12.8"), "{said}");
    let rows = rows(&ran);
    for name in CORRECT {
        assert_eq!(verdict(&rows, name), "ok", "{name}");
    }
    for name in [
        "scatter, cells of 16 KiB",
        "pipeline, slots on the device",
        "pipeline, host slots, device 0 to 1",
    ] {
        assert_eq!(verdict(&rows, name), "no bar", "{name}");
    }
    assert_eq!(verdict(&rows, "rooms: aborts in mid-pipeline"), "ok");
    assert_eq!(rows.len(), CORRECT.len() + 9 + 2 + 2);
}

#[test]
fn kernels_that_were_carried_are_used_where_there_is_no_compiler() {
    let Some(program) = program() else { return };
    let folder = Folder::with("carried", &DRIVER);
    let run = |arguments: &[&str]| {
        let mut command = folder.command(&program);
        command.args(["--small", "--shapes", "1", "--part", "correct"]);
        command.args(arguments).output().unwrap()
    };
    let names = [
        "gather_pages",
        "scatter_pages",
        "reslice_heads",
        "checksum_pages",
    ];
    let ptx: String = names
        .iter()
        .map(|name| format!(".entry {name}(\n"))
        .collect();
    let file = folder.path().join("kernels.ptx");
    fs::write(&file, ptx).unwrap();
    let ran = run(&["--code", file.to_str().unwrap()]);
    assert!(ran.status.success(), "{ran:?}");
    fs::write(&file, ".entry gather_pages(\n").unwrap();
    let ran = run(&["--code", file.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(3));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("no kernel `scatter_pages`"), "{said}");
}

#[test]
fn without_a_driver_it_says_so_and_exits_with_3() {
    let Some(program) = program() else { return };
    let folder = Folder::with("without", &[COMPILER]);
    // A library that is none stands before the system's own.
    for name in DRIVER {
        fs::write(folder.path().join(name), "not a library").unwrap();
    }
    let ran = folder.command(program).output().unwrap();
    assert_eq!(ran.status.code(), Some(3), "{ran:?}");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("no CUDA driver"), "{said}");
    assert!(said.contains("Nothing was checked"), "{said}");
    assert!(ran.stdout.is_empty(), "{ran:?}");
}

#[test]
fn a_byte_beside_what_a_kernel_may_write_is_found_and_the_exit_code_is_1() {
    let Some(program) = program() else { return };
    let ran = Command::new(program)
        .args(["--device", "emulated", "--small", "--shapes", "2"])
        .args(["--part", "correct", "--plant", "wrong-byte"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let rows = rows(&ran);
    assert_eq!(verdict(&rows, "gather_pages = twin"), "FAILED");
    assert_eq!(verdict(&rows, "scatter_pages = twin"), "ok");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        said.contains("WRONG BYTE: gather_pages on memory 1"),
        "{said}"
    );
    assert!(said.contains("1 bytes are wrong"), "{said}");
    assert!(said.contains("NOT GOOD: gather_pages = twin"), "{said}");
}

#[test]
fn a_step_that_does_not_end_is_ended_at_its_bound_and_none_comes_after_it() {
    let Some(program) = program() else { return };
    let ran = Command::new(program)
        .args([
            "--device",
            "emulated",
            "--small",
            "--shapes",
            "1",
            "--seconds",
            "2",
        ])
        .args(["--part", "correct", "--plant", "no-end"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("it did not end within"), "{said}");
    let after = said.matches("not run: a step before it did not end");
    assert_eq!(after.count(), CORRECT.len() - 1, "{said}");
    let rows = rows(&ran);
    assert!(
        CORRECT.iter().all(|name| verdict(&rows, name) == "FAILED"),
        "{said}"
    );
}

#[test]
fn what_compute_sanitizer_says_is_a_row() {
    let Some(program) = program() else { return };
    let folder = Folder::empty("sanitizer");
    let tool = folder.path().join("compute-sanitizer");
    let run = |script: &str| {
        fs::write(&tool, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let ran = Command::new(&program)
            .args(["--device", "emulated", "--small", "--shapes", "1"])
            .args(["--sanitizer", tool.to_str().unwrap()])
            .output()
            .unwrap();
        (
            ran.status.code(),
            verdict(&rows(&ran), "memcheck").to_owned(),
        )
    };
    let asked = r#"[ "$1 $2 $3 $4" = "--tool memcheck --error-exitcode 86" ] || exit 9"#;
    let runs = run(&format!("{asked}; shift 4; exec \"$@\""));
    assert_eq!(runs, (Some(0), "ok".to_owned()));
    assert_eq!(run("exit 86"), (Some(1), "FAILED".to_owned()));
    assert_eq!(run("exit 1"), (Some(1), "FAILED".to_owned()));
}

#[test]
fn a_plant_is_refused_on_a_real_device() {
    let Some(program) = program() else { return };
    let ran = Command::new(program)
        .args(["--plant", "wrong-byte"])
        .output();
    assert_eq!(ran.unwrap().status.code(), Some(2));
}

#[test]
fn a_missed_bar_and_a_failure_make_a_machine_bad_and_nothing_else_does() {
    let judged = |seen, bar| Row::judged("x", String::new(), seen, bar);
    assert_eq!(judged(0.85, Some(0.85)).verdict, Verdict::Ok);
    assert_eq!(judged(0.849, Some(0.85)).verdict, Verdict::Missed);
    assert_eq!(judged(f64::NAN, Some(0.85)).verdict, Verdict::Missed);
    assert_eq!(judged(0.1, None).verdict, Verdict::NoBar);
    for (verdict, good) in [
        (Verdict::Ok, true),
        (Verdict::NoBar, true),
        (Verdict::NotHere, true),
        (Verdict::Missed, false),
        (Verdict::Failed, false),
    ] {
        let row = Row::new("a name", "said".to_owned(), "", verdict);
        assert_eq!(row.is_good(), good, "{verdict:?}");
        let text = table::table(std::slice::from_ref(&row));
        assert_eq!(text.contains("NOT GOOD: a name"), !good, "{text}");
    }
}

#[test]
fn a_ratio_is_of_two_that_were_measured_in_the_same_round() {
    // The machine gets slower and slower; the second takes twice as long as the first all the time.
    let nth = std::cell::Cell::new(0);
    let order = std::cell::RefCell::new(String::new());
    let ms = |name: char, times: u64| {
        nth.set(nth.get() + 1);
        order.borrow_mut().push(name);
        Ok::<_, ()>(Duration::from_millis(times * (1000 + nth.get())))
    };
    let seen = samples::in_turns(5, || ms('a', 1), || ms('b', 2)).unwrap();
    assert_eq!(order.into_inner(), "ababbaabbaab");
    assert!((seen.median() - 0.5).abs() < 0.001, "{seen:?}");
    assert!(seen.said().ends_with("5 rounds)"), "{}", seen.said());
}
