//! When a dump is due.

use super::Dumps;
use super::dump::Why;
use kvroom::record::Stuck;
use kvroom::{Node, RoomKey};
use std::collections::HashSet;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal as listen};

/// How often is looked.
const EVERY: Duration = Duration::from_secs(1);
/// How long after its deadline a room is stuck.
const GRACE: Duration = Duration::from_secs(1);
/// How long a shard may take to say so.
const WITHIN: Duration = Duration::from_secs(5);

/// Writes a dump when rooms are stuck that were not before, or a shard does not answer.
pub(super) async fn stuck_rooms(node: Node, dumps: Dumps) {
    let mut known = Known::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let stuck = node.stuck_rooms(GRACE, WITHIN).await;
        if known.is_news(&stuck) {
            for room in stuck.rooms.iter().take(16) {
                tracing::warn!(
                    room = %room.key,
                    state = %room.state,
                    because = room.held_because.as_deref().unwrap_or("it has no outcome"),
                    "a room is stuck"
                );
            }
            write(&dumps, Why::Stuck).await;
        }
    }
}

/// Takes SIGUSR1 over from the system, which would end the process by it.
pub(super) fn signals() -> Option<Signal> {
    match listen(SignalKind::user_defined1()) {
        Ok(signals) => Some(signals),
        Err(error) => {
            tracing::error!("SIGUSR1 cannot be heard, and writes no recording: {error}");
            None
        }
    }
}

/// Writes a dump for each SIGUSR1; for those that come while one is written, one.
pub(super) async fn signal(mut signals: Signal, dumps: Dumps) {
    while signals.recv().await.is_some() {
        write(&dumps, Why::Signal).await;
    }
}

/// Off the threads that serve HTTP.
async fn write(dumps: &Dumps, why: Why) {
    let dumps = dumps.clone();
    let written = tokio::task::spawn_blocking(move || dumps.write_and_log(why)).await;
    if let Err(error) = written {
        tracing::error!("the recording was interrupted: {error}");
    }
}

/// What was stuck at the last look.
#[derive(Default)]
struct Known {
    rooms: HashSet<RoomKey>,
    silent: HashSet<usize>,
}

impl Known {
    fn is_news(&mut self, stuck: &Stuck) -> bool {
        let rooms: HashSet<RoomKey> = stuck.rooms.iter().map(|room| room.key).collect();
        let silent: HashSet<usize> = stuck.silent.iter().copied().collect();
        let news = !rooms.is_subset(&self.rooms) || !silent.is_subset(&self.silent);
        (self.rooms, self.silent) = (rooms, silent);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_stays_silent_is_news_once_and_again_after_it_spoke() {
        let mut known = Known::default();
        let silent = |silent: &[usize]| Stuck {
            silent: silent.to_vec(),
            ..Stuck::default()
        };
        let news = [&[][..], &[1], &[1], &[1, 2], &[2], &[], &[2]];
        let news = news.map(|shards| known.is_news(&silent(shards)));
        assert_eq!(news, [false, true, false, true, false, false, true]);
    }
}
