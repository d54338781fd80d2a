//! One number for a layout, the same in every build and on every machine.

use super::super::Fnv;
use super::{CubeKind, CubeLayout, Dim, Share};

impl CubeLayout {
    /// 64-bit FNV-1a over these, all numbers little-endian, a text as its length in bytes (`u32`) and
    /// its bytes:
    ///
    /// - `"kvroom.cube.1"`, without a length; the name; the kind (one byte, 0 for the first variant);
    ///   for scales the name of their pool;
    /// - the layers (total, first, held, each `u32`); how many planes (`u32`); for each of them its
    ///   heads as the layers, channels (`u32`), bits (`u16`), the name of the type;
    /// - `page_tokens`, `granule`, `pages` (`u32`), `page_gap` (`u64`), the order (five bytes, slowest
    ///   first, 0 for page, layer, plane, head, token).
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.feed(b"kvroom.cube.1");
        text(&mut hash, &self.name);
        let kind: u8 = match self.kind {
            CubeKind::Kv => 0,
            CubeKind::Latent => 1,
            CubeKind::IndexK => 2,
            CubeKind::Scale { .. } => 3,
            CubeKind::State => 4,
            CubeKind::Aux => 5,
        };
        hash.feed(&[kind]);
        if let CubeKind::Scale { of } = &self.kind {
            text(&mut hash, of);
        }
        share(&mut hash, self.layers);
        number(&mut hash, length(self.planes.len()));
        for plane in &self.planes {
            share(&mut hash, plane.heads);
            number(&mut hash, plane.channels);
            hash.feed(&plane.dtype.bits.to_le_bytes());
            text(&mut hash, &plane.dtype.name);
        }
        number(&mut hash, self.page_tokens);
        number(&mut hash, self.granule);
        number(&mut hash, self.pages);
        hash.feed(&self.page_gap.to_le_bytes());
        for dim in self.order.0 {
            hash.feed(&[match dim {
                Dim::Page => 0,
                Dim::Layer => 1,
                Dim::Plane => 2,
                Dim::Head => 3,
                Dim::Token => 4,
            }]);
        }
        hash.0
    }
}

fn text(hash: &mut Fnv, text: &str) {
    number(hash, length(text.len()));
    hash.feed(text.as_bytes());
}

fn share(hash: &mut Fnv, share: Share) {
    number(hash, share.total);
    number(hash, share.first);
    number(hash, share.held);
}

fn number(hash: &mut Fnv, number: u32) {
    hash.feed(&number.to_le_bytes());
}

fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
