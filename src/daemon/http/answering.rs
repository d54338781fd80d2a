//! What a request asks the node has a bound: a part that does not answer is named, and not waited for.
//!
//! ```text
//!   route ─▶ answered(node, within, question) ─┬─▶ the answer
//!                                              └─▶ 503 not-answering: "shard 2 has not …"
//! ```
//!
//! Rule: who stands still is read off the node's pulse, which asks nobody.

use super::Problem;
use axum::http::StatusCode;
use kvroom::Node;
use kvroom::health::{Part, PartPulse, Pulse};
use std::time::Duration;

/// How long the node may take to answer a question.
pub(crate) const QUESTION: Duration = Duration::from_secs(2);
/// How long it may take to begin something: a room, a pool.
pub(crate) const BEGINNING: Duration = Duration::from_secs(10);

/// The answer to a question to the node, or which of its parts did not answer in time.
///
/// # Errors
/// `not-answering`.
pub(crate) async fn answered<T>(
    node: &Node,
    within: Duration,
    question: impl Future<Output = T>,
) -> Result<T, Problem> {
    let before = node.pulse();
    let answer = tokio::time::timeout(within, question).await;
    answer.map_err(|_| not_answering(&still(&before, &node.pulse()), within))
}

/// Those of the parts that answer questions that have something to do and have begun no turn in
/// between.
pub(crate) fn still(before: &Pulse, after: &Pulse) -> Vec<Part> {
    let turns = |part: &Part| before.parts.iter().find(|p| p.part == *part);
    let stands = |now: &&PartPulse| {
        let has_to_do = now.running || now.waiting > 0 || now.asked.is_some();
        let unmoved = turns(&now.part).is_some_and(|was| was.turns == now.turns);
        now.gone || (has_to_do && unmoved)
    };
    let answers = |part: &&PartPulse| matches!(part.part, Part::Node | Part::Shard(_));
    let all = after.parts.iter().filter(answers).filter(stands);
    all.map(|now| now.part.clone()).collect()
}

fn not_answering(who: &[Part], within: Duration) -> Problem {
    let who: Vec<String> = who.iter().map(Part::to_string).collect();
    let who = match who.as_slice() {
        [] => "the node".to_owned(),
        some => some.join(", "),
    };
    let text = format!(
        "{who} did not answer within {within:?}; what was asked for may still happen: GET /readyz says more, \
         then look, or send the same again"
    );
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "not-answering",
        "A part of the node does not answer",
        text,
    )
    .retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn part(part: Part, turns: u64, running: bool, waiting: u64) -> PartPulse {
        PartPulse {
            part,
            turns,
            running,
            since: Duration::ZERO,
            waiting,
            asked: None,
            took: None,
            overdue: 0,
            gone: false,
        }
    }

    fn pulse(parts: Vec<PartPulse>) -> Pulse {
        let at = Instant::now();
        Pulse { at, parts }
    }

    #[test]
    fn who_has_work_and_begins_no_turn_stands_still_and_who_idles_or_gets_on_does_not() {
        let [idle, busy, stuck] = [Part::Shard(0), Part::Shard(1), Part::Shard(2)];
        let before = pulse(vec![
            part(idle.clone(), 7, false, 0),
            part(busy.clone(), 7, true, 9),
            part(stuck.clone(), 7, true, 0),
            part(Part::Node, 3, false, 0),
            part(Part::Lane(0), 3, true, 5),
        ]);
        let mut after = pulse(vec![
            part(idle, 7, false, 0),
            part(busy, 8, true, 9),
            part(stuck.clone(), 7, true, 2),
            part(Part::Node, 3, false, 1),
            // Lanes are not asked.
            part(Part::Lane(0), 3, true, 5),
        ]);
        assert_eq!(still(&before, &after), [stuck.clone(), Part::Node]);
        after.parts[0].gone = true;
        assert_eq!(still(&before, &after), [Part::Shard(0), stuck, Part::Node]);
    }

    #[test]
    fn the_problem_names_who_does_not_answer_and_when_to_try_again() {
        let problem = not_answering(&[Part::Shard(2), Part::Node], QUESTION);
        assert_eq!((problem.status, problem.code), (503, "not-answering"));
        assert!(
            problem
                .detail
                .starts_with("shard 2, node did not answer within 2s"),
            "{}",
            problem.detail
        );
        assert_eq!(problem.retry_after, Some(1));
        let problem = not_answering(&[], QUESTION);
        assert!(
            problem.detail.starts_with("the node did"),
            "{}",
            problem.detail
        );
    }
}
