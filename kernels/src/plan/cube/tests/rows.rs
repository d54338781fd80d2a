//! The rows of a part, against memory that is walked byte by byte.

use super::property::Case;
use super::*;
use crate::checksum::Checksum;
use crate::plan::testing::{Addresses, row_bytes};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Where each row of the part lies, by counting.
fn counted(case: &Case, src: bool) -> BTreeMap<RowName, (u64, u64)> {
    let (layout, pages) = match src {
        true => (&case.src, &case.from),
        false => (&case.dst, &case.to),
    };
    let per_page = u64::from(layout.page_tokens / layout.granule);
    let granule = u64::from(layout.granule);
    let granules = case.tokens.start / granule..case.tokens.end.div_ceil(granule);
    let list = &pages.list[pages.range.clone()];
    let mut rows = BTreeMap::new();
    for (row, at) in Addresses::new(layout).rows {
        let Some(place) = list.iter().position(|page| *page == row.page) else {
            continue;
        };
        let first = granules.start / per_page;
        let name = RowName {
            layer: layout.layers.first + row.layer,
            plane: row.plane as u32,
            head: layout.planes[row.plane].heads.first + row.head,
            granule: (first + place as u64) * per_page + u64::from(row.granule),
        };
        let heads = case.part.heads[row.plane];
        let layers = case.part.layers;
        if granules.contains(&name.granule)
            && (layers.start..layers.end).contains(&name.layer)
            && (heads.start..heads.end).contains(&name.head)
        {
            rows.insert(name, (at, row_bytes(layout, row.plane)));
        }
    }
    rows
}

proptest! {
    #[test]
    fn rows_are_where_counting_finds_them_and_both_sides_name_the_same(seed in any::<u64>()) {
        let case = Case::new(seed);
        let mut names = Vec::new();
        for src in [true, false] {
            let (layout, pages) = match src {
                true => (&case.src, &case.from),
                false => (&case.dst, &case.to),
            };
            let rows = Rows::new(layout, pages.clone(), case.tokens.clone(), &case.part).unwrap();
            let rows: Vec<Row> = rows.collect();
            let found: BTreeMap<_, _> = rows.iter().map(|r| (r.name, (r.offset, r.bytes))).collect();
            prop_assert_eq!(found.len(), rows.len());
            prop_assert_eq!(&found, &counted(&case, src));
            names.push(rows.iter().map(|r| r.name).collect::<Vec<_>>());
        }
        prop_assert_eq!(&names[0], &names[1]);
    }
}

#[test]
fn a_row_counts_by_its_name_and_its_bytes_in_whatever_order_it_comes() {
    let name = RowName {
        layer: 1,
        plane: 2,
        head: 3,
        granule: 0x1_0000_0004,
    };
    let sum = |rows: &[(u32, RowName, &[u8])]| {
        let mut sum = Checksum::new();
        for (section, name, bytes) in rows {
            sum.add_row(*section, *name, bytes);
        }
        sum.value()
    };
    let mut flat = vec![7, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0];
    flat.extend([4, 0, 0, 0, 1, 0, 0, 0]);
    flat.extend(b"123456789");
    let one = sum(&[(7, name, b"123456789")]);
    assert_eq!(one, u64::from(crc32c::crc32c(&flat)));
    let other = RowName { head: 4, ..name };
    let (a, b) = ((7, name, &b"ab"[..]), (7, other, &b"cd"[..]));
    assert_eq!(sum(&[a, b]), sum(&[b, a]));
    // Two rows that changed places.
    assert_ne!(sum(&[a, b]), sum(&[(7, name, b"cd"), (7, other, b"ab")]));
    for changed in [
        RowName { layer: 0, ..name },
        RowName { plane: 0, ..name },
        RowName { granule: 4, ..name },
    ] {
        assert_ne!(one, sum(&[(7, changed, b"123456789")]));
    }
    assert_ne!(one, sum(&[(8, name, b"123456789")]));
}
