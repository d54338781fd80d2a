//! The dashboard: as it is served, and as a person uses it in a real browser.
//!
//! What happens in the browser is in `tests/browser`: `mock.test.mjs` against a played daemon, for states
//! that a real one is not brought to, and `daemon.test.mjs` against the program of this build. They need
//! node, playwright-core (`npm ci` in that folder) and Debian's chromium; without them the tests say aloud
//! that nothing was checked, and fail if `KVROOM_REQUIRE_ALL` is set.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

#[path = "common/daemon.rs"]
mod daemon;

use daemon::Daemon;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Longer than all tests of one file take.
const PATIENCE: Duration = Duration::from_secs(400);
/// One browser at a time: two would only take each other's time.
static BROWSER: Mutex<()> = Mutex::new(());

#[test]
fn the_page_is_one_answer_without_data_that_needs_no_token_and_loads_nothing() {
    let folder = std::env::temp_dir().join(format!("kvroom-dashboard-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let token = folder.join("token");
    std::fs::write(&token, "a-secret-of-many-letters\n").unwrap();
    let daemon = Daemon::start(&[
        "--name",
        "guarded",
        "--http-token-file",
        token.to_str().unwrap(),
    ]);

    let page = daemon.get("/");
    assert_eq!(page.status, 200, "{}", page.text());
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'none'") && policy.contains("script-src 'sha256-"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    let text = page.text();
    assert!(text.starts_with("<!doctype html>") && !text.contains("guarded"));
    for loads in ["src=\"", "<link rel=\"stylesheet\"", "@import"] {
        assert!(!text.contains(loads), "the page has {loads}");
    }
    daemon.get("/v1/node").expect_problem(401, "unauthorized");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_person_sees_hard_states_and_finds_their_way_by_keyboard_in_a_browser() {
    in_a_browser("mock.test.mjs");
}

#[test]
fn a_person_watches_searches_and_aborts_in_a_browser_and_a_restart_is_survived() {
    in_a_browser("daemon.test.mjs");
}

fn in_a_browser(file: &str) {
    let _alone = BROWSER.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    if let Some(missing) = missing(&folder) {
        let text = format!("{missing}: {file} was NOT checked in a browser");
        assert!(std::env::var_os("KVROOM_REQUIRE_ALL").is_none(), "{text}");
        eprintln!("SKIPPED: {text}");
        return;
    }
    let child = Command::new("node")
        .args([
            "--test",
            "--test-concurrency=1",
            "--test-timeout=90000",
            file,
        ])
        .current_dir(folder)
        .env("KVROOM_BIN", env!("CARGO_BIN_EXE_kvroom"))
        // This would have node speak its own binary language.
        .env_remove("NODE_TEST_CONTEXT")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let (tell, ended) = mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(PATIENCE) else {
        let _ = Command::new("kill").args(["-KILL", &pid]).status();
        panic!("{file} did not end within {PATIENCE:?}");
    };
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{file}:\n{text}\n{errors}");
    assert!(
        text.contains("# fail 0") || text.contains("ℹ fail 0"),
        "{text}"
    );
    assert!(
        !text.contains("# pass 0") && !text.contains("ℹ pass 0"),
        "{text}"
    );
}

/// What is not there, and how it comes.
fn missing(folder: &Path) -> Option<String> {
    let node = Command::new("node").arg("--version").output();
    if !node.is_ok_and(|output| output.status.success()) {
        return Some("node is not installed (20 or newer)".to_owned());
    }
    if !folder
        .join("node_modules/playwright-core/package.json")
        .exists()
    {
        return Some("playwright-core is not installed (npm ci in tests/browser)".to_owned());
    }
    let chromium = std::env::var_os("KVROOM_CHROMIUM")
        .map_or_else(|| PathBuf::from("/usr/bin/chromium"), PathBuf::from);
    let here = chromium.exists();
    (!here).then(|| {
        format!(
            "{} is not installed (apt-get install chromium)",
            chromium.display()
        )
    })
}
