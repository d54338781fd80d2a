//! The examples do what they say. Runs what `cargo test` has built beside the tests.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// The built example, or none if only some of the targets were built.
fn example(name: &str) -> Option<PathBuf> {
    // target/PROFILE/deps/examples-HASH, beside target/PROFILE/examples/.
    let here = std::env::current_exe().unwrap();
    let profile = here.parent().unwrap().parent().unwrap();
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path = profile.join("examples").join(file);
    if path.is_file() {
        return Some(path);
    }
    let text = format!(
        "{} was not built: run `cargo test` or build the example",
        path.display()
    );
    assert!(std::env::var_os("KVROOM_REQUIRE_ALL").is_none(), "{text}");
    // Not by a macro: what those print is kept from who runs the tests.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {text}");
    None
}

#[test]
fn two_nodes_moves_a_request_and_gets_an_aborted_lease_back_with_its_proof() {
    let Some(path) = example("two_nodes") else {
        return;
    };
    let ran = Command::new(path).output().unwrap();
    let (out, err) = (
        String::from_utf8(ran.stdout).unwrap(),
        String::from_utf8(ran.stderr).unwrap(),
    );
    assert!(ran.status.success(), "{out}{err}");
    let lines: Vec<&str> = out.lines().collect();
    let [done, aborted] = lines[..] else {
        panic!("{out}")
    };
    // 48 pages in two layers of 16 KiB, and one aux row in two layers.
    assert!(done.starts_with("Done: 1605632 bytes in "), "{done}");
    assert!(
        done.ends_with(", every byte verified, proofs [GateClosed]"),
        "{done}"
    );
    // A third of it had landed, and the rest was never pushed.
    assert!(
        aborted.starts_with("Aborted (Requested: the user left): 524288 bytes"),
        "{aborted}"
    );
    assert!(aborted.ends_with(", proofs [GateClosed]"), "{aborted}");
}

#[test]
fn abort_storm_knows_every_flag_that_the_readme_shows() {
    let Some(path) = example("abort_storm") else {
        return;
    };
    let help = Command::new(path).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let readme = include_str!("../README.md");
    let about = readme.split("It takes `--engine").nth(1).unwrap();
    let about = format!("`--engine{}", about.split("An oracle").next().unwrap());
    let spans: Vec<&str> = about.split('`').skip(1).step_by(2).collect();
    assert_eq!(spans.len(), 8, "{spans:?}");
    for span in spans {
        let (flag, value) = span.split_once(' ').unwrap_or((span, ""));
        assert!(help.contains(flag), "{flag} is not in {help}");
        for word in value.split('|') {
            assert!(help.contains(word), "{flag} {word} is not in {help}");
        }
    }
}

#[test]
fn two_nodes_stays_under_eighty_lines() {
    let source = include_str!("../examples/two_nodes.rs");
    assert!(source.lines().count() < 80);
}
