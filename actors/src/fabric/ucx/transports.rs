//! Which transports a context has, read from what UCX says of itself, and what they are told. Pure.

use super::context::Setting;
use kvroom_ucx_sys::Version;
use std::collections::BTreeSet;
use std::ffi::CString;

/// Bytes that UCX receives at once from a connection of its `tcp`. A message that is longer it puts together
/// in memory that it allocates for it, which is a copy more. Both sides need the same, whatever their
/// environment says: a sender takes its own value for the receiver's, which does not look whether it has the
/// room. So a change of it is one of the protocol.
pub(super) const TCP_SEGMENT: usize = 512 << 10;

/// Settings of transports that are used, or could be, by a list such as `UCX_TLS` has it. UCX complains of
/// those of others. How one is called depends on UCX's version.
pub(super) fn settings_of(names: &str, version: Version) -> Vec<Setting> {
    let mut settings = Vec::new();
    // A list of all but some.
    let but = names.is_empty() || names.starts_with('^');
    let listed: Vec<&str> = names
        .trim_start_matches('^')
        .split(',')
        .map(str::trim)
        .collect();
    let has = |some: &[&str]| {
        listed.contains(&"all") || some.iter().any(|name| listed.contains(name) != but)
    };
    if has(&["tcp"]) {
        // Before 1.17 what is set by a call is looked for without the transport's prefix.
        let name = match (version.major, version.minor) < (1, 17) {
            true => c"RX_SEG_SIZE",
            false => c"TCP_RX_SEG_SIZE",
        };
        // Digits have no zero byte.
        let bytes = CString::new(TCP_SEGMENT.to_string()).ok();
        settings.extend(bytes.map(|bytes| (name, bytes)));
        if (version.major, version.minor) < (1, 14) {
            // What a worker that sends without copying takes for its headers 1.13 never gives back: half a
            // megabyte, or two with huge pages, which are left out here.
            let methods = c"md:sysv,md:posix,md:*,mmap,heap".to_owned();
            settings.push((c"ALLOC_PRIO", methods));
        }
    }
    if has(&["posix", "sysv", "xpmem", "mm", "sm", "shm"]) {
        // Without it there are no errors from peers on this host, and so no endpoints.
        settings.push((c"MM_ERROR_HANDLING", c"y".to_owned()));
    }
    settings
}

/// The transports of a context, by what `ucp_context_print_info` writes: lines such as
/// `#        resource 4  :  md 2  dev 3  flags -- tcp/lo`.
pub(super) fn transports(info: &str) -> Vec<String> {
    let found: BTreeSet<&str> = info.lines().filter_map(transport).collect();
    found.into_iter().map(str::to_owned).collect()
}

fn transport(line: &str) -> Option<&str> {
    let line = line.trim_start_matches('#').trim();
    if !line.starts_with("resource ") {
        return None;
    }
    let (transport, _device) = line.split_whitespace().last()?.split_once('/')?;
    (!transport.is_empty()).then_some(transport)
}

/// Whether one of them is RDMA.
pub(super) fn has_rdma(transports: &[String]) -> bool {
    transports.iter().any(|name| {
        ["rc_", "dc_", "ud_"]
            .iter()
            .any(|family| name.starts_with(family))
    })
}

/// Those by which a peer could write without this process's help.
const BY_THE_PEER_ALONE: [&str; 3] = ["cma", "knem", "xpmem"];

/// Those that attach a peer's memory.
const ATTACHING: [&str; 2] = ["posix", "sysv"];

/// Whether this process is ended (SIGABRT, "endpoint reconfiguration not supported yet") when a peer of this host is
/// gone whose first message is still to be read: then its memory cannot be attached, and another way is not taken.
pub(super) fn is_ended_by_peers(version: Version) -> bool {
    version.major == 1 && (16..=18).contains(&version.minor)
}

/// What is left out of these without RDMA, if nobody says what is to be used.
pub(super) fn left_out(found: &[String], version: Version) -> Vec<&'static str> {
    let attaching: &[&str] = match is_ended_by_peers(version) {
        true => &ATTACHING,
        false => &[],
    };
    let those = BY_THE_PEER_ALONE.iter().chain(attaching);
    // UCX complains of those that are named and not there.
    let there = those.filter(|name| found.iter().any(|f| f == *name));
    there.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_writes_by_alone_is_left_out_and_with_some_versions_what_attaches_its_memory() {
        let found = ["cma", "posix", "self", "sysv", "tcp"].map(str::to_owned);
        for minor in 13..=22 {
            let version = Version::new(1, minor, 1);
            let out = left_out(&found, version);
            match minor {
                16..=18 => assert_eq!(out, ["cma", "posix", "sysv"], "{version}"),
                _ => assert_eq!(out, ["cma"], "{version}"),
            }
        }
        assert!(left_out(&["tcp".to_owned()], Version::new(1, 17, 0)).is_empty());
    }

    const OLD: &str = "#
# UCP context
#
#     component 1  :  tcp
#            md 1  :  component 1  tcp 
#
#      resource 0  :  md 0  dev 0  flags -- self/memory0
#      resource 1  :  md 1  dev 1  flags -- tcp/lo
#      resource 2  :  md 1  dev 2  flags -- tcp/eth0
#      resource 5  :  md 4  dev 3  flags -- cma/memory
#
";

    #[test]
    fn the_transports_of_a_context_are_those_of_its_resources() {
        assert_eq!(transports(OLD), ["cma", "self", "tcp"]);
        let far = "#      resource 0  :  md 0  dev 0  flags -a rc_mlx5/mlx5_0:1\n";
        assert_eq!(transports(far), ["rc_mlx5"]);
        assert!(has_rdma(&transports(far)) && !has_rdma(&transports(OLD)));
        assert!(transports("").is_empty());
    }

    #[test]
    fn settings_are_those_of_transports_that_may_be_used() {
        let with = |names: &str, minor| -> Vec<String> {
            let version = Version {
                major: 1,
                minor,
                release: 0,
            };
            let settings = settings_of(names, version).into_iter();
            settings
                .map(|(name, value)| format!("{name:?} {value:?}"))
                .collect()
        };
        let of = |names: &str| with(names, 22);
        let tcp = r#""TCP_RX_SEG_SIZE" "524288""#;
        let shared = r#""MM_ERROR_HANDLING" "y""#;
        assert_eq!(of("tcp"), [tcp]);
        assert_eq!(of("self, tcp"), [tcp]);
        assert_eq!(of("posix"), [shared]);
        assert_eq!(of("rc,dc,ud"), [""; 0]);
        assert_eq!(of(""), [tcp, shared]);
        assert_eq!(of("^cma"), [tcp, shared]);
        assert_eq!(of("^tcp"), [shared]);
        assert_eq!(with("tcp", 17), [tcp]);
        let before = r#""RX_SEG_SIZE" "524288""#;
        assert_eq!(with("tcp", 16), [before]);
        let small = r#""ALLOC_PRIO" "md:sysv,md:posix,md:*,mmap,heap""#;
        assert_eq!(with("tcp", 13), [before, small]);
        assert_eq!(with("tcp", 14), [before]);
    }
}
