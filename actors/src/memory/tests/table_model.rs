//! The lease table against a model that keeps each lease as a list.

use crate::memory::lease_table::{LeaseError, LeaseTable};
use proptest::prelude::*;

const PAGES: u32 = 5;

#[derive(Clone, Debug)]
enum Op {
    Read(Vec<u32>),
    Write(Vec<u32>),
    Release(usize),
    Downgrade(usize),
    Upgrade(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let pages = || prop::collection::vec(0..PAGES + 1, 0..4);
    prop_oneof![
        pages().prop_map(Op::Read),
        pages().prop_map(Op::Write),
        (0..8usize).prop_map(Op::Release),
        (0..8usize).prop_map(Op::Downgrade),
        (0..8usize).prop_map(Op::Upgrade),
    ]
}

#[derive(Default)]
struct Model(Vec<(bool, Vec<u32>)>);

impl Model {
    fn readers(&self, page: u32) -> usize {
        let reads = self
            .0
            .iter()
            .filter(|(write, _)| !write)
            .flat_map(|(_, pages)| pages);
        reads.filter(|p| **p == page).count()
    }

    fn written(&self, page: u32) -> bool {
        self.0
            .iter()
            .any(|(write, pages)| *write && pages.contains(&page))
    }

    /// The first position that must be refused.
    fn refuses(&self, write: bool, pages: &[u32]) -> Option<usize> {
        (0..pages.len()).find(|i| {
            let page = pages[*i];
            page >= PAGES
                || self.written(page)
                || (write && (self.readers(page) > 0 || pages[..*i].contains(&page)))
        })
    }
}

fn position(error: &LeaseError) -> usize {
    match error {
        LeaseError::Held { position, .. }
        | LeaseError::Twice { position, .. }
        | LeaseError::OutOfRange { position, .. } => *position,
        other => panic!("the table knows nothing of {other}"),
    }
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_list_of_leases(ops in prop::collection::vec(op(), 0..40)) {
        let (table, mut model) = (LeaseTable::new(PAGES), Model::default());
        for op in ops {
            match op {
                Op::Read(pages) => {
                    let refused = table.acquire_read(&pages).err();
                    prop_assert_eq!(refused.as_ref().map(position), model.refuses(false, &pages));
                    if refused.is_none() {
                        model.0.push((false, pages));
                    }
                }
                Op::Write(pages) => {
                    let refused = table.acquire_write(&pages).err();
                    prop_assert_eq!(refused.as_ref().map(position), model.refuses(true, &pages));
                    if refused.is_none() {
                        model.0.push((true, pages));
                    }
                }
                Op::Release(i) if i < model.0.len() => match model.0.swap_remove(i) {
                    (true, pages) => table.release_write(&pages),
                    (false, pages) => table.release_read(&pages),
                },
                Op::Downgrade(i) if i < model.0.len() && model.0[i].0 => {
                    table.downgrade(&model.0[i].1);
                    model.0[i].0 = false;
                }
                Op::Upgrade(i) if i < model.0.len() && !model.0[i].0 => {
                    let alone = model.0[i].1.iter().all(|p| model.readers(*p) == 1);
                    prop_assert_eq!(table.upgrade(&model.0[i].1).is_ok(), alone);
                    model.0[i].0 = alone;
                }
                _ => {}
            }
            let held: usize = model.0.iter().map(|(_, pages)| pages.len()).sum();
            prop_assert_eq!(table.held(), held as u64);
        }
        for (write, pages) in std::mem::take(&mut model.0) {
            if write { table.release_write(&pages) } else { table.release_read(&pages) }
        }
        prop_assert!(table.acquire_write(&[0, 1, 2, 3, 4]).is_ok(), "a page was left behind");
    }
}
