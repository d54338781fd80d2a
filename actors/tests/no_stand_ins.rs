//! What tests may make and people may not: stand-ins for proofs.
//!
//! Apart from `compile_fail`, because cargo turns the feature `plant` on for this crate whenever
//! tests of the root package are built in the same run. `purity` reads the sources in every build.

use std::io::Write;

#[test]
fn a_build_without_the_feature_plant_has_no_stand_in_for_a_proof() {
    if cfg!(feature = "plant") {
        let text = "SKIPPED: the feature `plant` is on, since tests of the root package are built \
                    too. To check: cargo test -p kvroom-actors --test no_stand_ins\n";
        // Not by a macro: what those print is kept from who runs the tests.
        let _ = std::io::stderr().write_all(text.as_bytes());
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/compile_fail_without_plant/*.rs");
}
