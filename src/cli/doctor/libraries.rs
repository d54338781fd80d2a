//! Native libraries that fabrics can use: where they are on this machine. They are looked for as
//! files; none is opened.

use super::ld_cache;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The libraries, and the fabric that would use each.
const WANTED: [(&str, &str); 2] = [("libucp.so.0", "ucx"), ("libcuda.so.1", "cuda")];

/// A native library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Library {
    /// The file's name.
    pub(crate) name: &'static str,
    /// The fabric that would use it.
    pub(crate) fabric: &'static str,
    /// Every place where it is, each real file once, in the order the linker looks.
    pub(crate) found_at: Vec<PathBuf>,
    /// What kept part of the search from being done.
    pub(crate) trouble: Option<String>,
}

/// Looks for all of them.
pub(crate) fn look() -> Vec<Library> {
    let directories: Vec<PathBuf> = env::var_os("LD_LIBRARY_PATH")
        .map(|v| {
            env::split_paths(&v)
                .filter(|p| !p.as_os_str().is_empty())
                .collect()
        })
        .unwrap_or_default();
    let cache = fs::read("/etc/ld.so.cache").map_err(|e| e.to_string());
    let find = |(name, fabric)| {
        let cached = match &cache {
            Ok(bytes) => ld_cache::paths_of(bytes, name).map_err(str::to_owned),
            Err(e) => Err(e.clone()),
        };
        let (cached, trouble) = match cached {
            Ok(paths) => (paths, None),
            Err(e) => (
                Vec::new(),
                Some(format!("/etc/ld.so.cache was not searched: {e}")),
            ),
        };
        let candidates = directories
            .iter()
            .map(|d| d.join(name))
            .chain(cached.into_iter().map(PathBuf::from))
            .chain(usual_directories().into_iter().map(|d| d.join(name)));
        Library {
            name,
            fabric,
            found_at: existing(candidates),
            trouble,
        }
    };
    WANTED.map(find).into()
}

/// Those of `candidates` that are files, each real file once.
fn existing(candidates: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let new_file = |path: &PathBuf| {
        let real = fs::canonicalize(path).ok();
        real.is_some_and(|real| real.is_file() && seen.insert(real))
    };
    candidates.filter(new_file).collect()
}

fn usual_directories() -> Vec<PathBuf> {
    let multiarch = format!("{}-linux-gnu", env::consts::ARCH);
    let mut all = vec![
        Path::new("/usr/lib").join(&multiarch),
        Path::new("/lib").join(&multiarch),
    ];
    all.extend(
        [
            "/usr/local/lib",
            "/lib64",
            "/usr/lib64",
            "/lib",
            "/usr/lib",
            "/usr/local/cuda/lib64",
            "/usr/local/cuda/compat",
            "/usr/local/nvidia/lib64",
            "/opt/ucx/lib",
        ]
        .map(PathBuf::from),
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_seen_by_two_names_is_told_once_and_a_directory_never() {
        let exe = env::current_exe().unwrap();
        let roundabout = exe
            .parent()
            .unwrap()
            .join(".")
            .join(exe.file_name().unwrap());
        let paths = [
            exe.clone(),
            roundabout,
            env::temp_dir(),
            "/no/such/file".into(),
        ];
        assert_eq!(existing(paths.into_iter()), [exe]);
    }
}
