//! Libraries made for a test, of C: they say which version they are and do nothing else.

use crate::common::compile;
use crate::source;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Says things as soon as it has a handler, and stops it by nothing.
const SAYS: &str = r#"
#include <stdarg.h>
typedef unsigned (*handler)(const char *, unsigned, const char *, unsigned, const void *, const char *, va_list);
static void say(handler to, unsigned level, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    to("file.c", 7, "here", level, 0, format, list);
    va_end(list);
}
void ucs_log_push_handler(handler to)
{
    say(to, 2, "%s %d of %ld, %.1f: %d %d %d %d %d %d %d %d %d\n", "lane", 3, 1L << 40, 2.5, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    say(to, 2, "%s", "panic");
    say(to, 1, "%05000d", 0);
}
"#;

/// What a library is to be.
pub(crate) struct Made<'a> {
    pub(crate) version: (u32, u32, u32),
    /// The function that it lacks.
    pub(crate) without: &'a str,
}

/// UCX of this version, complete.
pub(crate) const fn complete(major: u32, minor: u32, release: u32) -> Made<'static> {
    Made {
        version: (major, minor, release),
        without: "",
    }
}

impl Made<'_> {
    /// Makes `libucp.so.0`, and `libucs.so.0` beside it; nothing, said aloud, without a C compiler.
    pub(crate) fn in_folder(&self, at: &Path) -> Option<PathBuf> {
        fs::create_dir_all(at).unwrap();
        let ucs = self.library(at, "libucs.so.0", |name| name.starts_with("ucs_"), &[])?;
        let rpath = format!("-Wl,-rpath,{}", at.display());
        let links = [ucs.to_str().unwrap(), &rpath];
        self.library(at, "libucp.so.0", |name| name.starts_with("ucp_"), &links)
    }

    fn library(
        &self,
        at: &Path,
        name: &str,
        has: impl Fn(&str) -> bool,
        links: &[&str],
    ) -> Option<PathBuf> {
        let (major, minor, release) = self.version;
        let mut text = String::new();
        for function in source::functions().into_iter().map(|f| f.name) {
            if function == self.without || !has(&function) {
                continue;
            }
            if function == "ucp_get_version" {
                let body = format!("*a = {major}; *b = {minor}; *c = {release};");
                writeln!(
                    text,
                    "void {function}(unsigned *a, unsigned *b, unsigned *c) {{ {body} }}"
                )
                .unwrap();
            } else {
                writeln!(text, "void {function}(void) {{}}").unwrap();
            }
        }
        if name == "libucs.so.0" {
            text.push_str(SAYS);
        }
        let (file, library) = (at.join(name).with_extension("c"), at.join(name));
        fs::write(&file, text).unwrap();
        let soname = format!("-Wl,-soname,{name}");
        // What is behind the source, which the linker wants so.
        let mut options = vec!["-shared", "-fPIC", &soname, "-Wl,--no-as-needed"];
        options.extend(links);
        compile(&file, &library, &options)?;
        Some(library)
    }
}
