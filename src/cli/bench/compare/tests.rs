use super::super::super::args::{Bench, Cli, Command as Words};
use super::contender::{Contender, Task};
use super::parse::{self, Measure, Run};
use super::process::{self, End, Ended};
use super::results::{Machine, Results};
use super::{chart, table, tasks};
use clap::Parser;
use std::process::Command;
use std::time::{Duration, Instant};

const NIXL: &str = include_str!("samples/nixl_default.jsonl");
const MOONCAKE: &str = include_str!("samples/mooncake.jsonl");
const NIXL_ABORT: &str = include_str!("samples/nixl_abort.jsonl");
const MOONCAKE_ABORT: &str = include_str!("samples/mooncake_abort.jsonl");

fn said(output: &str) -> Ended {
    Ended {
        end: End::Success,
        output: output.to_owned(),
        errors: String::new(),
    }
}

fn task(name: &str) -> Task {
    tasks(&[name.to_owned()]).unwrap().remove(0)
}

/// Lines of one workload.
fn of(lines: &str, workload: &str) -> Ended {
    let lines: Vec<&str> = lines.lines().filter(|l| l.contains(workload)).collect();
    said(&lines.join("\n"))
}

fn value(run: &Run, measure: Measure) -> f64 {
    let found = run.values.iter().find(|(m, _)| *m == measure);
    found.unwrap_or_else(|| panic!("{measure:?} in {run:?}")).1
}

#[test]
fn of_a_peers_ways_to_post_the_best_counts_and_its_first_repetition_does_not() {
    let parsed = |lines, name| parse::peer(&task(name), &of(lines, name));
    let a = parsed(NIXL, "a_32x64x16K");
    // Prepared 1.968, in one shot 1.941; in repetition 0 1.312 and 1.715.
    assert_eq!(value(&a, Measure::Throughput), 1.968);
    assert_eq!(a.version.as_deref(), Some("nixl1.5.1"));
    let tiny = parsed(NIXL, "tiny_1x1x16K");
    assert_eq!(value(&tiny, Measure::Page), 41.758);
    let many = parsed(NIXL, "many_8x16K");
    assert_eq!(value(&many, Measure::Rate), 9702.13);

    let a = parsed(MOONCAKE, "a_32x64x16K");
    assert_eq!(value(&a, Measure::Throughput), 0.397);
    let tiny = parsed(MOONCAKE, "tiny_1x1x16K");
    assert_eq!(value(&tiny, Measure::Page), 216.966);
    let many = parsed(MOONCAKE, "many_8x16K");
    assert_eq!(value(&many, Measure::Rate), 774.807);
}

#[test]
fn an_abort_is_what_the_caller_was_told_and_what_was_overwritten_all_the_same() {
    let nixl = parse::peer(&Task::Abort, &said(NIXL_ABORT));
    assert_eq!(value(&nixl, Measure::Abort), 27.571);
    assert_eq!(value(&nixl, Measure::Overwritten), 16_384.0);
    let mooncake = parse::peer(&Task::Abort, &said(MOONCAKE_ABORT));
    assert!((value(&mooncake, Measure::Abort) - 29.495).abs() < 1e-9);
    assert_eq!(value(&mooncake, Measure::Overwritten), 16_136.0);
    let over = NIXL_ABORT.replace("\"PROC\"", "\"DONE\"");
    let over = parse::peer(&Task::Abort, &said(&over));
    assert!(over.problem.unwrap().contains("nothing to abort"));
}

#[test]
fn lost_pages_failed_requests_and_nonsense_give_no_value_but_a_reason() {
    let a = task("a_32x64x16K");
    let why = |ended: &Ended| {
        let run = parse::peer(&a, ended);
        assert!(run.values.is_empty(), "{run:?}");
        run.problem.unwrap()
    };
    let lost = NIXL.replace("\"bad_pages\": 0", "\"bad_pages\": 3");
    assert_eq!(why(&of(&lost, "a_32x64x16K")), "3 pages did not arrive");
    let failed = NIXL.replace("\"DONE\"]", "\"ERR\"]");
    assert!(why(&of(&failed, "a_32x64x16K")).contains("did not say"));
    for odd in [
        "",
        "hello",
        "[]\n{\"ev\":7}\n{\"ev\":\"bw\",\"rep\":\"x\"}",
        "{\"ev\":\"bw\",\"rep\":1,\"st\":0,\"GBps\":null}",
    ] {
        assert!(why(&said(odd)).contains("did not say"), "{odd}");
    }
    let ended = Ended {
        end: End::Failure("exit status: 1".into()),
        output: String::new(),
        errors: "Traceback\n  x\nImportError: no such thing\n\n".into(),
    };
    assert_eq!(why(&ended), "exit status: 1: ImportError: no such thing");
    let endless = Ended {
        end: End::TimeLimit,
        ..said("")
    };
    assert_eq!(why(&endless), "did not end in time");
    assert!(
        why(&Ended {
            errors: "x".repeat(10_000),
            ..ended
        })
        .chars()
        .count()
            <= 201
    );
}

#[test]
fn a_script_that_crashed_after_its_last_line_has_still_measured() {
    let crashed = Ended {
        end: End::Failure("signal: 11".into()),
        ..of(NIXL, "a_32x64x16K")
    };
    let run = parse::peer(&task("a_32x64x16K"), &crashed);
    assert_eq!((run.values.len(), run.problem), (1, None));
}

#[test]
fn this_program_is_read_by_its_own_keys_and_has_to_have_used_the_fabric() {
    let line = r#"{"fabric":"shm","GBps":{"min":1.0,"median":2.0,"max":3.0}}"#;
    let a = task("a_32x64x16K");
    let run = parse::kvroom("shm", &a, &said(line));
    assert_eq!(value(&run, Measure::Throughput), 2.0);
    let other = parse::kvroom("tcp", &a, &said(line));
    assert!(other.values.is_empty() && other.problem.unwrap().contains("tcp"));
    let abort = r#"{"fabric":"tcp","abort_to_reusable_us":{"p50":3.5},"late_pages":0}"#;
    let run = parse::kvroom("tcp", &Task::Abort, &said(abort));
    assert_eq!(value(&run, Measure::Abort), 3.5);
    assert_eq!(value(&run, Measure::Overwritten), 0.0);
    let refused = Ended {
        end: End::Failure("exit status: 1".into()),
        output: String::new(),
        errors: "kvroom: error: no shm here".into(),
    };
    let run = parse::kvroom("shm", &a, &refused);
    assert_eq!(
        run.problem.unwrap(),
        "exit status: 1: kvroom: error: no shm here"
    );
}

fn results() -> Results {
    let machine = Machine {
        processor: "A & B <C>".into(),
        cores: 2,
        memory_bytes: Some(1 << 30),
        kernel: "6.1".into(),
    };
    let mut results = Results::new(machine, 2, 5);
    let a = task("a_32x64x16K");
    let moved = |rate| Run {
        values: vec![(Measure::Throughput, rate)],
        problem: None,
        version: Some("x1".into()),
        noisy: (1, 2),
    };
    results.add(Contender::NixlDefault, &a, moved(2.0));
    results.add(Contender::KvroomShm, &a, moved(9.0));
    results.add(Contender::NixlDefault, &a, moved(4.0));
    results.add(Contender::KvroomShm, &a, Run::not_run("a | <b> & c".into()));
    results.add(
        Contender::NixlTcp,
        &a,
        Run::not_run("not run: --python is not given".into()),
    );
    results
}

#[test]
fn the_table_has_medians_spread_ratios_and_what_went_wrong() {
    let text = table::markdown(&results());
    let row = text
        .lines()
        .find(|l| l.starts_with("| a_32x64x16K"))
        .unwrap();
    assert_eq!(
        row,
        "| a_32x64x16K, GB/s | 3.00 (2.00 to 4.00) | 9.00 (9.00 to 9.00); 1 of 2 runs failed: \
         a \\| &lt;b> & c | not run: --python is not given | not run | not run |"
    );
    let ratio = text
        .lines()
        .rfind(|l| l.starts_with("| a_32x64x16K"))
        .unwrap();
    assert_eq!(ratio, "| a_32x64x16K, GB/s | 3.00 | – | – |");
    assert!(
        text.contains("Of 6 records of the peers 3 were taken while"),
        "{text}"
    );
    // Every row of a table has as many cells as its head.
    for table in text.split("\n\n").filter(|part| part.starts_with('|')) {
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let mut lines = table.lines();
        let head = cells(lines.next().unwrap());
        assert!(lines.all(|line| cells(line) == head), "{table}");
    }
}

#[test]
fn less_time_is_better_and_more_rate_is_better() {
    let mut results = results();
    let tiny = task("tiny_1x1x16K");
    let took = |us| Run {
        values: vec![(Measure::Page, us)],
        ..Run::not_run(String::new())
    };
    results.add(Contender::KvroomTcp, &tiny, took(50.0));
    results.add(Contender::MooncakeTcp, &tiny, took(200.0));
    let row = &results.rows[1];
    assert_eq!(
        row.ratio(Contender::KvroomTcp, Contender::MooncakeTcp),
        Some(4.0)
    );
    assert_eq!(row.ratio(Contender::KvroomTcp, Contender::NixlTcp), None);
    let json = results.json();
    assert_eq!(json["rows"][1]["cells"][3]["value"]["median"], 50.0);
    assert_eq!(json["rows"][0]["cells"][1]["failed"], 1);
}

#[test]
fn the_chart_is_well_formed_whatever_a_program_said() {
    let text = chart::svg(&results());
    assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    // Text with what would be markup in it is escaped; every tag is closed.
    assert!(text.contains("A &amp; B &lt;C&gt;") && text.contains("--python is not given"));
    assert_eq!(
        text.matches("<text ").count(),
        text.matches("</text>").count()
    );
    let bare = text
        .replace("&amp;", "")
        .replace("&lt;", "")
        .replace("&gt;", "");
    assert!(!bare.contains('&'));
    // The longest bar is that of the most, and a bar of a third as long as its median is a third.
    let widths: Vec<f64> = text
        .lines()
        .filter(|l| l.starts_with("<rect x="))
        .map(|l| {
            l.split("width=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    assert_eq!(widths.len(), 2);
    assert!((widths[1] / widths[0] - 3.0).abs() < 0.01, "{widths:?}");
}

#[test]
fn a_program_that_fails_hangs_or_is_not_there_ends_nothing_here() {
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    };
    let limit = Duration::from_secs(60);
    let good = process::run(shell("echo out; echo err >&2"), limit);
    assert_eq!(
        (good.end, &*good.output, &*good.errors),
        (End::Success, "out\n", "err\n")
    );
    let bad = process::run(shell("echo why >&2; exit 7"), limit);
    assert_eq!(bad.complaint().unwrap(), "exit status: 7: why");
    let none = process::run(Command::new("/no/such/program"), limit);
    assert!(
        none.complaint()
            .unwrap()
            .contains("/no/such/program cannot be started")
    );
    // Its child holds the pipes and would for an hour.
    let started = Instant::now();
    let hung = process::run(
        shell("echo before; sleep 3600 & sleep 3600"),
        Duration::from_millis(200),
    );
    assert_eq!((hung.end, &*hung.output), (End::TimeLimit, "before\n"));
    let left = process::run(shell("sleep 3600 & echo done"), limit);
    assert_eq!((left.end, &*left.output), (End::Success, "done\n"));
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn the_words_that_are_asked_for_are_those_that_the_scripts_know() {
    let words = |line: &str| {
        let words = ["kvroom", "bench"].into_iter().chain(line.split(' '));
        match Cli::try_parse_from(words).unwrap().command {
            Words::Bench(args) => match args.bench {
                Bench::Compare(args) => args,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let args = words("compare --peers /p --python /v/python --reps 3");
    let command = |contender: Contender, task: &Task| {
        contender.command(&args, task).unwrap().map(|command| {
            let words = command.get_args().map(|w| w.to_str().unwrap().to_owned());
            words.collect::<Vec<_>>().join(" ")
        })
    };
    assert_eq!(
        command(Contender::NixlDefault, &task("b_32x512x16K")).unwrap(),
        "nixl_bench.py bench --wl b_32x512x16K --reps 3 --tls default --prog 0"
    );
    assert_eq!(
        command(Contender::NixlTcp, &Task::Abort).unwrap(),
        "nixl_bench.py abort --wl b_32x512x16K --reps 1 --tls tcp --prog 1"
    );
    assert!(
        command(Contender::MooncakeTcp, &Task::Abort)
            .unwrap_err()
            .contains("--python-mooncake")
    );
    // What this program is asked has to be words of its own.
    for task in tasks(&[]).unwrap() {
        let line = command(Contender::KvroomTcp, &task).unwrap();
        let all = ["kvroom"].into_iter().chain(line.split(' '));
        Cli::try_parse_from(all).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

#[test]
fn only_workloads_that_there_are_can_be_asked_for() {
    assert_eq!(tasks(&[]).unwrap().len(), 7);
    assert!(tasks(&["abort".into(), "nonsense".into()]).is_err());
}
