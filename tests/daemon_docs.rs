//! The commands of README.md and of the page about HTTP, as their reader would type them.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Longer than the commands of the page take.
const SECONDS: &str = "90";

/// What a block of the page says before its commands run: each curl has to be answered with a success.
const BEFORE: &str = r#"
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
curl() { command curl --fail-with-body --show-error --max-time 60 "$@"; echo; }
"#;

/// The commands of a page, block by block.
fn commands(page: &str) -> String {
    let mut all = String::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => {
                all.push_str(line);
                all.push('\n');
            }
            _ => {}
        }
    }
    all
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A folder for a page's commands; it and what their daemons leave are removed when dropped.
struct Folder {
    path: PathBuf,
    mark: String,
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("kvroom:") && name.contains(&self.mark) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Skips aloud, or fails where everything is required.
fn is_missing(tool: &str, page: &str) -> bool {
    let there = Command::new(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if there.is_ok_and(|status| status.success()) {
        return false;
    }
    let text = format!("{tool} is not installed: {page} was NOT run");
    assert!(std::env::var_os("KVROOM_REQUIRE_ALL").is_none(), "{text}");
    eprintln!("SKIPPED: {text}");
    true
}

/// What the commands of a page print; none if they cannot be run here.
fn run(page: &str, word: &str) -> Option<String> {
    if is_missing("curl", page) || is_missing("bash", page) {
        return None;
    }
    // In the names of the nodes and their files, so that other tests have others.
    let mark = format!("-docs-{word}-{}", std::process::id());
    let path = std::env::temp_dir().join(format!("kvroom{mark}"));
    std::fs::create_dir_all(&path).unwrap();
    let folder = Folder { path, mark };
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let mut script = commands(&std::fs::read_to_string(text).unwrap());
    // With the colon: what was put in for one port has no other one in it.
    for (word, other) in [
        (":7481", format!(":{}", free_port())),
        (":7482", format!(":{}", free_port())),
        (":7400", format!(":{}", free_port())),
        ("prefill", format!("prefill{}", folder.mark)),
        ("decode", format!("decode{}", folder.mark)),
    ] {
        assert!(script.contains(word), "{page} does not have {word}");
        script = script.replace(word, &other);
    }
    let program = Path::new(env!("CARGO_BIN_EXE_kvroom"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    // `timeout` ends the daemons too, if the page does not.
    let ran = Command::new("timeout")
        .args([
            "-k",
            "5",
            SECONDS,
            "bash",
            "-c",
            &format!("{BEFORE}{script}"),
        ])
        .env("PATH", path)
        .current_dir(&folder.path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (said, wrong) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(
        ran.status.success(),
        "{page}: {}: {said}\n{wrong}",
        ran.status
    );
    Some(said.into_owned())
}

#[test]
fn the_commands_of_the_readme_move_a_page_between_two_daemons() {
    let Some(said) = run("README.md", "readme") else {
        return;
    };
    for promised in [
        r#""outcome":{"end":"done"}"#,
        r#""released":true"#,
        r#""proofs":[""#,
    ] {
        assert!(said.contains(promised), "{promised} is not in {said}");
    }
    // Read where decode has it. The name of the node is in the text too.
    let moved = said
        .lines()
        .any(|line| line.starts_with("computed by pref"));
    assert!(moved, "{said}");
}

#[test]
fn the_commands_of_the_page_about_http_do_what_it_says() {
    let Some(said) = run("docs/http.md", "http") else {
        return;
    };
    for promised in [
        r#""state":"up""#,
        r#""fabric":"shm""#,
        r#""outcome":{"end":"done"}"#,
        r#""released":true"#,
        "layer 0 of room 42",
        "layer 1 of room 42",
        "no longer wanted",
        r#""status":201"#,
        "kvroom_uptime_seconds",
        "event: sample",
        r#""state":"gone""#,
    ] {
        assert!(said.contains(promised), "{promised} is not in {said}");
    }
    assert_eq!(said.matches(r#""drained":true"#).count(), 2, "{said}");
}
