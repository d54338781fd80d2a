//! Pools in a caller's file.
#![allow(unsafe_code)] // Makes pools of files.

use super::dir::{Dir, skip};
use super::*;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const BYTES: u64 = 3 * 8 * 16;

fn from_file(path: &Path) -> Result<Pool, PoolError> {
    from_file_with(path, layout(Order::LayersFirst), &FileOptions::default())
}

fn from_file_with(
    path: &Path,
    layout: PoolLayout,
    options: &FileOptions,
) -> Result<Pool, PoolError> {
    // SAFETY: the file is one of this test's own, which shortens no pool that lives.
    unsafe { Pool::from_file(layout, path, options) }
}

fn create() -> FileOptions {
    FileOptions {
        create: true,
        ..FileOptions::default()
    }
}

fn why(result: Result<Pool, PoolError>) -> SharedError {
    match result {
        Err(PoolError::Shared { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_the_caller_has_is_a_pool_with_what_is_in_it() {
    let dir = Dir::new();
    let path = dir.path("kv");
    fs::write(&path, [9; BYTES as usize + 100]).unwrap();
    let pool = from_file(&path).unwrap();
    assert_eq!(pool.backing(), Backing::File);
    assert_eq!(seen(&pool, 2, 7), [9; 16]);
    pool.lease_write(&[5]).unwrap().page_mut(2, 0).fill(3);
    drop(pool);
    let after = fs::read(&path).unwrap();
    let at = at(2, 5) as usize;
    assert_eq!(after.len() as u64, BYTES + 100);
    assert_eq!(
        (&after[at..at + 16], &after[at + 16..]),
        (&[3; 16][..], &vec![9; BYTES as usize + 100 - at - 16][..])
    );
}

#[test]
fn a_file_is_made_only_if_that_is_wanted_and_then_for_this_user_alone() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let none = why(from_file(&path));
    assert!(
        matches!(none, SharedError::System { call: "open", .. }),
        "{none}"
    );
    assert!(
        none.to_string().contains(&path.display().to_string()),
        "{none}"
    );
    assert_eq!(dir.names(), [""; 0]);
    let pool = from_file_with(&path, layout(Order::LayersFirst), &create()).unwrap();
    assert_eq!(seen(&pool, 0, 0), [0; 16]);
    assert_eq!(dir.names(), ["kv", "kv.kvroom"]);
    for name in dir.names() {
        let mode = fs::metadata(dir.path(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_file_that_is_too_small_is_an_error_with_path_and_sizes_and_stays_as_it_is() {
    let dir = Dir::new();
    let path = dir.path("kv");
    for found in [0, 1, BYTES - 1] {
        fs::write(&path, vec![1; found as usize]).unwrap();
        let options = if found == 0 {
            FileOptions::default()
        } else {
            create()
        };
        let refused = why(from_file_with(&path, layout(Order::LayersFirst), &options));
        let what = path.display().to_string();
        assert_eq!(
            refused,
            SharedError::TooSmall {
                what,
                needed: BYTES,
                found
            }
        );
        assert_eq!(fs::metadata(&path).unwrap().len(), found);
    }
    assert_eq!(dir.names(), ["kv"], "nothing was put beside it");
}

#[test]
fn what_is_no_file_is_an_error_that_says_what_it_is() {
    let dir = Dir::new();
    let real = dir.path("real");
    fs::write(&real, [0; BYTES as usize]).unwrap();
    let (link, folder, pipe) = (dir.path("link"), dir.path("folder"), dir.path("pipe"));
    symlink(&real, &link).unwrap();
    fs::create_dir(&folder).unwrap();
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success() && fs::metadata(&pipe).unwrap().file_type().is_fifo());
    let cases = [
        (link, "a symbolic link"),
        (folder, "a directory"),
        (pipe, "a pipe"),
        ("/dev/zero".into(), "a device"),
    ];
    for (path, is) in cases {
        let refused = why(from_file_with(&path, layout(Order::LayersFirst), &create()));
        assert_eq!(refused, SharedError::NotAFile { path, found: is });
    }
}

#[test]
fn a_file_with_holes_is_allocated_at_registration() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let large = PoolLayout {
        page_bytes: 8192,
        ..layout(Order::LayersFirst)
    };
    let bytes = 3 * 8 * 8192;
    fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() * 512 < bytes);
    let _pool = from_file_with(&path, large, &FileOptions::default()).unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= bytes);
}

#[test]
fn more_than_there_is_room_for_is_an_error_that_names_the_bytes() {
    let dir = Dir::new();
    let huge = PoolLayout {
        page_bytes: 1 << 45,
        ..layout(Order::LayersFirst)
    };
    let refused = why(from_file_with(&dir.path("kv"), huge, &create()));
    let SharedError::NoRoom { what, bytes, .. } = &refused else {
        panic!("{refused}");
    };
    assert!(what.ends_with("/kv"), "{what}");
    assert_eq!(*bytes, 24 << 45);
}

/// The other half of the next test, in a process with a mount of its own.
#[test]
#[ignore = "run by another test in a process of its own"]
fn in_a_small_filesystem() {
    let dir = std::env::var("KVROOM_TEST_DIR").unwrap();
    let large = PoolLayout {
        page_bytes: 1 << 20,
        ..layout(Order::LayersFirst)
    };
    let path = Path::new(&dir).join("kv");
    let refused = why(from_file_with(&path, large.clone(), &create()));
    let no_room = matches!(&refused, SharedError::NoRoom { bytes, .. } if *bytes == 24 << 20);
    assert!(no_room, "{refused}");
    // A hole as long as the pool, which a write would only find to be one.
    fs::remove_file(&path).unwrap();
    fs::File::create(&path).unwrap().set_len(24 << 20).unwrap();
    let refused = why(from_file_with(&path, large, &FileOptions::default()));
    assert!(matches!(refused, SharedError::NoRoom { .. }), "{refused}");
    println!("@refused");
}

#[test]
fn a_full_filesystem_is_an_error_and_no_signal() {
    let dir = Dir::new();
    let mount = dir.path("small");
    fs::create_dir(&mount).unwrap();
    let script = "mount -t tmpfs -o size=1m none \"$1\" || { echo @unable; exit 0; }; exec \"$2\" --exact \
                  memory::tests::file_pools::in_a_small_filesystem --ignored --nocapture";
    let ran = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(&mount)
        .arg(std::env::current_exe().unwrap())
        .env("KVROOM_TEST_DIR", &mount)
        .output();
    let output = match ran {
        Ok(output) => output,
        Err(e) => return skip(&format!("unshare: {e}")),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if said.contains("@unable") || errors.contains("unshare") {
        return skip(&format!("a mount of its own: {errors}"));
    }
    assert!(
        output.status.success() && said.contains("@refused"),
        "{said}\n{errors}"
    );
}

#[test]
fn one_runtime_at_a_time_has_the_pool() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let pool = from_file_with(&path, layout(Order::LayersFirst), &create()).unwrap();
    let lease = pool.lease_read(&[0]).unwrap();
    drop(pool);
    let pid = std::process::id();
    let taken = why(from_file(&path));
    assert_eq!(
        taken,
        SharedError::Attached {
            path: path.clone(),
            pid
        }
    );
    assert!(
        taken.to_string().contains(&format!("process {pid}")),
        "{taken}"
    );
    let path_in_full = path.canonicalize().unwrap();
    let beside = super::one_memory::attach(&path).unwrap_err();
    assert_eq!(
        beside,
        SharedError::Attached {
            path: path_in_full,
            pid
        },
        "the companion says so too"
    );
    drop(lease);
    from_file(&path).unwrap();
}

#[test]
fn a_child_of_fork_neither_ends_the_hold_nor_keeps_it() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let pool = from_file_with(&path, layout(Order::LayersFirst), &create()).unwrap();
    let child = super::shared_pools::stopped_child();
    assert!(matches!(
        why(from_file(&path)),
        SharedError::Attached { .. }
    ));
    drop(pool);
    // The child has the open file still; the pool was let go of all the same.
    drop(from_file(&path).unwrap());
    drop(child);
}

#[test]
fn a_strange_file_in_the_companions_place_is_refused_and_left_alone() {
    let dir = Dir::new();
    let (path, beside) = (dir.path("kv"), dir.path("kv.kvroom"));
    fs::write(&path, [0; BYTES as usize]).unwrap();
    for strange in [vec![7; 100], vec![7; 20_000]] {
        fs::write(&beside, &strange).unwrap();
        let refused = why(from_file(&path));
        assert!(
            matches!(refused, SharedError::Companion { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("kv.kvroom"), "{refused}");
        assert_eq!(fs::read(&beside).unwrap(), strange);
    }
    fs::remove_file(&beside).unwrap();
    symlink(&path, &beside).unwrap();
    assert!(matches!(
        why(from_file(&path)),
        SharedError::NotAFile { .. }
    ));
}

/// A word that counts lives, claims or tables, and is damaged: the next one would be 0 again, or none.
#[test]
fn a_companion_whose_counts_cannot_be_is_refused_with_a_reason() {
    let dir = Dir::new();
    let (path, beside) = (dir.path("kv"), dir.path("kv.kvroom"));
    fs::write(&path, [0; BYTES as usize]).unwrap();
    drop(from_file(&path).unwrap());
    let whole = fs::read(&beside).unwrap();
    for (word, count, what) in [
        (7, u64::MAX, "lives"),
        (8, 1 << 48, "claims"),
        (9, u64::MAX, "gate tables"),
    ] {
        // With the file's name in place, and without, as a killed process leaves it.
        for named in [true, false] {
            let mut damaged = whole.clone();
            damaged[word * 8..][..8].copy_from_slice(&u64::to_ne_bytes(count));
            if !named {
                damaged[..8].fill(0);
            }
            fs::write(&beside, &damaged).unwrap();
            let refused = why(from_file(&path)).to_string();
            assert!(
                refused.contains("kv.kvroom") && refused.contains(what),
                "{refused}"
            );
            assert_eq!(fs::read(&beside).unwrap(), damaged);
        }
    }
}

#[test]
fn claim_numbers_go_on_and_the_layout_may_change_when_nothing_is_lent() {
    let dir = Dir::new();
    let path = dir.path("kv");
    let pool = from_file_with(&path, layout(Order::LayersFirst), &create()).unwrap();
    let attachment = pool.attachment().unwrap();
    assert_eq!(attachment.first_claim(), 1);
    attachment.reserve_claims(1000);
    attachment.reserve_claims(500);
    attachment.note_owner(&[1, 2], ClaimNo(7));
    drop(pool);
    let pool = from_file(&path).unwrap();
    assert_eq!(pool.attachment().unwrap().first_claim(), 1000);
    // No table was ever made, so nobody can write there.
    assert_eq!(pool.quarantined(), []);
    drop(pool);
    let other = PoolLayout {
        pages: 4096,
        ..layout(Order::PagesFirst)
    };
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(3 * 4096 * 16)
        .unwrap();
    let pool = from_file_with(&path, other.clone(), &FileOptions::default()).unwrap();
    pool.attachment()
        .unwrap()
        .note_owner(&[4095], ClaimNo(1001));
    assert_eq!(pool.attachment().unwrap().first_claim(), 1000);
    drop(pool);
    drop(from_file_with(&path, other, &FileOptions::default()).unwrap());
    drop(from_file(&path).unwrap());
}
