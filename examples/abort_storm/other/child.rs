//! The child: plays one side as it is told, and reports.

use super::lines::{Answer, Line, Question, Report};
use crate::driver;
use crate::engine::{End, Listener, RoomNo};
use crate::memory::{Destination, DestinationPages, Source, SourcePages};
use crate::oracle::{Findings, Shape};
use crate::prefill::Prefill;
use crate::rooms::{
    Base, DecodeHalf, DecodeNode, Half, Place, PoolStore, PrefillHalf, PrefillNode, Wiring, runtime,
};
use crate::storms::{Script, Side};
use crate::world::{World, stamps};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

/// Plays `side` with a node that listens at `address`, until it is told to stop. Does not return
/// then; and ends the process at once when the parent is gone.
pub(crate) fn run(
    side: Side,
    address: &str,
    wiring: &Wiring,
    shape: Shape,
    script: &Script,
) -> Result<(), String> {
    let (destination, source): (Box<dyn Destination>, Box<dyn Source>);
    let stamps = stamps(shape, &script.rooms);
    let store = match side {
        Side::Decode => {
            let store = Arc::new(PoolStore::new(wiring, side, shape)?);
            destination = Box::new(DestinationPages::new(shape, stamps, store.clone()));
            source = Box::new(Elsewhere);
            store
        }
        Side::Prefill => {
            let store = Arc::new(PoolStore::new(wiring, side, shape)?);
            destination = Box::new(Elsewhere);
            source = Box::new(SourcePages::new(shape, stamps, store.clone()));
            store
        }
    };
    let world = Arc::new(World::new(shape, &script.rooms, destination, source));
    let listener: Arc<dyn Listener> = Arc::new(Reporting(Arc::clone(&world)));
    let place = Place::Listen(address.to_owned());
    let base = Base::start(wiring, side, place, runtime()?, shape, store, &listener)?;
    report(&Report::Ready {
        address: base.address()?,
        incarnation: base.incarnation(),
    });
    let playing = Playing {
        world: &world,
        listener: &*listener,
    };
    match side {
        Side::Decode => playing.decode(&DecodeNode::new(base)),
        Side::Prefill => playing.prefill(&PrefillNode::new(base), script),
    }
    Ok(())
}

struct Playing<'a> {
    world: &'a World,
    listener: &'a dyn Listener,
}

impl Playing<'_> {
    fn decode(&self, half: &DecodeNode) {
        let scanning = AtomicBool::new(true);
        thread::scope(|scope| {
            scope.spawn(|| driver::scan(self.world, &scanning));
            each_line(|line| match line {
                Line::Ask { number, question } => {
                    let answer = match question {
                        Question::Take { room } => Answer::Taken(self.world.take_destination(room)),
                        Question::Scan => {
                            let pages = self.world.shape.destination_pages;
                            self.world.destination.scan(0, pages);
                            self.judged()
                        }
                        other => self.common(half, &other),
                    };
                    reply(number, answer);
                }
                Line::Start { room } => self.receive(half, room),
                Line::Abort { room } => half.abort(room),
                Line::AbortTag { tag } => half.abort_tag(&tag),
                Line::Voided { room } => self.world.destination.voided(room),
                Line::Placed { room, first, pages } => self.world.placed(room, first, &pages),
            });
        });
    }

    fn receive(&self, half: &DecodeNode, no: RoomNo) {
        let Some(room) = self.world.rooms.get(no) else {
            return;
        };
        let pages = room.log().pages.clone();
        if let Err(why) = half.receive(no, &room.spec, &pages) {
            let now = Instant::now();
            self.listener
                .ended(no, Side::Decode, End::Aborted(why), now);
            self.listener.destination_back(no, &pages, Some(0), now);
        }
    }

    fn prefill(&self, half: &PrefillNode, script: &Script) {
        let prefill = Prefill::new(script.pace);
        thread::scope(|scope| {
            scope.spawn(|| prefill.run(self.world, half, self.listener));
            each_line(|line| match line {
                Line::Ask { number, question } => reply(number, self.common(half, &question)),
                Line::Start { room } => self.send(half, &prefill, room),
                Line::Abort { room } => half.abort(room),
                Line::AbortTag { .. } | Line::Voided { .. } | Line::Placed { .. } => {}
            });
        });
    }

    fn send(&self, half: &PrefillNode, prefill: &Prefill, no: RoomNo) {
        let Some(room) = self.world.rooms.get(no) else {
            return;
        };
        match half.send(no, &room.spec) {
            Ok(()) => prefill.begin(no),
            Err(why) => {
                let end = End::Aborted(why);
                self.listener.ended(no, Side::Prefill, end, Instant::now());
            }
        }
    }

    fn common(&self, half: &dyn Half, question: &Question) -> Answer {
        match question {
            Question::Meet { milliseconds } => {
                match half.meet(Duration::from_millis(*milliseconds)) {
                    Ok(()) => Answer::Ok,
                    Err(why) => Answer::No(why),
                }
            }
            Question::Brace => Answer::Inside(half.brace()),
            Question::Status => Answer::Status(half.status()),
            Question::Judge => self.judged(),
            Question::Stop => {
                half.stop();
                Answer::Ok
            }
            other => Answer::No(format!("this side does not do {other:?}")),
        }
    }

    /// Of this process's own side: the other one has nothing out here.
    fn judged(&self) -> Answer {
        let out = self.world.out().into_iter();
        Answer::Judged {
            out: out
                .map(|(room, out)| (room, out.destination + out.source))
                .collect(),
            findings: self.world.destination.findings(),
        }
    }
}

/// Handles lines until the parent closes the pipe, or is gone; then this process is too. Whatever
/// it had lent out goes with it.
fn each_line(mut handle: impl FnMut(Line)) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(line) => handle(line),
            Err(error) => {
                eprintln!("error: the parent said {line:?}: {error}");
                std::process::exit(1);
            }
        }
    }
    std::process::exit(0);
}

fn reply(number: u64, answer: Answer) {
    report(&Report::Answer { number, answer });
}

/// Writes one line at once. A parent that does not read any more is gone, and so is this process.
fn report(report: &Report) {
    let written = serde_json::to_string(report).map(|mut text| {
        text.push('\n');
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    });
    if !matches!(written, Ok(Ok(()))) {
        std::process::exit(0);
    }
}

/// Tells the world here, and then the parent.
struct Reporting(Arc<World>);

impl Listener for Reporting {
    fn pushed(&self, room: RoomNo, bytes: u64) {
        // The parent knows since they were placed.
        self.0.pushed(room, bytes);
    }

    fn landed(&self, room: RoomNo, bytes: u64) {
        self.0.landed(room, bytes);
        report(&Report::Landed { room, bytes });
    }

    fn ended(&self, room: RoomNo, side: Side, end: End, at: Instant) {
        self.0.ended(room, side, end.clone(), at);
        let at = at.into();
        report(&Report::Ended { room, end, at });
    }

    fn destination_back(&self, room: RoomNo, pages: &[u32], landed: Option<u64>, at: Instant) {
        self.0.destination_back(room, pages, landed, at);
        let (pages, at) = (pages.to_vec(), at.into());
        report(&Report::Back {
            room,
            pages,
            landed,
            at,
        });
    }

    fn source_back(&self, room: RoomNo, pages: &[u32], at: Instant) {
        self.0.source_back(room, pages, at);
        let (pages, at, landed) = (pages.to_vec(), at.into(), None);
        report(&Report::Back {
            room,
            pages,
            landed,
            at,
        });
    }
}

/// The parent's pages.
struct Elsewhere;

impl Destination for Elsewhere {
    fn take(&self, _: RoomNo, _: u32) -> Option<Vec<u32>> {
        None
    }

    fn back(&self, _: RoomNo, _: &[u32], _: bool) {}

    /// Said before the chunk is pushed.
    fn placed(&self, room: RoomNo, first: u32, pages: &[u32]) {
        let pages = pages.to_vec();
        report(&Report::Placed { room, first, pages });
    }

    /// The parent hears that it ended.
    fn voided(&self, _: RoomNo) {}

    fn scan(&self, _: u32, _: u32) {}

    fn findings(&self) -> Findings {
        Findings::default()
    }

    fn out(&self) -> BTreeMap<RoomNo, u64> {
        BTreeMap::new()
    }
}

impl Source for Elsewhere {
    fn take(&self, _: RoomNo, _: u32, _: u32) -> Option<Vec<u32>> {
        None
    }

    fn back(&self, _: &[u32]) {}

    fn out(&self) -> BTreeMap<RoomNo, u64> {
        BTreeMap::new()
    }
}
