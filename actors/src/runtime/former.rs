//! Pools whose former lives left writers inside: looked at until those have left, or are dead.
//!
//! Rules: a node without such pools has no clock for this. Who leases a page that waits looks by itself,
//! too; this is for those that nobody asks for.

use super::control::Shared;
use std::rc::Rc;
use std::time::Duration;

/// How often is looked.
const EVERY: Duration = Duration::from_secs(1);

/// Looks now and then until nothing waits any more. To be called when a pool is added.
pub(super) fn watch(state: &Shared) {
    let waits = |state: &Shared| {
        let pools = state.borrow().pools.borrow().clone();
        pools.look_again();
        pools.quarantined() > 0
    };
    if !waits(state) {
        return;
    }
    // The node's end ends it.
    let me = Rc::downgrade(state);
    actix::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            match me.upgrade() {
                Some(state) if waits(&state) => {}
                _ => return,
            }
        }
    });
}
