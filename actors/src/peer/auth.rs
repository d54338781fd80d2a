//! The cluster's key, and how two nodes show each other that they have it.
//!
//! ```text
//!   HMAC-SHA256(key, label ‖ length ‖ dialer's Hello ‖ length ‖ acceptor's Hello)
//! ```
//!
//! Rules:
//! - the Hellos are taken as the bytes that went over the transport, so that nothing in them can
//!   be changed on the way without being noticed;
//! - each Hello holds a nonce that is new, so that a MAC of another connection is wrong here;
//! - each role has its label, so that a MAC that is sent back to whoever made it is wrong;
//! - MACs are compared in constant time.
//!
//! Only the greeting is protected: what follows on the transport is neither signed nor encrypted.

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use std::fmt;

/// A message authentication code.
pub type Mac = [u8; 32];

/// The secret that all nodes of a cluster share. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey(Box<[u8]>);

impl ClusterKey {
    /// Fewest bytes of a key.
    pub const MIN: usize = 16;

    /// A key of at least [`ClusterKey::MIN`] bytes.
    ///
    /// # Errors
    /// [`KeyTooShort`].
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, KeyTooShort> {
        let bytes = bytes.as_ref();
        if bytes.len() < Self::MIN {
            return Err(KeyTooShort { len: bytes.len() });
        }
        Ok(ClusterKey(bytes.into()))
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// A cluster key is too short to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cluster key of {len} bytes; it must have at least {min}", min = ClusterKey::MIN)]
pub struct KeyTooShort {
    /// Its length in bytes.
    pub len: usize,
}

/// Which end of a connection a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It opened the connection.
    Dialer,
    /// The connection came to it.
    Acceptor,
}

impl Role {
    /// The other end's.
    #[must_use]
    pub fn other(self) -> Role {
        match self {
            Role::Dialer => Role::Acceptor,
            Role::Acceptor => Role::Dialer,
        }
    }

    fn label(self) -> &'static [u8] {
        match self {
            Role::Dialer => b"kvroom greeting: dialer",
            Role::Acceptor => b"kvroom greeting: acceptor",
        }
    }
}

/// Both Hellos, as the bytes that were sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    /// The dialer's, without the frame's prefix.
    pub dialer: Box<[u8]>,
    /// The acceptor's, likewise.
    pub acceptor: Box<[u8]>,
}

impl Transcript {
    /// The MAC with which `role` shows that it has the key.
    pub fn sign(&self, key: &ClusterKey, role: Role) -> Mac {
        self.hmac(key, role).finalize().into_bytes().into()
    }

    /// Whether `mac` is the one that `role` has to send. In constant time.
    #[must_use]
    pub fn verify(&self, key: &ClusterKey, role: Role, mac: &Mac) -> bool {
        self.hmac(key, role).verify_slice(mac).is_ok()
    }

    fn hmac(&self, key: &ClusterKey, role: Role) -> Hmac<Sha256> {
        let Ok(mut hmac) = Hmac::<Sha256>::new_from_slice(&key.0) else {
            unreachable!("HMAC takes a key of any length")
        };
        hmac.update(role.label());
        for said in [&self.dialer, &self.acceptor] {
            hmac.update(&(said.len() as u64).to_le_bytes());
            hmac.update(said);
        }
        hmac
    }
}

/// The MAC of a data connection's first message: whoever has only seen an earlier one cannot make
/// another, and an earlier one is not taken twice, since its number has to rise.
pub fn sign_data(key: &ClusterKey, said: &[u8]) -> Mac {
    data_hmac(key, said).finalize().into_bytes().into()
}

/// Whether `mac` is the one of these bytes. In constant time.
#[must_use]
pub fn verify_data(key: &ClusterKey, said: &[u8], mac: &Mac) -> bool {
    data_hmac(key, said).verify_slice(mac).is_ok()
}

fn data_hmac(key: &ClusterKey, said: &[u8]) -> Hmac<Sha256> {
    let Ok(mut hmac) = Hmac::<Sha256>::new_from_slice(&key.0) else {
        unreachable!("HMAC takes a key of any length")
    };
    hmac.update(b"kvroom data connection");
    hmac.update(said);
    hmac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::new([byte; 16]).unwrap()
    }

    fn transcript(dialer: &[u8], acceptor: &[u8]) -> Transcript {
        Transcript {
            dialer: dialer.into(),
            acceptor: acceptor.into(),
        }
    }

    #[test]
    fn a_mac_is_of_one_key_one_role_and_one_transcript() {
        let said = transcript(b"dialer says", b"acceptor says");
        let mac = said.sign(&key(1), Role::Dialer);
        assert!(said.verify(&key(1), Role::Dialer, &mac));
        assert!(!said.verify(&key(2), Role::Dialer, &mac));
        assert!(!said.verify(&key(1), Role::Acceptor, &mac));
        // The same bytes, cut elsewhere or the other way round.
        for other in [
            transcript(b"dialer saysa", b"cceptor says"),
            transcript(b"acceptor says", b"dialer says"),
            transcript(b"dialer says", b"acceptor sayS"),
        ] {
            assert!(!other.verify(&key(1), Role::Dialer, &mac));
        }
    }

    #[test]
    fn the_mac_is_hmac_sha256() {
        // Computed with another implementation: HMAC-SHA256 of the label and both lengths of 0.
        let mac = transcript(b"", b"").sign(&key(b'k'), Role::Dialer);
        let hex: String = mac.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "1413fd30325722d1bd015663fa810710f2a27dd28a8f3ef7583748b30a72ae64"
        );
    }

    #[test]
    fn a_short_key_is_refused_and_no_key_is_shown() {
        assert_eq!(ClusterKey::new([7; 15]), Err(KeyTooShort { len: 15 }));
        assert_eq!(format!("{:?}", key(7)), "ClusterKey(..)");
    }
}
