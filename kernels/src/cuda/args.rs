//! The kernels' parameters, field for field as in `cuda/prelude.cuh`.

/// Defines a parameter struct and its encoding: fields in order, little-endian, no padding.
macro_rules! arguments {
    ($(#[$doc:meta])* $name:ident, $size:literal {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Bytes of it, here and on the device.
            pub const SIZE: usize = $size;

            /// What the device is given.
            #[must_use]
            pub fn bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                let mut at = 0;
                $(
                    let field = self.$field.encoded();
                    bytes[at..at + field.len()].copy_from_slice(&field);
                    at += field.len();
                )*
                debug_assert_eq!(at, $size);
                bytes
            }

            /// The other way round; any bytes are arguments.
            #[must_use]
            pub fn from_bytes(bytes: &[u8; $size]) -> Self {
                let mut rest = bytes.as_slice();
                $(let $field = <$type>::decoded(&mut rest);)*
                $name { $($field),* }
            }
        }

        const _: () = assert!(size_of::<$name>() == $size, "no padding");
    };
}

trait Encoded<const N: usize>: Sized {
    fn encoded(&self) -> [u8; N];

    fn of(bytes: &[u8; N]) -> Self;

    /// The first of these bytes, which are as many as the struct has fields for.
    fn decoded(rest: &mut &[u8]) -> Self {
        let (first, others) = rest.split_first_chunk().unwrap_or((&[0; N], &[]));
        *rest = others;
        Self::of(first)
    }
}

impl Encoded<8> for u64 {
    fn encoded(&self) -> [u8; 8] {
        self.to_le_bytes()
    }

    fn of(bytes: &[u8; size_of::<Self>()]) -> Self {
        Self::from_le_bytes(*bytes)
    }
}

impl Encoded<4> for u32 {
    fn encoded(&self) -> [u8; 4] {
        self.to_le_bytes()
    }

    fn of(bytes: &[u8; size_of::<Self>()]) -> Self {
        Self::from_le_bytes(*bytes)
    }
}

impl Encoded<64> for SliceSide {
    fn encoded(&self) -> [u8; 64] {
        self.bytes()
    }

    fn of(bytes: &[u8; 64]) -> Self {
        Self::from_bytes(bytes)
    }
}

arguments! {
    /// Of `gather_pages` and `scatter_pages`. See [`crate::twin::PageCopy`].
    PagesArgs, 72 {
        /// Address of the pool: of page 0 in the first layer that is copied.
        pool: u64,
        /// Address of the staging.
        staging: u64,
        /// Address of the page table (u32 entries), a multiple of 4.
        table: u64,
        /// Bytes of a page in one layer.
        cell_bytes: u64,
        /// Bytes from a layer of the pool to the next.
        pool_layer: u64,
        /// Bytes from a page of the pool to the next.
        pool_page: u64,
        /// Bytes from a layer of the staging to the next.
        staging_layer: u64,
        /// Bytes from a cell of the staging to the next of the same layer.
        staging_page: u64,
        /// Layers.
        layers: u32,
        /// Entries of the table.
        pages: u32,
    }
}

arguments! {
    /// One side of [`SlicesArgs`]. See [`crate::twin::SliceShape`].
    SliceSide, 64 {
        /// Address of the first run of page 0 in the first layer that is copied.
        base: u64,
        /// Address of the page table (u32 entries), a multiple of 4; 0: page n is page n.
        table: u64,
        /// Bytes from a layer to the next.
        layer: u64,
        /// Bytes from a page to the next.
        page: u64,
        /// Bytes from a row to the next of its page.
        row: u64,
        /// Bytes from a plane to the next.
        plane: u64,
        /// Bytes from a head to the next.
        head: u64,
        /// Rows of a page; at least 1.
        page_rows: u32,
        /// Row of the first page at which the copy begins.
        first_row: u32,
    }
}

arguments! {
    /// Of `reslice_heads`. See [`crate::twin::HeadSlices`].
    SlicesArgs, 160 {
        /// Where runs are read.
        src: SliceSide,
        /// Where they are written.
        dst: SliceSide,
        /// Bytes that lie together on both sides.
        run_bytes: u64,
        /// Layers.
        layers: u32,
        /// Rows of all pages together.
        rows: u32,
        /// Planes (K and V) of a row.
        planes: u32,
        /// Heads of a plane.
        heads: u32,
        /// Rows that lie in one page on either side, counted from the first one; at least 1.
        segment_rows: u32,
        /// Bytes of an access: 16, 8, 4, 2 or 1; divides every address, stride and length.
        word_bytes: u32,
    }
}

arguments! {
    /// Of `checksum_pages`. See [`crate::twin::PageSum`].
    SumArgs, 80 {
        /// Address of page 0 in the first layer that is summed.
        pool: u64,
        /// Address of the page table (u32 entries), a multiple of 4; 0: page n is page n.
        table: u64,
        /// Address of the u64 that the sum is added to, a multiple of 8.
        sum: u64,
        /// Bytes of a page in one layer.
        cell_bytes: u64,
        /// Bytes from a layer to the next.
        layer: u64,
        /// Bytes from a page to the next.
        page: u64,
        /// Layers.
        layers: u32,
        /// Pages.
        pages: u32,
        /// Name of the first layer.
        first_layer: u32,
        /// Name of the first page; the others follow.
        first_page: u32,
        /// What the checksum of a cell has from the pool's name and the cell's length.
        seed: u32,
        /// What the layer's name is multiplied by.
        layer_factor: u32,
        /// What the page's name is multiplied by.
        page_factor: u32,
        /// 0.
        reserved: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_in_order_and_little_endian() {
        let side = SliceSide {
            base: 0x0102_0304_0506_0708,
            first_row: 0x0a0b_0c0d,
            ..SliceSide::default()
        };
        let args = SlicesArgs {
            dst: side,
            word_bytes: 16,
            ..SlicesArgs::default()
        };
        let bytes = args.bytes();
        assert_eq!(bytes[64..72], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[124..128], [0x0d, 0x0c, 0x0b, 0x0a]);
        assert_eq!(bytes[156..160], [16, 0, 0, 0]);
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 13);
        assert_eq!(SlicesArgs::from_bytes(&bytes), args);
    }
}
