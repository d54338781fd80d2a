//! `rooms`, `room`, `abort` and `pools`: a question and its answer.

use super::super::args::{
    AbortRoomsArgs, DaemonArgs, PoolsArgs, RoomArgs, RoomsOfDaemonArgs, Until,
};
use super::super::exit::{Failure, Verdict};
use super::super::output;
use super::super::pair::block_on;
use super::http::{Daemon, Question};
use super::table;
use super::url::Target;
use hyper::Method;
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Rooms that the daemon gives at once.
const PAGE: u32 = 1_000;

/// Whether the answer is for people.
pub(super) fn for_people(args: &DaemonArgs) -> bool {
    !args.json && io::stdout().is_terminal()
}

fn show(
    args: &DaemonArgs,
    answer: &Value,
    people: impl FnOnce(&Value) -> String,
) -> Result<(), Failure> {
    if for_people(args) {
        output::print(&people(answer))
    } else {
        output::print_json(answer)
    }
}

fn ask(args: &DaemonArgs, question: Question) -> Result<Value, Failure> {
    let daemon = Daemon::new(args)?;
    block_on(daemon.ask(question, daemon.timeout))
}

/// Lists rooms.
pub(crate) fn rooms(args: &RoomsOfDaemonArgs) -> Result<Verdict, Failure> {
    let daemon = Daemon::new(&args.daemon)?;
    let answer = block_on(async {
        let mut rooms = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let left = args
                .limit
                .saturating_sub(u32::try_from(rooms.len()).unwrap_or(u32::MAX));
            let target = Target::new("/v1/rooms")
                .with("state", args.state.map(|state| state.word()))
                .with("role", args.role.map(|role| role.word()))
                .with("tag", args.tag.as_ref())
                .with("peer", args.peer.as_ref())
                .with("quarantined", args.quarantined.then_some(true))
                .with("limit", Some(left.min(PAGE)))
                .with("after", after.as_ref());
            let mut page = daemon.ask(Question::get(target), daemon.timeout).await?;
            let Some(more) = page.get_mut("rooms").and_then(Value::as_array_mut) else {
                return Err(daemon.failed("the answer has no rooms; is that a kvroom daemon?"));
            };
            let empty = more.is_empty();
            rooms.append(more);
            after = page["next"].as_str().map(str::to_owned);
            if after.is_none() || empty || rooms.len() >= args.limit as usize {
                return Ok(json!({ "rooms": rooms, "next": after }));
            }
        }
    })?;
    show(&args.daemon, &answer, |answer| {
        let mut text = table::rooms(answer["rooms"].as_array().map_or(&[], Vec::as_slice));
        if !answer["next"].is_null() {
            text += "There are more; see --limit.\n";
        }
        text
    })?;
    Ok(Verdict::Met)
}

/// Shows a room, at once or when it is over.
pub(crate) fn room(args: &RoomArgs) -> Result<Verdict, Failure> {
    let daemon = Daemon::new(&args.daemon)?;
    let until = Instant::now() + args.wait.unwrap_or_default();
    let is_over = |room: &Value| match args.until {
        Until::Outcome => !room["outcome"].is_null(),
        Until::Released => room["released"] == true,
    };
    let room = block_on(async {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // The daemon bounds how long one request may wait.
            let wait = left.min(Duration::from_secs(20));
            let waits = args.wait.is_some() && !wait.is_zero();
            let target = Target::new(format!("/v1/rooms/{}", args.id))
                .with("attempt", args.attempt)
                .with("role", args.role.map(|role| role.word()))
                .with(
                    "wait",
                    waits.then(|| format!("{}ms", wait.as_millis().max(1))),
                )
                .with("for", waits.then(|| args.until.word()));
            let asked = Instant::now();
            let room = daemon
                .ask(Question::get(target), daemon.timeout + wait)
                .await?;
            if is_over(&room) || !waits || Instant::now() >= until {
                return Ok(room);
            }
            // A daemon that does not wait as asked is not asked without a pause.
            let least = wait.min(Duration::from_millis(100));
            tokio::time::sleep(least.saturating_sub(asked.elapsed())).await;
        }
    })?;
    show(&args.daemon, &room, table::room)?;
    let state = room["state"].as_str().unwrap_or("not over");
    let missing = args.wait.is_some() && !is_over(&room);
    Ok(Verdict::from_missing(if missing {
        vec![format!(
            "room {} has no {} yet: it is {}",
            args.id,
            match args.until {
                Until::Outcome => "outcome",
                Until::Released => "memory back",
            },
            table::printable(state)
        )]
    } else {
        Vec::new()
    }))
}

/// Ends rooms.
pub(crate) fn abort(args: &AbortRoomsArgs) -> Result<Verdict, Failure> {
    let question = match args.id {
        Some(id) => Question {
            method: Method::DELETE,
            target: Target::new(format!("/v1/rooms/{id}"))
                .with("attempt", args.attempt)
                .with("role", args.role.map(|role| role.word()))
                .with("reason", Some(&args.reason)),
            body: None,
            last_event: None,
        },
        None => {
            let mut body = match (&args.tag, &args.peer) {
                (Some(tag), _) => json!({ "tag": tag }),
                (None, Some(peer)) => json!({ "peer": peer }),
                (None, None) => json!({ "all": true }),
            };
            body["reason"] = args.reason.clone().into();
            Question {
                method: Method::POST,
                target: Target::new("/v1/aborts"),
                body: Some(body),
                last_event: None,
            }
        }
    };
    let answer = ask(&args.daemon, question)?;
    show(&args.daemon, &answer, |answer| {
        match answer["aborted"].as_u64() {
            Some(1) => "1 room is aborted\n".to_owned(),
            Some(count) => format!("{count} rooms are aborted\n"),
            None => table::room(answer),
        }
    })?;
    Ok(Verdict::from_missing(untold(&answer)))
}

/// Of which shards nobody knows how many rooms they end.
fn untold(answer: &Value) -> Vec<String> {
    if answer["complete"] != false {
        return Vec::new();
    }
    let silent = answer["silent"].as_array();
    let silent = silent.into_iter().flatten().filter_map(Value::as_str);
    let mut silent: Vec<String> = silent.map(table::printable).collect();
    if silent.is_empty() {
        silent.push("a part of the node".to_owned());
    }
    vec![format!(
        "{} did not answer: its rooms are not counted, and end when it goes on; see GET /readyz",
        silent.join(", ")
    )]
}

/// Lists pools.
pub(crate) fn pools(args: &PoolsArgs) -> Result<Verdict, Failure> {
    let answer = ask(&args.daemon, Question::get(Target::new("/v1/pools")))?;
    let pools = answer["pools"].as_array().or_else(|| answer.as_array());
    let Some(pools) = pools else {
        let what = "the answer has no pools; is that a kvroom daemon?";
        return Err(Failure::Failed(format!("{}: {what}", args.daemon.url)));
    };
    show(&args.daemon, &answer, |_| table::pools(pools))?;
    Ok(Verdict::Met)
}
