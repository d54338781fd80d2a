//! A part of a world that is copied only when it changes, and hashed once.
//!
//! ```text
//!   World ── clone ──▶ World'      nodes, links, plane, truth: the same, until one is changed
//! ```
//!
//! A step changes little of a world. Worlds are compared and told apart by value all the same.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

pub(crate) struct Shared<T>(Arc<Inner<T>>);

struct Inner<T> {
    value: T,
    hash: OnceLock<u64>,
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        let hash = OnceLock::new();
        Shared(Arc::new(Inner { value, hash }))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        let inner = Arc::make_mut(&mut self.0);
        inner.hash.take();
        &mut inner.value
    }
}

impl<T: Clone> Clone for Inner<T> {
    fn clone(&self) -> Self {
        let (value, hash) = (self.value.clone(), OnceLock::new());
        Inner { value, hash }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<T: Hash> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let hash = self.0.hash.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            self.0.value.hash(&mut hasher);
            hasher.finish()
        });
        state.write_u64(*hash);
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.value == other.0.value
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}
