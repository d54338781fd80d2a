//! What the fuzz targets share: the parsers of the program and of its example, which are in no
//! library and are taken from their files, and a count of what a decode allocates.

pub mod counted;
mod stand_ins;

#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../../src/cli"]
mod cli {
    pub(crate) mod fuzzing;
    pub(crate) mod settings;

    pub(crate) mod args {
        pub(crate) mod words;
    }
    pub(crate) mod node {
        pub(crate) mod protocol;
    }
    pub(crate) mod doctor {
        pub(crate) mod ld_cache;
    }
    pub(crate) mod bench {
        pub(crate) mod perm;
        pub(crate) mod stats;
        pub(crate) mod workload;

        pub(crate) mod compare {
            pub(crate) mod fuzzing;
            pub(crate) mod parse;

            // The two that start programs, as far as the parser needs them.
            use crate::stand_ins::{contender, process};
        }
    }
}

#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../../src/daemon"]
mod daemon {
    pub(crate) mod fuzzing;
    pub(crate) mod trace;

    pub(crate) mod health {
        /// As the canaries' own pool is called, which no other one may be.
        pub(crate) const CANARY: &str = "kvroom-canary";
    }

    pub(crate) mod devices {
        mod named;
        mod uuid;

        pub(crate) use named::Named;
        pub(crate) use uuid::Uuid;
    }

    pub(crate) mod config {
        mod check;
        mod effective;
        mod env;
        mod file;
        pub(crate) mod fuzzing;
        mod given;
        mod pool;
        mod schema;
        mod show;
        mod source;
        mod value;
        mod words;

        pub(crate) use effective::Effective;
        pub(crate) use given::Given;
    }
    pub(crate) mod http {
        pub(crate) mod duration;
    }
}

#[allow(dead_code)]
#[path = "../../examples/abort_storm"]
mod storm {
    pub(crate) mod trace;
    pub(crate) mod trace_fuzzing;
}

/// See the file that has them.
pub fn commands(data: &[u8]) {
    cli::fuzzing::commands(data);
}

/// See the file that has them.
pub fn config(data: &[u8]) {
    daemon::config::fuzzing::config(data);
}

/// See the file that has them.
pub fn linker_cache(data: &[u8]) {
    cli::fuzzing::linker_cache(data);
}

/// See the file that has them.
pub fn recording(data: &[u8]) {
    kvroom::recording::fuzzing::recording(data);
}

/// See the file that has them.
pub fn requests(data: &[u8]) {
    daemon::fuzzing::requests(data);
}

/// See the file that has them.
pub fn results(data: &[u8]) {
    cli::fuzzing::results(data);
}

/// See the file that has them.
pub fn settings(data: &[u8]) {
    cli::fuzzing::settings(data);
}

/// See the file that has them.
pub fn trace(data: &[u8]) {
    storm::trace_fuzzing::trace(data);
}

/// See the file that has them.
pub fn workloads(data: &[u8]) {
    cli::fuzzing::workloads(data);
}
