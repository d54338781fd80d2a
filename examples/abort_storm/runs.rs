//! From options to reports: which engines run, on what load, and how it is printed.

use crate::driver::{self, Verdict};
use crate::engine::{Engine, Listener};
use crate::load::{Load, TURNS};
use crate::memory::{DestinationPages, SourcePages};
use crate::options::{EngineKind, FabricKind, Options, Plant};
use crate::oracle::Shape;
use crate::other::child;
use crate::other::far::Far;
use crate::other::link::Link;
use crate::pages::Pages;
use crate::report::{self, Report};
use crate::rooms::{Base, DecodeNode, MEET, Place, PoolStore, PrefillNode, Rooms, Wiring, runtime};
use crate::shared_dict::SharedDict;
use crate::storms::{Script, Side};
use crate::trace::{self, TraceError};
use crate::world::{World, stamps};
use indicatif::{ProgressBar, ProgressStyle};
use kvroom::actors::fabric::ucx::fence::{Ruling, row};
use kvroom::recording::load::requests;
use kvroom::recording::{self, Recording, RecordingError};
use kvroom::{OneSided, UcxOptions, UcxUse};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time between two steps of the prefill engine, at least, if the nodes are joined by sockets.
const REMOTE_STEP: Duration = Duration::from_millis(25);

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The recording to be replayed.
    #[error(transparent)]
    Replay(#[from] RecordingError),
    /// The recording of this run.
    #[error("the recording cannot be written to {file}: {source}; give --record a writable path")]
    Record {
        file: String,
        source: std::io::Error,
    },
    /// Flags that do not go together.
    #[error("{0}")]
    Usage(&'static str),
    /// The engine.
    #[error("the {engine} engine did not start: {why}")]
    Start { engine: &'static str, why: String },
    /// The timeline.
    #[error("the timeline cannot be written to {file}: {source}; give --timeline a writable path")]
    Timeline {
        file: String,
        source: std::io::Error,
    },
}

struct Finished {
    report: Report,
    verdict: Verdict,
    world: Arc<World>,
}

/// Runs what the options ask for and prints it. `Ok(false)`: a contract was broken, or something
/// was planted.
pub(crate) fn all(options: &Options) -> Result<bool, RunError> {
    if let Some(advice) = options.contradiction() {
        return Err(RunError::Usage(advice));
    }
    let load = load(options)?;
    let script = script(options, &load)?;
    if let (Some(side), Some(address)) = (options.child, &options.listen) {
        let shape = script.shape(load.page_tokens);
        child::run(side, address, &wiring(options, &script), shape, &script).map_err(start)?;
    }
    let kinds = match options.engine {
        Some(kind) => vec![kind],
        // The old design is a model within one process, without sockets.
        None if options.fabric.is_remote() => vec![EngineKind::Rooms],
        None => vec![EngineKind::SharedDict, EngineKind::Rooms],
    };
    let mut finished = Vec::new();
    for kind in kinds {
        finished.push(one(kind, options, &load, &script)?);
    }
    if let (Some(path), Some(last)) = (&options.timeline, finished.last()) {
        write_timeline(path, last)?;
    }
    Ok(print(options, &finished))
}

fn start(why: String) -> RunError {
    let engine = name(EngineKind::Rooms);
    RunError::Start { engine, why }
}

fn script(options: &Options, load: &Load) -> Result<Script, RunError> {
    if let Some(file) = &options.replay {
        let recording = recording::read_file(file)?;
        let script = Script::replayed(&requests(&recording));
        return script.ok_or(RunError::Usage(
            "there is no start of a room in this recording; give --replay one that begins before its rooms",
        ));
    }
    let survivor = options.far().map_or(Side::Decode, Side::other);
    let mut script = Script::with_survivor(options.storm, load, options.seed, survivor);
    if options.fabric.is_remote() {
        // Starts take longer there: rooms that are to be in flight together must not end meanwhile.
        script.pace.step = script.pace.step.max(REMOTE_STEP);
    }
    Ok(match options.no_abort {
        true => script.without_aborts(),
        false => script,
    })
}

fn wiring(options: &Options, script: &Script) -> Wiring {
    Wiring {
        fabric: options.fabric,
        ucx: ucx(options),
        device: options.device,
        short: options.storm.strikes(),
        plant: options.plant,
        slow_take: script.pace.slow_take,
        record: options.record.is_some(),
    }
}

/// How UCX is used. Peers that are killed are to be given up soon.
fn ucx(options: &Options) -> UcxOptions {
    if options.fabric != FabricKind::Ucx {
        return UcxOptions::default();
    }
    let transports = options.ucx_transports.clone();
    UcxOptions {
        when: UcxUse::Always,
        library: options.ucx_library.clone(),
        transports: Some(transports.unwrap_or_else(|| "tcp".to_owned())),
        one_sided: match options.ucx_one_sided {
            true => OneSided::Always,
            false => OneSided::Rdma,
        },
        ..UcxOptions::default()
    }
}

fn load(options: &Options) -> Result<Load, RunError> {
    match &options.trace {
        None => Ok(Load::generated(options.sessions, options.seed)),
        Some(path) => {
            let requests = trace::read_file(path, options.sessions * TURNS)?;
            Ok(Load::from_trace(&requests, options.sessions))
        }
    }
}

fn one(
    kind: EngineKind,
    options: &Options,
    load: &Load,
    script: &Script,
) -> Result<Finished, RunError> {
    let shape = script.shape(load.page_tokens);
    let (world, engine) = match kind {
        EngineKind::SharedDict => shared_dict(shape, script),
        EngineKind::Rooms => {
            let wiring = wiring(options, script);
            match options.far() {
                None => one_process(&wiring, shape, script),
                Some(far) => two_processes(options, &wiring, far, shape, script),
            }
        }
    }
    .map_err(|why| RunError::Start {
        engine: name(kind),
        why,
    })?;
    let bar = progress_bar(kind);
    let verdict = driver::run(script, &world, &*engine, &|ended, all| {
        bar.set_length(all as u64);
        bar.set_position(ended as u64);
    });
    bar.finish_and_clear();
    if let Some(path) = &options.record {
        for recording in engine.recordings() {
            write_recording(path, &recording)?;
        }
    }
    let report = report(kind, options, load, &verdict);
    Ok(Finished {
        report,
        verdict,
        world,
    })
}

type Started = (Arc<World>, Box<dyn Engine>);

fn shared_dict(shape: Shape, script: &Script) -> Result<Started, String> {
    let pages = |count| Arc::new(Pages::new(shape.layers, count, shape.page_bytes));
    let (destination, source) = (pages(shape.destination_pages), pages(shape.source_pages));
    let world = World::whole(shape, &script.rooms, destination.clone(), source.clone());
    let (world, slow_take) = (Arc::new(world), script.pace.slow_take);
    let engine = SharedDict::start(shape, source, destination, world.clone(), slow_take);
    Ok((world, Box::new(engine.map_err(|error| error.to_string())?)))
}

fn one_process(wiring: &Wiring, shape: Shape, script: &Script) -> Result<Started, String> {
    let store = |side| PoolStore::new(wiring, side, shape).map(Arc::new);
    let (destination, source) = (store(Side::Decode)?, store(Side::Prefill)?);
    let world = World::whole(shape, &script.rooms, destination.clone(), source.clone());
    let world = Arc::new(world);
    let listener: Arc<dyn Listener> = world.clone();
    let engine = Rooms::in_one_process(wiring, shape, source, destination, &listener)?;
    Ok((world, Box::new(engine)))
}

fn two_processes(
    options: &Options,
    wiring: &Wiring,
    far: Side,
    shape: Shape,
    script: &Script,
) -> Result<Started, String> {
    let link = Link::start(far, options.for_child())?;
    let other = || Box::new(Far(Arc::clone(&link)));
    let stamps = stamps(shape, &script.rooms);
    let here = match far {
        Side::Decode => Side::Prefill,
        Side::Prefill => Side::Decode,
    };
    let store = Arc::new(PoolStore::new(wiring, here, shape)?);
    let world = match far {
        Side::Decode => {
            let source = SourcePages::new(shape, stamps, store.clone());
            World::new(shape, &script.rooms, other(), Box::new(source))
        }
        Side::Prefill => {
            let destination = DestinationPages::new(shape, stamps, store.clone());
            World::new(shape, &script.rooms, Box::new(destination), other())
        }
    };
    let world = Arc::new(world);
    link.report_to(&world);
    let listener: Arc<dyn Listener> = world.clone();
    let (near, place) = (far.other(), Place::Nowhere);
    let base = Base::start(wiring, near, place, runtime()?, shape, store, &listener)?;
    base.connect(&link.address())?;
    let engine = match far {
        Side::Decode => {
            let near = Box::new(PrefillNode::new(base));
            Rooms::in_two(wiring.fabric, other(), near, far, link.clone())
        }
        Side::Prefill => {
            let near = Box::new(DecodeNode::new(base));
            Rooms::in_two(wiring.fabric, near, other(), far, link.clone())
        }
    };
    engine.meet(MEET)?;
    Ok((world, Box::new(engine)))
}

fn report(kind: EngineKind, options: &Options, load: &Load, verdict: &Verdict) -> Report {
    Report {
        engine: name(kind),
        storm: match options.replay {
            Some(_) => "replay",
            None => options.storm.name(),
        },
        fabric: options.fabric.name(),
        processes: options.processes,
        swap: options.swap,
        device: options.device.name(),
        seed: options.seed,
        sessions: match options.replay {
            // Each room of a recording is one of its own.
            Some(_) => verdict.rooms,
            None => load.sessions.len(),
        },
        rooms: verdict.rooms,
        done: verdict.done,
        aborted: verdict.aborted,
        aborted_in_flight: verdict.aborted_in_flight,
        bytes: verdict.bytes,
        late_bytes: verdict.findings.late_bytes,
        torn_reads: verdict.findings.torn_reads,
        leaked_pages: verdict.leaked_pages,
        quarantined_pages: verdict.quarantined.0,
        quarantine_peak_pages: verdict.quarantined.1,
        stuck_rooms: verdict.stuck_rooms,
        wedged: verdict.probe.is_none(),
        health_says: verdict.health,
        probe_ms: verdict
            .probe
            .map(|took| (took.as_secs_f64() * 1e6).round() / 1e3),
        abort_to_answer_us: verdict.abort_to_answer,
        abort_to_reusable_us: verdict.abort_to_reusable,
        peer_kills: verdict.struck.kills,
        peer_stops: verdict.struck.stops,
        peer_stopped_ms: verdict.struck.stopped.as_millis() as u64,
        struck_in_flight: verdict.struck.in_flight,
        struck_inside: verdict.struck.inside,
        not_resumed: verdict.struck.not_resumed,
        sessions_resumed: verdict.sessions.resumed,
        sessions_lost: verdict.sessions.lost,
        seconds: (verdict.took.as_secs_f64() * 1e3).round() / 1e3,
        unfenced: unfenced(options),
    }
}

/// Transports by which the other process puts, and whose end proves nothing about that.
fn unfenced(options: &Options) -> Vec<String> {
    let puts = options.fabric == FabricKind::Ucx && options.ucx_one_sided;
    let names = options.ucx_transports.as_deref().filter(|_| puts);
    let names = names.unwrap_or_default().split(',');
    let why = |name: &str| match row(name)?.writes {
        Ruling::Refused(why) => Some(format!("{name}: {why}")),
        Ruling::Left(_) | Ruling::Destroyed(_) => None,
    };
    names.filter_map(why).collect()
}

/// Prints the reports; whether all is well.
fn print(options: &Options, finished: &[Finished]) -> bool {
    let reports: Vec<Report> = finished.iter().map(|run| run.report.clone()).collect();
    let mut well = true;
    let mut notes = Vec::new();
    for Finished {
        report, verdict, ..
    } in finished
    {
        notes.extend(
            verdict
                .remarks
                .iter()
                .map(|text| format!("{}: {text}", report.engine)),
        );
        let mut broken = report.violations();
        let held = report.held_rightly();
        notes.extend(held.map(|why| format!("{}: {why}", report.engine)));
        if options.storm.strikes() && !options.no_abort && !report.struck() {
            broken.push("the other process was not struck".into());
        }
        let inside = options.fabric == FabricKind::Shm && options.far() == Some(Side::Prefill);
        if report.struck() && inside && report.struck_inside == 0 {
            broken.push("the other process was struck while it was in no gate".into());
        }
        if verdict.findings.missing_bytes > 0 {
            broken.push(format!(
                "{} bytes of done rooms missing",
                verdict.findings.missing_bytes
            ));
        }
        if report.engine == name(EngineKind::Rooms) {
            if let Some(plant) = options.plant {
                well = false;
                notes.push(planted(plant, report));
            }
            well &= broken.is_empty();
        }
        if broken.is_empty() {
            notes.push(format!(
                "{}: nothing of the contract was broken",
                report.engine
            ));
        } else {
            notes.push(format!("{}: BROKEN: {}", report.engine, broken.join(", ")));
        }
    }
    if options.json {
        for note in notes {
            eprintln!("{note}");
        }
        for report in reports {
            match serde_json::to_string(&report) {
                Ok(json) => println!("{json}"),
                Err(error) => eprintln!("error: the report cannot be written as JSON: {error}"),
            }
        }
    } else {
        println!("{}", report::table(&reports));
        for note in notes {
            println!("{note}");
        }
    }
    well
}

fn planted(plant: Plant, report: &Report) -> String {
    let (what, seen) = match plant {
        Plant::LateWrite => ("late write", report.late_bytes > 0),
        Plant::TornRead => ("torn read", report.torn_reads > 0),
        Plant::Leak => ("leak", report.leaked_pages > 0),
    };
    if seen {
        format!("rooms: a {what} was planted, and the oracle reported it")
    } else {
        format!("rooms: a {what} was planted, and the oracle DID NOT see it")
    }
}

fn write_timeline(path: &Path, run: &Finished) -> Result<(), RunError> {
    let report = &run.report;
    let title = format!(
        "{} on {}, seed {}, {}",
        report.storm,
        report.engine,
        report.seed,
        report.wiring()
    );
    std::fs::write(path, crate::timeline::html(&title, &run.world)).map_err(|source| {
        RunError::Timeline {
            file: path.display().to_string(),
            source,
        }
    })
}

/// Writes to this path, with the side in its name.
fn write_recording(path: &Path, recording: &Recording) -> Result<(), RunError> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let node = &recording.header.node;
    let side = node.split('-').next().unwrap_or(node);
    let name = match path.extension() {
        Some(extension) => format!("{stem}-{side}.{}", extension.to_string_lossy()),
        None => format!("{stem}-{side}"),
    };
    let path = path.with_file_name(name);
    let written = std::fs::File::create(&path)
        .and_then(|file| recording::write(recording, &mut std::io::BufWriter::new(file)));
    written.map_err(|source| RunError::Record {
        file: path.display().to_string(),
        source,
    })?;
    eprintln!("recording of {node}: {}", path.display());
    Ok(())
}

fn name(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Rooms => "rooms",
        EngineKind::SharedDict => "shared-dict",
    }
}

fn progress_bar(kind: EngineKind) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(1).with_message(name(kind));
    match ProgressStyle::with_template("{msg:<12} {wide_bar} {pos}/{len} rooms {elapsed}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
