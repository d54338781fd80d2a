//! The pure parts stay pure, and `unsafe` stays where it is.
//!
//! Reads the sources: comments and literals are taken out first, so that only code counts.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The pure parts of this crate, as files or folders under `src/`. What decides is here.
const PURE: &[&str] = &[
    "copy/schedule",
    "copy/schedule.rs",
    "fabric/tcp/frame.rs",
    "fabric/tcp/frame/note.rs",
    "fabric/ucx/fence.rs",
    "fabric/ucx/transports.rs",
    "fabric/ucx/window",
    "fabric/ucx/window.rs",
    "ids.rs",
    "limits.rs",
    "peer/auth.rs",
    "peer/handshake",
    "peer/handshake.rs",
    "peer/actor/clock.rs",
    "peer/hello",
    "peer/hello.rs",
    "peer/lists.rs",
    "peer/message.rs",
    "peer/session",
    "peer/terms.rs",
    "peer/wire",
    "peer/wire.rs",
    "reason.rs",
    "record/book.rs",
    "record/ring.rs",
    "room",
    "slice",
    "slice.rs",
    "supervisor/core",
    "supervisor/custody.rs",
    "supervisor/early.rs",
    "supervisor/io.rs",
    "supervisor/spent.rs",
    "supervisor/timers.rs",
];

/// In a pure folder, and not pure: the shell around the machine.
const SHELL: &[&str] = &["room/actor.rs"];

/// What no pure part may name: runtimes, clocks, threads, shared state, files and sockets.
const IMPURE_WORDS: &[&str] = &[
    "actix",
    "tokio",
    "tracing",
    "Instant",
    "SystemTime",
    "thread",
    "thread_local",
    "async",
    "await",
    "Mutex",
    "RwLock",
    "RefCell",
    "OnceLock",
    "LazyLock",
    "File",
    "TcpStream",
    "UnixStream",
    "RandomState",
];

/// Modules of this crate that are not pure; a pure part that uses one is not pure either.
const IMPURE_PATHS: &[&str] = &[
    "crate::fabric",
    "crate::handle",
    "crate::memory",
    "crate::record",
    "crate::runtime",
    "copy::actor",
    "copy::job",
    "peer::actor",
    "peer::pipe",
    "room::actor",
    "supervisor::actor",
];

/// Every file of the workspace that may say `unsafe`, and does.
const UNSAFE: &[&str] = &[
    "actors/src/copy/device/cuda/api.rs",
    "actors/src/copy/device/cuda/backend.rs",
    "actors/src/copy/device/cuda/context.rs",
    "actors/src/copy/device/cuda/copies.rs",
    "actors/src/copy/device/cuda/identity.rs",
    "actors/src/copy/device/cuda/nvrtc.rs",
    "actors/src/copy/device/cuda/raw.rs",
    "actors/src/fabric/ucx/context.rs",
    "actors/src/fabric/ucx/events.rs",
    "actors/src/fabric/ucx/job.rs",
    "actors/src/fabric/ucx/worker.rs",
    "actors/src/memory/bell.rs",
    "actors/src/memory/copy.rs",
    "actors/src/memory/descriptors.rs",
    "actors/src/memory/lease.rs",
    "actors/src/memory/plant.rs",
    "actors/src/memory/pool.rs",
    "actors/src/memory/remote.rs",
    "actors/src/memory/ring.rs",
    "actors/src/memory/shared/fork.rs",
    "actors/src/memory/shared/map.rs",
    "actors/src/memory/shared/sys.rs",
    "actors/src/memory/shared_pool.rs",
    "actors/src/memory/shared_table.rs",
    "actors/src/memory/slots.rs",
    "actors/src/memory/socket.rs",
    "actors/src/memory/stream/measure.rs",
    "actors/src/memory/stream/mod.rs",
    "actors/src/memory/stream/tests.rs",
    "actors/src/memory/stream/x86.rs",
    "actors/src/memory/sync.rs",
    "actors/src/memory/tests/file_pools.rs",
    "actors/src/memory/tests/jobs.rs",
    "actors/src/memory/tests/leases.rs",
    "actors/src/memory/tests/past_lives.rs",
    "actors/src/memory/tests/shared_pools.rs",
    "actors/src/runtime/affinity.rs",
    "actors/src/runtime/readable.rs",
    "actors/tests/device/standin.rs",
    "actors/tests/loom_gate.rs",
    "actors/tests/loom_leases.rs",
    "actors/tests/loom_ring.rs",
    "actors/tests/standin-libcuda/src/compiler.rs",
    "actors/tests/standin-libcuda/src/control.rs",
    "actors/tests/standin-libcuda/src/event.rs",
    "actors/tests/standin-libcuda/src/exports.rs",
    "actors/tests/standin-libcuda/src/kernels.rs",
    "actors/tests/standin-libcuda/src/lib.rs",
    "actors/tests/standin-libcuda/src/macros.rs",
    "actors/tests/standin-libcuda/src/memory.rs",
    "actors/tests/standin-libcuda/src/stream.rs",
    "actors/tests/standin-libcuda/src/work.rs",
    "fuzz/src/counted.rs",
    "src/cli/bench/kernel.rs",
    "tests/forked.rs",
    "tests/shm_files.rs",
    "ucx-sys/src/load.rs",
    "ucx-sys/src/log.rs",
    "ucx-sys/src/plain.rs",
    "ucx-sys/src/raw.rs",
    "ucx-sys/src/signals.rs",
    "ucx-sys/src/table.rs",
    "ucx-sys/tests/library/carry.rs",
];

/// Where there is code of this project, in whichever workspace.
const CODE: &[&str] = &[
    "src", "actors", "kernels", "ucx-sys", "examples", "tests", "benches", "fuzz",
];

#[test]
fn the_pure_parts_name_no_runtime_no_clock_and_no_thread() {
    let src = root().join("actors/src");
    let mut seen = 0;
    for part in PURE {
        let files = rust_files(&src.join(part));
        assert!(
            !files.is_empty(),
            "there is no {part} any more: correct this list"
        );
        for file in files
            .iter()
            .filter(|f| !SHELL.iter().any(|s| f.ends_with(s)))
        {
            let found = impurities(&read(file));
            assert!(
                found.is_empty(),
                "{} is to be pure and names {found:?}",
                file.display()
            );
            seen += 1;
        }
    }
    assert!(seen > 40, "only {seen} files were looked at");
}

#[test]
fn the_kernels_are_pure_as_a_whole() {
    for file in rust_files(&root().join("kernels/src")) {
        let found = impurities(&read(&file));
        assert!(
            found.is_empty(),
            "{} is to be pure and names {found:?}",
            file.display()
        );
    }
}

#[test]
fn unsafe_is_in_the_files_that_are_listed_and_in_no_other() {
    let root = root();
    let mut with_unsafe = Vec::new();
    for part in CODE {
        for file in rust_files(&root.join(part)) {
            let code = code_of(&read(&file));
            if has_word(&code, "unsafe") || code.contains("allow(unsafe_code") {
                let name = file
                    .strip_prefix(&root)
                    .unwrap()
                    .to_string_lossy()
                    .replace('\\', "/");
                with_unsafe.push(name);
            }
        }
    }
    with_unsafe.sort();
    assert_eq!(with_unsafe, UNSAFE);
}

#[test]
fn every_unsafe_block_has_a_row_in_docs_unsafe_md() {
    let root = root();
    let table = read(&root.join("docs/unsafe.md"));
    let rows = blocks_by_file(&table);
    let mut wrong = Vec::new();
    for file in UNSAFE {
        let there = unsafe_blocks(&code_of(&read(&root.join(file))));
        let told = rows.get(*file).copied().unwrap_or(0);
        if there != told {
            wrong.push(format!(
                "{file} has {there} unsafe blocks, and docs/unsafe.md has rows for {told}"
            ));
        }
    }
    for file in rows.keys().filter(|f| !UNSAFE.contains(&f.as_str())) {
        wrong.push(format!(
            "docs/unsafe.md has rows for {file}, which has none"
        ));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_new_unsafe_block_is_counted() {
    let code =
        "unsafe fn f() { unsafe { g() } } unsafe impl Send for S {} fn h() { x(unsafe{ y }) }";
    assert_eq!(unsafe_blocks(code), 3);
    assert_eq!(
        unsafe_blocks(&code_of("// unsafe { }\n let s = \"unsafe {\";")),
        0
    );
    let table = "| `a.rs` | 2 | x |\n| File | Blocks |\n|---|---|\n| `a.rs` | 1 | `b.rs` |\n";
    let rows = blocks_by_file(table);
    assert_eq!((rows.len(), rows["a.rs"]), (1, 3));
}

#[test]
fn stand_ins_for_proofs_are_in_test_builds_only() {
    let quiescence = read(&root().join("actors/src/room/quiescence.rs"));
    let code = code_of(&quiescence);
    let before = code.split("fn for_tests").next().unwrap();
    // The impl block that holds it begins with the condition.
    let block = before.rsplit_once("impl<W> Quiescence<W>").unwrap().0;
    assert!(
        block.trim_end().ends_with("#[cfg(any(test, feature = ))]"),
        "{block}"
    );
    assert_eq!(
        code.matches("Quiescence { witnesses }").count(),
        2,
        "one more place makes a proof"
    );
}

/// Where rules that a test can turn off may be named: the cores that keep them, and their checkers.
const SWITCHES: &[&str] = &[
    "actors/src/lib.rs",
    "actors/src/switch.rs",
    "actors/tests/model",
    "actors/tests/sim",
];

#[test]
fn rules_can_be_turned_off_by_the_model_and_the_simulator_alone() {
    let root = root();
    let mut sites = 0;
    for part in CODE {
        for file in rust_files(&root.join(part)) {
            let code = code_of(&read(&file));
            let names = ["switched", "switch", "switches", "Switch"];
            if !names.iter().any(|name| has_word(&code, name)) {
                continue;
            }
            let name = file.strip_prefix(&root).unwrap().to_string_lossy();
            let in_a_core = PURE
                .iter()
                .any(|core| name.starts_with(&format!("actors/src/{core}")));
            sites += usize::from(in_a_core);
            let may = in_a_core || SWITCHES.iter().any(|at| name.starts_with(at));
            assert!(may, "{name} turns rules off, or names a switch");
            if in_a_core {
                // A core asks; who turns off is a test.
                assert!(!code.contains("switch::with"), "{name}");
            }
        }
    }
    assert!(sites > 10, "only {sites} cores have a switch");
}

#[test]
fn only_the_tests_of_this_crate_have_rules_that_can_be_turned_off() {
    let own = read(&root().join("actors/Cargo.toml"));
    let (before, dev) = own.split_once("\n[dev-dependencies]\n").unwrap();
    assert_eq!(before.matches("\nswitches = []\n").count(), 1);
    assert_eq!(
        before.matches("\"switches\"").count(),
        0,
        "no feature has it"
    );
    assert_eq!(dev.matches("\"switches\"").count(), 1);
    for other in [
        "Cargo.toml",
        "kernels/Cargo.toml",
        "ucx-sys/Cargo.toml",
        "fuzz/Cargo.toml",
    ] {
        let manifest = read(&root().join(other));
        assert!(!manifest.contains("switches"), "{other}");
    }
    // A release build has none, feature or not.
    let source = code_of(&read(&root().join("actors/src/switch.rs")));
    let debug = "#[cfg(all(feature = , debug_assertions))]";
    assert_eq!(source.matches(debug).count(), 3, "{source}");
    assert!(source.contains("#[cfg(not(all(feature = , debug_assertions)))]"));
    // And it has no debug assertions: nothing but a profile, or cargo's own settings, could say so.
    let settings = [".cargo/config.toml", ".cargo/config"].map(|name| root().join(name));
    let settings = settings.iter().filter(|file| file.exists());
    for file in settings.chain([&root().join("Cargo.toml")]) {
        let text = uncommented(&read(file));
        assert!(!text.contains("debug-assertions"), "{}", file.display());
    }
    // The one that has them is of a workspace of its own, which has no switches.
    let fuzz = uncommented(&read(&root().join("fuzz/Cargo.toml")));
    assert_eq!(fuzz.matches("debug-assertions").count(), 1);
    assert!(fuzz.contains("\n[workspace]\n"));
}

/// Where a manifest may name a feature that is for tests or for fuzzing alone: which manifest, in which
/// section, and the line.
const FEATURES: &[(&str, &str, &str)] = &[
    ("Cargo.toml", "[features]", r#"fuzzing = ["recording"]"#),
    (
        "Cargo.toml",
        "[dev-dependencies]",
        r#"kvroom-actors = { workspace = true, features = ["plant"] }"#,
    ),
    ("actors/Cargo.toml", "[features]", "plant = []"),
    ("actors/Cargo.toml", "[features]", "switches = []"),
    ("actors/Cargo.toml", "[features]", "fuzzing = []"),
    (
        "actors/Cargo.toml",
        "[dev-dependencies]",
        r#"kvroom-actors = { path = ".", features = ["switches", "cuda"] }"#,
    ),
    (
        "fuzz/Cargo.toml",
        "[dependencies]",
        r#"kvroom = { path = "..", default-features = false, features = ["fuzzing"] }"#,
    ),
    (
        "fuzz/Cargo.toml",
        "[dependencies]",
        r#"kvroom-actors = { path = "../actors", features = ["fuzzing"] }"#,
    ),
];

#[test]
fn features_for_tests_and_for_fuzzing_are_in_no_build_of_the_library_or_the_program() {
    let mut found = Vec::new();
    let manifests =
        ["", "actors/", "kernels/", "ucx-sys/", "fuzz/"].map(|at| format!("{at}Cargo.toml"));
    for manifest in &manifests {
        let text = uncommented(&read(&root().join(manifest)));
        found.extend(features_named(&text).map(|(section, line)| (&**manifest, section, line)));
        // Nor by a name of its own, or by all there are.
        assert!(!text.contains("all-features"), "{manifest}");
    }
    let found: Vec<_> = found
        .iter()
        .map(|(manifest, section, line)| (*manifest, section.as_str(), line.as_str()))
        .collect();
    assert_eq!(found, FEATURES);
    // A reader of manifests that sees nothing would find nothing.
    let hidden = "[features]\ndefault = [\n \"kvroom-actors/plant\",\n]\n[dependencies.a]\nfeatures = [\"fuzzing\"]\n";
    assert_eq!(features_named(hidden).count(), 2);
}

#[test]
fn bodies_of_fuzz_targets_are_compiled_for_tests_and_for_fuzzing_alone() {
    let root = root();
    let mut sites = 0;
    for part in ["src", "actors/src", "kernels/src", "examples"] {
        for file in rust_files(&root.join(part)) {
            let text = read(&file);
            let lines: Vec<_> = text.lines().map(str::trim).collect();
            for (n, line) in lines.iter().enumerate() {
                if !line.ends_with("mod fuzzing;") && !line.ends_with("mod trace_fuzzing;") {
                    continue;
                }
                // Those of a library; the others are in a program, and included by the target itself.
                let of_a_library = ["actors", "src/recording"]
                    .iter()
                    .any(|part| file.starts_with(root.join(part)));
                let condition = if of_a_library {
                    r#"#[cfg(any(test, feature = "fuzzing"))]"#
                } else {
                    "#[cfg(test)]"
                };
                let before = lines[..n].iter().rev();
                let mut attributes = before.take_while(|line| line.starts_with("#["));
                assert!(
                    attributes.any(|line| *line == condition),
                    "{}: {line}",
                    file.display()
                );
                sites += 1;
            }
        }
    }
    assert!(
        sites >= 7,
        "only {sites} modules are bodies of fuzz targets"
    );
}

#[test]
fn this_check_can_fail() {
    for impure in [
        "use tokio::sync::mpsc;",
        "use std::time::{Duration, Instant};",
        "fn f() { std::thread::sleep(d) }",
        "use crate::memory::Pool;",
        "use crate::{ids::LifeId, runtime};\nuse crate::runtime::Stats;",
        "async fn f() {}",
        "let s = r#\"quoted \" quote\"#; use actix::Addr;",
        "let c = '\"'; use actix::Addr; let d = '\"';",
        "/* a /* nested */ comment */ use actix::Addr;",
    ] {
        assert!(!impurities(impure).is_empty(), "not noticed: {impure}");
    }
    for pure in [
        "// use tokio::sync::mpsc;",
        "//! No actix, no Instant.",
        "/* std::thread */",
        "let s = \"an Instant, a \\\" thread\";",
        "let s = r#\"tokio \" actix\"#;",
        "fn threads_and_instants<'a>(x: &'a str) -> char { 'a' }",
    ] {
        assert_eq!(
            impurities(pure),
            Vec::<&str>::new(),
            "wrongly noticed: {pure}"
        );
    }
    // The shells beside the pure parts are what the check would find.
    let src = root().join("actors/src");
    for shell in [
        "room/actor.rs",
        "supervisor/actor.rs",
        "peer/actor/mod.rs",
        "copy/actor.rs",
    ] {
        assert!(
            impurities(&read(&src.join(shell))).contains(&"actix"),
            "{shell}"
        );
    }
    assert!(has_word(&code_of("unsafe { x() } // why"), "unsafe"));
    assert!(!has_word(
        &code_of("// unsafe\n\"unsafe\"; unsafe_code"),
        "unsafe"
    ));
}

/// Blocks and implementations that are unsafe, in code without comments and literals.
fn unsafe_blocks(code: &str) -> usize {
    let words = code.match_indices("unsafe").filter(|(at, _)| {
        let rest = code[at + "unsafe".len()..].trim_start();
        !ends_in_a_name(&code[..*at]) && (rest.starts_with('{') || rest.starts_with("impl"))
    });
    words.count()
}

/// The numbers in the second column of a table, added up for each file in its first.
fn blocks_by_file(table: &str) -> BTreeMap<String, usize> {
    let mut rows = BTreeMap::new();
    for line in table.lines() {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let (Some(file), Some(blocks)) = (cells.next(), cells.next()) else {
            continue;
        };
        if let Ok(blocks) = blocks.parse::<usize>() {
            *rows.entry(file.trim_matches('`').to_owned()).or_insert(0) += blocks;
        }
    }
    rows
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// The lines of a manifest that name a feature which is for tests or for fuzzing alone, each with its
/// section.
fn features_named(manifest: &str) -> impl Iterator<Item = (String, String)> {
    let mut section = String::new();
    let lines = manifest.lines().map(str::trim).filter_map(move |line| {
        if line.starts_with('[') && line.ends_with(']') {
            section = line.to_owned();
        }
        let names = ["plant", "switches", "fuzzing"];
        let named = names.iter().any(|name| has_word(line, name));
        named.then(|| (section.clone(), line.to_owned()))
    });
    lines.collect::<Vec<_>>().into_iter()
}

/// A manifest without its comments.
fn uncommented(manifest: &str) -> String {
    let lines = manifest.lines();
    lines
        .map(|line| line.split('#').next().unwrap_or_default().to_owned() + "\n")
        .collect()
}

/// All Rust files at or under a path, but those that are not to compile.
fn rust_files(at: &Path) -> Vec<PathBuf> {
    if at.is_file() {
        return vec![at.to_path_buf()];
    }
    let Ok(entries) = fs::read_dir(at) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with("compile_fail") {
            files.extend(rust_files(&path));
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn impurities(source: &str) -> Vec<&'static str> {
    let code = code_of(source);
    let words = IMPURE_WORDS.iter().filter(|w| has_word(&code, w));
    words
        .chain(IMPURE_PATHS.iter().filter(|p| has_word(&code, p)))
        .copied()
        .collect()
}

/// Whether `word` is there, not as a part of a longer name.
fn has_word(code: &str, word: &str) -> bool {
    let part_of_a_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].ends_with(part_of_a_name)
            && !code[at + word.len()..].starts_with(part_of_a_name)
    })
}

/// The source without comments and without what is between quotes.
fn code_of(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &source[at..];
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = raw_string(rest).filter(|_| !ends_in_a_name(&code)) {
            length
        } else if rest.starts_with('"') {
            quoted(rest, '"')
        } else if rest.starts_with("'\\")
            || rest.chars().nth(2) == Some('\'') && rest.starts_with('\'')
        {
            quoted(rest, '\'')
        } else {
            0
        };
        if skip > 0 {
            at += skip;
            continue;
        }
        let Some(c) = rest.chars().next() else { break };
        code.push(c);
        at += c.len_utf8();
    }
    code
}

fn ends_in_a_name(code: &str) -> bool {
    code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        match &rest[at..] {
            "" => return at,
            r if r.starts_with("/*") => {
                depth += 1;
                at += 2;
            }
            r if r.starts_with("*/") => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            r => at += r.chars().next().map_or(1, char::len_utf8),
        }
    }
}

/// The length of the raw string that begins here, if one does.
fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = after.bytes().take_while(|b| *b == b'#').count();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(rest.len() - body.len() + body.find(&end).map_or(body.len(), |i| i + end.len()))
}

/// The length of the literal that begins here, with its quotes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return i + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}
