//! Answers as lines for people.

use serde_json::Value;
use std::fmt::Write;

/// Text of others, with its control characters shown and not done.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A value as a cell: `-` for none.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Array(list) if list.is_empty() => "-".to_owned(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => printable(&other.to_string()),
    }
}

/// Columns under a head, as wide as they need to be.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    line(&mut text, &widths, head.iter().copied());
    for row in rows {
        line(&mut text, &widths, row.iter().map(String::as_str));
    }
    text
}

fn line<'a>(text: &mut String, widths: &[usize], cells: impl Iterator<Item = &'a str>) {
    let mut line = String::new();
    for (cell, width) in cells.zip(widths) {
        let _ = write!(line, "{cell:<width$}  ");
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Names and values, one under the other.
pub(super) fn list(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<width$}  {value}");
    }
    text
}

/// A list of rooms.
pub(super) fn rooms(rooms: &[Value]) -> String {
    let rows: Vec<Vec<String>> = rooms
        .iter()
        .map(|room| {
            vec![
                key(room),
                cell(&room["role"]),
                state(room),
                age(&room["age_ms"]),
                cell(&room["pages"]),
                cell(&room["peers"]),
                cell(&room["tag"]),
                why(room),
            ]
        })
        .collect();
    let head = [
        "ROOM", "ROLE", "STATE", "AGE", "PAGES", "PEERS", "TAG", "WHY",
    ];
    table(&head, &rows)
}

/// One room.
pub(super) fn room(room: &Value) -> String {
    let mut rows = vec![
        ("room", key(room)),
        ("role", cell(&room["role"])),
        ("state", state(room)),
        ("outcome", outcome(&room["outcome"])),
        ("released", cell(&room["released"])),
        ("held because", cell(&room["held_because"])),
        ("age", age(&room["age_ms"])),
        ("peers", cell(&room["peers"])),
        ("pages", cell(&room["pages"])),
        ("tag", cell(&room["tag"])),
        ("proofs", cell(&room["proofs"])),
    ];
    if let (Some(pushed), Some(landed)) = (
        room["chunks"]["pushed"].as_u64(),
        room["chunks"]["landed"].as_u64(),
    ) {
        rows.push(("chunks", format!("{landed} of {pushed} landed")));
    }
    if !room["retry_of"].is_null() {
        rows.push(("retry of", cell(&room["retry_of"])));
    }
    if !room["traceparent"].is_null() {
        rows.push(("traceparent", cell(&room["traceparent"])));
    }
    let mut text = list(&rows);
    if let Some(legs) = room["legs"].as_array().filter(|legs| !legs.is_empty()) {
        let rows: Vec<Vec<String>> = legs
            .iter()
            .map(|leg| {
                vec![
                    cell(&leg["peer"]),
                    cell(&leg["state"]),
                    cell(&leg["posted_bytes"]),
                    cell(&leg["written_bytes"]),
                ]
            })
            .collect();
        text.push('\n');
        text += &table(&["LEG TO", "STATE", "POSTED BYTES", "WRITTEN BYTES"], &rows);
    }
    text
}

/// Where a pool is: its file, or its device.
fn place(pool: &Value) -> String {
    match pool["device"]["ordinal"].as_u64() {
        Some(ordinal) if pool["device"]["lost"].is_string() => format!("device {ordinal} (lost)"),
        Some(ordinal) => format!("device {ordinal}"),
        None => cell(&pool["path"]),
    }
}

/// A list of pools.
pub(super) fn pools(pools: &[Value]) -> String {
    let rows: Vec<Vec<String>> = pools
        .iter()
        .map(|pool| {
            let quarantined = pool["quarantined_pages"].as_array();
            let quarantined = quarantined.into_iter().flatten();
            let pages = quarantined.map(|q| q["pages"].as_array().map_or(0, Vec::len));
            let owner = match pool["owner"]["pid"].as_u64() {
                Some(pid) if pool["owner"]["alive"] == false => format!("{pid} (dead)"),
                Some(pid) => pid.to_string(),
                None => "-".to_owned(),
            };
            vec![
                cell(&pool["id"]),
                cell(&pool["kind"]),
                cell(&pool["state"]),
                cell(&pool["layers"]),
                cell(&pool["pages"]),
                cell(&pool["page_bytes"]),
                cell(&pool["leased_pages"]),
                pages.sum::<usize>().to_string(),
                owner,
                place(pool),
                cell(&pool["why"]),
            ]
        })
        .collect();
    let head = [
        "POOL",
        "KIND",
        "STATE",
        "LAYERS",
        "PAGES",
        "PAGE BYTES",
        "LEASED",
        "QUARANTINED",
        "OWNER",
        "PATH",
        "WHY",
    ];
    table(&head, &rows)
}

/// Id and attempt.
fn key(room: &Value) -> String {
    format!("{}/{}", cell(&room["id"]), cell(&room["attempt"]))
}

fn state(room: &Value) -> String {
    let state = cell(&room["state"]);
    if room["quarantined"] == true {
        state + " (quarantined)"
    } else {
        state
    }
}

/// Why the memory is held, or else why it was aborted.
fn why(room: &Value) -> String {
    match &room["held_because"] {
        Value::String(text) if !text.is_empty() => printable(text),
        _ if room["outcome"]["end"] == "aborted" => outcome(&room["outcome"]),
        _ => "-".to_owned(),
    }
}

fn outcome(outcome: &Value) -> String {
    match outcome["end"].as_str() {
        None => "-".to_owned(),
        Some("aborted") => format!(
            "aborted: {} ({} side): {}",
            cell(&outcome["code"]),
            cell(&outcome["side"]),
            cell(&outcome["detail"])
        ),
        Some(end) => printable(end),
    }
}

/// Milliseconds, in the unit that fits.
fn age(ms: &Value) -> String {
    match ms.as_u64() {
        None => "-".to_owned(),
        Some(ms) if ms < 1_000 => format!("{ms}ms"),
        Some(ms) if ms < 120_000 => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        Some(ms) if ms < 7_200_000 => format!("{}min", ms / 60_000),
        Some(ms) => format!("{}h", ms / 3_600_000),
    }
}

/// An event in one line.
pub(super) fn event(kind: &str, data: &Value) -> String {
    match kind {
        "room" => {
            let at = data["at_us"].as_u64().unwrap_or(0);
            let mut text = format!(
                "{:>5}.{:06}  room {}/{} {}: {} -> {} by {}",
                at / 1_000_000,
                at % 1_000_000,
                cell(&data["room"]),
                cell(&data["attempt"]),
                cell(&data["role"]),
                cell(&data["from"]),
                cell(&data["to"]),
                cell(&data["event"]),
            );
            let reason = &data["reason"];
            if reason.is_object() {
                let (code, side) = (cell(&reason["code"]), cell(&reason["side"]));
                let _ = write!(text, ": {code} ({side} side): {}", cell(&reason["detail"]));
            }
            text
        }
        "peer" => {
            let mut text = format!("peer {}: {}", cell(&data["peer"]), cell(&data["state"]));
            if !data["why"].is_null() {
                let _ = write!(text, ": {}", cell(&data["why"]));
            }
            text
        }
        other => format!("{}: {}", printable(other), printable(&data.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn example() -> Value {
        json!({
            "id": "42", "attempt": 1, "role": "receive", "state": "draining",
            "outcome": {"end": "aborted", "code": "Requested", "side": "peer", "detail": "enough"},
            "released": false, "proofs": [], "peers": ["p0", "p1"], "tag": "a\u{1b}[31m",
            "legs": [{"peer": "p0", "state": "Draining", "posted_bytes": 9, "written_bytes": null}],
            "pages": 8, "age_ms": 1_550, "quarantined": true,
            "held_because": "p0 has not closed its gate", "chunks": {"pushed": 3, "landed": 2},
        })
    }

    #[test]
    fn a_room_is_one_line_with_why_its_memory_is_held() {
        let text = rooms(&[example()]);
        let wanted = "\
ROOM  ROLE     STATE                   AGE   PAGES  PEERS  TAG          WHY
42/1  receive  draining (quarantined)  1.5s  8      p0,p1  a\\u{1b}[31m  p0 has not closed its gate
";
        assert_eq!(text, wanted);
    }

    #[test]
    fn one_room_is_shown_with_its_legs() {
        let text = room(&example());
        for line in [
            "outcome       aborted: Requested (peer side): enough",
            "held because  p0 has not closed its gate",
            "chunks        2 of 3 landed",
            "p0      Draining  9             -",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    #[test]
    fn nothing_in_an_answer_reaches_the_terminal_as_a_control_character() {
        let evil = Value::String("\u{1b}]0;x\u{7}\r\n".to_owned());
        let mut room_of = example();
        for (_, value) in room_of.as_object_mut().into_iter().flatten() {
            *value = evil.clone();
        }
        let pool = json!({"id": evil, "state": evil, "path": evil, "why": evil});
        let texts = [
            rooms(&[room_of.clone()]),
            room(&room_of),
            pools(&[pool]),
            event("room", &room_of),
            event("\u{1b}", &room_of),
            event("peer", &json!({"peer": evil, "state": evil, "why": evil})),
        ];
        for text in texts {
            let bad = text.chars().find(|c| c.is_control() && *c != '\n');
            assert_eq!(bad, None, "{text:?}");
        }
    }

    #[test]
    fn pools_count_their_quarantined_pages_and_say_if_the_owner_is_dead() {
        let pool = json!({
            "id": "kv", "kind": "kv", "layers": 2, "pages": 8, "page_bytes": 4096,
            "leased_pages": 1, "quarantined_pages": [{"pages": [1, 2], "why": "w"}, {"pages": [5]}],
            "owner": {"pid": 7, "alive": false}, "state": "owner-died", "path": "/dev/shm/x",
            "why": null,
        });
        let text = pools(&[pool]);
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        let wanted = [
            "kv",
            "kv",
            "owner-died",
            "2",
            "8",
            "4096",
            "1",
            "3",
            "7",
            "(dead)",
            "/dev/shm/x",
            "-",
        ];
        assert_eq!(cells, wanted);
    }

    #[test]
    fn a_pool_on_a_device_is_shown_with_the_devices_number_and_whether_it_is_lost() {
        let text = |device: Value| pools(&[json!({"id": "kv", "path": null, "device": device})]);
        assert!(text(json!({"ordinal": 3, "lost": null})).contains(" device 3 "));
        let lost = text(json!({"ordinal": 3, "lost": "device 3 is lost: …"}));
        assert!(lost.contains("device 3 (lost)"), "{lost}");
        assert!(!text(Value::Null).contains("device"));
    }
}
