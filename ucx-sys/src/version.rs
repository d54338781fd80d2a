//! Versions of the library.

use std::fmt;

/// The oldest version that works: the one whose headers the declarations are of.
pub const LEAST: Version = Version::new(1, 13, 0);

/// The newest version that the tests have run with.
pub const NEWEST_TESTED: Version = Version::new(1, 22, 0);

/// What `ucp_get_version` says.
///
/// Two nodes have to compare it before they talk: the bytes that UCX puts on the wire are not the same
/// in each version, and some pairs fail in silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Another one is another API.
    pub major: u32,
    /// Grows with each release that adds something.
    pub minor: u32,
    /// Grows with corrections.
    pub release: u32,
}

impl Version {
    /// A version by its numbers.
    pub const fn new(major: u32, minor: u32, release: u32) -> Self {
        Version {
            major,
            minor,
            release,
        }
    }

    /// Whether tests have run with this one, whatever its corrections. A later one is expected to work.
    pub const fn is_tested(self) -> bool {
        self.major == LEAST.major && self.minor >= LEAST.minor && self.minor <= NEWEST_TESTED.minor
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_tested_from_the_oldest_to_the_newest_whatever_its_corrections() {
        assert!(LEAST.is_tested() && NEWEST_TESTED.is_tested());
        assert!(Version::new(1, 22, 7).is_tested());
        assert!(!Version::new(1, 23, 0).is_tested());
        assert!(!Version::new(1, 12, 9).is_tested());
        assert!(!Version::new(2, 13, 0).is_tested());
        assert!(Version::new(1, 9, 9) < LEAST && Version::new(1, 13, 1) > LEAST);
    }
}
