//! exploratory
use super::run::world;
use super::world::Options;
use kvroom_actors::switch::{Switch, with};

#[test]
fn explore() {
    let seeds: u64 = std::env::var("N").map_or(60, |s| s.parse().unwrap());
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| { for _ in 0..2 { scope.spawn(|| loop {
        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let Some(switch) = Switch::ALL.get(i) else {
            let (a, b) = match i - Switch::ALL.len() { 0 => (Switch::MarkIgnored, Switch::AbortOvertakesClaim), 1 => (Switch::AbortLeavesNoMark, Switch::AbortOvertakesClaim), _ => return };
            for seed in 1..=seeds { if let Some(v) = with(a, || with(b, || world(seed, Options::default()).violation)) { println!("{a:?}+{b:?} {seed} {}", &v[..90]); break; } }
            continue;
        };
        let mut found = None;
        for seed in 1..=seeds {
            let report = std::panic::catch_unwind(|| with(*switch, || world(seed, Options::default()).violation));
            match report { Ok(None) => {}, Ok(Some(v)) => { found = Some((seed, v)); break }, Err(e) => { found = Some((seed, format!("PANIC {:?}", e.downcast_ref::<String>()))); break } }
        }
        println!("{switch:?}: {}", found.map_or("NOT FOUND".into(), |(s, v)| format!("{s} {}", v.chars().take(140).collect::<String>())));
    }); } });
}
