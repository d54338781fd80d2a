//! Limits and deadlines by name, as command lines give them.

use kvroom::{Deadlines, Limits};
use std::str::FromStr;
use std::time::Duration;

/// One field of [`Limits`] and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitSetting {
    name: &'static str,
    value: u64,
}

/// One field of [`Deadlines`] and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeadlineSetting {
    name: &'static str,
    value: Option<Duration>,
}

/// Makes the list of a struct's numeric fields, with a reader and a writer for each.
macro_rules! fields {
    ($of:ty, $value:ty, $($(#[doc = $doc:literal])+ $name:ident: $read:expr, $write:expr;)*) => {
        &[$(Field {
            name: stringify!($name),
            doc: concat!($($doc),+),
            read: |all: &$of| $read(all.$name),
            write: |all: &mut $of, value: $value| all.$name = $write(value),
        }),*]
    };
}

/// A field of a `T`, whose value is given as a `V`.
pub(crate) struct Field<T, V> {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it is, in one or two sentences.
    pub(crate) doc: &'static str,
    /// Its value.
    pub(crate) read: fn(&T) -> V,
    /// Changes it. A value that the field cannot hold becomes the nearest that it can.
    pub(crate) write: fn(&mut T, V),
}

fn whole(n: usize) -> u64 {
    n as u64
}

fn size(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn same(n: u64) -> u64 {
    n
}

fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn narrower(n: u64) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// Every field of [`Limits`].
pub(crate) const LIMITS: &[Field<Limits, u64>] = fields!(Limits, u64,
    /// Rooms alive or draining, both roles together; `start` waits when it is reached.
    rooms: whole, size;
    /// Claims that can be open or draining at once.
    gates: whole, size;
    /// Chunks of one sender room that were pushed and have not landed everywhere.
    chunks_in_flight: whole, size;
    /// Claims of one peer that wait for a local `send`; per shard.
    early_claims_per_peer: whole, size;
    /// Claims that a peer may have open towards this node; more of them wait at the peer.
    claims_per_peer: u64::from, narrow;
    /// Pages that draining rooms of one peer may hold before new claims to it are refused; per shard.
    quarantined_pages_per_peer: same, same;
    /// Outcomes of ended rooms that are remembered, so that a used key is refused; per shard.
    spent_keys: whole, size;
    /// Receivers of one sender room.
    receivers: u64::from, narrower;
    /// Senders of one receiver room.
    senders: u64::from, narrower;
    /// Pages in one claim, all pools together.
    pages_per_claim: whole, size;
    /// Bytes of one control frame; never more than 16 MiB, whatever is set.
    frame_bytes: whole, size;
    /// Reliable frames of one session that may be unacknowledged.
    frames_unacknowledged: whole, size;
    /// Jobs that may wait on one copy lane.
    jobs_per_lane: whole, size;
    /// Connections of other nodes whose greeting is not over; one more closes the oldest.
    greetings: whole, size;
    /// Payload bytes of one data frame over a network: 64 KiB to 16 MiB.
    data_frame_bytes: whole, size;
);

fn certain(value: Option<Duration>) -> Duration {
    // A setting without a duration is made for `outcome` only.
    value.unwrap_or(Duration::MAX)
}

fn maybe(value: Option<Duration>) -> Option<Duration> {
    value
}

/// Every field of [`Deadlines`]; only `outcome` may have no value.
pub(crate) const DEADLINES: &[Field<Deadlines, Option<Duration>>] = fields!(Deadlines, Option<Duration>,
    /// From a room's start to its outcome; "none" leaves only the stall clock.
    outcome: maybe, maybe;
    /// Bytes were posted and none landed for so long: the room ends.
    stall: Some, certain;
    /// From the start of draining to being counted and shown as quarantined; the memory stays held.
    drain: Some, certain;
    /// How long a claim waits for the local `send`.
    early_claim: Some, certain;
    /// How long a connection may take until its greeting is over, and connecting until it gives up.
    connect: Some, certain;
    /// A peer that was silent for so long is asked whether it is there; less than `liveness`.
    ping: Some, certain;
    /// A connection on which nothing came for so long is closed and made again.
    liveness: Some, certain;
    /// How long a session without a connection is kept.
    resume: Some, certain;
    /// First wait before a lost peer is connected to again; each failure doubles it.
    backoff_first: Some, certain;
    /// Longest such wait.
    backoff_most: Some, certain;
    /// How long a stop waits for rooms to drain before what is left is leaked, and listed.
    shutdown: Some, certain;
);

impl FromStr for LimitSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = split(text, "rooms=1000")?;
        let value = value
            .parse()
            .map_err(|_| format!("{value:?} is not a whole number"))?;
        Ok(LimitSetting {
            name: known(LIMITS, name)?,
            value,
        })
    }
}

impl FromStr for DeadlineSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = split(text, "liveness=500")?;
        let name = known(DEADLINES, name)?;
        if name == "outcome" && value == "none" {
            return Ok(DeadlineSetting { name, value: None });
        }
        let ms = value
            .parse()
            .map_err(|_| format!("{value:?} is not a whole number of milliseconds"))?;
        Ok(DeadlineSetting {
            name,
            value: Some(Duration::from_millis(ms)),
        })
    }
}

impl LimitSetting {
    /// Writes it into its field.
    pub(crate) fn apply(self, limits: &mut Limits) {
        if let Some(field) = LIMITS.iter().find(|f| f.name == self.name) {
            (field.write)(limits, self.value);
        }
    }
}

impl DeadlineSetting {
    /// Writes it into its field.
    pub(crate) fn apply(self, deadlines: &mut Deadlines) {
        if let Some(field) = DEADLINES.iter().find(|f| f.name == self.name) {
            (field.write)(deadlines, self.value);
        }
    }
}

/// The words that make another process have these limits: one for each field that is no default.
pub(crate) fn limit_words(limits: &Limits) -> Vec<String> {
    let defaults = Limits::default();
    LIMITS
        .iter()
        .filter(|field| (field.read)(limits) != (field.read)(&defaults))
        .map(|field| format!("--limit={}={}", field.name, (field.read)(limits)))
        .collect()
}

fn split<'a>(text: &'a str, example: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once('=')
        .ok_or_else(|| format!("write NAME=VALUE, for example {example}"))
}

fn known<T, V>(fields: &[Field<T, V>], name: &str) -> Result<&'static str, String> {
    let found = fields.iter().map(|f| f.name).find(|f| *f == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = fields.iter().map(|f| f.name).collect();
        format!("{name:?} is not one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_set_by_its_own_name_and_no_other_changes() {
        for Field { name, .. } in LIMITS {
            let mut limits = Limits::default();
            let setting: LimitSetting = format!("{name}=77").parse().unwrap();
            setting.apply(&mut limits);
            let changed = limit_words(&limits);
            assert_eq!(changed, [format!("--limit={name}=77")]);
        }
    }

    #[test]
    fn each_deadline_is_set_by_its_own_name() {
        for Field { name, read, .. } in DEADLINES {
            let mut deadlines = Deadlines::default();
            let setting: DeadlineSetting = format!("{name}=77").parse().unwrap();
            setting.apply(&mut deadlines);
            assert_eq!(read(&deadlines), Some(Duration::from_millis(77)), "{name}");
        }
    }

    /// The lists name every field: Debug shows them all.
    #[test]
    fn no_field_is_left_out() {
        let count = |text: String| text.matches(": ").count();
        assert_eq!(count(format!("{:?}", Limits::default())), LIMITS.len());
        assert_eq!(
            count(format!("{:?}", Deadlines::default())),
            DEADLINES.len()
        );
    }

    #[test]
    fn only_the_outcome_may_have_no_deadline() {
        let mut deadlines = Deadlines::default();
        let none: DeadlineSetting = "outcome=none".parse().unwrap();
        none.apply(&mut deadlines);
        assert_eq!(deadlines.outcome, None);
        assert!("stall=none".parse::<DeadlineSetting>().is_err());
        assert!("rooms".parse::<LimitSetting>().is_err());
        let e = "romms=1".parse::<LimitSetting>().unwrap_err();
        assert!(e.contains("\"romms\"") && e.contains("rooms"), "{e}");
    }
}
