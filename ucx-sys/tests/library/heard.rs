//! What a library says is told to the ear, and written nowhere.

use crate::common::folder;
use crate::made::complete;
use crate::{asked, in_child};
use kvroom_ucx_sys::{Level, Ucx};
use std::path::Path;
use std::sync::Mutex;

static HEARD: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

fn ear(level: Level, text: &str) {
    assert!(text != "panic", "planted");
    HEARD.lock().unwrap().push((level, text.to_owned()));
}

/// See what `made` lets a library say as soon as it has a handler.
#[test]
fn what_a_library_says_is_heard_with_its_arguments_up_to_a_bound_and_once() {
    let test = "heard::what_a_library_says_is_heard_with_its_arguments_up_to_a_bound_and_once";
    let Some(library) = asked() else {
        let at = folder("heard");
        if let Some(library) = complete(1, 20, 0).in_folder(&at) {
            let said = in_child(test, library.as_os_str());
            assert!(!said.contains("of 1099511627776"), "{said}");
        }
        return;
    };
    let ucx = Ucx::open(Some(Path::new(&library))).unwrap();
    assert_eq!(HEARD.lock().unwrap().len(), 0);
    assert!(ucx.listen(ear), "these machines are known");
    let words = "lane 3 of 1099511627776, 2.5: 1 2 3 4 5 6 7 8 9".to_owned();
    let heard = || HEARD.lock().unwrap().clone();
    let all = heard();
    assert_eq!(all[0], (Level::Warn, words));
    // In its middle the ear panicked.
    let (level, long) = &all[1];
    assert_eq!((*level, long.len()), (Level::Error, 1023));
    assert!(long.bytes().all(|byte| byte == b'0'), "{long}");
    assert_eq!(all.len(), 2);
    // Neither another handle of it nor another ear makes it say things twice.
    let again = Ucx::open(Some(Path::new(&library))).unwrap();
    assert!(again.listen(|_, _| panic!("it is not the first")));
    assert_eq!(heard().len(), 2);
}
