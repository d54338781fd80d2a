//! Fuzz targets of what the program reads: words of its command line, files, commands, the output of
//! other programs. `fuzz/` has this very file; see `kvroom_actors::fuzzing`.

pub(crate) use super::bench::compare::fuzzing::results;

use super::args::words::{PoolSpec, address};
use super::bench::workload;
use super::doctor::ld_cache;
use super::node::protocol::{self, MAX_COUNT, Pages, Request};
use super::settings::{DeadlineSetting, LimitSetting, limit_words};
use kvroom::{Deadlines, Limits};

/// A line of commands: understood, and then the same once it is written and read again; or refused
/// with a reason. Pages of its rooms are listed or refused, and a list is no longer than it may be.
pub(crate) fn commands(data: &[u8]) {
    let (id, request) = protocol::parse(data);
    let request = match request {
        Ok(request) => request,
        Err(why) => {
            assert!(!why.is_empty());
            let answer = protocol::answer(id, Err(why));
            assert!(answer.is_object());
            return;
        }
    };
    let line = protocol::line(9, &request);
    let again = line.map(|line| protocol::parse(line.as_bytes()));
    match again {
        Ok((id, again)) => assert!(id == 9 && again.as_ref() == Ok(&request), "{again:?}"),
        Err(why) => panic!("{why}"),
    }
    let pages = match &request {
        Request::Fill(cells) | Request::Check(cells) => Some(&cells.pages),
        Request::Push(push) => Some(&push.pages),
        Request::Send(send) => send.pages.as_ref(),
        Request::Receive(receive) => receive.pages.as_ref(),
        _ => None,
    };
    for k in [0, 1, MAX_COUNT, u64::MAX] {
        let Some(Ok(list)) = pages.map(|pages| pages.of(k)) else {
            continue;
        };
        if let Some(&Pages::Run { each, .. }) = pages {
            assert_eq!(list.len(), each as usize);
            assert!(list.len() as u64 <= MAX_COUNT, "{} pages", list.len());
        }
    }
}

/// One word of a command line as a limit, a deadline, a pool and an address: what is taken has a
/// value, and what is not says why.
pub(crate) fn settings(data: &[u8]) {
    let Ok(word) = std::str::from_utf8(data) else {
        return;
    };
    match word.parse::<LimitSetting>() {
        Ok(setting) => {
            let mut limits = Limits::default();
            setting.apply(&mut limits);
            assert!(limit_words(&limits).len() <= 1);
        }
        Err(why) => assert!(!why.is_empty()),
    }
    match word.parse::<DeadlineSetting>() {
        Ok(setting) => setting.apply(&mut Deadlines::default()),
        Err(why) => assert!(!why.is_empty()),
    }
    match word.parse::<PoolSpec>() {
        Ok(pool) => assert!(
            !pool.name.is_empty() && pool.layers > 0 && pool.pages > 0 && pool.page_bytes > 0
        ),
        Err(why) => assert!(!why.is_empty()),
    }
    if let Ok(address) = address(word) {
        assert_eq!(address, word);
    }
}

/// A file of workloads: what is taken lies within its bounds.
pub(crate) fn workloads(data: &[u8]) {
    match workload::parse("w.json", data, "w") {
        Ok(found) => {
            assert!(found.name == "w" && (1..=4096).contains(&found.layers));
            assert!(found.pages >= 1 && found.pages <= found.pool_pages);
            assert!(found.pool_bytes() <= 1 << 38 && found.request_bytes() <= found.pool_bytes());
            if found.pool_pages <= 4096 {
                let slots = [found.source_slots(), found.destination_slots()].concat();
                assert_eq!(slots.len(), 2 * found.pages as usize);
                assert!(slots.iter().all(|slot| *slot < found.pool_pages));
            }
        }
        Err(error) => assert!(error.to_string().contains("w.json")),
    }
}

/// The dynamic linker's cache, which may be damaged.
pub(crate) fn linker_cache(data: &[u8]) {
    match ld_cache::paths_of(data, "libucp.so.0") {
        Ok(paths) => assert!(paths.len() <= data.len()),
        Err(why) => assert!(!why.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::protocol::{Cells, Send, Wait, Which};
    use super::*;
    use std::path::Path;

    include!("../../fuzz/replay.rs");

    macro_rules! targets {
        ($($name:ident, $test:ident;)*) => {$(
            #[test]
            fn $test() {
                let root = Path::new(env!("CARGO_MANIFEST_DIR"));
                seeds(root, stringify!($name), kept::$name());
                replay(root, stringify!($name), $name);
            }
        )*};
    }

    targets! {
    commands, commands_that_are_kept_break_nothing;
    linker_cache, caches_that_are_kept_break_nothing;
    results, results_that_are_kept_break_nothing;
    settings, words_that_are_kept_break_nothing;
    workloads, workloads_that_are_kept_break_nothing;
    }

    mod kept {
        use super::*;

        type Seeds = Vec<(String, Vec<u8>)>;

        fn texts<const N: usize>(seeds: [(&str, &str); N]) -> Seeds {
            seeds
                .map(|(name, text)| (name.to_owned(), text.into()))
                .into()
        }

        pub(super) fn commands() -> Seeds {
            let run = Pages::Run { first: 1, each: 2 };
            let requests = [
                ("ping", Request::Ping {}),
                ("wait", Request::Wait(Wait::sends(0, 10))),
                (
                    "send",
                    Request::Send(Send {
                        pages: Some(run),
                        pool: Some("kv".into()),
                        ..Send::empty(0, 1)
                    }),
                ),
                (
                    "fill",
                    Request::Fill(Cells {
                        pool: "kv".into(),
                        pages: Pages::Sets {
                            sets: vec![vec![1, 2], vec![3]],
                        },
                        seed: 5,
                        index: 1,
                    }),
                ),
                (
                    "abort",
                    Request::AbortWhere {
                        which: Which::Peer("decode-0".into()),
                        reason: "x".into(),
                    },
                ),
            ];
            let line = |(name, request): (&str, Request)| {
                let line = protocol::line(9, &request).unwrap();
                (name.to_owned(), line.into_bytes())
            };
            let mut seeds: Seeds = requests.map(line).into();
            seeds.extend(texts([
                (
                    "receive",
                    r#"{"id":1,"op":"receive","first":1,"count":2,"from":["a"],"pool":"kv","pages":[1,2],"checksum":true}"#,
                ),
                (
                    "push",
                    r#"{"op":"push","first":0,"count":1,"pool":"kv","pages":{"first":0,"each":9}}"#,
                ),
            ]));
            seeds
        }

        pub(super) fn settings() -> Seeds {
            texts([
                ("limit", "rooms=1000"),
                ("deadline", "liveness=500"),
                ("none", "outcome=none"),
                ("pool", "kv:32:512:16384"),
                ("address", "tcp://[::1]:7"),
                ("unix", "unix:///run/a"),
            ])
        }

        pub(super) fn workloads() -> Seeds {
            texts([
                (
                    "throughput",
                    r#"{"workloads":[{"name":"w","layers":2,"pages":3,"page_bytes":4096,"pool_pages":8,"seed":1,"kind":"throughput"}]}"#,
                ),
                (
                    "rate",
                    r#"{"workloads":[{"name":"w","layers":1,"pages":1,"page_bytes":64,"pool_pages":1,"seed":1,"kind":"rate","count":9,"inflight":[1,4]}]}"#,
                ),
            ])
        }

        pub(super) fn results() -> Seeds {
            texts([
                (
                    "throughput",
                    "\u{0}{\"ev\":\"bw\",\"rep\":1,\"st\":[\"PROC\",\"DONE\"],\"mode\":\"x\",\"GBps\":1.5}\n",
                ),
                (
                    "abort",
                    "\u{7f}{\"ev\":\"abort\",\"state_before\":\"PROC\",\"release_us\":4,\"changed_after\":[[1,0],[2,3]]}\n",
                ),
                (
                    "own",
                    "\u{0}{\"fabric\":\"tcp\",\"GBps\":{\"median\":2.5}}\n",
                ),
            ])
        }

        /// One entry, as glibc writes it.
        pub(super) fn linker_cache() -> Seeds {
            let mut cache = b"glibc-ld.so.cache1.1".to_vec();
            for word in [1_u32, 32] {
                cache.extend(word.to_ne_bytes());
            }
            cache.resize(48, 0);
            for word in [3_u32, 72, 84, 0, 0, 0] {
                cache.extend(word.to_ne_bytes());
            }
            cache.extend(b"libucp.so.0\0/lib/libucp.so.0\0");
            let cut = cache[..80].to_vec();
            vec![("one".to_owned(), cache), ("cut".to_owned(), cut)]
        }
    }
}
