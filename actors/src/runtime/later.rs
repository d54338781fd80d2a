//! Messages of an actor to itself, at a later time.
//!
//! An actor polls all that its context waits for each time it is woken, whatever for. A clock there
//! costs at every message; a task of its own costs when it is set and when it runs out.

use actix::{Actor, AsyncContext, Context, Handler, Message};
use std::time::Duration;
use tokio::task::AbortHandle;

/// As `AsyncContext::notify_later`, by a task beside the actor, which it does not keep alive.
pub(crate) fn later<A, M>(ctx: &Context<A>, message: M, after: Duration) -> AbortHandle
where
    A: Actor<Context = Context<A>> + Handler<M>,
    M: Message<Result = ()> + Send + 'static,
{
    let me = ctx.address().downgrade();
    let task = actix::spawn(async move {
        tokio::time::sleep(after).await;
        if let Some(me) = me.upgrade() {
            // One for each clock, which is set again by what it leads to.
            me.do_send(message);
        }
    });
    task.abort_handle()
}
