//! Fuzz target of the reader of traces. `fuzz/` has this very file; see `kvroom_actors::fuzzing`.

use super::trace::{BLOCK_TOKENS, MAX_TOKENS, TraceError, read};

/// A trace: every request that is read is within its bounds; else the line is named that is wrong.
pub(crate) fn trace(data: &[u8]) {
    match read("t", data, 100) {
        Ok(requests) => {
            assert!((1..=100).contains(&requests.len()));
            for request in requests {
                assert!((1..=MAX_TOKENS).contains(&request.input_length));
                let blocks = request.input_length.div_ceil(u64::from(BLOCK_TOKENS));
                assert_eq!(request.hash_ids.len() as u64, blocks);
            }
        }
        Err(error @ TraceError::Line { line, .. }) => {
            assert!(line >= 1 && error.to_string().contains("line"));
        }
        Err(TraceError::Empty { .. }) => {}
        Err(TraceError::Io { source, .. }) => panic!("memory is always there: {source}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    include!("../../fuzz/replay.rs");

    macro_rules! targets {
        ($($name:ident, $test:ident;)*) => {$(
            #[test]
            fn $test() {
                let root = Path::new(env!("CARGO_MANIFEST_DIR"));
                seeds(root, stringify!($name), kept());
                replay(root, stringify!($name), $name);
            }
        )*};
    }

    targets! {
    trace, traces_that_are_kept_break_nothing;
    }

    fn kept() -> Vec<(String, Vec<u8>)> {
        let line =
            r#"{"timestamp": 7, "input_length": 513, "output_length": 2, "hash_ids": [4, 5]}"#;
        let two = format!("{line}\n\n{}\n", line.replace("513", "1024"));
        vec![
            ("one".to_owned(), line.into()),
            ("two".to_owned(), two.into()),
        ]
    }
}
