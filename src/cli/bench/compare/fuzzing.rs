//! Fuzz target of what other programs print; see `cli::fuzzing`.

use super::super::workload::built_in;
use super::contender::Task;
use super::parse;
use super::process::{End, Ended};

/// A program's output, as another program's lines and as this one's object: values that are numbers,
/// or a short reason why there are none.
pub(crate) fn results(data: &[u8]) {
    let Some((which, output)) = data.split_first() else {
        return;
    };
    let workloads = built_in();
    let task = match workloads.get(usize::from(*which)) {
        Some(workload) => Task::Workload(workload.clone()),
        None => Task::Abort,
    };
    let ended = Ended {
        end: End::Success,
        output: String::from_utf8_lossy(output).into_owned(),
        errors: String::new(),
    };
    for run in [
        parse::peer(&task, &ended),
        parse::kvroom("tcp", &task, &ended),
    ] {
        assert!(run.values.iter().all(|(_, value)| value.is_finite()));
        assert!(!run.values.is_empty() || run.problem.is_some());
        let short = |why: String| why.chars().count() <= 201;
        assert!(run.problem.is_none_or(short));
        assert!(run.noisy.0 <= run.noisy.1);
    }
}
