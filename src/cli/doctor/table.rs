//! The report for people.

use super::super::proc::bytes;
use super::devices::Gpu;
use super::machine::Copies;
use super::report::Report;
use std::fmt::Display;
use std::fmt::Write;

/// All of the report as text.
pub(crate) fn table(r: &Report) -> String {
    let mut t = Table::default();
    t.heading(&format!("kvroom {}", r.version));
    t.row(
        "system",
        format!(
            "{}, kernel {}, {}",
            or(&r.os.name),
            or(&r.os.kernel),
            r.os.arch
        ),
    );
    t.row(
        "cores",
        format!(
            "{}, {} usable by this process",
            or(&r.cpu.cores),
            or(&r.cpu.usable)
        ),
    );
    t.row("memory", memory(r));
    t.row("huge pages", huge_pages(r));
    t.row("/dev/shm", dev_shm(r));
    t.row("pidfd", &r.pidfd.detail);
    let (profile, panic) = (r.build.profile, r.build.panic);
    t.row(
        "build",
        format!("{profile}, panic = {panic}, {}", r.build.target),
    );
    t.row("tcp", tcp(r));
    t.row("copies", copies(&r.copies));
    t.heading("devices and transports");
    t.row(
        "cuda",
        format!("{}: {}", r.cuda.state.word(), r.cuda.detail),
    );
    for gpu in &r.cuda.devices {
        t.row(&format!("device {}", gpu.ordinal), device(gpu));
    }
    t.row("ucx", format!("{}: {}", r.ucx.state.word(), r.ucx.detail));
    t.heading("fabrics");
    for f in &r.fabrics {
        t.row(f.name, format!("{}: {}", f.state.word(), f.detail));
    }
    t.heading("native libraries");
    for l in &r.libraries {
        let place = match l.found_at.as_slice() {
            [] => String::new(),
            places => format!("found at {}, ", places.join(", ")),
        };
        t.row(l.name, format!("{place}{}", l.detail));
    }
    t.heading("checks");
    for c in &r.checks {
        let mark = match (c.ok, c.required) {
            (true, _) => "ok",
            (false, true) => "MISSING",
            (false, false) => "warning",
        };
        t.row(mark, format!("{}: {}", c.name, c.detail));
    }
    t.heading(if r.ok {
        "Everything that is required is there."
    } else {
        "Something required is missing: see MISSING above. Exit code 3."
    });
    t.0
}

fn memory(r: &Report) -> String {
    let m = &r.memory;
    let mut text = format!(
        "{}, {} available",
        size(m.total_bytes),
        size(m.available_bytes)
    );
    if let Some(limit) = m.cgroup_limit_bytes {
        text.push_str(&format!(", this control group may use {}", bytes(limit)));
    }
    text
}

fn huge_pages(r: &Report) -> String {
    let h = &r.huge_pages;
    let (total, free) = (or(&h.total), or(&h.free));
    let (each, mode) = (size(h.size_bytes), or(&h.transparent));
    format!("{total} reserved of {each}, {free} free; transparent: {mode}")
}

fn dev_shm(r: &Report) -> String {
    let s = &r.dev_shm;
    if !s.mounted {
        return s.detail.clone();
    }
    format!("{} {}, {}", or(&s.fstype), size(s.size_bytes), s.detail)
}

fn tcp(r: &Report) -> String {
    let list = |names: &Option<Vec<String>>| or(&names.as_ref().map(|n| n.join(" ")));
    let (available, allowed) = (list(&r.tcp.available), list(&r.tcp.allowed));
    let now = or(&r.tcp.congestion);
    format!("congestion control {now}; available: {available}; allowed to all: {allowed}")
}

fn copies(c: &Copies) -> String {
    let how = match (c.instructions, c.streaming_from_bytes) {
        (None, _) => "memcpy; this processor has no wider stores that are used".to_owned(),
        (Some(name), None) => format!("memcpy; {name} streaming stores are not faster here"),
        (Some(name), Some(from)) => {
            let two = if c.pairs { ", two runs together" } else { "" };
            format!("{name} streaming stores from {}{two}", bytes(from))
        }
    };
    let rates: Vec<String> = (c.sizes.iter())
        .map(|s| {
            let streaming = if c.pairs {
                s.streaming_two
            } else {
                s.streaming
            };
            format!("{} {} to {streaming}", bytes(s.bytes), s.memcpy)
        })
        .collect();
    if rates.is_empty() {
        return how;
    }
    format!(
        "{how}; measured, memcpy to streaming in GB/s: {}",
        rates.join(", ")
    )
}

fn device(gpu: &Gpu) -> String {
    if let Some(problem) = &gpu.problem {
        return problem.clone();
    }
    format!(
        "{}, compute capability {}, {} multiprocessors, {}",
        or(&gpu.name),
        or(&gpu.capability),
        or(&gpu.multiprocessors),
        size(gpu.memory_bytes)
    )
}

fn size(n: Option<u64>) -> String {
    n.map_or_else(|| "unknown".to_owned(), bytes)
}

fn or(value: &Option<impl Display>) -> String {
    value
        .as_ref()
        .map_or_else(|| "unknown".to_owned(), ToString::to_string)
}

#[derive(Default)]
struct Table(String);

impl Table {
    fn heading(&mut self, text: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{gap}{text}");
    }

    fn row(&mut self, label: &str, text: impl Display) {
        let _ = writeln!(self.0, "  {label:<13} {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::CopySize;
    use super::*;

    #[test]
    fn how_bytes_are_copied_is_told_with_what_was_measured() {
        let mut c = Copies {
            instructions: Some("AVX2"),
            streaming_from_bytes: Some(4096),
            pairs: true,
            measured_ms: 20.0,
            rounds: 9,
            sizes: vec![CopySize {
                bytes: 4096,
                memcpy: 5.5,
                streaming: 7.0,
                streaming_two: 9.5,
            }],
        };
        assert_eq!(
            copies(&c),
            "AVX2 streaming stores from 4.0 KiB, two runs together; measured, memcpy to streaming in \
             GB/s: 4.0 KiB 5.5 to 9.5"
        );
        c.pairs = false;
        assert!(copies(&c).ends_with("5.5 to 7"), "{}", copies(&c));
        c.streaming_from_bytes = None;
        assert!(copies(&c).starts_with("memcpy; AVX2"), "{}", copies(&c));
        c.instructions = None;
        c.sizes.clear();
        assert!(copies(&c).starts_with("memcpy; this"), "{}", copies(&c));
    }
}
