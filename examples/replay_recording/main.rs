//! Replays a recording of the flight recorder.
//!
//! ```text
//! cargo run --example replay_recording -- decode.jsonl                   where did rooms get stuck?
//! cargo run --example replay_recording -- decode.jsonl --room 42         one room, step by step
//! cargo run --example replay_recording -- decode.jsonl prefill.jsonl     one timeline of both
//! cargo run --example replay_recording -- decode.jsonl --runtime         the same load on two real nodes
//! ```
//!
//! By itself a recording is stepped through the pure machines: for each room that had not ended, which
//! event is missing, since when, and what holds its memory. `docs/recording.md` describes the format.
//!
//! Exit codes: 0, it was replayed and the machines went where the rooms went; 1, they did not, or the
//! runtime did not end; 2, the command line or the file cannot be used.
#![forbid(unsafe_code)]

mod on_runtime;
mod words;

use clap::Parser;
use kvroom::recording::merge::merge;
use kvroom::recording::replay::{Replayed, replay};
use kvroom::recording::{Recording, RecordingError, read_file};
use std::path::PathBuf;
use std::process::ExitCode;

/// Replays recordings of the flight recorder
#[derive(Debug, Parser)]
#[command(name = "replay_recording", version, long_about = None)]
struct Options {
    /// One recording, or two (of prefill and of decode, in any order)
    #[arg(value_name = "FILE", required = true, num_args = 1..=2)]
    files: Vec<PathBuf>,
    /// Only this room
    #[arg(long, value_name = "ID")]
    room: Option<u64>,
    /// Play it as load on two nodes of this process
    #[arg(long)]
    runtime: bool,
    /// With --runtime: so many times as fast
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        requires = "runtime"
    )]
    speed: f64,
    /// Most entries of a timeline that are printed
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    limit: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let files: Result<Vec<Recording>, RecordingError> =
        options.files.iter().map(|file| read_file(file)).collect();
    let recordings = match files {
        Ok(recordings) => recordings,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if options.runtime {
        if !(options.speed > 0.0 && options.speed.is_finite()) {
            eprintln!("error: --speed is {}; give a number above 0", options.speed);
            return ExitCode::from(2);
        }
        return on_runtime::play(&recordings[0], options.speed);
    }
    for recording in &recordings {
        println!("{}", words::of_header(recording));
    }
    if let [first, second] = &recordings[..] {
        timeline(first, second, &options);
    }
    let mut as_recorded = true;
    for recording in &recordings {
        as_recorded &= machines(recording, &options);
    }
    ExitCode::from(u8::from(!as_recorded))
}

fn timeline(first: &Recording, second: &Recording, options: &Options) {
    let timeline = merge(first, second);
    println!("{}", words::of_clocks(&timeline.clocks, first, second));
    let wanted = timeline.moments.iter().filter(|moment| {
        let room = moment.entry.what.room();
        (options.room).is_none_or(|id| room.is_some_and(|key| key.id.0 == id))
    });
    let nodes = [&first.header.node, &second.header.node];
    let mut left_out = 0;
    for (printed, moment) in wanted.enumerate() {
        if printed < options.limit {
            println!("{}", words::of_moment(moment, nodes[moment.of]));
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        println!("… and {left_out} more: give --room ID, or a larger --limit");
    }
}

/// Whether every machine went where its room went.
fn machines(recording: &Recording, options: &Options) -> bool {
    let lives = replay(recording);
    let lives: Vec<&Replayed> = lives
        .iter()
        .filter(|life| options.room.is_none_or(|id| life.key.id.0 == id))
        .collect();
    let node = &recording.header.node;
    let now = recording
        .entries
        .last()
        .map(|entry| entry.at)
        .unwrap_or_default();
    for life in &lives {
        if options.room.is_some() || life.is_stuck() || !life.differences.is_empty() {
            print!(
                "{}",
                words::of_life(life, node, now, options.room.is_some())
            );
        }
    }
    let whole = lives.iter().filter(|life| life.whole).count();
    let stuck = lives.iter().filter(|life| life.is_stuck()).count();
    let differ = lives.iter().filter(|l| !l.differences.is_empty()).count();
    println!(
        "{node}: {} rooms, {whole} replayed from their start, {stuck} had not ended, {differ} went another way",
        lives.len()
    );
    differ == 0
}
