use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    bytes: 1 << 20,
    puts: 128,
    jobs: 1000,
};

fn room(life: u64, class: Class) -> Room {
    Room { life, class }
}

#[test]
fn a_room_has_two_parts_under_way_and_the_next_one_when_one_is_flushed() {
    let mut windows = Windows::new(LIMITS);
    let one = room(1, Class::Bulk);
    assert!(windows.push(one, 0));
    for _ in 0..2 {
        let part = windows.next().unwrap();
        assert_eq!((part.room, part.bytes, part.puts), (one, 512 << 10, 64));
        assert_eq!(windows.front(one), Some(0));
        windows.posted(one, true);
    }
    assert_eq!(windows.next(), None);
    windows.flushed(one);
    assert_eq!(windows.next().map(|part| part.room), Some(one));
    assert!(windows.take(one, 0), "all of it was posted");
    windows.posted(one, true);
    assert_eq!(windows.next(), None);
    windows.flushed(one);
    windows.flushed(one);
    assert!(windows.rooms.is_empty() && windows.held == 0);
}

#[test]
fn a_small_room_is_next_whatever_a_large_one_has() {
    let mut windows = Windows::new(LIMITS);
    let (large, small) = (room(1, Class::Bulk), room(2, Class::Interactive));
    assert!(windows.push(large, 0) && windows.push(large, 1));
    assert_eq!(windows.next().map(|part| part.room), Some(large));
    windows.posted(large, true);
    assert!(windows.push(small, 2));
    assert_eq!(windows.next().map(|part| part.room), Some(small));
    // In the same class it has to wait for one part.
    windows.take(small, 2);
    windows.posted(small, true);
    let other = room(3, Class::Bulk);
    assert!(windows.push(other, 3));
    let order = [windows.next(), windows.next()].map(|part| part.unwrap().room);
    assert!(order.contains(&other), "{order:?}");
}

#[test]
fn a_job_too_many_is_refused_and_one_that_is_taken_out_makes_room() {
    let mut windows = Windows::new(Limits { jobs: 2, ..LIMITS });
    let one = room(1, Class::Bulk);
    assert!(windows.push(one, 0) && windows.push(one, 1));
    assert!(!windows.push(one, 2));
    assert!(windows.take(one, 0) && !windows.take(one, 0));
    assert!(windows.push(one, 2));
    assert_eq!(windows.jobs_of(1), [(one, 1), (one, 2)]);
}

#[derive(Clone, Debug)]
enum Act {
    /// A job of so many puts of so many bytes.
    Push(u64, bool, u32, u64),
    Post,
    Flush(usize),
    Cancel(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u64..5, any::<bool>(), 1u32..40, 1u64..5000).prop_map(|(life, class, puts, bytes)| {
            Act::Push(life, class, puts, bytes)
        }),
        4 => Just(Act::Post),
        3 => (0usize..8).prop_map(Act::Flush),
        1 => (0u64..5).prop_map(Act::Cancel),
    ]
}

/// What a route does with windows, without one.
struct Shell {
    windows: Windows,
    limits: Limits,
    /// Puts that are left, and bytes of each.
    jobs: BTreeMap<u32, (u32, u64)>,
    next: u32,
    out: Vec<(Room, u64, u32)>,
}

impl Shell {
    fn new(limits: Limits) -> Self {
        Shell {
            windows: Windows::new(limits),
            limits,
            jobs: BTreeMap::new(),
            next: 0,
            out: Vec::new(),
        }
    }

    fn post(&mut self) -> bool {
        let Some(part) = self.windows.next() else {
            return false;
        };
        let (mut bytes, mut puts) = (0, 0);
        while let Some(job) = self.windows.front(part.room) {
            let (left, each) = self.jobs.get_mut(&job).unwrap();
            let fits = |bytes: u64, puts| bytes + *each <= part.bytes && puts < part.puts;
            while *left > 0 && fits(bytes, puts) {
                *left -= 1;
                bytes += *each;
                puts += 1;
            }
            if *left > 0 {
                break;
            }
            self.jobs.remove(&job);
            assert!(self.windows.take(part.room, job));
        }
        if puts > 0 {
            self.out.push((part.room, bytes, puts));
        }
        self.windows.posted(part.room, puts > 0);
        true
    }

    fn flush(&mut self, at: usize) {
        if !self.out.is_empty() {
            let (room, ..) = self.out.remove(at % self.out.len());
            self.windows.flushed(room);
        }
    }

    fn check(&self) {
        let mut rooms: BTreeMap<Room, (u64, u32)> = BTreeMap::new();
        for (room, bytes, puts) in &self.out {
            let sum = rooms.entry(*room).or_default();
            sum.0 += bytes;
            sum.1 += puts;
        }
        for (room, (bytes, puts)) in rooms {
            assert!(
                bytes <= self.limits.bytes,
                "{room:?} has {bytes} bytes under way"
            );
            assert!(
                puts <= self.limits.puts,
                "{room:?} has {puts} puts under way"
            );
        }
    }
}

proptest! {
    #[test]
    fn no_room_has_more_than_its_window_under_way_and_every_job_is_posted_in_the_end(
        acts in proptest::collection::vec(act(), 1..200),
    ) {
        let mut shell = Shell::new(Limits { bytes: 20_000, puts: 12, jobs: 50 });
        for act in acts {
            match act {
                Act::Push(life, interactive, puts, bytes) => {
                    let class = if interactive { Class::Interactive } else { Class::Bulk };
                    let job = shell.next;
                    if shell.windows.push(room(life, class), job) {
                        shell.next += 1;
                        shell.jobs.insert(job, (puts, bytes));
                    }
                }
                Act::Post => drop(shell.post()),
                Act::Flush(at) => shell.flush(at),
                Act::Cancel(life) => {
                    for (room, job) in shell.windows.jobs_of(life) {
                        prop_assert!(shell.windows.take(room, job));
                        shell.jobs.remove(&job);
                    }
                }
            }
            shell.check();
        }
        let mut turns = 0;
        while !shell.jobs.is_empty() {
            if !shell.post() {
                prop_assert!(!shell.out.is_empty(), "jobs wait, and nothing is under way");
                shell.flush(0);
            }
            shell.check();
            turns += 1;
            prop_assert!(turns < 20_000);
        }
        while !shell.out.is_empty() {
            shell.flush(0);
        }
        while shell.post() {}
        prop_assert!(shell.windows.rooms.is_empty(), "{:?}", shell.windows.rooms);
        prop_assert_eq!(shell.windows.held, 0);
    }
}
