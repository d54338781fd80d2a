use super::super::super::args::{Bench, Cli, Command};
use super::*;
use clap::Parser;
use serde_json::{Value, json};

fn bench(line: &str) -> Bench {
    let words = ["kvroom", "bench"].into_iter().chain(line.split(' '));
    match Cli::try_parse_from(words).unwrap().command {
        Command::Bench(args) => args.bench,
        other => panic!("{other:?}"),
    }
}

fn transfer_args(line: &str) -> TransferArgs {
    let Bench::Transfer(args) = bench(line) else {
        panic!("{line}")
    };
    args
}

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn a_transfer_report_holds_the_documented_keys_and_the_ratio_of_medians() {
    let args = transfer_args("transfer --require-ratio 0.85");
    let w = super::super::workload::find("b_32x512x16K").unwrap();
    let ms = |n| Duration::from_millis(n);
    let report = TransferReport::new(
        &args,
        &w,
        &[ms(40), ms(50), ms(80)],
        &[ms(25), ms(25), ms(99)],
    )
    .unwrap();
    let value = serde_json::to_value(&report).unwrap();
    let mut expected = vec![
        "GBps",
        "bytes",
        "fabric",
        "kind",
        "lanes",
        "memcpy_GBps",
        "ratio_memcpy",
        "reps",
        "us",
        "verified",
        "workload",
    ];
    expected.sort_unstable();
    let mut found = keys(&value);
    found.sort_unstable();
    assert_eq!(found, expected);
    assert!((value["ratio_memcpy"].as_f64().unwrap() - 0.5).abs() < 1e-9);
    assert_eq!(value["bytes"], json!(268_435_456));
    assert!((value["GBps"]["max"].as_f64().unwrap() - 6.7108864).abs() < 1e-9);
    let unmet = report.unmet(&args);
    assert_eq!(unmet, ["ratio_memcpy is 0.500, required is at least 0.85"]);
    assert!(
        report
            .unmet(&transfer_args("transfer --require-ratio 0.5"))
            .is_empty()
    );
    assert!(
        report
            .to_string()
            .contains("b_32x512x16K over local, 256.0 MiB a request")
    );
}

#[test]
fn idle_memory_is_reported_at_its_worst_count() {
    let idle = vec![
        Idle::new(100, 1_000, 301_000, 2_000),
        Idle::new(1_000, 1_000, 2_001_000, 1),
    ];
    let second = Duration::from_secs(1);
    let report = RoomsReport::new(70_000, &[second, second / 2], idle).unwrap();
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(value["bytes_per_idle_room"], json!(3_000.0));
    assert_eq!(value["rooms_per_s"], json!(105_000.0));
    assert_eq!(value["idle"][1]["bytes_per_room"], json!(2_000.0));
    let Bench::Rooms(bars) = bench("rooms --require-rate 200000 --require-bytes 2048") else {
        panic!()
    };
    assert_eq!(report.unmet(&bars).len(), 2);
}

#[test]
fn an_abort_with_too_little_queued_does_not_count() {
    let Bench::Abort(args) = bench("abort --require-p90-us 1000") else {
        panic!()
    };
    let one = |queued_bytes, us| AbortTimes {
        answer: Duration::from_micros(us / 2),
        reusable: Duration::from_micros(us),
        queued_bytes,
    };
    let few = AbortReport::new(
        &args,
        256 << 20,
        &[one(64 << 20, 9), one((64 << 20) - 1, 9)],
    );
    assert!(few.unwrap_err().to_string().contains("64.0 MiB are needed"));
    let slow =
        AbortReport::new(&args, 256 << 20, &[one(64 << 20, 9), one(64 << 20, 1_500)]).unwrap();
    assert_eq!(slow.unmet(&args).len(), 1);
    let value = serde_json::to_value(&slow).unwrap();
    assert_eq!(keys(&value["abort_to_reusable_us"]).len(), 4);
    assert!((value["abort_to_answer_us"]["max"].as_f64().unwrap() - 750.0).abs() < 1e-6);
}

#[test]
fn a_value_that_is_no_number_meets_no_bar() {
    assert!(at_least("x", f64::NAN, Some(0.0)).is_some());
    assert!(at_most("x", f64::NAN, Some(9.0)).is_some());
    assert!(at_least("x", f64::NAN, None).is_none());
}
