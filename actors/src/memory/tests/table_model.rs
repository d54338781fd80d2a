//! The lease table against a model that keeps each lease as a list.

use crate::memory::lease_table::{Holder, LeaseError, LeaseTable};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

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

fn held(holder: Holder) -> Result<(), LeaseError> {
    let (page, position) = (0, 0);
    Err(LeaseError::Held {
        page,
        position,
        holder,
    })
}

#[test]
fn one_reader_more_than_can_be_counted_is_refused_and_the_page_is_still_read() {
    let table = LeaseTable::new(1);
    table.forge(0, u32::MAX - 3);
    assert_eq!(table.acquire_read(&[0]), Ok(()));
    let most = Holder::Readers(u32::MAX - 2);
    assert_eq!(table.acquire_read(&[0]), held(most));
    table.release_read(&[0]);
    assert_eq!(table.acquire_read(&[0]), Ok(()));
}

#[test]
fn giving_back_a_page_that_nobody_reads_changes_nothing_and_a_debug_build_says_so() {
    let (quarantined, writer) = (u32::MAX - 1, u32::MAX);
    let free = Ok(());
    let cases = [
        (0, free),
        (quarantined, held(Holder::FormerLife)),
        (writer, held(Holder::Writer)),
    ];
    for (word, then) in cases {
        let table = LeaseTable::new(1);
        table.forge(0, word);
        let said = catch_unwind(AssertUnwindSafe(|| table.release_read(&[0])));
        if cfg!(debug_assertions) {
            let said = said.unwrap_err();
            let text = said.downcast_ref::<String>().unwrap();
            assert_eq!(text, "page 0 was given back and not read");
        }
        assert_eq!(table.acquire_read(&[0]), then, "{word}");
    }
}
