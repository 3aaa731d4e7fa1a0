//! The plugin: each call must be one that it may get now, and returns what the script says.

use super::{world::Told, *};

pub(super) fn fault(kind: CallFaultKind) -> CallFault {
    let message = "as scripted".to_owned();
    CallFault { kind, message }
}

impl Told {
    /// A call of its generation begins.
    fn hear(&mut self, call: &Call, now: Instant, fence: Option<Instant>) {
        match call {
            Call::Begin(_) => assert!(!std::mem::replace(&mut self.begun, true) && self.total == 0),
            Call::Commit { tokens, total } => {
                assert!(self.begun, "a commit without begin");
                self.total += tokens.len() as u64;
                assert_eq!(self.total, *total, "a gap");
            }
            Call::Propose { deadline, .. } => {
                assert!(self.begun && self.operation.is_none(), "an operation is open");
                assert!(now < *deadline, "it was expired");
            }
            Call::Poll { operation, .. } => assert_eq!(self.operation, Some(*operation)),
            Call::Cancel { operation } => assert_eq!(self.operation.take(), Some(*operation)),
            Call::Report(report) => self.hear_of(&report.0.decision),
            Call::Discard(discarded) => self.hear_of(&discarded.decision),
            Call::Finish(finish) => {
                assert!(fence.is_some_and(|fence| now < fence), "it waited too long");
                let generated = finish.receipt.generated.len();
                let adds_up = self.total as usize == generated;
                assert!(finish.incomplete || adds_up, "begin + commits = receipt");
                self.end(finish.incomplete);
            }
            Call::Abort(abort) => {
                assert_eq!(abort.after_failed_finish, self.finish_failed);
                self.end(abort.incomplete);
                self.finish_failed = false;
            }
            Call::Activate | Call::Shutdown => unreachable!("they have no generation"),
        }
    }

    fn hear_of(&mut self, decision: &DecisionId) {
        assert!(self.decisions.remove(&decision.to_string()), "resolved twice");
    }

    fn end(&mut self, incomplete: bool) {
        assert!(self.begun || incomplete);
        assert!(self.decisions.is_empty() && self.operation.is_none(), "{self:?}");
        self.ended = true;
    }
}

impl World {
    /// A call begins: it must be allowed.
    pub(super) fn run(&mut self, job: Job) {
        if let Some((key, _)) = &job.generation {
            let told = self.told.entry(*key).or_default();
            assert!(!told.running, "calls overlap: {job:?}");
            assert!(!told.ended || told.finish_failed, "a call after the end: {job:?}");
            told.running = true;
            if self.shut_out {
                assert!(job.call.ends(), "called though it is shut out: {job:?}");
            }
            let fence = self.asking[key].fence;
            told.hear(&job.call, self.now, fence);
        } else if matches!(job.call, Call::Shutdown) {
            assert!(
                self.told
                    .values()
                    .all(|told| !told.running && (told.ended || !told.begun))
            );
        }
        assert!(self.jobs.insert(job.worker, job).is_none(), "the thread is busy");
    }

    /// A call returns.
    pub(super) fn finish_call(&mut self, worker: WorkerKey, how: Return) {
        let Some(job) = self.jobs.remove(&worker) else { return };
        let result = match (&job.generation, &job.call) {
            (Some((key, _)), Call::Propose { query, .. }) => {
                self.operations += 1;
                let operation = self.operations;
                if matches!(how, Return::StartFails) {
                    self.told.get_mut(key).unwrap().running = false;
                    CallResult::Proposed {
                        operation: None,
                        poll: Err(fault(CallFaultKind::Error)),
                    }
                } else {
                    let poll = self.poll(*key, operation, query, how);
                    let operation = Some(operation);
                    CallResult::Proposed { operation, poll }
                }
            }
            (Some((key, _)), Call::Poll { operation, query }) => {
                CallResult::Polled(self.poll(*key, *operation, query, how))
            }
            (Some((key, _)), call) => {
                let told = self.told.get_mut(key).unwrap();
                told.running = false;
                let result = plain(how);
                if matches!(call, Call::Finish(_)) && result.is_err() {
                    told.finish_failed = true;
                    told.ended = false;
                }
                CallResult::Returned(result)
            }
            (None, _) => CallResult::Returned(plain(how)),
        };
        self.input(Input::Done { worker, result });
    }

    pub(super) fn poll(
        &mut self,
        key: GenerationKey,
        operation: u64,
        query: &ProposalQuery,
        how: Return,
    ) -> Result<Poll, CallFault> {
        let told = self.told.get_mut(&key).unwrap();
        told.running = false;
        told.operation = Some(operation);
        let decision = DecisionId::new(format!("{operation}").as_bytes()).unwrap();
        match how {
            Return::Ready | Return::Ok => {
                told.operation = None;
                told.decisions.insert(decision.to_string());
                Ok(Poll::Ready(Candidates {
                    decision,
                    step: query.step,
                    tokens: vec![1],
                    base_position: query.base_position(),
                }))
            }
            Return::Abstain => {
                told.operation = None;
                Ok(Poll::Abstain)
            }
            Return::Invalid { named } => {
                let discarded = Discarded {
                    decision: decision.clone(),
                    step: query.step,
                    proposed: 9,
                    base_position: 0,
                    reason: DiscardReason::InvalidTokenCount,
                };
                if named {
                    told.decisions.insert(decision.to_string());
                }
                Ok(Poll::Invalid {
                    message: "too many".to_owned(),
                    decision: named.then_some(discarded),
                })
            }
            Return::Failed => Ok(Poll::Failed("as scripted".to_owned())),
            Return::Pending | Return::StartFails => Ok(Poll::Pending),
            Return::Error => Err(fault(CallFaultKind::Error)),
            Return::Panicked => Err(fault(CallFaultKind::Panicked)),
            Return::Unknown => Err(fault(CallFaultKind::UnknownStatus(77))),
        }
    }
}

pub(super) fn plain(how: Return) -> Result<(), CallFault> {
    match how {
        Return::Error | Return::Failed | Return::StartFails => Err(fault(CallFaultKind::Error)),
        Return::Panicked => Err(fault(CallFaultKind::Panicked)),
        Return::Unknown => Err(fault(CallFaultKind::UnknownStatus(77))),
        _ => Ok(()),
    }
}
