//! This test binary once more, in a namespace of its own, where a test may change what it likes.
#![allow(clippy::unwrap_used)]

use std::process::Command;

/// Set inside.
const INSIDE: &str = "KVROOM_TEST_INSIDE";

/// Whether this process is the one that [`run_inside`] started.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs one test of this binary in namespaces of its own (`n` network, `m` mounts) after what the shell
/// script prepares there, and fails as it does. Says aloud, and gives false, where this machine
/// does not allow it: most containers do not, so this is never mandatory.
pub(crate) fn run_inside(namespace: char, script: &str, test: &str) -> bool {
    let plain = format!("-{namespace}");
    let user = format!("-Ur{namespace}");
    // Whoever is not root may be that in a user namespace.
    let mut why = String::new();
    for flags in [plain, user] {
        let tried = Command::new("unshare")
            .args([&*flags, "sh", "-ec", script])
            .output();
        match tried {
            Ok(out) if out.status.success() => {
                let run =
                    format!("{script}\nexec \"$0\" --exact {test} --nocapture --test-threads=1");
                let status = Command::new("unshare")
                    .args([&*flags, "sh", "-ec", &run])
                    .arg(std::env::current_exe().unwrap())
                    .env(INSIDE, "1")
                    .status();
                assert!(status.unwrap().success(), "{test} failed inside");
                return true;
            }
            Ok(out) => why = String::from_utf8_lossy(&out.stderr).trim().to_owned(),
            Err(e) => why = format!("unshare: {e}"),
        }
    }
    eprintln!("SKIPPED {test}: this machine gives no namespace for it: {why}");
    false
}
