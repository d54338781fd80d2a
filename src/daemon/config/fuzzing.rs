//! The fuzz target of the configuration; `fuzz/` has this very file. See `kvroom_actors::fuzzing`.

use super::source::ConfigError;
use super::{Effective, Given};

/// A file, and behind NUL bytes variables (`NAME=VALUE`) and flags (`--PATH=WORD`): what is taken is the
/// same when it is printed and read again; what is not taken is told with where it was said.
pub(crate) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let effective = match taken(text) {
        Ok(effective) => effective,
        Err(error) => {
            let complaints = error.complaints();
            assert!(!complaints.is_empty());
            assert!(complaints.iter().all(|c| !c.what.is_empty()));
            assert!(error.to_string().starts_with("the configuration has "));
            return;
        }
    };
    let printed = effective.to_toml();
    let again = Effective::read_text(Some(("again", &printed)), [], &Given::default());
    match again {
        Ok(again) => assert_eq!(again.config, effective.config, "{printed}"),
        Err(error) => panic!("{error}\n{printed}"),
    }
    assert!(effective.to_json().is_object());
}

/// As the three sources have it.
fn taken(text: &str) -> Result<Effective, ConfigError> {
    let mut parts = text.split('\0');
    let file = parts.next().unwrap_or_default();
    let (flags, variables): (Vec<&str>, Vec<&str>) = parts.partition(|part| part.starts_with("--"));
    let pair = |part: &str| -> Option<(String, String)> {
        let (name, value) = part.split_once('=')?;
        Some((name.trim_start_matches("--").to_owned(), value.to_owned()))
    };
    let variables = variables.into_iter().filter_map(pair);
    let flags = flags.into_iter().filter_map(pair);
    let given = Given::of(flags.map(|(path, word)| (path, vec![word])));
    let variables = variables.map(|(name, value)| (name.into(), value.into()));
    Effective::read_text(Some(("k.toml", file)), variables, &given)
}

#[cfg(test)]
mod tests {
    use super::super::tests::uncommented;
    use super::*;
    use std::path::Path;

    include!("../../../fuzz/replay.rs");

    const POOL: &str = "[[pool]]\nname='kv'\nlayers=2\npages=8\npage_bytes=4096\n";

    #[test]
    fn configurations_that_are_kept_break_nothing() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        // Every key, with a pool that may have all of its keys.
        let all = uncommented(&super::super::example()).replace("\"shared\"", "\"file\"");
        let all = all.replace("\ndevice = 0\n", "\n# device = 0\n");
        let sources = "name='a'\n[http]\nlisten='unix:///run/a'\n\0KVROOM_NODE_LANES=3\0\
            KVROOM_POOL=name=a,layers=1,pages=2,page_bytes=64KiB\0--deadlines.outcome=none\0\
            --limits.frame_bytes=1MiB\0--pool=name=b,layers=1,pages=2,page_bytes=9";
        let wrong = "[http]\nlisten='0.0.0.0:1'\nrate_burst=3\n[node]\nshm=false\nshm_group=1\n\
            [deadlines]\nping='9s'\nstall=\"5\"\n[x]\n";
        let kept = [
            ("keys", all.as_str()),
            ("pool", POOL),
            (
                "pool-on-a-device",
                &format!("{POOL}device=0\n[devices]\nordinals=[0]\n"),
            ),
            ("sources", sources),
            ("wrong", wrong),
        ];
        let wrongs = kept.map(|(name, text)| (name, taken(text).err()));
        let refused = wrongs.iter().filter(|(_, error)| error.is_some());
        let refused: Vec<&str> = refused.map(|(name, _)| *name).collect();
        assert_eq!(refused, ["wrong"], "{wrongs:?}");
        let kept = kept.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        seeds(root, "config", kept.into());
        replay(root, "config", config);
    }
}
