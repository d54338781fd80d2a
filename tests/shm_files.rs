//! Pools in files over shared memory: a decode node that is killed, and the next one that attaches.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)] // Makes pools of files.

mod common;

use common::namespace::{is_inside, run_inside};
use common::*;
use kvroom::{FileOptions, LeaseError, Node, Outcome, Pool, PoolError, RoomId, SharedError};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

const ROLE: &str = "KVROOM_TEST_DECODE";

fn pool(path: &Path) -> Result<Pool, PoolError> {
    let options = FileOptions {
        create: true,
        ..FileOptions::default()
    };
    // SAFETY: nobody shortens the file, and all processes of these tests keep to leases and gates.
    unsafe { Pool::from_file(kv(16, PIECE), path, &options) }
}

/// A folder in memory, if there is that.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let shm = Path::new("/dev/shm");
        let root = if shm.is_dir() {
            shm.into()
        } else {
            std::env::temp_dir()
        };
        let dir = root.join(format!("kvroom-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Another process that receives room 1 into pages 3 and 5 of the pool.
struct Decode {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Decode {
    fn start(path: &Path, prefill: &str) -> Decode {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "plays_the_decode_node_when_told_to",
                "--nocapture",
            ])
            .env(ROLE, format!("{}\n{prefill}", path.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Decode { child, says }
    }

    fn expect(&mut self, word: &str) {
        let mut line = String::new();
        while self.says.read_line(&mut line).unwrap() > 0 {
            if line.trim().ends_with(word) {
                return;
            }
            line.clear();
        }
        panic!("it ended before it said {word}");
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Decode {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test]
async fn plays_the_decode_node_when_told_to() {
    let Ok(told) = std::env::var(ROLE) else {
        return;
    };
    let (path, prefill) = told.split_once('\n').unwrap();
    let pool = pool(Path::new(path)).unwrap();
    let node = decode(&pool).await;
    let peer = node.connect(prefill).await.unwrap();
    let lease = pool.lease_write(&[3, 5]).unwrap();
    let room = node
        .receive(RoomId(1))
        .from(&peer)
        .into(lease)
        .start()
        .await;
    println!("@receiving");
    tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0; 1]))
        .await
        .unwrap()
        .unwrap();
    drop(room);
}

async fn decode(pool: &Pool) -> Node {
    Node::builder("d").pool(pool.clone()).start().await.unwrap()
}

async fn prefill(brake: &kvroom::actors::copy::plant::Brake) -> Side {
    let setup = Setup {
        over: Over::Shm,
        layout: kv(16, PIECE),
        ..Setup::default()
    };
    Side::start(&kvroom::LocalHub::new(), "p", &setup, brake).await
}

#[tokio::test]
async fn a_pool_in_a_file_is_received_into_and_its_gates_lie_beside_it_while_the_session_lives() {
    let dir = Dir::new("beside");
    let prefill = prefill(&Default::default()).await;
    let pool = pool(&dir.0.join("kv")).unwrap();
    let node = decode(&pool).await;
    let peer = within(node.connect(&prefill.address)).await.unwrap();
    assert_eq!(peer.fabric(), Some(kvroom::Fabric::Shm));
    assert_eq!(dir.names(), ["kv", "kv.kvroom", "kv.kvroom.gates-1"]);
    receives(&node, &peer, &pool, &prefill, 7).await;
    within(node.shutdown()).await;
    within(prefill.node.shutdown()).await;
    drop((node, peer));
    until("the gates are gone", || dir.names() == ["kv", "kv.kvroom"]).await;
    assert_eq!(pool.leased_pages(), 0);
}

/// Moves two stamped pages into pages 3 and 5.
async fn receives(node: &Node, peer: &kvroom::Peer, pool: &Pool, prefill: &Side, id: u64) {
    let lease = pool.lease_write(&[3, 5]).unwrap();
    let room = node.receive(RoomId(id)).from(peer).into(lease);
    let receiver = within(room.start()).await.unwrap();
    let sender = within(prefill.node.send(RoomId(id)).start()).await.unwrap();
    push(&sender, 0..2 * TOKENS, prefill.stamped(&[8, 9], id, 0)).await;
    sender.finish(2 * TOKENS, None).unwrap();
    assert_eq!(within(receiver.outcome()).await, Outcome::Done);
    verify(&within(receiver.released()).await.leases[0], id, 0);
}

#[tokio::test]
async fn pages_of_a_killed_decode_node_wait_for_the_lane_that_is_inside_and_for_nothing_else() {
    let dir = Dir::new("killed");
    let path = dir.0.join("kv");
    let brake = kvroom::actors::copy::plant::Brake::default();
    let prefill = prefill(&brake).await;
    let mut other = Decode::start(&path, &prefill.address);
    other.expect("@receiving");
    brake.hold_after(1);
    let sender = within(prefill.node.send(RoomId(1)).start()).await.unwrap();
    push(&sender, 0..2 * TOKENS, prefill.stamped(&[0, 1], 1, 0)).await;
    until("a lane is inside", || brake.held() == 1).await;
    assert!(pool(&path).is_err(), "the first one lives");
    other.kill();

    let pool = pool(&path).unwrap();
    let waits: Vec<_> = pool
        .quarantined()
        .iter()
        .map(|q| (q.page, q.writer))
        .collect();
    let me = Some(std::process::id());
    assert_eq!(waits, [(3, me), (5, me)]);
    let refused = pool.lease_write(&[5]).unwrap_err();
    assert!(
        matches!(refused, LeaseError::Held { page: 5, .. }),
        "{refused}"
    );
    let others: Vec<u32> = (0..16).filter(|p| ![3, 5].contains(p)).collect();
    drop(pool.lease_write(&others).unwrap());

    // The node looks by itself.
    let node = decode(&pool).await;
    brake.release();
    until("the lane has left", || pool.quarantined().is_empty()).await;
    let peer = within(node.connect(&prefill.address)).await.unwrap();
    receives(&node, &peer, &pool, &prefill, 2).await;
    drop(sender);
}

#[test]
fn a_pool_for_which_a_filesystem_has_no_room_is_refused_and_the_node_goes_on() {
    // A mount of its own, which is gone with it.
    let small = "mount -t tmpfs -o size=1m none /mnt";
    run_inside('m', small, "makes_pools_in_a_full_filesystem_when_inside");
}

#[tokio::test]
async fn makes_pools_in_a_full_filesystem_when_inside() {
    if !is_inside() {
        return;
    }
    let duo = Duo::over(Over::Shm).await;
    duo.moves(1, 0, &[0, 1], &[2, 3]).await;
    for n in 0..3 {
        let path = Path::new("/mnt").join(format!("pool-{n}"));
        let refused = pool(&path).unwrap_err();
        let PoolError::Shared { why, .. } = &refused else {
            panic!("{refused}")
        };
        assert!(matches!(why, SharedError::NoRoom { .. }), "{refused}");
        names(&refused, &["there is no room", "ask for less"]);
        duo.moves(10 + n, 0, &[0, 1], &[2, 3]).await;
    }
    // Nothing is left there that takes the room of one that fits.
    let room = fs_free("/mnt");
    assert!(room >= 900 << 10, "{room} bytes are left of a megabyte");
    duo.end().await;
}

/// Bytes that are free in a filesystem.
fn fs_free(path: &str) -> u64 {
    let out = Command::new("df")
        .args(["--output=avail", "-B1", path])
        .output();
    let text = String::from_utf8(out.unwrap().stdout).unwrap();
    text.lines().nth(1).unwrap().trim().parse().unwrap()
}
