//! This test binary once more, in a namespace of its own, where a test may change what it likes.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::Command;

/// Set inside.
const INSIDE: &str = "KVROOM_TEST_INSIDE";

/// Whether this process is the one that [`run_inside`] started.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// What the scripts for a namespace need, a command that shows that something may be changed there, and
/// whether a machine that runs all tests must have it (those of util-linux, which every Linux has).
fn needs(namespace: char) -> (&'static [&'static str], &'static str, bool) {
    match namespace {
        // Of iproute2, which small images lack.
        'n' => (&["ip", "tc"], "ip link set lo up", false),
        'm' => (&["mount"], "mount -t tmpfs none /mnt", true),
        other => panic!("no test needs a namespace {other:?}"),
    }
}

/// Runs one test of this binary in namespaces of its own (`n` network, `m` mounts) after what the shell
/// script prepares there, and fails as they do. Says aloud, and gives false, where this machine does not
/// allow it: most containers do not, so that is never mandatory. A tool that is missing is, under
/// `KVROOM_REQUIRE_ALL`, if it is one that every Linux has.
pub(crate) fn run_inside(namespace: char, script: &str, test: &str) -> bool {
    let (tools, changes, everywhere) = needs(namespace);
    for (tool, everywhere) in [("unshare", true)]
        .into_iter()
        .chain(tools.iter().map(|tool| (*tool, everywhere)))
    {
        if !is_installed(tool) {
            let must = everywhere && std::env::var_os("KVROOM_REQUIRE_ALL").is_some();
            assert!(!must, "{test} needs {tool}, which is not installed");
            return skip(test, &format!("{tool} is not installed"));
        }
    }
    let plain = format!("-{namespace}");
    // Whoever is not root may be that in a user namespace.
    let user = format!("-Ur{namespace}");
    let mut why = Vec::new();
    for flags in [&*plain, &*user] {
        // Some kernels give a namespace and allow nothing in it.
        let tried = unshare(flags, changes).output().unwrap();
        if !tried.status.success() {
            let said = String::from_utf8_lossy(&tried.stderr);
            why.push(format!("unshare {flags}: {}", said.trim()));
            continue;
        }
        let run = format!("{script}\nexec \"$0\" --exact {test} --nocapture --test-threads=1");
        let status = unshare(flags, &run)
            .arg(std::env::current_exe().unwrap())
            .env(INSIDE, "1")
            .status();
        assert!(
            status.unwrap().success(),
            "{test}, or what prepares it, failed inside"
        );
        return true;
    }
    skip(test, &why.join("; "))
}

fn unshare(flags: &str, script: &str) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args([flags, "sh", "-ec", script]);
    unshare
}

fn is_installed(tool: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$0\" >/dev/null", tool])
        .status();
    found.unwrap().success()
}

/// Gives false.
fn skip(test: &str, why: &str) -> bool {
    // Not by a macro: what those print is kept from who runs the tests.
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED {test}: this machine gives no namespace for it: {why}"
    );
    false
}
