//! What lies beside a pool's file: written by former lives, by processes that were killed, or by
//! something else altogether.

use crate::fuzzing::Feed;
use crate::memory::lease_table::LeaseTable;
use crate::memory::shared::Attachment;
use crate::memory::{ProcessId, TableMemory};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PAGES: u32 = 8;
/// As `companion` has it: the header's words, the tables behind it, the owners of the pages.
const PAGES_WORD: u64 = 6;
const TABLES: u64 = 16;
const TABLE_WORDS: u64 = 8;
const MAX_TABLES: u64 = 128;
const OWNERS: u64 = 12_288;
const SLOTS: u32 = 3;

/// A folder of this thread, in memory where the system has that; it goes with the thread.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Of a folder's name, before the number of its process.
const PREFIX: &str = "kvroom-fuzzing-";

/// Removes what processes that are gone left there: one that crashes does not run its threads' ends.
/// Nothing is an error: others do the same at the same time.
fn remove_of_the_dead(root: &Path) {
    // Where processes cannot be seen, none is taken for dead.
    let proc = Path::new("/proc");
    if !proc.join("self").exists() {
        return;
    }
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| {
            let (process, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
            process.parse::<u32>().ok()
        });
        if process.is_some_and(|process| !proc.join(process.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

thread_local! {
    static DIR: Dir = {
        let shm = Path::new("/dev/shm");
        let root = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let thread = format!("{:?}", std::thread::current().id());
        let digits: String = thread.chars().filter(char::is_ascii_digit).collect();
        remove_of_the_dead(&root);
        let dir = root.join(format!("{PREFIX}{}-{digits}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    };
    static OWN: ProcessId = ProcessId::own().unwrap();
}

/// A companion file, and gate tables beside it, as they are or with words that the input changes,
/// or cut. It is taken, or refused with a reason; and a page that the files say somebody alive is
/// still inside of is nobody's.
pub fn companion(data: &[u8]) {
    DIR.with(|dir| run(&dir.0, data));
}

fn run(dir: &Path, data: &[u8]) {
    for entry in fs::read_dir(dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let (pool, beside) = (dir.join("pool"), dir.join("pool.kvroom"));
    let mut feed = Feed::new(data);
    let setup = feed.byte();
    if setup & 1 == 0 {
        genuine(&pool, setup);
    }
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&beside)
        .unwrap();
    if setup & 2 != 0 {
        // Cut, or longer; also to nothing.
        file.set_len(u64::from(feed.u16())).unwrap();
    }
    for _ in 0..64 {
        if feed.is_empty() {
            break;
        }
        change(&file, &pool, &mut feed);
    }
    let held = held(&file, &pool);
    drop(file);
    attach(&pool, &held);
    // Whatever it was: what the first one left can be told by a second one.
    attach(&pool, &held);
}

/// What a life of this pool leaves that had lent pages and was killed.
fn genuine(pool: &Path, setup: u8) {
    let attached = Attachment::new(pool, &layout(PAGES), 1).unwrap();
    if setup & 4 == 0 {
        return;
    }
    let own = OWN.with(|own| *own);
    let bytes = TableMemory::bytes_of(SLOTS);
    let memory = attached.gate_table(&own, bytes).unwrap();
    let number = crate::ids::ClaimNo(attached.first_claim());
    attached.reserve_claims(number.0 + 10);
    attached.note_owner(&[1, 2], number);
    // Taken from under the table's own end, which would remove it.
    let (companion, table) = (named(pool, ""), named(pool, ".gates-1"));
    let (words, mut gates) = (fs::read(&companion).unwrap(), fs::read(&table).unwrap());
    let table_of = TableMemory::create(memory, &own);
    gates[..64].copy_from_slice(&fs::read(&table).unwrap()[..64]);
    drop(table_of);
    drop(attached);
    let word = number.0 | if setup & 8 == 0 { 1 << 48 } else { 0 };
    gates[64..72].copy_from_slice(&word.to_ne_bytes());
    fs::write(companion, words).unwrap();
    fs::write(table, gates).unwrap();
}

fn layout(pages: u32) -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 2,
        pages,
        page_bytes: 16,
        page_tokens: 4,
    }
}

fn named(pool: &Path, what: &str) -> PathBuf {
    let mut name = pool.as_os_str().to_owned();
    name.push(".kvroom");
    name.push(what);
    name.into()
}

/// Changes a word of the companion or of one of three tables.
fn change(file: &fs::File, pool: &Path, feed: &mut Feed<'_>) {
    let how = feed.byte();
    let value = match how >> 3 & 3 {
        0 => feed.u64(),
        1 => u64::from(feed.byte()),
        2 => u64::from(feed.byte()) | 1 << 48,
        _ => u64::MAX - u64::from(feed.byte()),
    };
    let at = match how & 7 {
        0 => u64::from(feed.byte()) % TABLES,
        1 => TABLES + u64::from(feed.u16()) % (MAX_TABLES * TABLE_WORDS),
        2 => OWNERS / 8 + u64::from(feed.byte() % 10),
        3 => {
            // A table whose writer is this process, and lives.
            let place = TABLES + u64::from(feed.byte() % 4) * TABLE_WORDS;
            let own = OWN.with(|own| own.to_words());
            for (i, word) in own.into_iter().enumerate() {
                write(file, place + 3 + i as u64, word);
            }
            write(file, place + 1, u64::from(feed.byte() % 3) + 1);
            write(file, place + 2, TableMemory::bytes_of(SLOTS) as u64);
            write(file, place, 1);
            return;
        }
        _ => {
            let table = named(pool, &format!(".gates-{}", 1 + feed.byte() % 3));
            let table = fs::OpenOptions::new()
                .create(how & 32 != 0)
                .truncate(false)
                .write(true)
                .open(table);
            let Ok(table) = table else { return };
            match how & 3 {
                0 => table.set_len(u64::from(feed.byte()) * 8).unwrap(),
                1 => {
                    let end = u64::from(SLOTS + 1) * 8;
                    write(&table, u64::from(feed.byte()) % end, value);
                }
                _ => whole_table(&table, feed),
            }
            return;
        }
    };
    // Far words make it long, and no more than that.
    write(file, at, value);
}

/// A table that is right, with words of its gates.
fn whole_table(table: &fs::File, feed: &mut Feed<'_>) {
    let own = OWN.with(|own| *own);
    let mut bytes = vec![0; TableMemory::bytes_of(SLOTS)];
    let memory = super::memory(bytes.len());
    let made = TableMemory::create(memory, &own);
    fs::File::from(made.fd().try_clone_to_owned().unwrap())
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    table.write_all_at(&bytes, 0).unwrap();
    for slot in 1..=u64::from(SLOTS) {
        let (number, inside) = (u64::from(feed.byte()), u64::from(feed.byte() & 3));
        write(table, slot * 8, number | inside << 48);
    }
}

fn write(file: &fs::File, word: u64, value: u64) {
    file.write_all_at(&value.to_ne_bytes(), word * 8).unwrap();
}

/// The pages that the files, read by themselves, say this very process may still write: lent to a
/// claim of which one table has a gate with somebody inside. Nothing is said of files that are not
/// whole.
fn held(file: &fs::File, pool: &Path) -> Vec<(u32, u64)> {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at * 8)
            .map(|()| u64::from_ne_bytes(bytes))
    };
    let Ok(header) = (0..TABLES).map(word).collect::<Result<Vec<_>, _>>() else {
        return Vec::new();
    };
    let whole = header[0] == u64::from_le_bytes(*b"kvroomPF")
        && header[1] == 1
        && header[PAGES_WORD as usize] == u64::from(PAGES);
    if !whole {
        return Vec::new();
    }
    let own = OWN.with(|own| own.to_words());
    let mut inside: HashMap<u64, Vec<u64>> = HashMap::new();
    for place in 0..MAX_TABLES {
        let at = TABLES + place * TABLE_WORDS;
        let Ok(entry) = (at..at + TABLE_WORDS)
            .map(word)
            .collect::<Result<Vec<_>, _>>()
        else {
            continue;
        };
        let table = fs::read(named(pool, &format!(".gates-{}", entry[1])));
        let (true, Ok(table)) = (entry[0] != 0 && entry[3..] == own, table) else {
            continue;
        };
        let right = table.len() >= TableMemory::bytes_of(SLOTS)
            && entry[2] == TableMemory::bytes_of(SLOTS) as u64
            && table.starts_with(b"kvroomGT\x01\0\0\0\x03\0\0\0");
        for slot in (0..SLOTS as usize).filter(|_| right) {
            let word = table[64 + slot * 64..].first_chunk().copied();
            let word = u64::from_ne_bytes(word.unwrap());
            let counts = inside.entry(word & ((1 << 48) - 1)).or_default();
            counts.push(word >> 48 & 0x3FFF);
        }
    }
    let owners = (0..PAGES).filter_map(|page| {
        let owner = word(OWNERS / 8 + u64::from(page)).ok()?;
        Some((page, owner))
    });
    // A number that is in two gates is not one that a node gave.
    owners
        .filter(|(_, owner)| {
            *owner != 0 && matches!(inside.get(owner).map(Vec::as_slice), Some([n]) if *n > 0)
        })
        .collect()
}

fn attach(pool: &Path, held: &[(u32, u64)]) {
    let attached = match Attachment::new(pool, &layout(PAGES), 1) {
        Ok(attached) => attached,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let waiting = attached.quarantined();
    assert!(waiting.iter().all(|q| q.page < PAGES && q.claim.0 != 0));
    assert!(waiting.is_sorted_by(|a, b| a.page < b.page), "a page twice");
    let waits = |(page, owner): &(u32, u64)| {
        waiting
            .iter()
            .any(|q| q.page == *page && q.claim.0 == *owner)
    };
    assert!(
        held.iter().all(waits),
        "of {held:?}, only {waiting:?} wait for who is inside"
    );
    assert!(attached.first_claim() >= 1);
    let holders = LeaseTable::new(PAGES);
    for page in &waiting {
        holders.quarantine(page.page);
    }
    let freed = attached.look_again(&holders);
    assert_eq!(attached.quarantined().len(), waiting.len() - freed);
    assert!(
        held.iter()
            .all(|(page, _)| holders.acquire_write(&[*page]).is_err())
    );
    attached.reserve_claims(attached.first_claim());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_dead_processes_are_removed_and_no_others() {
        let own = std::process::id();
        let root = Dir(std::env::temp_dir().join(format!("kvroom-companion-test-{own}")));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // Its number is not used again before it is waited for; after that, seldom so soon.
        let dead = child.id();
        child.wait().unwrap();
        let names = [
            format!("{PREFIX}{dead}-1"),
            format!("{PREFIX}{dead}-22"),
            format!("{PREFIX}{own}-1"),
            format!("{PREFIX}{dead}"),
            format!("{PREFIX}x{dead}-1"),
            format!("other-{dead}-1"),
        ];
        for name in &names {
            fs::create_dir_all(root.0.join(name)).unwrap();
            fs::write(root.0.join(name).join("pool"), "left").unwrap();
        }
        remove_of_the_dead(&root.0);
        let there: Vec<_> = names.iter().map(|n| root.0.join(n).exists()).collect();
        assert_eq!(there, [false, false, true, true, true, true]);
    }
}
