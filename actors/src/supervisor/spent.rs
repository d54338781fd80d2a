//! What is remembered of ended rooms: outcomes by key, and aborts that came before their room.
//!
//! Both are bounded and forget the oldest first. They only explain; safety never rests on them.

use crate::ids::{RoomId, RoomKey};
use crate::reason::{Code, Reason};
use crate::room::{Outcome, Role};
use std::collections::{BTreeMap, VecDeque};

/// How a spent key's room ended, in two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Spent {
    /// It was done.
    Done,
    /// It was aborted with this code.
    Aborted(Code),
}

impl From<&Outcome> for Spent {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Done => Spent::Done,
            Outcome::Aborted(reason) => Spent::Aborted(reason.code),
        }
    }
}

impl std::fmt::Display for Spent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Spent::Done => f.write_str("Done"),
            Spent::Aborted(code) => write!(f, "Aborted ({code:?})"),
        }
    }
}

/// A map that holds the last `limit` entries put into it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Remembered<K, V> {
    limit: usize,
    map: BTreeMap<K, V>,
    order: VecDeque<K>,
}

impl<K: Ord + Copy, V> Remembered<K, V> {
    /// Holds at most `limit` entries.
    pub fn new(limit: usize) -> Self {
        Remembered {
            limit,
            map: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Remembers the first value told for a key.
    pub fn insert(&mut self, key: K, value: V) {
        if self.limit == 0 || self.map.contains_key(&key) {
            return;
        }
        if self.map.len() >= self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
        self.map.insert(key, value);
        self.order.push_back(key);
    }

    /// What is remembered.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

/// A key in one role: what a table of keys is ordered by, in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyUse {
    id: RoomId,
    attempt: u32,
    role: Role,
}

impl KeyUse {
    /// The use of `key` in `role`.
    pub fn new(key: RoomKey, role: Role) -> Self {
        KeyUse {
            id: key.id,
            attempt: key.attempt,
            role,
        }
    }
}

/// Outcomes of ended lives, by key and role.
pub type SpentKeys = Remembered<KeyUse, Spent>;

/// Reasons of aborts that came before their room was registered.
pub type EarlyAborts = Remembered<RoomKey, Reason>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first_and_the_first_value_stays() {
        let mut r = Remembered::new(2);
        assert!(r.is_empty());
        r.insert(1, 'a');
        assert!(!r.is_empty());
        r.insert(1, 'z');
        r.insert(2, 'b');
        assert_eq!(r.get(&1), Some(&'a'));
        r.insert(3, 'c');
        assert_eq!(
            (r.get(&1), r.get(&2), r.get(&3)),
            (None, Some(&'b'), Some(&'c'))
        );
        assert_eq!(r.len(), 2);
    }
}
