//! What a sender room does while it is alive, whichever of its two live states it is in.

use super::chunks::{Chunks, Place, Pushed, place};
use super::leg::{Leg, Phase, account};
use crate::ids::LegNo;
use crate::reason::{Code, Reason};
use crate::room::event::{Chunk, Effect, Event, JobEnd, JobSpec, LegTerms, Note, Say, Timer};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Moving {
    receivers: u16,
    legs: Vec<(LegNo, Leg)>,
    chunks: Chunks,
    jobs: BTreeMap<u32, Job>,
    next_job: u32,
    finish: Option<Finish>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Job {
    spec: JobSpec,
    chunk: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Finish {
    total: u64,
    aux: bool,
}

/// What an event means for the state.
pub(super) enum Verdict {
    Go,
    AllAccepted,
    End { reason: Reason, told: Option<LegNo> },
}

fn end(code: Code, text: impl Into<String>) -> Verdict {
    Verdict::End {
        reason: Reason::new(code, text),
        told: None,
    }
}

impl Moving {
    pub(super) fn new(receivers: u16) -> Self {
        Moving {
            receivers,
            legs: Vec::new(),
            chunks: Chunks::default(),
            jobs: BTreeMap::new(),
            next_job: 0,
            finish: None,
        }
    }

    pub(super) fn has_legs(&self) -> bool {
        !self.legs.is_empty()
    }

    /// The legs, and the jobs that are not over.
    pub(super) fn into_parts(self) -> (Vec<(LegNo, Leg)>, BTreeMap<u32, JobSpec>) {
        let jobs = self.jobs.into_iter().map(|(no, job)| (no, job.spec));
        (self.legs, jobs.collect())
    }

    pub(super) fn handle<W>(&mut self, event: Event<W>, out: &mut Vec<Effect<W>>) -> Verdict {
        match event {
            Event::Abort(reason) => Verdict::End { reason, told: None },
            Event::Push(chunk) => self.push(chunk, out),
            Event::Finish { total, aux } => self.finish(total, aux, out),
            Event::Bind { leg, terms } => self.bind(leg, terms, out),
            Event::Accepted(leg) => self.accepted(leg, out),
            Event::Rejected { leg, reason } => self.peer_ended(leg, reason, "Rejected", out),
            Event::PeerEnded { leg, reason } => self.peer_ended(leg, reason, "PeerEnded", out),
            Event::LegLost { leg, reason } => match self.leg(leg) {
                Some(l) => {
                    l.lost = true;
                    if l.phase == Phase::Accepted {
                        // It has all of it; the others are still served.
                        return Verdict::Go;
                    }
                    Verdict::End { reason, told: None }
                }
                None => stale("LegLost", out),
            },
            Event::Moved { leg, bytes } => match self.leg(leg) {
                Some(l) => {
                    l.written = l.written.saturating_add(bytes);
                    let say = Say::Progress {
                        posted: l.posted,
                        written: l.written,
                    };
                    out.push(Effect::Say { leg, say });
                    Verdict::Go
                }
                None => stale("Moved", out),
            },
            Event::JobOver {
                leg,
                job,
                rest,
                end,
            } => self.job_over(leg, job, rest, end, out),
            Event::Timer(Timer::Outcome) => {
                end(Code::DeadlineExceeded, "the room's deadline passed")
            }
            Event::Timer(Timer::Explain) if self.is_refused() => end(
                Code::CopyRefused,
                "the receiver closed its gate and did not say why",
            ),
            other => stale(other.name(), out),
        }
    }

    /// Whether a gate refused a piece and its owner has not said why.
    fn is_refused(&self) -> bool {
        self.legs.iter().any(|(_, l)| l.phase == Phase::Refused)
    }

    /// A leg that accepted has nothing left to end.
    fn peer_ended<W>(
        &mut self,
        leg: LegNo,
        reason: Reason,
        what: &'static str,
        out: &mut Vec<Effect<W>>,
    ) -> Verdict {
        match self.leg(leg) {
            Some(l) if l.phase != Phase::Accepted => Verdict::End {
                reason,
                told: Some(leg),
            },
            _ => stale(what, out),
        }
    }

    fn push<W>(&mut self, chunk: Chunk, out: &mut Vec<Effect<W>>) -> Verdict {
        let no = chunk.no;
        let problem = if let Some(finish) = self.finish
            && !self.chunks.has(&chunk)
        {
            Err(format!(
                "chunk {}: pushed after finish({})",
                no.0, finish.total
            ))
        } else {
            self.chunks.push(chunk.clone(), self.receivers)
        };
        match problem {
            Ok(Pushed::New) => {}
            Ok(Pushed::Repeated) if crate::switched!(RepeatPosted) => {}
            Ok(Pushed::Repeated) => {
                out.push(Effect::Note(Note::RepeatedChunk));
                out.push(Effect::ReleaseChunk(no));
                return Verdict::Go;
            }
            Err(text) => {
                let reason = Reason::new(Code::BadChunk, text);
                out.push(Effect::BounceChunk {
                    chunk: no,
                    reason: reason.clone(),
                });
                return Verdict::End { reason, told: None };
            }
        }
        for i in 0..self.legs.len() {
            if let Err(verdict) = self.post_chunk(i, &chunk, out) {
                return verdict;
            }
        }
        Verdict::Go
    }

    fn bind<W>(&mut self, leg: LegNo, terms: Arc<LegTerms>, out: &mut Vec<Effect<W>>) -> Verdict {
        if let Err(text) = self.check_claim(&terms) {
            let reason = Reason::new(Code::BadClaim, text);
            out.push(Effect::RefuseClaim { leg, reason });
            return Verdict::Go;
        }
        out.push(Effect::Say {
            leg,
            say: Say::Bound,
        });
        let fits = self.check_length(&terms);
        if self.legs.capacity() == 0 {
            // Most rooms have one receiver.
            self.legs.reserve_exact(usize::from(self.receivers).min(8));
        }
        self.legs.push((leg, Leg::new(terms)));
        if let Err(text) = fits {
            return end(Code::LengthMismatch, text);
        }
        let i = self.legs.len() - 1;
        let chunks: Vec<Chunk> = self.chunks.iter().cloned().collect();
        for chunk in chunks {
            if let Err(verdict) = self.post_chunk(i, &chunk, out) {
                return verdict;
            }
        }
        self.advance(i, out)
    }

    /// A claim that disagrees with the room harms nobody but itself.
    fn check_claim(&self, terms: &LegTerms) -> Result<(), String> {
        if terms.receivers != self.receivers {
            return Err(format!(
                "the claim says {} receivers, the room was opened for {}",
                terms.receivers, self.receivers
            ));
        }
        if terms.rank >= self.receivers {
            return Err(format!(
                "rank {} of {} receivers",
                terms.rank, self.receivers
            ));
        }
        if self.legs.iter().any(|(_, l)| l.terms.rank == terms.rank) {
            return Err(format!("rank {} has claimed before", terms.rank));
        }
        super::leg::check(terms)
    }

    fn check_length(&self, terms: &LegTerms) -> Result<(), String> {
        if let Some(finish) = self.finish
            && finish.total != terms.total
        {
            return Err(format!(
                "the claim of rank {} is for {} tokens, finish said {}",
                terms.rank, terms.total, finish.total
            ));
        }
        let end = self.chunks.end();
        if end > terms.total {
            return Err(format!(
                "a chunk reaches token {end}, the claim of rank {} ends at {}",
                terms.rank, terms.total
            ));
        }
        Ok(())
    }

    fn finish<W>(&mut self, total: u64, aux: bool, out: &mut Vec<Effect<W>>) -> Verdict {
        if self.finish.is_some() {
            return stale("Finish", out);
        }
        if let Some(ragged) = self.chunks.ragged()
            && ragged != total
        {
            return end(
                Code::BadChunk,
                format!("a chunk ended inside a page at token {ragged}, finish said {total}"),
            );
        }
        let reach = self.chunks.end();
        if reach > total {
            return end(
                Code::LengthMismatch,
                format!("a chunk reaches token {reach}, finish said {total}"),
            );
        }
        self.finish = Some(Finish { total, aux });
        for (_, leg) in &self.legs {
            if let Err(text) = self.check_length(&leg.terms) {
                return end(Code::LengthMismatch, text);
            }
        }
        for i in 0..self.legs.len() {
            match self.advance(i, out) {
                Verdict::Go => {}
                other => return other,
            }
        }
        Verdict::Go
    }

    fn accepted<W>(&mut self, leg: LegNo, out: &mut Vec<Effect<W>>) -> Verdict {
        match self.leg(leg) {
            Some(l) if l.phase == Phase::Complete => l.phase = Phase::Accepted,
            _ => return stale("Accepted", out),
        }
        let accepted = self
            .legs
            .iter()
            .filter(|(_, l)| l.phase == Phase::Accepted)
            .count();
        let all = if crate::switched!(DoneAfterFirstLeg) {
            1
        } else {
            usize::from(self.receivers)
        };
        if accepted == all {
            Verdict::AllAccepted
        } else {
            Verdict::Go
        }
    }

    fn job_over<W>(
        &mut self,
        leg: LegNo,
        job: u32,
        rest: u64,
        how: JobEnd,
        out: &mut Vec<Effect<W>>,
    ) -> Verdict {
        let Some(done) = self.jobs.remove(&job) else {
            return stale("JobOver", out);
        };
        let Some(i) = self.legs.iter().position(|(no, _)| *no == leg) else {
            return stale("JobOver", out);
        };
        let state = &mut self.legs[i].1;
        state.written = state.written.saturating_add(rest);
        state.outstanding = state.outstanding.saturating_sub(1);
        let counts = match how {
            JobEnd::Refused => crate::switched!(RefusedCountsAsLanded),
            JobEnd::Errored(_) => crate::switched!(ErroredCountsAsLanded),
            JobEnd::Landed { .. } | JobEnd::Cancelled => false,
        };
        let how = if counts {
            JobEnd::Landed { checksum: 0 }
        } else {
            how
        };
        match how {
            JobEnd::Landed { checksum } => {
                state.checksum = state.checksum.wrapping_add(checksum);
                if let Err(text) = account(&mut state.landed, &done.spec)
                    && !crate::switched!(CompleteWhenPosted)
                {
                    return end(Code::CoverageOverlap, text);
                }
                let say = Say::Progress {
                    posted: state.posted,
                    written: state.written,
                };
                out.push(Effect::Say { leg, say });
                if let Some(place) = done.chunk {
                    self.chunk_landed(place, out);
                }
                self.advance(i, out)
            }
            JobEnd::Refused => {
                if state.phase != Phase::Refused {
                    state.phase = Phase::Refused;
                    out.push(Effect::SetTimer(Timer::Explain));
                }
                Verdict::Go
            }
            JobEnd::Errored(text) => end(Code::CopyFailed, text),
            JobEnd::Cancelled => end(Code::CopyFailed, "a copy was cancelled from outside"),
        }
    }

    /// Posts what leg `i` wants of `chunk`.
    fn post_chunk<W>(
        &mut self,
        i: usize,
        chunk: &Chunk,
        out: &mut Vec<Effect<W>>,
    ) -> Result<(), Verdict> {
        let (leg, state) = &mut self.legs[i];
        if chunk.tokens.end > state.terms.total {
            return Err(end(
                Code::LengthMismatch,
                format!(
                    "chunk {} reaches token {}, the claim of rank {} ends at {}",
                    chunk.no.0, chunk.tokens.end, state.terms.rank, state.terms.total
                ),
            ));
        }
        let jobs = state
            .jobs_for(chunk)
            .map_err(|why| end(Code::BadChunk, why))?;
        let place = place(chunk);
        for (spec, bytes) in &jobs {
            let job = self.next_job;
            self.next_job += 1;
            state.posted = state.posted.saturating_add(*bytes);
            state.outstanding += 1;
            crate::switched!(CompleteWhenPosted => {
                state.outstanding -= 1;
                let _ = account(&mut state.landed, spec);
            });
            let entry = Job {
                spec: spec.clone(),
                chunk: Some(place),
            };
            self.jobs.insert(job, entry);
            out.push(Effect::Post {
                leg: *leg,
                job,
                spec: spec.clone(),
            });
        }
        if let Some(held) = self.chunks.find(place) {
            held.jobs += jobs.len() as u32;
            held.legs_left = held.legs_left.saturating_sub(1);
        }
        if !jobs.is_empty() {
            let say = Say::Progress {
                posted: state.posted,
                written: state.written,
            };
            out.push(Effect::Say { leg: *leg, say });
        } else {
            self.release_if_landed(place, out);
        }
        crate::switched!(ReleaseOfPostedChunk => {
            self.release_if_landed(place, out);
        });
        Ok(())
    }

    fn chunk_landed<W>(&mut self, place: Place, out: &mut Vec<Effect<W>>) {
        if let Some(held) = self.chunks.find(place) {
            held.jobs = held.jobs.saturating_sub(1);
        }
        self.release_if_landed(place, out);
    }

    /// A chunk's lease goes back once every leg was given it and no job carries it any more.
    fn release_if_landed<W>(&mut self, place: Place, out: &mut Vec<Effect<W>>) {
        if let Some(held) = self.chunks.find(place)
            && (held.legs_left == 0 || crate::switched!(ReleaseAfterFirstLeg))
            && (held.jobs == 0 || crate::switched!(ReleaseOfPostedChunk))
        {
            out.push(Effect::ReleaseChunk(held.chunk.no));
        }
    }

    /// Moves leg `i` on when everything pushed has landed and `finish` was said.
    fn advance<W>(&mut self, i: usize, out: &mut Vec<Effect<W>>) -> Verdict {
        let Some(finish) = self.finish else {
            return Verdict::Go;
        };
        let (leg, state) = (&self.legs[i].0, &self.legs[i].1);
        let leg = *leg;
        if !matches!(state.phase, Phase::Pages | Phase::Aux) || state.outstanding > 0 {
            return Verdict::Go;
        }
        if state.phase == Phase::Pages {
            let wanted = state.wanted();
            if let Some(cell) = state.landed.first_missing(&wanted) {
                return end(
                    Code::CoverageIncomplete,
                    format!(
                        "finish({}) was said, but {cell} was never pushed",
                        finish.total
                    ),
                );
            }
            if state.terms.aux {
                if !finish.aux {
                    return end(
                        Code::BadClaim,
                        format!(
                            "rank {} wants an aux row, finish gave none",
                            state.terms.rank
                        ),
                    );
                }
                let job = self.next_job;
                self.next_job += 1;
                self.jobs.insert(
                    job,
                    Job {
                        spec: JobSpec::Aux,
                        chunk: None,
                    },
                );
                out.push(Effect::Post {
                    leg,
                    job,
                    spec: JobSpec::Aux,
                });
                self.legs[i].1.phase = Phase::Aux;
                self.legs[i].1.outstanding += 1;
                return Verdict::Go;
            }
        }
        let state = &mut self.legs[i].1;
        state.phase = Phase::Complete;
        let checksum = state.terms.checksum.then_some(state.checksum);
        let coverage = state.landed.clone();
        let say = Say::Complete {
            total: finish.total,
            coverage,
            checksum,
        };
        out.push(Effect::Say { leg, say });
        crate::switched!(DoneOnComplete => {
            state.phase = Phase::Accepted;
            let accepted = self.legs.iter().filter(|(_, l)| l.phase == Phase::Accepted);
            if accepted.count() == usize::from(self.receivers) {
                return Verdict::AllAccepted;
            }
        });
        Verdict::Go
    }

    fn leg(&mut self, leg: LegNo) -> Option<&mut Leg> {
        self.legs
            .iter_mut()
            .find(|(no, _)| *no == leg)
            .map(|(_, l)| l)
    }
}

fn stale<W>(what: &'static str, out: &mut Vec<Effect<W>>) -> Verdict {
    out.push(Effect::Note(Note::Stale(what)));
    Verdict::Go
}
