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

#[cfg(test)]
mod tests {
    use super::*;

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
}
