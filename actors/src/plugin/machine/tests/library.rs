//! The plugin: each call must be one that it may get now, and returns what the script says.

use super::*;

pub(super) fn fault(kind: CallFaultKind) -> CallFault {
    let message = "as scripted".to_owned();
    CallFault { kind, message }
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
            match &job.call {
                Call::Begin(_) => assert!(!std::mem::replace(&mut told.begun, true) && told.total == 0),
                Call::Commit { tokens, total } => {
                    assert!(told.begun, "a commit without begin");
                    told.total += tokens.len() as u64;
                    assert_eq!(told.total, *total, "a gap");
                }
                Call::Propose { .. } => {
                    assert!(told.begun && told.operation.is_none(), "an operation is open");
                    assert!(self.now < deadline_of(&job.call), "it was expired");
                }
                Call::Poll { operation, .. } => assert_eq!(told.operation, Some(*operation)),
                Call::Cancel { operation } => assert_eq!(told.operation.take(), Some(*operation)),
                Call::Report(report) => {
                    assert!(told.decisions.remove(&report.0.decision.to_string()), "resolved twice");
                }
                Call::Discard(discarded) => {
                    assert!(told.decisions.remove(&discarded.decision.to_string()), "resolved twice");
                }
                Call::Finish(finish) => {
                    assert!(told.begun || finish.incomplete);
                    assert!(
                        self.asking[key].fence.is_some_and(|fence| self.now < fence),
                        "it waited too long"
                    );
                    assert!(told.decisions.is_empty() && told.operation.is_none(), "{told:?}");
                    if !finish.incomplete {
                        assert_eq!(
                            told.total as usize,
                            finish.receipt.generated.len(),
                            "begin + commits = receipt"
                        );
                    }
                    told.ended = true;
                }
                Call::Abort(abort) => {
                    assert!(told.begun || abort.incomplete);
                    assert_eq!(abort.after_failed_finish, told.finish_failed);
                    assert!(told.decisions.is_empty() && told.operation.is_none(), "{told:?}");
                    told.ended = true;
                    told.finish_failed = false;
                }
                Call::Activate | Call::Shutdown => unreachable!("they have no generation"),
            }
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

pub(super) fn deadline_of(call: &Call) -> Instant {
    match call {
        Call::Propose { deadline, .. } => *deadline,
        _ => unreachable!("only proposals have one"),
    }
}
