//! The table of pools, with a real node, real files and real processes.

use super::shape::{Arrangement, Kind, MemorySpec, Owner, PoolState};
use super::*;
use kvroom::{Code, LocalHub, Node, Order, Outcome, PoolKind, PoolLayout, RoomId};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A folder of its own, and pools in it.
struct Setup {
    folder: PathBuf,
    node: Node,
    hub: LocalHub,
    pools: Pools,
}

impl Setup {
    async fn new(name: &str, most: usize) -> Setup {
        let root = match Path::new("/dev/shm") {
            shm if shm.is_dir() => shm.to_owned(),
            _ => std::env::temp_dir(),
        };
        let folder = root.join(format!("kvroom-pools-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let hub = LocalHub::new();
        let node = Node::builder("d").hub(&hub).start().await.unwrap();
        let options = PoolsOptions {
            folder: folder.clone(),
            most,
        };
        let pools = Pools::start_with(node.clone(), no_devices(), options, &Tasks::new());
        Setup {
            folder,
            node,
            hub,
            pools,
        }
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).unwrap();
        let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
        let mut names: Vec<_> = entries
            .map(|e| name(e).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    async fn until(&self, name: &str, wanted: impl Fn(&PoolView) -> bool) -> PoolView {
        let look = async {
            loop {
                let view = self.pools.view(name).unwrap();
                if wanted(&view) {
                    return view;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(look).await
    }
}

fn no_devices() -> Devices {
    Devices::new(&crate::daemon::config::DeviceSettings::default())
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what)
        .await
        .expect("it takes too long")
}

/// A process that does nothing until it is killed.
struct Engine(Child);

impl Engine {
    fn start() -> Engine {
        let cat = Command::new("/bin/cat").stdin(Stdio::piped()).spawn();
        Engine(cat.unwrap())
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}

fn created(name: &str) -> PoolSpec {
    PoolSpec {
        name: name.to_owned(),
        kind: Kind::Kv,
        order: Arrangement::LayersFirst,
        layers: 2,
        pages: 8,
        page_bytes: 4096,
        page_tokens: 16,
        memory: MemorySpec {
            create: true,
            ..MemorySpec::default()
        },
        owner: None,
    }
}

fn owned(name: &str, pid: u32) -> PoolSpec {
    PoolSpec {
        owner: Some(Owner { pid }),
        ..created(name)
    }
}

#[tokio::test]
async fn a_pool_goes_with_its_files_when_its_last_lease_is_back_and_not_before() {
    let s = Setup::new("goes", 4).await;
    let (view, new) = s.pools.register(created("kv")).await.unwrap();
    assert!(new && view.state == PoolState::Serving && view.created);
    assert_eq!(s.files(), ["kvroom:d:kv", "kvroom:d:kv.kvroom"]);
    let pool = s.pools.find("kv").unwrap();
    let lease = pool.lease_write(&[3, 5]).unwrap();

    let view = s.pools.retire("kv", false, false).await.unwrap();
    assert_eq!((view.state, view.leased_pages), (PoolState::Retiring, 2));
    let why = view.why.unwrap();
    assert!(why.contains("2 leased pages"), "{why}");
    assert!(pool.lease_write(&[0]).is_err(), "no new leases");
    assert_eq!(s.pools.find("kv").unwrap_err().code, "pool-not-serving");
    let again = s.pools.register(created("kv")).await.unwrap_err();
    assert_eq!((again.status, again.code), (409, "pool-leaving"));
    let gone = s.pools.gone("kv");
    let early = tokio::time::timeout(Duration::from_millis(200), gone).await;
    assert!(early.is_err(), "pages are out");
    assert_eq!(s.files().len(), 2);

    drop(lease);
    within(s.pools.gone("kv")).await;
    assert_eq!(s.files(), [""; 0]);
    assert_eq!(s.pools.view("kv").unwrap_err().status, 404);
    // The name and the place are free.
    assert!(s.pools.register(created("kv")).await.unwrap().1);
}

#[tokio::test]
async fn the_same_request_again_changes_nothing_and_another_one_of_the_name_is_refused() {
    let s = Setup::new("again", 2).await;
    let (first, _) = s.pools.register(created("kv")).await.unwrap();
    let (second, new) = s.pools.register(created("kv")).await.unwrap();
    assert!(!new);
    assert_eq!(first, second);
    let other = PoolSpec {
        pages: 16,
        ..created("kv")
    };
    let refused = s.pools.register(other).await.unwrap_err();
    assert_eq!((refused.status, refused.code), (409, "pool-exists"));
    // At once: one of them opens it, the same one waits for that, and another one is refused.
    let other = PoolSpec {
        pages: 16,
        ..created("aux")
    };
    let (a, b, c) = tokio::join!(
        s.pools.register(created("aux")),
        s.pools.register(created("aux")),
        s.pools.register(other)
    );
    let ((a, first), (b, second)) = (a.unwrap(), b.unwrap());
    assert_eq!((a, first, second), (b, true, false));
    assert_eq!(c.unwrap_err().code, "pool-exists");
    let full = s.pools.register(created("more")).await.unwrap_err();
    assert_eq!((full.status, full.code), (503, "limit-reached"));
    assert_eq!(s.pools.list().len(), 2);
}

/// A private pool of the node, by no request.
async fn of_the_node(s: &Setup, name: &str) {
    let layout = created(name).layout();
    s.node.add_pool(Pool::owned(layout).unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_registration_that_the_node_refuses_leaves_no_file_that_it_made() {
    let s = Setup::new("refused", 4).await;
    of_the_node(&s, "kv").await;
    let at = s.folder.join("given");
    let given = PoolSpec {
        memory: MemorySpec {
            create: true,
            path: Some(at.clone()),
            ..MemorySpec::default()
        },
        ..created("kv")
    };
    for spec in [created("kv"), given.clone()] {
        let refused = s.pools.register(spec).await.unwrap_err();
        assert_eq!((refused.status, refused.code), (409, "pool-exists"));
        assert_eq!(s.files(), [""; 0]);
    }
    // What was there before stays.
    std::fs::write(&at, vec![7; 2 * 8 * 4096]).unwrap();
    s.pools.register(given).await.unwrap_err();
    assert_eq!(s.files(), ["given"]);
    assert_eq!(std::fs::read(&at).unwrap()[..2], [7, 7]);
    // It is nobody's pool.
    let mut again = created("again");
    again.memory.path = Some(at);
    again.memory.create = false;
    assert!(s.pools.register(again).await.unwrap().1);
}

#[tokio::test]
async fn pools_that_nobody_registered_count_towards_the_limit() {
    let s = Setup::new("count", 2).await;
    of_the_node(&s, "of-the-canaries").await;
    s.pools.register(created("one")).await.unwrap();
    let files = s.files();
    let full = s.pools.register(created("two")).await.unwrap_err();
    assert_eq!((full.status, full.code), (503, "limit-reached"));
    assert_eq!(s.files(), files);
}

#[tokio::test]
async fn when_its_owner_dies_a_pool_gives_no_leases_and_goes_when_they_are_back() {
    let s = Setup::new("owner", 4).await;
    let mut engine = Engine::start();
    let pid = engine.0.id();
    let (view, _) = s.pools.register(owned("kv", pid)).await.unwrap();
    assert!(view.owner.is_some_and(|o| o.pid == pid && o.alive));
    let pool = s.pools.find("kv").unwrap();
    let lease = pool.lease_write(&[1]).unwrap();
    engine.kill();
    let view = s.until("kv", |v| v.state == PoolState::OwnerDied).await;
    let why = view.why.unwrap();
    assert!(why.contains(&format!("process {pid}, is dead")), "{why}");
    assert!(view.owner.is_some_and(|o| !o.alive));
    assert!(pool.lease_write(&[2]).is_err());
    drop(lease);
    within(s.pools.gone("kv")).await;
    let dead = s.pools.register(owned("kv", pid)).await;
    assert_eq!(dead.unwrap_err().code, "bad-pool", "nobody has that number");
}

#[tokio::test]
async fn rooms_with_pages_of_a_pool_whose_owner_died_end_with_a_reason_that_names_it() {
    let s = Setup::new("rooms", 4).await;
    let layout = PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 2,
        pages: 8,
        page_bytes: 4096,
        page_tokens: 16,
    };
    let source = Pool::owned(layout).unwrap();
    let prefill = Node::builder("p").hub(&s.hub).pool(source).start().await;
    let _prefill = prefill.unwrap();
    let mut engine = Engine::start();
    let pid = engine.0.id();
    s.pools.register(owned("kv", pid)).await.unwrap();
    s.pools.register(created("other")).await.unwrap();
    let peer = s.node.connect("local://p").await.unwrap();
    let lease = s.pools.find("kv").unwrap().lease_write(&[1, 2]).unwrap();
    let room = s.node.receive(RoomId(7)).from(&peer).into(lease);
    let room = room.start().await.unwrap();
    engine.kill();
    let Outcome::Aborted(reason) = within(room.outcome()).await else {
        panic!("nobody sent anything");
    };
    assert_eq!(reason.code, Code::PoolRetired);
    assert!(reason.text.contains(&format!("process {pid}")), "{reason}");
    let back = within(room.released()).await;
    // The room may end before the count of those that were told comes back.
    let counted = async {
        while s.pools.view("kv").unwrap().rooms_aborted == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        s.pools.view("kv").unwrap()
    };
    let view = within(counted).await;
    assert_eq!((view.leased_pages, view.rooms_aborted), (2, 1));
    assert!(!back.proofs.is_empty());
    drop(back);
    within(s.pools.gone("kv")).await;
    assert_eq!(s.pools.view("other").unwrap().state, PoolState::Serving);
}

#[tokio::test]
async fn memory_is_passed_by_its_descriptor_and_has_to_be_sealed() {
    let s = Setup::new("passed", 4).await;
    let me = std::process::id();
    let layout = created("passed").layout();
    let given = Pool::shared(layout.clone()).unwrap();
    let number = |name: &str| -> u32 {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        let is_it = |e: &std::fs::DirEntry| {
            std::fs::read_link(e.path()).is_ok_and(|l| l.to_string_lossy().contains(name))
        };
        let found = fds.filter_map(Result::ok).find(is_it).unwrap();
        found.file_name().to_string_lossy().parse().unwrap()
    };
    let passed = |fd| PoolSpec {
        memory: MemorySpec {
            pid: Some(me),
            fd: Some(fd),
            ..MemorySpec::default()
        },
        ..created("passed")
    };
    // As long as it is a pool of this process, it is no other one.
    let fd = number("memfd:kvroom:passed");
    let twice = s.pools.register(passed(fd)).await.unwrap_err();
    assert_eq!((twice.status, twice.code), (409, "pool-attached"));
    let engine = std::fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{fd}"))
        .unwrap();
    drop(given);
    let spec = passed(number("memfd:kvroom:passed"));
    let (view, _) = s.pools.register(spec).await.unwrap();
    assert_eq!((&*view.backing, view.path), ("shared", None));
    assert!(view.owner.is_some_and(|o| o.pid == me));
    // It is the same memory.
    let place = layout.pages as usize + 2;
    let place = (place * layout.page_bytes as usize) as u64;
    engine.write_all_at(&[9; 16], place).unwrap();
    let mut seen = [0; 16];
    let pool = s.pools.find("passed").unwrap();
    pool.observe(1, 2, &mut seen).unwrap();
    assert_eq!(seen, [9; 16]);
    assert_eq!(s.files().len(), 1, "what is known of its lives");
    s.pools.retire("passed", false, false).await.unwrap();
    within(s.pools.gone("passed")).await;
    assert_eq!(s.files(), [""; 0]);

    let path = s.folder.join("plain");
    let file = std::fs::File::create_new(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    let refused = s.pools.register(passed(number("/plain"))).await;
    let refused = refused.unwrap_err();
    assert!(refused.detail.contains("not sealed"), "{}", refused.detail);
    let none = s.pools.register(passed(9999)).await.unwrap_err();
    assert_eq!((none.status, none.code), (422, "bad-pool"));
}

#[tokio::test]
async fn a_file_is_one_runtimes_pool_at_a_time_and_must_be_large_enough() {
    let s = Setup::new("files", 4).await;
    let path = s.folder.join("engine");
    let of_file = |name: &str, create| PoolSpec {
        memory: MemorySpec {
            path: Some(path.clone()),
            create,
            ..MemorySpec::default()
        },
        ..created(name)
    };
    let absent = s.pools.register(of_file("kv", false)).await.unwrap_err();
    assert_eq!(absent.status, 422);
    std::fs::write(&path, [1; 100]).unwrap();
    let small = s.pools.register(of_file("kv", false)).await.unwrap_err();
    assert!(small.detail.contains("100 bytes"), "{}", small.detail);
    std::fs::remove_file(&path).unwrap();
    let (view, _) = s.pools.register(of_file("kv", true)).await.unwrap();
    assert!(!view.created, "the engine named it");
    let twice = s.pools.register(of_file("kv2", false)).await.unwrap_err();
    assert_eq!((twice.status, twice.code), (409, "pool-attached"));
    s.pools.retire("kv", false, false).await.unwrap();
    within(s.pools.gone("kv")).await;
    assert_eq!(s.files(), ["engine"], "the engine's file stays");
}
