//! What must not compile: transitions that the diagram does not show, and ends without proof.
//!
//! Each file in `compile_fail/` is one sentence; its `.stderr` is what the compiler says to it.
//! `TRYBUILD=overwrite cargo test -p kvroom-actors --test compile_fail` writes them anew.

#[test]
fn what_the_types_forbid_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
