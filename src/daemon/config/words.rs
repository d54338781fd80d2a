//! What somebody may have meant by a word that is unknown.

/// `; did you mean …?` or the words that there are.
pub(super) fn nearest(word: &str, known: &[&str]) -> String {
    let folded = |word: &str| word.to_lowercase().replace('-', "_");
    let word = folded(word);
    let close = known
        .iter()
        .map(|k| (distance(&word, &folded(k)), *k))
        .min();
    match close {
        Some((far, best)) if far <= 1 + best.len() / 4 => format!("; did you mean {best:?}?"),
        _ => format!("; it may be {}", known.join(", ")),
    }
}

/// What the library says to a host, as it is to be said to whoever configures or asks a daemon: by keys of
/// the configuration and fields of requests.
pub(crate) fn of_the_daemon(text: &str) -> String {
    const WORDS: &[(&str, &str)] = &[
        ("Limits::", "limits."),
        ("DeviceOptions::", "devices."),
        (
            "Net::ucx says that UCX is to be used",
            "ucx.when = \"always\", and UCX cannot be used",
        ),
        ("UcxOptions::", "ucx."),
        ("Pinning::shards", "node.pin_shards"),
        ("Pinning::lanes", "node.pin_lanes"),
        ("with from(&peer)", "in `from`"),
    ];
    let replace = |text: String, (rust, key): &(&str, &str)| text.replace(rust, key);
    WORDS.iter().fold(text.to_owned(), replace)
}

/// How many characters must be put in, left out or replaced.
fn distance(a: &str, b: &str) -> usize {
    // A word of a stranger may be long: none of ours is.
    let a: Vec<char> = a.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=a.len()).collect();
    for (i, c) in b.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, d) in a.iter().enumerate() {
            let replaced = corner + usize::from(c != *d);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row[a.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_says_is_said_by_keys_and_fields() {
        let pin = "this process may use 0-1; correct Pinning::shards";
        assert!(of_the_daemon(pin).ends_with("correct node.pin_shards"));
        let ucx = "Net::ucx says that UCX is to be used: no";
        assert_eq!(
            of_the_daemon(ucx),
            "ucx.when = \"always\", and UCX cannot be used: no"
        );
        let many = "a room has 1 to 256 receivers (Limits::receivers)";
        assert!(of_the_daemon(many).ends_with("(limits.receivers)"));
    }

    #[test]
    fn the_nearest_word_is_named_and_all_if_none_is_near() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        let known = ["listen", "connect", "lanes"];
        assert_eq!(nearest("lisen", &known), "; did you mean \"listen\"?");
        assert_eq!(nearest("Listen", &known), "; did you mean \"listen\"?");
        assert!(nearest("teapot", &known).contains("listen, connect, lanes"));
        assert!(nearest(&"x".repeat(100_000), &known).contains("it may be"));
    }
}
