//! The declarations against UCX's headers: a C program, made of what is declared here, says what the
//! headers make of it.
//!
//! The headers are in the folders of `KVROOM_UCX_INCLUDE` (with colons between them) or in `/usr/include`.
//! Those of a later version than 1.13 are to have the same at the same place, and may have more behind it.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

#[path = "common/mod.rs"]
mod common;
#[path = "headers/program.rs"]
mod program;
#[path = "headers/source.rs"]
mod source;

use kvroom_ucx_sys::raw;
use kvroom_ucx_sys::status::{Started, is_error};
use program::{Answers, headers};
use std::collections::BTreeMap;
use std::mem::offset_of;

/// What Rust makes of the declarations: each size, offset and number by the name that the program has for it.
type Numbers = BTreeMap<String, i128>;

fn size_of_field<S, F>(_: fn(&S) -> &F) -> i128 {
    size_of::<F>() as i128
}

macro_rules! declared {
    (
        structures { $($structure:ident { $($field:ident),* })* }
        unions { $($union:ident { $($member:ident),* })* }
        constants { $($constant:ident)* }
        functions { $($function:ident)* }
    ) => {
        fn numbers() -> Numbers {
            let mut all = Numbers::new();
            let mut add = |name: String, number: i128| assert!(all.insert(name, number).is_none());
            $(
                let name = stringify!($structure);
                add(format!("size {name}"), size_of::<raw::$structure>() as i128);
                add(format!("alignment {name}"), align_of::<raw::$structure>() as i128);
                $(
                    let field = format!("{name}.{}", stringify!($field));
                    add(format!("offset {field}"), offset_of!(raw::$structure, $field) as i128);
                    add(format!("size {field}"), size_of_field(|s: &raw::$structure| &s.$field));
                )*
            )*
            $(
                let name = stringify!($union);
                add(format!("size {name}"), size_of::<raw::$union>() as i128);
                add(format!("alignment {name}"), align_of::<raw::$union>() as i128);
                $(
                    let field = format!("{name}.{}", stringify!($member));
                    add(format!("offset {field}"), offset_of!(raw::$union, $member) as i128);
                )*
            )*
            $( add(format!("value {}", stringify!($constant)), i128::from(raw::$constant)); )*
            all
        }

        /// Names of what is declared, with fields as `structure.field`.
        fn names() -> Vec<String> {
            vec![
                $(
                    stringify!($structure).to_owned(),
                    $( concat!(stringify!($structure), ".", stringify!($field)).to_owned(), )*
                )*
                $(
                    stringify!($union).to_owned(),
                    $( concat!(stringify!($union), ".", stringify!($member)).to_owned(), )*
                )*
                $( stringify!($constant).to_owned(), )*
                $( stringify!($function).to_owned(), )*
            ]
        }
    };
}

include!("headers/declared.rs");

/// What differs, of all that Rust knows. Only the size of a structure may, and only grow, if the headers
/// are later than the declarations.
fn differences(rust: &Numbers, c: &Numbers) -> Vec<String> {
    let later = c["value UCP_API_MINOR"] > rust["value UCP_API_MINOR"];
    let mut wrong = Vec::new();
    for (name, number) in rust {
        let Some(there) = c.get(name) else {
            wrong.push(format!("the program says nothing of {name}"));
            continue;
        };
        let may_grow = name.starts_with("size ") && !name.contains('.');
        let may_differ = name == "value UCP_API_MINOR" || may_grow && there > number;
        if there != number && !(later && may_differ) {
            wrong.push(format!("{name}: {number} here, {there} in the headers"));
        }
    }
    wrong
}

/// For each folder of headers: what its program says.
fn each(test: &str, check: impl Fn(&Answers)) {
    for folder in headers() {
        if let Some(answers) = program::run(test, &folder, &numbers()) {
            check(&answers);
        }
    }
}

#[test]
fn sizes_offsets_and_numbers_are_those_of_the_headers() {
    each("numbers", |answers| {
        let wrong = differences(&numbers(), &answers.numbers);
        assert!(wrong.is_empty(), "{}: {wrong:#?}", answers.headers);
        assert!(answers.numbers.len() > 300, "{}", answers.numbers.len());
    });
}

#[test]
fn functions_have_the_types_of_the_headers() {
    each("functions", |answers| {
        let types = &answers.functions;
        let wrong: Vec<_> = types.iter().filter(|(_, same)| !**same).collect();
        assert!(wrong.is_empty(), "{}: {wrong:?}", answers.headers);
        assert_eq!(types.len(), source::functions().len(), "{types:?}");
    });
}

#[test]
fn pointers_are_told_from_errors_as_the_macros_of_the_headers_do() {
    each("pointers", |answers| {
        assert!(answers.pointers.len() > 200);
        for (&address, said) in &answers.pointers {
            let started = Started::of(std::ptr::without_provenance_mut(address));
            let failed = matches!(started, Started::Failed(_));
            let goes_on = matches!(started, Started::InProgress(_));
            let here = (failed, goes_on, started.status());
            assert_eq!(here, *said, "{address:#x}, {}", answers.headers);
            assert_eq!(is_error(started.status()), failed);
        }
    });
}

#[test]
fn the_list_that_is_compared_has_all_that_is_declared() {
    let mut listed = names();
    let mut declared = source::declared();
    assert!(declared.len() > 300, "{}", declared.len());
    listed.sort();
    declared.sort();
    assert_eq!(listed, declared);
}

#[test]
fn a_field_that_moved_and_a_number_that_changed_are_noticed_and_a_structure_that_grew_is_not() {
    let here = numbers();
    let mut there = here.clone();
    let mut change = |name: &str, by: i128| *there.get_mut(name).unwrap() += by;
    change("value UCP_API_MINOR", 9);
    change("size ucp_ep_attr", 16);
    change("offset ucp_params.features", 8);
    change("size ucp_mem_attr.length", 4);
    change("size ucp_params", -8);
    change("value UCP_FEATURE_RMA", 1);
    let named = |differences: &[String]| -> Vec<String> {
        let names = differences.iter().map(|d| d.split(':').next().unwrap());
        names.map(str::to_owned).collect()
    };
    let expected = [
        "offset ucp_params.features",
        "size ucp_mem_attr.length",
        "size ucp_params",
        "value UCP_FEATURE_RMA",
    ];
    assert_eq!(named(&differences(&here, &there)), expected);
    // Of the version that is declared nothing may differ.
    there.insert("value UCP_API_MINOR".into(), 13);
    assert_eq!(differences(&here, &there).len(), 5);
    there.remove("offset ucp_params.name");
    assert_eq!(differences(&here, &there).len(), 6);
}
