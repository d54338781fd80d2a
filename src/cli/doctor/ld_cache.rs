//! Reads the dynamic linker's cache (`/etc/ld.so.cache`), which says where libraries are.
//!
//! ```text
//!   [old table]? "glibc-ld.so.cache1.1" count strings_len … (48 bytes) | entries of 24 bytes | strings
//!                 └── offsets count from here          entry: flags key value osversion hwcap
//! ```
//!
//! Every offset is checked: a damaged cache gives an error, never a panic.

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// The paths that the cache has for the library `name`, in its order.
///
/// # Errors
/// A sentence, if this is not such a cache or it is cut short.
pub(crate) fn paths_of(cache: &[u8], name: &str) -> Result<Vec<String>, &'static str> {
    let start = cache
        .windows(MAGIC.len())
        .position(|w| w == MAGIC)
        .ok_or("it is not in the format of glibc 2.2 and later")?;
    let cache = &cache[start..];
    let count = number(cache, MAGIC.len())?;
    let mut found = Vec::new();
    for i in 0..count {
        let entry = i
            .checked_mul(ENTRY)
            .and_then(|n| n.checked_add(HEADER))
            .ok_or(CUT)?;
        if string(cache, number(cache, entry + 4)?)? == name.as_bytes() {
            let path = string(cache, number(cache, entry + 8)?)?;
            found.push(String::from_utf8_lossy(path).into_owned());
        }
    }
    Ok(found)
}

const CUT: &str = "it is cut short";

fn number(cache: &[u8], at: usize) -> Result<usize, &'static str> {
    let bytes = cache.get(at..at.saturating_add(4)).ok_or(CUT)?;
    let bytes: [u8; 4] = bytes.try_into().map_err(|_| CUT)?;
    usize::try_from(u32::from_ne_bytes(bytes)).map_err(|_| CUT)
}

fn string(cache: &[u8], at: usize) -> Result<&[u8], &'static str> {
    let rest = cache.get(at..).ok_or(CUT)?;
    rest.split(|&b| b == 0)
        .next()
        .filter(|s| s.len() < rest.len())
        .ok_or(CUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut table = Vec::new();
        let base = HEADER + entries.len() * ENTRY;
        for (key, value) in entries {
            table.extend(3u32.to_ne_bytes());
            for text in [key, value] {
                table.extend(((base + strings.len()) as u32).to_ne_bytes());
                strings.extend(text.bytes().chain([0]));
            }
            table.extend([0; 12]);
        }
        let mut out = MAGIC.to_vec();
        out.extend((entries.len() as u32).to_ne_bytes());
        out.extend((strings.len() as u32).to_ne_bytes());
        out.resize(HEADER, 0);
        [out, table, strings].concat()
    }

    const TWO: [(&str, &str); 3] = [
        ("libz.so.1", "/lib/libz.so.1"),
        ("liba.so", "/a/liba.so"),
        ("liba.so", "/b/liba.so"),
    ];

    #[test]
    fn every_path_of_a_name_is_found_and_no_other() {
        let c = cache(&TWO);
        assert_eq!(
            paths_of(&c, "liba.so").unwrap(),
            ["/a/liba.so", "/b/liba.so"]
        );
        assert_eq!(paths_of(&c, "liba.so.1").unwrap(), [""; 0]);
    }

    #[test]
    fn the_cache_of_a_machine_with_glibc_has_libc() {
        // Without glibc there is neither such a cache nor anything to compare.
        if cfg!(target_env = "gnu") && std::path::Path::new("/etc/ld.so.cache").exists() {
            let cache = std::fs::read("/etc/ld.so.cache").unwrap();
            let paths = paths_of(&cache, "libc.so.6").unwrap();
            assert!(
                paths.iter().any(|p| std::path::Path::new(p).is_file()),
                "{paths:?}"
            );
        }
    }

    #[test]
    fn a_table_of_the_old_format_in_front_is_skipped() {
        let c = [b"ld.so-1.7.0\0\0\0\0\0".to_vec(), cache(&TWO)].concat();
        assert_eq!(paths_of(&c, "libz.so.1").unwrap(), ["/lib/libz.so.1"]);
    }

    #[test]
    fn a_cache_cut_anywhere_is_an_error() {
        let c = cache(&TWO);
        for len in 0..c.len() {
            assert!(paths_of(&c[..len], "liba.so").is_err(), "cut at {len}");
        }
    }
}
