//! Which transports a context has, read from what UCX says of itself. Pure.

use std::collections::BTreeSet;

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
