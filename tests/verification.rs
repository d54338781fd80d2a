//! The pages about verification name tests, rules, faults and patches that there are.
#![allow(clippy::unwrap_used)]

#[path = "common/named.rs"]
mod named;

use named::{has_test, quoted, sources};
use std::collections::BTreeSet;
use std::path::Path;

/// Every word of a source.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
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
    let mut texts = sources(root);
    // It names what there is not.
    texts.remove("tests/verification.rs").unwrap();
    let words: BTreeSet<&str> = texts.values().flat_map(|text| words(text)).collect();
    let mut missing = Vec::new();
    let mut looked = 0;
    for page in ["verification.md", "mutants.md", "unsafe.md"] {
        let text = std::fs::read_to_string(root.join("docs").join(page)).unwrap();
        for word in quoted(&text) {
            let there = if is_test_name(word) {
                // A program that must not compile is named by its file.
                let program = format!("/{word}.rs");
                texts.values().any(|text| has_test(text, word))
                    || texts.keys().any(|file| file.ends_with(&program))
            } else if is_rule(word) {
                words.contains(word)
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
            for name in quoted(row).filter(|w| w.contains('-') && !w.contains(['.', '/', ' '])) {
                looked += 1;
                let patch = root.join(".ci/broken").join(format!("{name}.patch"));
                if !patch.is_file() {
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
    assert!(!is_test_name("not a name of it") && !is_rule("Not A Rule"));
    assert!(!words("fn DuplicateDelivered()").any(|word| word == "Duplicate"));
    assert!(!is_test_name("no_drain") && !is_test_name("fuzz/smoke") && !is_rule("Done"));
}

#[test]
fn a_name_in_a_comment_or_of_a_helper_is_no_test() {
    let text = "// fn said() {}\nfn helper() {}\n#[test]\n// Why.\nfn one() {}\n\
                #[tokio::test(flavor = \"multi_thread\")]\nasync fn two() {}\n\
                over_each!(\n    three,\n);\n/// `fn four(`\n#[test]\nfn other() { fn five() {} }\n";
    let named = [
        "said", "helper", "one", "two", "three", "four", "five", "thre",
    ];
    let has = named.map(|name| has_test(text, name));
    assert_eq!(has, [false, false, true, true, true, false, false, false]);
}
