//! One HTML file without any other: a row per room, from start over abort and answer to the
//! moment its pages are back.

use crate::engine::End;
use crate::world::World;
use std::fmt::Write as _;
use std::time::Instant;

/// Width of the drawing in units.
const WIDTH: f64 = 1000.0;
/// Height of one room's row.
const ROW: usize = 8;

/// The page for one run.
pub(crate) fn html(title: &str, world: &World) -> String {
    let moments = world.rooms.iter().flat_map(|room| {
        let log = room.log();
        let end = log.decode.end.as_ref().map(|(_, at)| *at);
        [log.decode.started, end, log.decode.back]
    });
    let (first, last) = moments.flatten().fold((None, None), |(first, last), at| {
        (
            Some(first.map_or(at, |f: Instant| f.min(at))),
            Some(last.map_or(at, |l: Instant| l.max(at))),
        )
    });
    let (Some(first), Some(last)) = (first, last) else {
        return page(title, 0.0, 0, "");
    };
    let total = last
        .saturating_duration_since(first)
        .as_secs_f64()
        .max(1e-6);
    let x = |at: Instant| at.saturating_duration_since(first).as_secs_f64() / total * WIDTH;
    let (mut rows, mut count) = (String::new(), 0);
    for room in &world.rooms {
        let log = room.log();
        let Some(started) = log.decode.started else {
            continue;
        };
        let y = count * ROW;
        count += 1;
        let (end, class) = match &log.decode.end {
            Some((End::Done, at)) => (*at, "done"),
            Some((End::Aborted(_), at)) => (*at, "aborted"),
            None => (last, "stuck"),
        };
        let bar = |from: f64, to: f64, class: &str| {
            let width = (to - from).max(0.5);
            let height = ROW - 2;
            format!(
                r#"<rect x="{from:.2}" y="{y}" width="{width:.2}" height="{height}" class="{class}"/>"#
            )
        };
        let _ = write!(
            rows,
            "<g><title>room {} attempt {}, {}, {class}</title>",
            room.spec.id,
            room.spec.attempt,
            room.spec.tag()
        );
        rows.push_str(&bar(x(started), x(end), class));
        if let Some(back) = log.decode.back {
            rows.push_str(&bar(x(end), x(back), "draining"));
        }
        if let Some(called) = log.decode.aborted {
            rows.push_str(&bar(x(called), x(called), "call"));
        }
        rows.push_str("</g>\n");
    }
    let height = count * ROW;
    for (what, at) in world.moments() {
        let x = x(at.min(last));
        let _ = writeln!(
            rows,
            r#"<g><title>{what}</title><rect x="{x:.2}" y="0" width="1" height="{height}" class="moment"/></g>"#
        );
    }
    page(title, total, height, &rows)
}

fn page(title: &str, seconds: f64, height: usize, rows: &str) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        r#"<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px sans-serif; margin: 1em; background: #fff; color: #222 }}
svg {{ width: 100%; height: {height}px; background: #f6f6f6 }}
.done {{ fill: #2a7f62 }} .aborted {{ fill: #d98324 }} .stuck {{ fill: #b3262b }}
.draining {{ fill: #7a86b8 }} .call {{ fill: #000 }} .moment {{ fill: #c2185b }}
b {{ padding: 0 .5em; color: #fff }} b.done {{ background: #2a7f62 }} b.aborted {{ background: #d98324 }}
b.stuck {{ background: #b3262b }} b.draining {{ background: #7a86b8 }} b.call {{ background: #000 }}
b.moment {{ background: #c2185b }}
</style>
<h1>{title}</h1>
<p>One row per room, {seconds:.3} s from left to right:
<b class="done">done</b> <b class="aborted">aborted</b> <b class="stuck">no outcome</b>
<b class="call">abort called</b> <b class="draining">outcome known, memory not back yet</b>
<b class="moment">something was done to the other process</b></p>
<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" role="img" aria-label="rooms over time">
{rows}</svg></html>
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Listener;
    use crate::load::{Load, PAGE_TOKENS};
    use crate::pages::Pages;
    use crate::storms::{Script, Side, Storm};
    use std::sync::Arc;

    #[test]
    fn there_is_a_row_for_every_room_that_started_and_no_outside_asset() {
        let script = Script::new(Storm::Incident, &Load::generated(1, 1), 1);
        let shape = script.shape(PAGE_TOKENS);
        let pages = |count| Arc::new(Pages::new(shape.layers, count, shape.page_bytes));
        let stores = (pages(shape.destination_pages), pages(shape.source_pages));
        let world = World::whole(shape, &script.rooms, stores.0, stores.1);
        let taken = world.take_destination(0).unwrap();
        let now = Instant::now();
        world.rooms[0].log().decode.started = Some(now);
        world.ended(0, Side::Decode, End::Aborted("x".into()), now);
        world.destination_back(0, &taken, None, now);
        let html = html("a <b> & c", &world);
        assert_eq!(html.matches("<g>").count(), 1);
        assert!(!html.contains(r#"class="moment"/>"#));
        assert!(html.contains("a &lt;b> &amp; c") && html.contains(r#"class="draining""#));
        assert!(!html.contains("http") && !html.contains("src="));

        world.mark("the other process is killed");
        let html = super::html("killed", &world);
        assert!(html.contains("<title>the other process is killed</title>"));
        assert!(html.contains(r#"class="moment"/>"#));
    }
}
