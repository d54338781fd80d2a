//! A recording as a storm: the same arrivals, sizes and aborts, on this machine.

use super::{Kill, Pace, RoomSpec, Script, Side, Start, Step, probe_turn};
use crate::load::{LARGEST_PAGES, PAGE_TOKENS, Turn};
use kvroom::Role;
use kvroom::recording::load::Request;
use std::collections::HashSet;
use std::time::Duration;

/// Pages of one chunk.
const CHUNK_PAGES: u32 = 4;
/// A step of the prefill engine, if no room of the recording was done; and its bounds.
const STEP: Duration = Duration::from_millis(4);
const SHORTEST: Duration = Duration::from_micros(200);
const LONGEST: Duration = Duration::from_millis(100);
/// Most rooms of a replay; what a recording has beyond them is left out.
const MOST: usize = 10_000;

impl Script {
    /// The rooms of a recording, each with both its sides. None if there are none.
    pub(crate) fn replayed(requests: &[Request]) -> Option<Script> {
        let mut keys = HashSet::new();
        let (mut rooms, mut events) = (Vec::new(), Vec::new());
        // A node that played both sides of a room has recorded it twice.
        let once = requests.iter().filter(|request| keys.insert(request.key));
        for request in once.take(MOST) {
            let room = rooms.len();
            let pages = request.pages.clamp(1, LARGEST_PAGES.into()) as u32;
            rooms.push(RoomSpec {
                id: request.key.id.0,
                attempt: request.key.attempt,
                session: room as u32,
                turn: Turn {
                    pages,
                    skip_pages: 0,
                    tokens: u64::from(pages) * u64::from(PAGE_TOKENS),
                },
            });
            let start = Step::Start(vec![Start {
                room,
                prefill: true,
            }]);
            events.push((request.at, start));
            if let Some(after) = request.aborted {
                let side = match request.role {
                    Role::Receiver => Side::Decode,
                    Role::Sender => Side::Prefill,
                };
                let kill = Kill {
                    room,
                    side,
                    by_tag: false,
                };
                events.push((request.at.saturating_add(after), Step::Abort(vec![kill])));
            }
        }
        if rooms.is_empty() {
            return None;
        }
        // Of the same moment, in the order of the recording: a start before its abort.
        events.sort_by_key(|(at, _)| *at);
        let steps = events
            .into_iter()
            .flat_map(|(at, step)| [Step::At(at), step]);
        let steps = steps.collect();
        let free = |id: &u64| rooms.iter().all(|room: &RoomSpec| room.id != *id);
        let id = (1 << 62..u64::MAX).find(free)?;
        rooms.push(RoomSpec {
            id,
            attempt: 0,
            session: rooms.len() as u32,
            turn: probe_turn(PAGE_TOKENS),
        });
        Some(Script {
            rooms,
            steps,
            pace: Pace {
                chunk_pages: CHUNK_PAGES,
                step: step(requests),
                slow_take: Duration::ZERO,
            },
            resumes: false,
        })
    }
}

/// Time between two steps of the prefill engine, so that a room takes about as long as it did: rooms
/// that are over before they are given up make no storm.
fn step(requests: &[Request]) -> Duration {
    let chunk = |request: &Request| {
        let chunks = request.pages.div_ceil(CHUNK_PAGES.into());
        let chunks = u32::try_from(chunks).unwrap_or(u32::MAX).max(1);
        request.done.map(|took| took / chunks)
    };
    let mut steps: Vec<Duration> = requests.iter().filter_map(chunk).collect();
    steps.sort_unstable();
    let median = steps.get(steps.len() / 2).copied().unwrap_or(STEP);
    median.clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvroom::RoomKey;

    #[test]
    fn a_recording_becomes_the_same_arrivals_sizes_and_aborts() {
        let ms = Duration::from_millis;
        let request = |id, at, pages, aborted, role| Request {
            at: ms(at),
            key: RoomKey::new(id, 2),
            role,
            pages,
            aborted,
            done: (id == 7).then_some(ms(12)),
        };
        let requests = [
            request(7, 0, 3, Some(ms(5)), Role::Receiver),
            request(7, 1, 3, None, Role::Sender),
            request(8, 2, 1 << 40, Some(ms(1)), Role::Sender),
        ];
        let script = Script::replayed(&requests).unwrap();
        assert_eq!(script.rooms.len(), 3, "two and the probe");
        assert_eq!((script.rooms[0].id, script.rooms[0].attempt), (7, 2));
        let pages: Vec<u32> = script.rooms.iter().map(|room| room.turn.pages).collect();
        assert_eq!(pages[..2], [3, LARGEST_PAGES]);
        let kill = |room, side| {
            Step::Abort(vec![Kill {
                room,
                side,
                by_tag: false,
            }])
        };
        let start = |room| {
            Step::Start(vec![Start {
                room,
                prefill: true,
            }])
        };
        let expected = [
            Step::At(ms(0)),
            start(0),
            Step::At(ms(2)),
            start(1),
            Step::At(ms(3)),
            kill(1, Side::Prefill),
            Step::At(ms(5)),
            kill(0, Side::Decode),
        ];
        assert_eq!(script.steps, expected);
        assert_eq!(
            script.pace.step,
            ms(12),
            "a chunk of the room that was done"
        );
        assert_eq!(Script::replayed(&[]), None);
    }
}
