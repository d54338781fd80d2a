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
    ($of:ty, $value:ty, $($name:ident: $read:expr, $write:expr;)*) => {
        &[$((
            stringify!($name),
            (|all: &$of| $read(all.$name)) as fn(&$of) -> $value,
            (|all: &mut $of, value: $value| all.$name = $write(value)) as fn(&mut $of, $value),
        )),*]
    };
}

type Field<T, V> = (&'static str, fn(&T) -> V, fn(&mut T, V));

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

const LIMITS: &[Field<Limits, u64>] = fields!(Limits, u64,
    rooms: whole, size;
    gates: whole, size;
    chunks_in_flight: whole, size;
    early_claims_per_peer: whole, size;
    claims_per_peer: u64::from, narrow;
    quarantined_pages_per_peer: same, same;
    spent_keys: whole, size;
    receivers: u64::from, narrower;
    senders: u64::from, narrower;
    pages_per_claim: whole, size;
    frame_bytes: whole, size;
    frames_unacknowledged: whole, size;
    jobs_per_lane: whole, size;
    greetings: whole, size;
    data_frame_bytes: whole, size;
);

fn certain(value: Option<Duration>) -> Duration {
    // A setting without a duration is made for `outcome` only.
    value.unwrap_or(Duration::MAX)
}

fn maybe(value: Option<Duration>) -> Option<Duration> {
    value
}

const DEADLINES: &[Field<Deadlines, Option<Duration>>] = fields!(Deadlines, Option<Duration>,
    outcome: maybe, maybe;
    stall: Some, certain;
    drain: Some, certain;
    early_claim: Some, certain;
    connect: Some, certain;
    ping: Some, certain;
    liveness: Some, certain;
    resume: Some, certain;
    backoff_first: Some, certain;
    backoff_most: Some, certain;
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
        if let Some((_, _, write)) = LIMITS.iter().find(|f| f.0 == self.name) {
            write(limits, self.value);
        }
    }
}

impl DeadlineSetting {
    /// Writes it into its field.
    pub(crate) fn apply(self, deadlines: &mut Deadlines) {
        if let Some((_, _, write)) = DEADLINES.iter().find(|f| f.0 == self.name) {
            write(deadlines, self.value);
        }
    }
}

/// The words that make another process have these limits: one for each field that is no default.
pub(crate) fn limit_words(limits: &Limits) -> Vec<String> {
    let defaults = Limits::default();
    LIMITS
        .iter()
        .filter(|(_, read, _)| read(limits) != read(&defaults))
        .map(|(name, read, _)| format!("--limit={name}={}", read(limits)))
        .collect()
}

fn split<'a>(text: &'a str, example: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once('=')
        .ok_or_else(|| format!("write NAME=VALUE, for example {example}"))
}

fn known<T, V>(fields: &[Field<T, V>], name: &str) -> Result<&'static str, String> {
    let found = fields.iter().map(|f| f.0).find(|f| *f == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = fields.iter().map(|f| f.0).collect();
        format!("{name:?} is not one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_set_by_its_own_name_and_no_other_changes() {
        for (name, _, _) in LIMITS {
            let mut limits = Limits::default();
            let setting: LimitSetting = format!("{name}=77").parse().unwrap();
            setting.apply(&mut limits);
            let changed = limit_words(&limits);
            assert_eq!(changed, [format!("--limit={name}=77")]);
        }
    }

    #[test]
    fn each_deadline_is_set_by_its_own_name() {
        for (name, read, _) in DEADLINES {
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
