//! `events` and `record`: answers that are written as they come.

use super::super::args::{EventsArgs, RecordArgs};
use super::super::exit::{Failure, Verdict};
use super::super::output;
use super::super::pair::block_on;
use super::commands::for_people;
use super::http::{Daemon, Question};
use super::sse::{Decoder, Event};
use super::table;
use super::url::Target;
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// The daemon says something at least so often, if only that it is there.
const QUIET: Duration = Duration::from_secs(60);
/// Between two tries to go on with a stream that broke.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes events as they come, one line each. A stream that breaks goes on after its last event, if
/// the daemon is there again within the time-out.
pub(crate) fn events(args: &EventsArgs) -> Result<Verdict, Failure> {
    let daemon = Daemon::new(&args.daemon)?;
    let types: Vec<&str> = args.types.iter().map(|kind| kind.word()).collect();
    let target = Target::new("/v1/events")
        .with("types", Some(types.join(",")))
        .with("room", args.room);
    let mut following = Following {
        last: args.after.clone(),
        left: args.count.unwrap_or(u64::MAX),
        people: for_people(&args.daemon),
    };
    block_on(async {
        let mut broken_at: Option<tokio::time::Instant> = None;
        // By whoever said after which event.
        let mut known = following.last.is_some();
        while following.left > 0 {
            let question = Question {
                last_event: following.last.clone(),
                ..Question::get(target.clone())
            };
            let why = match daemon.open(question).await {
                Ok(response) => {
                    (broken_at, known) = (None, true);
                    match following.read(response.into_body()).await? {
                        End::Enough => return Ok(Verdict::Met),
                        End::Broken(why) => daemon.failed(&why),
                    }
                }
                // The first time, nobody knows of any daemon there.
                Err(failure) if !known => return Err(failure),
                Err(failure) => failure,
            };
            let since = *broken_at.get_or_insert_with(tokio::time::Instant::now);
            if since.elapsed() > daemon.timeout {
                return Err(why);
            }
            output::complain(&format!("{why}; trying again"));
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Verdict::Met)
    })
}

enum End {
    /// All that was asked for was written, or nobody reads any more.
    Enough,
    Broken(String),
}

struct Following {
    last: Option<String>,
    left: u64,
    people: bool,
}

impl Following {
    async fn read(&mut self, mut body: Incoming) -> Result<End, Failure> {
        let mut decoder = Decoder::default();
        loop {
            let bytes = match next(&mut body, QUIET).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(End::Broken("the stream of events ended".to_owned())),
                Err(why) => return Ok(End::Broken(why)),
            };
            if let Err(why) = decoder.take(&bytes) {
                return Ok(End::Broken(why));
            }
            while let Some(event) = decoder.next() {
                if !write(self.line(event).as_bytes(), &mut io::stdout().lock())? {
                    return Ok(End::Enough);
                }
                self.left -= 1;
                if self.left == 0 {
                    return Ok(End::Enough);
                }
            }
        }
    }

    fn line(&mut self, event: Event) -> String {
        let kind = if event.kind.is_empty() {
            "message"
        } else {
            &event.kind
        };
        let data = serde_json::from_str(&event.data).unwrap_or(Value::String(event.data));
        let line = if self.people {
            table::event(kind, &data)
        } else {
            json!({ "event": kind, "id": event.id, "data": data }).to_string()
        };
        if !event.id.is_empty() {
            self.last = Some(event.id);
        }
        line + "\n"
    }
}

/// The most entries of one recording that a daemon gives.
const MOST_ENTRIES: u64 = 100_000;
/// The longest first line of a recording.
const MAX_HEADER: usize = 64 << 10;

/// Writes the daemon's recording, as it comes: the newest entries, if it is not said from which one on.
/// Older ones that it leaves out are told of.
pub(crate) fn record(args: &RecordArgs) -> Result<Verdict, Failure> {
    let daemon = Daemon::new(&args.daemon)?;
    let target = Target::new("/v1/recording")
        .with("since", args.since)
        .with("limit", Some(args.limit.unwrap_or(MOST_ENTRIES)))
        .with("room", args.room);
    let mut header = Header::default();
    block_on(async {
        let response = daemon.open(Question::get(target)).await?;
        let mut body = response.into_body();
        let mut out: Box<dyn Write> = match &args.output {
            None => Box::new(io::stdout()),
            // Made when there is something for it: a daemon that refuses leaves no empty file.
            Some(path) => {
                let file = std::fs::File::create(path).map_err(|e| {
                    Failure::Failed(format!("cannot write to {}: {e}", path.display()))
                })?;
                Box::new(io::BufWriter::new(file))
            }
        };
        let failed = |failure: Failure| match (&args.output, failure) {
            (Some(path), Failure::Output(e)) => {
                Failure::Failed(format!("cannot write to {}: {e}", path.display()))
            }
            (_, failure) => failure,
        };
        loop {
            match next(&mut body, daemon.timeout).await {
                Ok(Some(bytes)) => {
                    if let Some(older) = header.older(&bytes) {
                        output::complain(&format!(
                            "{older} older entries are there and are not in this recording; read from the \
                             oldest one on with --since 0"
                        ));
                    }
                    if !write(&bytes, &mut out).map_err(failed)? {
                        return Ok(Verdict::Met);
                    }
                }
                Ok(None) => return Ok(Verdict::Met),
                Err(why) => return Err(daemon.failed(&why)),
            }
        }
    })
}

/// The first line of a recording, as it comes.
#[derive(Default)]
struct Header {
    begun: Vec<u8>,
    whole: bool,
}

impl Header {
    /// Once, when the line is whole: how many older entries there are, if there are any.
    fn older(&mut self, bytes: &[u8]) -> Option<u64> {
        if self.whole {
            return None;
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        self.begun
            .extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
        self.whole = end.is_some() || self.begun.len() > MAX_HEADER;
        if !self.whole {
            return None;
        }
        let line: Value = serde_json::from_slice(&std::mem::take(&mut self.begun)).ok()?;
        line["older"].as_u64().filter(|older| *older > 0)
    }
}

/// The next bytes of a body; none at its end.
async fn next(body: &mut Incoming, patience: Duration) -> Result<Option<Bytes>, String> {
    loop {
        match tokio::time::timeout(patience, body.frame()).await {
            Err(_) => return Err(format!("the daemon said nothing for {patience:?}")),
            Ok(None) => return Ok(None),
            Ok(Some(Err(e))) => return Err(format!("the connection broke: {e}")),
            Ok(Some(Ok(frame))) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// Writes; false if the reader has left.
fn write(bytes: &[u8], out: &mut impl Write) -> Result<bool, Failure> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::Output(e)),
    }
}
