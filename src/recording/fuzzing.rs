//! The fuzz target of the reader; see `kvroom_actors::fuzzing`.

use super::{Recording, load, merge, read, replay, write};

/// Most entries that are replayed: each may ask for its room's machines to be looked through.
const MOST: usize = 2_000;

/// A recording from anybody: what is taken is the same when it is written and read again, and can be
/// replayed, merged and taken as load; what is not taken names the line.
pub fn recording(data: &[u8]) {
    let recording = match read("r.jsonl", data) {
        Ok(recording) => recording,
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("recording r.jsonl"), "{text}");
            return;
        }
    };
    let numbers = recording.entries.iter().map(|entry| entry.seq);
    assert!(numbers.is_sorted());
    let text = written(&recording);
    let again = read("again", text.as_slice());
    assert!(
        again.as_ref().is_ok_and(|again| *again == recording),
        "{again:?}\n{recording:?}"
    );
    if recording.entries.len() > MOST {
        return;
    }
    let merged = merge::merge(&recording, &recording);
    assert!(merged.moments.len() >= recording.entries.len());
    assert!(load::requests(&recording).len() <= recording.entries.len());
    for room in replay::replay(&recording) {
        assert!(room.steps.len() <= recording.entries.len());
    }
}

fn written(recording: &Recording) -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = write(recording, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::recording as every_kind;
    use super::*;
    use std::path::Path;

    include!("../../fuzz/replay.rs");

    #[test]
    fn recordings_that_are_kept_break_nothing() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let whole = written(&every_kind());
        let cut = whole[..whole.len() * 2 / 3].to_vec();
        let kept = vec![("whole".to_owned(), whole), ("cut".to_owned(), cut)];
        seeds(root, "recording", kept);
        replay(root, "recording", recording);
    }
}
