// Gives a target everything that is kept for it: its corpus, and what it once failed on. Included by
// the tests of the crates that own the decoders.

/// Calls `target` with every input that is kept under its name; at least one is.
fn replay(root: &std::path::Path, name: &str, target: fn(&[u8])) {
    let mut inputs = Vec::new();
    for kind in ["corpus", "regressions"] {
        let Ok(entries) = std::fs::read_dir(root.join("fuzz").join(kind).join(name)) else {
            continue;
        };
        inputs.extend(entries.map(|entry| entry.unwrap().path()));
    }
    inputs.sort();
    assert!(!inputs.is_empty(), "there is no corpus of {name}");
    for input in inputs {
        let data = std::fs::read(&input).unwrap();
        if let Err(panic) = std::panic::catch_unwind(|| target(&data)) {
            eprintln!("this was with {}", input.display());
            std::panic::resume_unwind(panic);
        }
    }
}

/// Compares the seeds that the real encoders give with those that are kept; writes them if
/// KVROOM_BLESS=1.
fn seeds(root: &std::path::Path, name: &str, seeds: Vec<(String, Vec<u8>)>) {
    let folder = root.join("fuzz/corpus").join(name);
    let bless = std::env::var_os("KVROOM_BLESS").is_some_and(|v| v == "1");
    if bless {
        std::fs::create_dir_all(&folder).unwrap();
    }
    for (seed, bytes) in seeds {
        let path = folder.join(format!("seed-{seed}"));
        if bless {
            std::fs::write(&path, &bytes).unwrap();
        }
        let kept = std::fs::read(&path).unwrap_or_default();
        assert!(
            kept == bytes,
            "{} is not what the encoder gives now: KVROOM_BLESS=1 writes it anew",
            path.display()
        );
    }
}
