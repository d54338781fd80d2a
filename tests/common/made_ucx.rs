//! Libraries that say they are UCX of some version, made of C for a test. They have every function that
//! kvroom looks for, and each refuses (as `UCS_ERR_IO_ERROR`).
#![allow(dead_code)] // Each test uses a part.

#[path = "../../ucx-sys/tests/headers/source.rs"]
mod source;
#[path = "../../ucx-sys/tests/common/mod.rs"]
mod tools;

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

pub(crate) use tools::folder;

/// Makes `libucp.so.0` of this version in a folder of this test, with this C at its end; nothing, said aloud,
/// without a C compiler.
pub(crate) fn library(test: &str, version: (u32, u32, u32), more: &str) -> Option<PathBuf> {
    let at = folder(test);
    let (major, minor, release) = version;
    let mut text = format!(
        "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) {{ *a = {major}; *b = {minor}; *c = {release}; }}\n\
         const char *ucs_status_string(int status) {{ return \"refused by the stand-in\"; }}\n"
    );
    for function in source::functions() {
        let name = function.name;
        if name != "ucp_get_version" && name != "ucs_status_string" {
            writeln!(text, "int {name}(void) {{ return -3; }}").unwrap();
        }
    }
    text.push_str(more);
    let (file, library) = (at.join("libucp.c"), at.join("libucp.so.0"));
    fs::write(&file, text).unwrap();
    let options = ["-shared", "-fPIC", "-Wl,-soname,libucp.so.0"];
    tools::compile(&file, &library, &options)?;
    Some(library)
}
