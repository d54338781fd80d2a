//! The pages about verification name tests, rules, faults and patches that there are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Every word of a source.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// What is between backticks, and has no blank.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|word| !word.contains(char::is_whitespace))
}

fn is_test_name(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.chars().all(plain) && word.matches('_').count() >= 3
}

fn is_rule(word: &str) -> bool {
    let capitals = word.chars().filter(char::is_ascii_uppercase).count();
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric())
        && capitals >= 3
}

#[test]
fn what_the_pages_about_verification_name_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let mut files = Vec::new();
    for folder in ["actors", "examples", "kernels", "src", "tests"] {
        sources(&root.join(folder), &mut files);
    }
    let (mut functions, mut all) = (BTreeSet::new(), BTreeSet::new());
    for file in files.iter().filter(|f| !f.ends_with("verification.rs")) {
        let text = read(file);
        for after in text.split("fn ").skip(1) {
            functions.extend(words(after).next().map(str::to_owned));
        }
        // A program that must not compile is named by its file.
        functions.extend(file.file_stem().map(|n| n.to_string_lossy().into_owned()));
        all.extend(words(&text).map(str::to_owned));
    }
    let mut missing = Vec::new();
    let mut looked = 0;
    for page in ["verification.md", "mutants.md", "unsafe.md"] {
        let text = read(&root.join("docs").join(page));
        for word in quoted(&text) {
            let there = if is_test_name(word) {
                functions.contains(word)
            } else if is_rule(word) {
                all.contains(word)
            } else {
                continue;
            };
            looked += 1;
            if !there {
                missing.push(format!("{page}: {word}"));
            }
        }
        // `patch` or `patches` and then their names.
        for row in text.lines().filter(|line| line.contains("patch")) {
            let names = quoted(row).filter(|w| w.contains('-') && !w.contains(['.', '/']));
            for name in names {
                looked += 1;
                if !root
                    .join(".ci/broken")
                    .join(format!("{name}.patch"))
                    .is_file()
                {
                    missing.push(format!("{page}: patch {name}"));
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "these are named and not there: {missing:#?}"
    );
    assert!(looked > 80, "only {looked} names were found");
}

#[test]
fn a_name_that_is_not_there_would_be_noticed() {
    assert!(is_test_name("a_lease_that_was_never_given") && is_rule("ReleaseOnWhim"));
    assert!(!is_test_name("no_drain") && !is_test_name("fuzz/smoke") && !is_rule("Done"));
    let page = "| rule | `a_b_c_d`, `Not one` and `GateOfNobody` |";
    assert_eq!(
        quoted(page).collect::<Vec<_>>(),
        ["a_b_c_d", "GateOfNobody"]
    );
}
