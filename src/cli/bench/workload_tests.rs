use super::*;
use std::io::Write;
use std::path::Path;

const GOOD: &str = r#"{"name":"w","layers":2,"pages":3,"page_bytes":4096,"pool_pages":4,"seed":9}"#;

fn file_with(rows: &str) -> String {
    format!(r#"{{"comment":"c","workloads":[{rows}]}}"#)
}

fn error_of(rows: &str) -> String {
    parse("f.json", file_with(rows).as_bytes(), "w")
        .unwrap_err()
        .to_string()
}

/// The file is not part of the project: its absence is said on the real standard error, which the
/// test harness does not capture.
#[test]
fn the_built_in_workloads_are_those_that_other_programs_measure() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/bench/workloads.json");
    let Ok(text) = std::fs::read(&path) else {
        let _ = writeln!(
            std::io::stderr(),
            "NOT COMPARED: {} is not there; the built-in workloads were not checked against it",
            path.display()
        );
        return;
    };
    let file = path.display().to_string();
    let in_file: Vec<Workload> = rows(&file, &text)
        .unwrap()
        .iter()
        .map(|row| parse(&file, &text, row["name"].as_str().unwrap()).unwrap())
        .collect();
    assert_eq!(in_file, built_in());
}

#[test]
fn a_workload_of_a_file_is_read_whole() {
    let w = parse("f.json", file_with(GOOD).as_bytes(), "w").unwrap();
    assert_eq!(
        (w.layers, w.pages, w.page_bytes, w.pool_pages, w.seed),
        (2, 3, 4096, 4, 9)
    );
    assert_eq!(w.kind, Kind::Throughput);
    assert_eq!((w.request_bytes(), w.pool_bytes()), (24_576, 32_768));
    assert_eq!(w.source_slots().len(), 3);
    assert_ne!(w.source_slots(), w.destination_slots());
}

#[test]
fn an_unknown_name_lists_what_there_is() {
    let e = find("nope").unwrap_err().to_string();
    assert!(
        e.contains("\"nope\"") && e.contains("b_32x512x16K") && e.contains("FILE:NAME"),
        "{e}"
    );
    let e = parse("f.json", file_with(GOOD).as_bytes(), "x")
        .unwrap_err()
        .to_string();
    assert_eq!(e, "workload file f.json: no workload \"x\"; it has w");
}

#[test]
fn a_missing_file_is_named() {
    let e = find("/no/such/file.json:w").unwrap_err().to_string();
    assert!(
        e.starts_with("workload file /no/such/file.json: cannot be read"),
        "{e}"
    );
}

#[test]
fn each_bad_field_is_named_with_its_file_and_workload() {
    let bad = [
        ("layers", r#""layers":2"#, r#""layers":0"#),
        ("layers", r#""layers":2"#, r#""layers":-1"#),
        ("layers", r#""layers":2"#, r#""layers":"2""#),
        ("pages", r#""pages":3"#, r#""pages":5"#),
        ("pages", r#""pages":3,"#, ""),
        ("page_bytes", r#""page_bytes":4096"#, r#""page_bytes":1e30"#),
        (
            "page_bytes",
            r#""page_bytes":4096"#,
            r#""page_bytes":2147483648"#,
        ),
        (
            "pool_pages",
            r#""pool_pages":4"#,
            r#""pool_pages":99999999999"#,
        ),
        ("seed", r#""seed":9"#, r#""seed":9223372036854775808"#),
        ("kind", r#""seed":9"#, r#""seed":9,"kind":"odd""#),
        ("count", r#""seed":9"#, r#""seed":9,"kind":"latency""#),
        (
            "inflight",
            r#""seed":9"#,
            r#""seed":9,"kind":"rate","count":1,"inflight":[0]"#,
        ),
    ];
    for (field, from, to) in bad {
        assert!(GOOD.contains(from), "the case {to} changes nothing");
        let e = error_of(&GOOD.replace(from, to));
        let start = format!("workload file f.json: workload \"w\": field {field}: ");
        assert!(e.starts_with(&start), "{to}: {e}");
    }
}

#[test]
fn a_pool_that_is_too_large_in_all_is_refused() {
    let rows = r#"{"name":"w","layers":4096,"pages":1,"page_bytes":1073741824,"pool_pages":1048576,"seed":1}"#;
    assert!(error_of(rows).contains("layers x pool_pages x page_bytes"));
}

#[test]
fn an_unknown_field_and_a_second_row_of_the_name_are_refused() {
    assert!(error_of(&GOOD.replace("\"seed\"", "\"sede\":1,\"seed\"")).contains("\"sede\""));
    assert!(error_of(&format!("{GOOD},{GOOD}")).contains("given twice"));
}

#[test]
fn a_file_of_another_shape_says_what_is_expected() {
    for (text, expect) in [
        ("[1]", "the top level is not an object"),
        ("{}", "no list \"workloads\""),
        (
            r#"{"workloads":[3]}"#,
            "entry 0 of \"workloads\" is not an object",
        ),
        ("{", "not JSON"),
    ] {
        let e = parse("f.json", text.as_bytes(), "w")
            .unwrap_err()
            .to_string();
        assert!(e.contains(expect), "{text}: {e}");
    }
}
