//! `/metrics`: what a daemon serves, and whether the page, the alert rules and the dashboard name it.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Tests and their helpers.

#[path = "common/daemon.rs"]
mod daemon;
#[path = "common/openmetrics.rs"]
mod openmetrics;
#[path = "common/promql.rs"]
mod promql;

use daemon::Daemon;
use promql::{Exposition, Use};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What the daemon serves at this moment.
fn scrape(daemon: &Daemon) -> Exposition {
    let answer = daemon.get("/metrics");
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    Exposition::parse(&answer.text())
}

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every expression of the dashboard: of panels, of variables, of annotations.
fn dashboard() -> Vec<String> {
    let all: Value = serde_json::from_str(&file("deploy/grafana/kvroom.json")).unwrap();
    let mut found = Vec::new();
    collect(&all, &mut found);
    assert!(found.len() > 30, "{found:?}");
    found
}

fn collect(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expr" || name == "definition" => {
                        into.push(text.replace("label_values(", "("));
                    }
                    value => collect(value, into),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| collect(value, into)),
        _ => {}
    }
}

/// Every expression of the alert rules: `expr:` on its line, or folded below it.
fn alerts() -> Vec<String> {
    let text = file("deploy/prometheus/alerts.yml");
    let mut lines = text.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let Some(expr) = line.trim_start().strip_prefix("expr: ") else {
            continue;
        };
        if expr != ">-" {
            found.push(expr.to_owned());
            continue;
        }
        let depth = |line: &str| line.len() - line.trim_start().len();
        let mut folded = Vec::new();
        while let Some(next) = lines.next_if(|next| depth(next) > depth(line)) {
            folded.push(next.trim());
        }
        found.push(folded.join(" "));
    }
    let named = text.matches("- alert: ").count();
    assert_eq!(found.len(), named, "each rule has one expression");
    assert!(named > 10);
    found
}

/// Name, type and labels of each metric of the page.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let page = file("docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `kvroom_"));
    let rows = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() == 4 && !cells[3].is_empty(), "{row}");
        let word = |cell: &str| cell.trim_matches('`').to_owned();
        let labels = cells[2].split(", ").filter(|l| !l.is_empty()).map(word);
        (word(cells[0]), (cells[1].to_owned(), labels.collect()))
    });
    rows.collect()
}

/// A room that was aborted has made a step, so that every family has a sample.
fn daemon_with_a_room_behind_it() -> Daemon {
    let daemon = with_a_room_behind_it(Daemon::start(&[
        "--name",
        "metrics",
        "--devices-ordinals",
        "0",
    ]));
    // A canary has passed.
    daemon.until("/metrics", |answer| {
        answer.text().contains("kvroom_canary_last_run_seconds{")
    });
    daemon
}

fn with_a_room_behind_it(daemon: Daemon) -> Daemon {
    let room = json!({"role": "send", "id": 7});
    daemon.post("/v1/rooms", &room).expect(201);
    daemon.delete("/v1/rooms/7?attempt=0&role=send");
    daemon.until("/metrics", |answer| {
        answer.text().contains("kvroom_room_transitions_total{")
    });
    daemon
}

/// The same, and a canary has passed: every family has a sample.
fn daemon_of_which_all_is_served() -> Daemon {
    let daemon = daemon_with_a_room_behind_it();
    daemon.until("/metrics", |answer| {
        answer.text().contains("kvroom_canary_last_run_seconds{")
    });
    daemon
}

#[test]
fn what_is_documented_is_served_and_what_is_served_is_documented() {
    let daemon = daemon_of_which_all_is_served();
    let (served, documented) = (scrape(&daemon), documented());
    for (name, (kind, labels)) in &documented {
        let family = served.family(name);
        let family = family.unwrap_or_else(|| panic!("{name} is documented and not served"));
        assert_eq!(family.kind, *kind, "{name}");
        assert_eq!(family.labels, *labels, "labels of {name}");
        assert!(
            family.help.len() > 10 && family.help.ends_with('.'),
            "{name}: {:?}",
            family.help
        );
    }
    for (name, family) in &served.families {
        let shown = family.shown(name);
        assert!(
            documented.contains_key(&shown),
            "{shown} is served and not documented"
        );
    }
}

#[test]
fn the_dashboard_and_the_alerts_use_what_is_served() {
    let daemon = daemon_of_which_all_is_served();
    let served = scrape(&daemon);
    for expr in dashboard().into_iter().chain(alerts()) {
        let uses = Use::all(&expr);
        assert!(!uses.is_empty() || expr.starts_with("up{"), "{expr}");
        for used in uses {
            let family = served.of_sample(&used.metric);
            let family = family.unwrap_or_else(|| panic!("{} is not served: {expr}", used.metric));
            for label in &used.labels {
                let known =
                    family.labels.contains(label) || ["instance", "job"].contains(&label.as_str());
                assert!(known, "{} has no label {label}: {expr}", used.metric);
            }
            for (label, values) in &used.values {
                let all = family.values.get(label);
                // Reasons of which none has come are served too; peers and routes are anybody's.
                let Some(all) =
                    all.filter(|_| !["peer", "route", "status"].contains(&label.as_str()))
                else {
                    continue;
                };
                for value in values {
                    assert!(
                        all.contains(value),
                        "{}: {label} is never {value:?}: {expr}",
                        used.metric
                    );
                }
            }
        }
    }
}

#[test]
fn the_scrape_configuration_asks_for_what_there_is() {
    let config = file("deploy/prometheus/scrape.yml");
    let has = |line: &str| config.lines().any(|l| l.trim() == line);
    assert!(has("metrics_path: /metrics") && has("- job_name: kvroom"));
    assert!(
        has(r#"- targets: ["127.0.0.1:7480"]"#),
        "the port that a daemon listens on by itself"
    );
}

#[test]
fn numbers_follow_what_happens() {
    // Rooms of canaries count as any.
    let daemon = with_a_room_behind_it(Daemon::start(&["--health-canary", "false"]));
    let started = |e: &Exposition| e.value("kvroom_rooms_started_total", &[("role", "send")]);
    let before = scrape(&daemon);
    assert_eq!(started(&before), Some(1.0));
    let ended = [("role", "send"), ("reason", "Requested"), ("side", "local")];
    assert_eq!(before.value("kvroom_room_ends_total", &ended), Some(1.0));
    assert_eq!(
        before.value("kvroom_abort_to_answer_seconds_count", &[]),
        Some(1.0)
    );
    let open = [("role", "send"), ("state", "registered")];
    assert_eq!(before.value("kvroom_rooms", &open), Some(0.0));

    daemon
        .post("/v1/rooms", &json!({"role": "send", "id": 8}))
        .expect(201);
    let after = scrape(&daemon);
    assert_eq!(started(&after), Some(2.0));
    assert_eq!(after.value("kvroom_rooms", &open), Some(1.0));
    let posts = |e: &Exposition| {
        let labels = [("route", "/v1/rooms"), ("status", "2xx")];
        e.value("kvroom_http_requests_total", &labels).unwrap()
    };
    assert_eq!(posts(&after), posts(&before) + 1.0);
    assert_eq!(daemon.get("/no/such/route").status, 404);
    let strangers = [("route", "other"), ("status", "4xx")];
    assert_eq!(
        scrape(&daemon).value("kvroom_http_requests_total", &strangers),
        Some(1.0)
    );
    assert!(
        after
            .value("kvroom_process_resident_memory_bytes", &[])
            .unwrap()
            > 1e6
    );
}

#[test]
fn counters_and_buckets_are_well_formed() {
    let daemon = daemon_of_which_all_is_served();
    let text = daemon.get("/metrics").text();
    let samples = openmetrics::read(&text).unwrap();
    let served = Exposition::parse(&text);
    served.check();
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(samples, series);
    assert!(
        series < 3_000,
        "{series} series of a daemon that has met nobody"
    );
}

#[test]
fn health_and_its_canaries_are_counted() {
    let daemon = Daemon::start(&["--name", "canaries", "--node-listen", "tcp://127.0.0.1:0"]);
    let passed = |canary: &str| {
        let labels = [("canary", canary), ("result", "passed")];
        scrape(&daemon).value("kvroom_canary_runs_total", &labels)
    };
    for canary in ["local lane 0", "local in", "tcp lane 0", "tcp in"] {
        daemon.until("/metrics", |_| passed(canary).is_some_and(|n| n >= 1.0));
    }
    daemon.until("/readyz", |answer| answer.status == 200);
    let served = scrape(&daemon);
    let value = |name: &str, labels: &[(&str, &str)]| served.value(name, labels).unwrap();
    assert_eq!(value("kvroom_healthy", &[("probe", "ready")]), 1.0);
    assert_eq!(value("kvroom_healthy", &[("probe", "live")]), 1.0);
    let took = value(
        "kvroom_canary_last_run_seconds",
        &[("canary", "tcp lane 0")],
    );
    assert!(took > 0.0 && took < 30.0, "{took}");
}
