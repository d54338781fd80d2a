//! What a node of the storm is started with.

use crate::common::kv;
use crate::common::process::start_at;
use kvroom::actors::copy::plant::{Brake, Plant};
use kvroom::{Deadlines, Limits, Net, Node, NodeBuilder, Pool};
use std::time::Duration;

/// Bytes of a page in one layer; a room has up to [`MOST`] of them.
const PAGE: u64 = 16 << 10;
pub(crate) const MOST: u64 = 6;
const PAGES: u32 = 64;
/// A room has its outcome in this time.
pub(crate) const OUTCOME: Duration = Duration::from_secs(8);
/// A session that is lost is noticed in this time.
const LIVENESS: Duration = Duration::from_millis(1_000);

/// What a node of the storm is.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) index: u64,
    /// Which start of it.
    pub(crate) life: u64,
    pub(crate) listen: String,
    /// It shares its memory with others that do.
    pub(crate) shared: bool,
    pub(crate) seed: u64,
    /// Bits may be changed between it and others.
    pub(crate) flips: bool,
    /// What its lanes do wrong on purpose.
    pub(crate) plant: Option<Plant>,
}

impl Seat {
    pub(crate) fn name(&self) -> String {
        format!("n{}", self.index)
    }

    pub(crate) fn words(&self) -> String {
        let plant = match self.plant {
            None => "-",
            Some(Plant::LateWrite) => "late",
            Some(Plant::TornRead) => "torn",
            Some(Plant::Leak) => "leak",
        };
        format!(
            "{} {} {} {} {} {} {plant}",
            self.index, self.life, self.listen, self.shared, self.seed, self.flips
        )
    }

    pub(crate) fn of(words: &str) -> Seat {
        let words: Vec<&str> = words.split(' ').collect();
        Seat {
            index: words[0].parse().unwrap(),
            life: words[1].parse().unwrap(),
            listen: words[2].to_owned(),
            shared: words[3] == "true",
            seed: words[4].parse().unwrap(),
            flips: words[5] == "true",
            plant: match words[6] {
                "late" => Some(Plant::LateWrite),
                "torn" => Some(Plant::TornRead),
                "leak" => Some(Plant::Leak),
                _ => None,
            },
        }
    }

    /// The node, its pool, and what holds its lanes inside gates.
    pub(crate) async fn start(&self) -> (Node, Pool, Brake) {
        let pool = match self.shared {
            true => Pool::shared(kv(PAGES, PAGE)),
            false => Pool::owned(kv(PAGES, PAGE)),
        };
        let pool = pool.unwrap();
        let brake = Brake::default();
        let node = start_at(|| self.builder(&pool, &brake)).await;
        (node, pool, brake)
    }

    fn builder(&self, pool: &Pool, brake: &Brake) -> NodeBuilder {
        let (plant, brake) = (self.plant, brake.clone());
        let net = Net {
            listen: vec![self.listen.clone()],
            // Every changed bit is found.
            payload_crc: true,
            shm: self.shared,
            ..Net::default()
        };
        Node::builder(&self.name())
            .net(net)
            .pool(pool.clone())
            .shards(1 + self.index as usize % 2)
            .limits(Limits {
                rooms: 64,
                gates: 64,
                claims_per_peer: 3,
                early_claims_per_peer: 3,
                chunks_in_flight: 2,
                data_frame_bytes: 64 << 10,
                ..Limits::default()
            })
            .deadlines(Deadlines {
                outcome: Some(OUTCOME),
                stall: Duration::from_secs(4),
                drain: Duration::from_millis(500),
                early_claim: Duration::from_secs(3),
                connect: Duration::from_secs(1),
                ping: LIVENESS / 4,
                liveness: LIVENESS,
                resume: Duration::from_millis(700),
                backoff_first: Duration::from_millis(5),
                backoff_most: Duration::from_millis(100),
                ..Deadlines::default()
            })
            .configure(|config| {
                config.plant = plant;
                config.brake = Some(brake);
            })
    }
}
