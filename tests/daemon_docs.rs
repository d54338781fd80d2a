//! The page about HTTP, as its reader would type it.
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

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("kvroom:") && name.contains(&mark()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// In the names of the nodes and their files, so that other tests have others.
fn mark() -> String {
    format!("-docs-{}", std::process::id())
}

/// Skips aloud, or fails where everything is required.
fn is_missing(tool: &str) -> bool {
    let there = Command::new(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if there.is_ok_and(|status| status.success()) {
        return false;
    }
    let text = format!("{tool} is not installed: docs/http.md was NOT run");
    assert!(std::env::var_os("KVROOM_REQUIRE_ALL").is_none(), "{text}");
    eprintln!("SKIPPED: {text}");
    true
}

#[test]
fn the_commands_of_the_page_about_http_do_what_it_says() {
    if is_missing("curl") || is_missing("bash") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("kvroom{}", mark()));
    std::fs::create_dir_all(&folder).unwrap();
    let folder = Folder(folder);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/http.md");
    let mut script = commands(&std::fs::read_to_string(page).unwrap());
    for (word, other) in [
        ("7481", free_port().to_string()),
        ("7482", free_port().to_string()),
        ("7400", free_port().to_string()),
        ("prefill", format!("prefill{}", mark())),
        ("decode", format!("decode{}", mark())),
    ] {
        assert!(script.contains(word), "the page does not have {word}");
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
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (said, wrong) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{}: {said}\n{wrong}", ran.status);
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
