//! Opens what a request names as a pool's memory.
//!
//! Rules: what comes over HTTP names files in one folder only, and never one that the daemon made for
//! itself; the process that passes a descriptor is held by a pidfd from before it is looked at until
//! the pool goes. All of this blocks, and is done on a thread for that.

use super::PoolsOptions;
use super::shape::PoolSpec;
use crate::daemon::http::Problem;
use axum::http::StatusCode;
use kvroom::device::IpcMemory;
use kvroom::{FileOptions, OtherProcess, OthersMemory, Pool, PoolError, PoolLayout, SharedError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Pages that a pool of another process may have.
const MAX_PAGES: u32 = 1 << 24;
/// How names of files begin that are the daemon's own.
const OWN: &str = "kvroom:";

/// A pool with what it was made of.
pub(crate) struct Opened {
    pub(super) pool: Pool,
    pub(super) place: Place,
    pub(super) owner: Option<Arc<OtherProcess>>,
    /// The request; none for a pool of the configuration.
    pub(super) spec: Option<PoolSpec>,
    /// Whether its file was not there before this was opened.
    pub(super) fresh: bool,
}

/// Where a pool's memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A file, which goes with the pool if it was made here.
    File {
        /// Where.
        path: PathBuf,
        /// Whether the daemon chose its name.
        made: bool,
    },
    /// Memory that another process passed; what is known of its lives is beside this.
    Passed { beside: PathBuf },
    /// The daemon's own, of its configuration.
    Own,
    /// A device's, which another process allocated.
    Device,
    /// A device's, which this daemon allocated: of its configuration, too. Engines open it by this.
    Allocated(IpcMemory),
}

impl Opened {
    /// A pool of the configuration, in a file or not. It has no owner, and its files stay.
    pub(crate) fn configured(pool: Pool, path: Option<PathBuf>) -> Opened {
        let place = match path {
            Some(path) => Place::File { path, made: false },
            None => Place::Own,
        };
        Opened {
            pool,
            place,
            owner: None,
            spec: None,
            fresh: false,
        }
    }

    /// A pool of the configuration in memory of a device that was allocated for it.
    pub(crate) fn allocated(pool: Pool, memory: IpcMemory) -> Opened {
        Opened {
            place: Place::Allocated(memory),
            ..Opened::configured(pool, None)
        }
    }

    /// A pool of the configuration in a file, wherever that is.
    pub(crate) fn of_file(
        layout: PoolLayout,
        path: &Path,
        create: bool,
    ) -> Result<Opened, PoolError> {
        let options = FileOptions {
            create,
            ..FileOptions::default()
        };
        let file = OthersMemory::File {
            path,
            options: &options,
        };
        let pool = Pool::of_others(layout, file)?;
        Ok(Opened::configured(pool, Some(path.to_owned())))
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What engines open its memory by, if the daemon has allocated that on a device.
    pub(super) fn exported(&self) -> Option<&IpcMemory> {
        match &self.place {
            Place::Allocated(memory) => Some(memory),
            _ => None,
        }
    }

    /// Whether the daemon made its file.
    pub(super) fn is_made_here(&self) -> bool {
        matches!(self.place, Place::File { made: true, .. })
    }

    /// Lets go of the files beside it and removes what is of no use any more. Only when nothing of it
    /// is leased and it is retired; the pool of a configuration keeps its files.
    pub(super) fn remove(&self) {
        if !self.pool.let_go() || self.spec.is_none() {
            return;
        }
        match &self.place {
            Place::File { path, made } => {
                remove(&beside(path));
                if *made {
                    remove(path);
                }
            }
            Place::Passed { beside: path } => remove(&beside(path)),
            Place::Own | Place::Device | Place::Allocated(_) => {}
        }
    }

    /// Takes back what opening it made: the node did not take the pool. What was there before stays, and
    /// what is known of a former life that may still write.
    pub(super) fn undo(&self) {
        // While the memory is still this pool's: nobody else makes a pool of the file meanwhile.
        if self.fresh
            && let Place::File { path, .. } = &self.place
        {
            remove(path);
        }
        self.pool.retire();
        let is_quiet = self.pool.quarantined_pages() == 0;
        if !self.pool.let_go() || !is_quiet {
            return;
        }
        match &self.place {
            Place::File { path, .. } | Place::Passed { beside: path } => remove(&beside(path)),
            Place::Own | Place::Device | Place::Allocated(_) => {}
        }
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        let path = path.display();
        tracing::warn!(%path, %error, "a file of a pool that is over stays");
    }
}

/// Makes an empty file of this user alone, if there is none of this name; true if it did.
fn made_anew(path: &Path) -> bool {
    let mut options = std::fs::OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    options.open(path).is_ok()
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".kvroom");
    name.into()
}

/// What is beside pools' files is named so: it would be taken for that of another pool, or take its place.
fn is_like_a_companion(name: &str) -> bool {
    name.contains(".kvroom")
}

/// What is wrong with a request before anything is looked at.
pub(super) fn check(spec: &PoolSpec) -> Result<(), Problem> {
    let name = &spec.name;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(bad(format!(
            "name {name:?}: 1 to 64 letters, digits, '.', '_' and '-' are wanted, not beginning with '.'"
        )));
    }
    if is_like_a_companion(name) {
        return Err(bad(format!(
            "name {name:?}: names with \".kvroom\" in them are of files beside pools; choose another name"
        )));
    }
    if name == crate::daemon::health::CANARY {
        return Err(bad(format!("name {name:?}: it is the daemon's own")));
    }
    if spec.pages > MAX_PAGES {
        return Err(bad(format!(
            "pages: at most {MAX_PAGES} are possible, and {} were asked for",
            spec.pages
        )));
    }
    let m = &spec.memory;
    match (m.create, &m.path, m.pid, m.fd, &m.cuda) {
        (_, Some(_), None, None, None)
        | (true, None, None, None, None)
        | (false, None, Some(_), Some(_), None) => Ok(()),
        (false, None, None, None, Some(cuda)) => super::device::check(spec, cuda),
        _ => Err(bad(
            "memory: one of {\"create\": true}, {\"path\": \"…\", \"create\": false or true}, \
             {\"pid\": …, \"fd\": …} and {\"cuda\": {…}} is wanted"
                .to_owned(),
        )),
    }
}

/// Opens the memory of a request that [`check`] found nothing wrong with.
pub(super) fn open(spec: &PoolSpec, node: &str, options: &PoolsOptions) -> Result<Opened, Problem> {
    let memory = &spec.memory;
    let passed = memory.pid.zip(memory.fd);
    let owner = match (&spec.owner, passed) {
        (Some(owner), _) => Some(process(owner.pid, "owner")?),
        (None, Some((pid, _))) => Some(process(pid, "memory")?),
        (None, None) => None,
    };
    let (pool, place, fresh) = if let Some((pid, fd)) = passed {
        let other = match &owner {
            Some(owner) if owner.pid() == pid => Arc::clone(owner),
            _ => process(pid, "memory")?,
        };
        let (pool, place) = passed_memory(spec, &other, fd, options)?;
        (pool, place, false)
    } else {
        let (path, made) = match &memory.path {
            Some(path) => (in_folder(path, &options.folder)?, false),
            None => (options.folder.join(file_name(node, &spec.name)), true),
        };
        let create = FileOptions {
            create: memory.create,
            ..FileOptions::default()
        };
        let file = OthersMemory::File {
            path: &path,
            options: &create,
        };
        // If it cannot be made, what follows says why.
        let fresh = memory.create && made_anew(&path);
        let pool = match Pool::of_others(spec.layout(), file) {
            Ok(pool) => pool,
            Err(error) => {
                if fresh && !is_anothers(&error) {
                    remove(&path);
                }
                return Err(refused(&error));
            }
        };
        (pool, Place::File { path, made }, fresh)
    };
    Ok(Opened {
        pool,
        place,
        owner,
        spec: Some(spec.clone()),
        fresh,
    })
}

/// Memory that another process has open, by the number of its descriptor there.
fn passed_memory(
    spec: &PoolSpec,
    process: &OtherProcess,
    fd: u32,
    options: &PoolsOptions,
) -> Result<(Pool, Place), Problem> {
    let pid = process.pid();
    let memory = process.descriptor(fd).map_err(|e| {
        bad(format!(
            "memory: descriptor {fd} of process {pid} cannot be opened: {e}; the daemon has to run as the \
             same user, in the same namespace of processes"
        ))
    })?;
    let what = std::fs::File::from(memory);
    let found = what
        .metadata()
        .map_err(|e| bad(format!("memory: descriptor {fd} of process {pid}: {e}")))?;
    // One memfd has one number as long as it lives, whoever passes it.
    let beside = format!("{OWN}memfd:{:x}-{:x}", found.dev(), found.ino());
    let beside = options.folder.join(beside);
    let sealed = OthersMemory::Sealed {
        memory: what.into(),
        beside: &beside,
    };
    let pool = Pool::of_others(spec.layout(), sealed).map_err(|e| refused(&e))?;
    Ok((pool, Place::Passed { beside }))
}

pub(super) fn process(pid: u32, what: &str) -> Result<Arc<OtherProcess>, Problem> {
    match OtherProcess::open(pid) {
        Ok(process) => Ok(Arc::new(process)),
        Err(e) => Err(bad(format!(
            "{what}: there is no process {pid} that this daemon can see: {e}"
        ))),
    }
}

/// The file that the daemon makes for a pool of this name: the same in its next life.
fn file_name(node: &str, pool: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let mut name = String::from(OWN);
    for c in node.chars() {
        if plain(c) {
            name.push(c);
        } else {
            name.push_str(&format!("%{:x}", u32::from(c)));
        }
    }
    format!("{name}:{pool}")
}

/// The path with its folder resolved, if that is the folder of pools or within it.
fn in_folder(path: &Path, folder: &Path) -> Result<PathBuf, Problem> {
    let shown = path.display();
    let outside = || {
        bad(format!(
            "memory: {shown} is not in {}, where pools of other processes have to be",
            folder.display()
        ))
    };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(outside());
    };
    if !path.is_absolute() {
        return Err(outside());
    }
    let real = parent
        .canonicalize()
        .map_err(|e| bad(format!("memory: {}: {e}", parent.display())))?;
    let folder = folder.canonicalize().map_err(|e| {
        bad(format!(
            "memory: the folder of pools, {}: {e}",
            folder.display()
        ))
    })?;
    if !real.starts_with(&folder) {
        return Err(outside());
    }
    let text = name.to_string_lossy();
    if text.starts_with(OWN) || is_like_a_companion(&text) {
        return Err(bad(format!(
            "memory: {shown} is named like a file that daemons make for themselves; choose another name"
        )));
    }
    Ok(real.join(name))
}

pub(super) fn bad(detail: String) -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "bad-pool",
        "The pool cannot be registered like this",
        detail,
    )
}

/// Why there is no pool, as an answer.
pub(super) fn refused(error: &PoolError) -> Problem {
    let detail = error.to_string();
    let conflict = |code, title| Problem::new(StatusCode::CONFLICT, code, title, detail.clone());
    match error {
        PoolError::Shared { why, .. } => match why {
            SharedError::Attached { .. } => conflict(
                "pool-attached",
                "The memory is a pool of another runtime already",
            ),
            SharedError::Companion { .. } => conflict(
                "pool-companion",
                "What a previous life of the pool left stands in the way",
            ),
            SharedError::NoRoom { .. } => no_room(detail),
            _ => bad(detail),
        },
        PoolError::OutOfMemory { .. } => no_room(detail),
        _ => bad(detail),
    }
}

/// Whether somebody else has made a pool of the memory meanwhile.
fn is_anothers(error: &PoolError) -> bool {
    matches!(
        error,
        PoolError::Shared {
            why: SharedError::Attached { .. },
            ..
        }
    )
}

fn no_room(detail: String) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "no-room",
        "There is not as much memory",
        detail,
    )
}

#[cfg(test)]
mod tests {
    use super::super::shape::{Arrangement, Kind, MemorySpec};
    use super::*;

    fn spec(name: &str, memory: MemorySpec) -> PoolSpec {
        PoolSpec {
            name: name.to_owned(),
            kind: Kind::Kv,
            order: Arrangement::LayersFirst,
            layers: 1,
            pages: 4,
            page_bytes: 4096,
            page_tokens: 16,
            memory,
            owner: None,
        }
    }

    fn file(path: &str) -> MemorySpec {
        MemorySpec {
            path: Some(path.into()),
            ..MemorySpec::default()
        }
    }

    #[test]
    fn memory_is_named_in_one_of_three_ways() {
        let created = MemorySpec {
            create: true,
            ..MemorySpec::default()
        };
        let passed = MemorySpec {
            pid: Some(1),
            fd: Some(3),
            ..MemorySpec::default()
        };
        for good in [created.clone(), passed.clone(), file("/dev/shm/x")] {
            assert_eq!(check(&spec("kv", good)).map_err(|p| p.detail), Ok(()));
        }
        let both = MemorySpec {
            path: Some("/dev/shm/x".into()),
            ..passed.clone()
        };
        let half = MemorySpec {
            fd: None,
            ..passed.clone()
        };
        let made = MemorySpec {
            create: true,
            ..passed
        };
        for bad in [MemorySpec::default(), both, half, made] {
            let problem = check(&spec("kv", bad)).unwrap_err();
            assert_eq!((problem.status, problem.code), (422, "bad-pool"));
        }
        for name in [
            "kv.kvroom",
            "kv.kvroom.gates-1",
            "",
            ".kv",
            "a/b",
            "a:b",
            "ä",
            &"x".repeat(65),
        ] {
            assert!(check(&spec(name, created.clone())).is_err(), "{name}");
        }
    }

    #[test]
    fn a_path_leads_into_the_folder_of_pools_and_to_nothing_of_a_daemon() {
        let root = std::env::temp_dir().join(format!("kvroom-in-folder-{}", std::process::id()));
        let folder = root.join("pools");
        std::fs::create_dir_all(folder.join("engine")).unwrap();
        std::os::unix::fs::symlink(&root, folder.join("out")).unwrap();
        let of = |name: &str| in_folder(&folder.join(name), &folder).map_err(|p| p.detail);
        let real = folder.canonicalize().unwrap();
        assert_eq!(of("kv"), Ok(real.join("kv")));
        assert_eq!(of("engine/kv"), Ok(real.join("engine/kv")));
        for outside in ["../kv", "out/kv", "engine/../../kv"] {
            assert!(of(outside).unwrap_err().contains("is not in"), "{outside}");
        }
        assert!(in_folder(Path::new("kv"), &folder).is_err(), "relative");
        for own in ["kvroom:n:kv", "kv.kvroom", "kv.kvroom.gates-1"] {
            assert!(of(own).unwrap_err().contains("named like"), "{own}");
        }
        assert!(of("none/kv").is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn names_of_files_that_are_made_do_not_meet() {
        let names = [("a", "b"), ("a:b", "c"), ("a/b", "c"), ("a%3ab", "c")];
        let mut made: Vec<_> = names.map(|(n, p)| file_name(n, p)).to_vec();
        assert_eq!(made[0], "kvroom:a:b");
        assert!(made.iter().all(|name| !name.contains('/')));
        made.sort();
        made.dedup();
        assert_eq!(made.len(), names.len());
    }
}
