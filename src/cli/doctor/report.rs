//! What was found, in the shape of `--json`, and which of it is required.

use super::devices::Cuda;
use super::libraries;
use super::machine::{Copies, Cpu, DevShm, HugePages, Machine, Memory, Os, Pidfd, Tcp};
use super::self_test::{SelfTest, SelfTests};
use super::ucx::Ucx;
use serde::Serialize;

/// Everything that `doctor` says. Field names and order are those of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    pub(crate) os: Os,
    pub(crate) cpu: Cpu,
    pub(crate) memory: Memory,
    pub(crate) huge_pages: HugePages,
    pub(crate) dev_shm: DevShm,
    pub(crate) pidfd: Pidfd,
    pub(crate) build: Build,
    pub(crate) tcp: Tcp,
    pub(crate) copies: Copies,
    pub(crate) cuda: Cuda,
    pub(crate) ucx: Ucx,
    pub(crate) fabrics: Vec<Fabric>,
    pub(crate) libraries: Vec<Library>,
    pub(crate) checks: Vec<Check>,
    pub(crate) ok: bool,
}

/// How this program was built.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Build {
    /// `release`, or `debug` for a build with debug assertions.
    pub(crate) profile: &'static str,
    /// `unwind` or `abort`.
    pub(crate) panic: &'static str,
    /// With `abort`, a panic in one room ends the process with all of them.
    pub(crate) isolates_panics: bool,
    /// Operating system and pointer width that it was built for.
    pub(crate) target: String,
}

/// A way to move bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Fabric {
    pub(crate) name: &'static str,
    pub(crate) state: State,
    pub(crate) detail: String,
}

/// What is known of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum State {
    #[serde(rename = "works")]
    Works,
    #[serde(rename = "broken")]
    Broken,
    #[serde(rename = "not run")]
    NotRun,
}

impl State {
    /// The word for it in the table, the same as in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Works => "works",
            State::Broken => "broken",
            State::NotRun => "not run",
        }
    }
}

/// A native library.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) found_at: Vec<String>,
    pub(crate) loaded: bool,
    pub(crate) detail: String,
}

/// One thing that should hold.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    /// If it does not hold, kvroom cannot do its work here.
    pub(crate) required: bool,
    pub(crate) ok: bool,
    pub(crate) detail: String,
}

impl Report {
    /// Puts together what was found and judges it.
    pub(crate) fn of(
        m: Machine,
        found: Vec<libraries::Library>,
        cuda: Cuda,
        (ucx, through_ucx): (Ucx, SelfTest),
        tests: &SelfTests,
    ) -> Report {
        let build = build();
        let fabrics = fabrics(tests, &through_ucx);
        let checks = checks(&m, &build, &fabrics);
        Report {
            version: env!("CARGO_PKG_VERSION"),
            ok: checks.iter().all(|c| c.ok || !c.required),
            os: m.os,
            cpu: m.cpu,
            memory: m.memory,
            huge_pages: m.huge_pages,
            dev_shm: m.dev_shm,
            pidfd: m.pidfd,
            build,
            tcp: m.tcp,
            copies: m.copies,
            fabrics,
            libraries: (found.into_iter())
                .map(|found| library(found, cuda.is_loaded()))
                .collect(),
            cuda,
            ucx,
            checks,
        }
    }

    /// One sentence for each required check that does not hold.
    pub(crate) fn missing(&self) -> Vec<String> {
        let lacking = self.checks.iter().filter(|c| c.required && !c.ok);
        lacking
            .map(|c| format!("{}: {}", c.name, c.detail))
            .collect()
    }
}

fn build() -> Build {
    let unwinds = cfg!(panic = "unwind");
    Build {
        profile: if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        },
        panic: if unwinds { "unwind" } else { "abort" },
        isolates_panics: unwinds,
        target: format!("{} {}-bit", std::env::consts::OS, usize::BITS),
    }
}

fn fabrics(tests: &SelfTests, ucx: &SelfTest) -> Vec<Fabric> {
    let tested = [
        ("local", &tests.local),
        ("tcp", &tests.tcp),
        ("unix", &tests.unix),
        ("shm", &tests.shm),
        ("ucx", ucx),
    ];
    let all = tested.into_iter().map(|(name, test)| {
        let (state, detail) = match test {
            SelfTest::Passed(how) => (State::Works, how),
            SelfTest::Failed(why) => (State::Broken, why),
            SelfTest::NotRun(why) => (State::NotRun, why),
        };
        Fabric {
            name,
            state,
            detail: detail.clone(),
        }
    });
    all.collect()
}

fn library(found: libraries::Library, is_cuda_loaded: bool) -> Library {
    let loaded = is_cuda_loaded && found.fabric == "cuda";
    let mut detail = if loaded {
        "opened to ask what devices there are; no fabric uses it".to_owned()
    } else if found.found_at.is_empty() {
        "not found".to_owned()
    } else if found.fabric == "ucx" {
        "not loaded here: a process of its own has opened what ucx says".to_owned()
    } else {
        format!("not loaded: {} could not be asked", found.fabric)
    };
    if let Some(trouble) = found.trouble {
        detail = format!("{detail}; {trouble}");
    }
    Library {
        name: found.name,
        found_at: found
            .found_at
            .iter()
            .map(|p| p.display().to_string())
            .collect(),
        loaded,
        detail,
    }
}

fn checks(m: &Machine, build: &Build, fabrics: &[Fabric]) -> Vec<Check> {
    let fabric = |name: &'static str, check, required| {
        let found = fabrics.iter().find(|f| f.name == name);
        Check {
            name: check,
            required,
            ok: found.is_some_and(|f| f.state == State::Works),
            detail: found.map_or_else(String::new, |f| format!("{}: {}", f.state.word(), f.detail)),
        }
    };
    let linux64 = cfg!(all(target_os = "linux", target_pointer_width = "64"));
    vec![
        Check {
            name: "64-bit Linux",
            required: true,
            ok: linux64,
            detail: build.target.clone(),
        },
        fabric("local", "fabric local", true),
        fabric("tcp", "fabric tcp", false),
        fabric("unix", "fabric tcp over a Unix socket", false),
        fabric("shm", "fabric shm", false),
        Check {
            name: "panics are contained",
            required: false,
            ok: build.isolates_panics,
            detail: if build.isolates_panics {
                "a panic ends one room and nothing else (panic = unwind)".to_owned()
            } else {
                "built with panic = abort: one room's panic ends the whole process; this gives up \
                 the promise that a room's failure ends that room and nothing else"
                    .to_owned()
            },
        },
        Check {
            name: "pidfd",
            required: false,
            ok: m.pidfd.supported == Some(true),
            detail: m.pidfd.detail.clone(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::devices::CudaState;
    use super::super::machine;
    use super::super::ucx::UcxState;
    use super::*;

    fn report(local: SelfTest) -> Report {
        let tests = SelfTests {
            local,
            tcp: SelfTest::NotRun("x".into()),
            unix: SelfTest::Passed("moved".into()),
            shm: SelfTest::Failed("no pidfd".into()),
        };
        let cuda = Cuda {
            state: CudaState::Absent,
            driver: None,
            compiler: None,
            devices: Vec::new(),
            detail: "x".into(),
        };
        let ucx = Ucx {
            state: UcxState::Absent,
            version: None,
            tested: None,
            library: None,
            rdma: None,
            detail: "x".into(),
        };
        let ucx = (ucx, SelfTest::NotRun("x".into()));
        Report::of(machine::look(), vec![], cuda, ucx, &tests)
    }

    #[test]
    fn only_a_local_fabric_that_moved_bytes_makes_the_machine_fit() {
        let good = report(SelfTest::Passed("moved".into()));
        assert!(good.ok && good.missing().is_empty());
        for bad in [SelfTest::Failed("x".into()), SelfTest::NotRun("x".into())] {
            let bad = report(bad);
            assert!(!bad.ok);
            assert_eq!(bad.missing().len(), 1);
            assert!(
                bad.missing()[0].starts_with("fabric local: "),
                "{:?}",
                bad.missing()
            );
        }
    }

    #[test]
    fn a_machine_without_sockets_is_told_and_still_fit_for_one_process() {
        let r = report(SelfTest::Passed("moved".into()));
        let state = |name| r.fabrics.iter().find(|f| f.name == name).unwrap().state;
        assert_eq!(state("tcp"), State::NotRun);
        assert_eq!(state("unix"), State::Works);
        let tcp = r.checks.iter().find(|c| c.name == "fabric tcp").unwrap();
        assert!(!tcp.ok && !tcp.required && r.ok);
        assert_eq!(state("shm"), State::Broken);
        let shm = r.checks.iter().find(|c| c.name == "fabric shm").unwrap();
        assert!(!shm.ok && !shm.required);
    }

    #[test]
    fn aborting_on_panic_is_told_and_not_fatal() {
        let aborting = Build {
            panic: "abort",
            isolates_panics: false,
            ..build()
        };
        let all = checks(&machine::look(), &aborting, &[]);
        let check = all
            .iter()
            .find(|c| c.name == "panics are contained")
            .unwrap();
        assert!(!check.ok && !check.required && check.detail.contains("panic = abort"));
    }

    #[test]
    fn the_words_of_the_table_are_those_of_the_json() {
        for state in [State::Works, State::Broken, State::NotRun] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
    }

    #[test]
    fn a_library_that_is_there_is_told_with_why_it_is_not_loaded() {
        let found = |fabric, at: &[&str], trouble: Option<&str>| {
            let found = libraries::Library {
                name: "a library",
                fabric,
                found_at: at.iter().map(Into::into).collect(),
                trouble: trouble.map(str::to_owned),
            };
            library(found, true)
        };
        assert_eq!(
            found("ucx", &["/a"], None).detail,
            "not loaded here: a process of its own has opened what ucx says"
        );
        assert_eq!(found("ucx", &[], Some("why")).detail, "not found; why");
        assert!(!found("ucx", &["/a"], None).loaded);
        assert!(found("cuda", &["/a"], None).loaded);
    }
}
