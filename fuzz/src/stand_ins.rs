//! Types of modules that start programs, with the fields that the parser of their output reads.

pub(crate) mod contender {
    use crate::cli::bench::workload::Workload;

    pub(crate) enum Task {
        Workload(Workload),
        Abort,
    }
}

pub(crate) mod process {
    pub(crate) enum End {
        Success,
    }

    #[allow(dead_code)]
    pub(crate) struct Ended {
        pub(crate) end: End,
        pub(crate) output: String,
        pub(crate) errors: String,
    }

    impl Ended {
        pub(crate) fn complaint(&self) -> Option<String> {
            let End::Success = self.end;
            None
        }
    }
}
