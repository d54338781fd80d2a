//! Names of tests in pages, and whether there are such tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// All Rust files of the workspace's crates, with what is in them, by their paths from its root.
pub(crate) fn sources(root: &Path) -> BTreeMap<String, String> {
    let mut files = Vec::new();
    for folder in ["tests", "actors", "kernels", "ucx-sys", "examples", "src"] {
        below(&root.join(folder), &mut files);
    }
    let text = |file: &PathBuf| std::fs::read_to_string(file).unwrap();
    let name = |file: &PathBuf| file.strip_prefix(root).unwrap().display().to_string();
    files.iter().map(|file| (name(file), text(file))).collect()
}

fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            below(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// What is between backticks.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether it has a test of this name: a function with that attribute, or one that a macro makes a test of.
pub(crate) fn has_test(text: &str, test: &str) -> bool {
    if !text.contains(test) {
        return false;
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let begin = format!("fn {test}(");
    let marked = (0..lines.len()).any(|at| {
        let line = lines[at].strip_prefix("async ").unwrap_or(lines[at]);
        let is = line.starts_with(&begin);
        let above = lines[..at].iter().rev();
        let mut above = above.take_while(|l| l.starts_with("#[") || l.starts_with("//"));
        is && above.any(|l| l.starts_with("#[test]") || l.starts_with("#[tokio::test"))
    });
    // Behind the macro's name, to its end.
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let macros = text.split("\nover_").skip(1);
    let mut made = macros.filter_map(|rest| Some(rest.split_once("!(")?.1.split_once(");")?.0));
    marked || made.any(|names| names.split(|c| !is_word(c)).any(|name| name == test))
}
