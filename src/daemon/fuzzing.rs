//! The fuzz target of words in requests; `fuzz/` has this very file. See `kvroom_actors::fuzzing`.

use super::http::duration;
use super::trace;
use std::time::Duration;

/// A word of a query or a header, as a duration and as a `traceparent`: what is taken has a value within
/// its bounds that is the same when it is written and read again; what is not taken says what it must be.
pub(crate) fn requests(data: &[u8]) {
    let Ok(word) = std::str::from_utf8(data) else {
        return;
    };
    match duration::parse(word) {
        Ok(time) => {
            assert!(time < Duration::from_secs(1_000_000_000));
            let again = format!("{}ms", time.as_millis());
            assert!(again.len() > 11 || duration::parse(&again) == Ok(time));
        }
        Err(why) => assert!(!why.is_empty()),
    }
    match trace::parse(word) {
        Ok((trace, parent)) => {
            assert!(trace != 0 && parent != 0);
            let shown = trace::show(&kvroom::Trace {
                trace_id: trace,
                span_id: parent,
            });
            assert_eq!(trace::parse(&shown), Ok((trace, parent)));
            assert_eq!(word[3..52], shown[3..52]);
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    include!("../../fuzz/replay.rs");

    #[test]
    fn words_of_requests_that_are_kept_break_nothing() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let kept = [
            (
                "trace",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            ),
            (
                "later",
                "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            ),
            ("seconds", "30s"),
            ("ms", "250ms"),
        ];
        let kept = kept.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        seeds(root, "requests", kept.into());
        replay(root, "requests", requests);
    }
}
