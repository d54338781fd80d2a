//! Where a node's threads run. Alone in its file: it looks at all threads of the process.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

use kvroom::{Cpus, Node, NodeError, PinError, Pinning, cpus_of_this_thread};
use std::fs;

/// The sets of processors of all threads but this one's and the node's own, as the kernel tells them.
fn sets_of_arbiters() -> Vec<String> {
    let mut sets = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        if field("Name:").is_some_and(|name| name.starts_with("actix-rt")) {
            sets.push(field("Cpus_allowed_list:").unwrap());
        }
    }
    sets.sort();
    sets
}

#[test]
fn shards_and_lanes_run_where_they_are_put_and_nothing_runs_where_it_cannot() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let allowed: Vec<usize> = cpus_of_this_thread().unwrap().iter().collect();
        let (first, last) = (allowed[0], *allowed.last().unwrap());
        let builder = || Node::builder("pinned").shards(1).lanes(3);

        let nowhere = Pinning {
            shards: vec![first],
            lanes: vec![last, 8191],
        };
        let refused = builder().pin(nowhere).start().await.unwrap_err();
        assert!(
            matches!(
                refused,
                NodeError::Pin(PinError::NotAllowed {
                    cpu: 8191,
                    list: "lanes",
                    ..
                })
            ),
            "{refused}"
        );
        assert_eq!(
            sets_of_arbiters(),
            Vec::<String>::new(),
            "something was started"
        );

        let pinning = Pinning {
            shards: vec![first],
            lanes: vec![last, first],
        };
        let node = builder().pin(pinning).start().await.unwrap();
        // One shard, and three lanes on two processors in turn.
        let mut expected = [first, last, first, last].map(|cpu| cpu.to_string());
        expected.sort();
        assert_eq!(sets_of_arbiters(), expected);
        assert!(node.shutdown().await.drained);

        let all: Cpus = allowed.into_iter().collect();
        let node = builder().start().await.unwrap();
        assert_eq!(sets_of_arbiters(), vec![all.to_string(); 4]);
        assert!(node.shutdown().await.drained);
    });
}
