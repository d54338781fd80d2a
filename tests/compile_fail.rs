//! What the embedding API does not let a caller do with pages that it has lent.
//!
//! Each file in `compile_fail/` is one sentence; its `.stderr` is what the compiler says to it.
//! `TRYBUILD=overwrite cargo test --test compile_fail` writes them anew.

#[test]
fn what_is_lent_to_a_room_cannot_be_touched() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
