//! What the tests share: tools that may not be there, and folders of their own.
#![allow(dead_code)] // Each test uses a part.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says aloud what is not tested; an error where everything is to be.
pub(crate) fn skip(why: &str) {
    let text = format!("SKIPPED: {why}\n");
    assert!(
        std::env::var_os("KVROOM_REQUIRE_ALL").is_none_or(|v| v != "1"),
        "KVROOM_REQUIRE_ALL=1: {text}"
    );
    // Not by a macro: what those print is kept from who runs the tests.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Compiles C; nothing, said aloud, where there is no compiler.
pub(crate) fn compile(source: &Path, out: &Path, options: &[&str]) -> Option<()> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let ran = Command::new(&compiler)
        .args(options)
        .arg("-o")
        .args([out, source])
        .output();
    match ran {
        Ok(ran) => {
            let said = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success(), "{}: {said}", source.display());
            Some(())
        }
        Err(error) => {
            skip(&format!("no C compiler runs here: {compiler}: {error}"));
            None
        }
    }
}

/// An empty folder for this test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}
