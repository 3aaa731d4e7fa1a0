//! What requests and a plugin do, at random.

use proptest::prelude::*;

/// What a plugin does with the call that a thread is in.
#[derive(Debug, Clone, Copy)]
pub(super) enum Return {
    Ok,
    Error,
    Panicked,
    Unknown,
    Pending,
    Ready,
    Abstain,
    Invalid { named: bool },
    Failed,
    StartFails,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Begin,
    Commit(usize),
    Ask(usize),
    Withdraw(usize),
    Resolve(usize, bool),
    Finish(usize),
    Abort(usize),
    Return(usize, Return),
    Wake(usize),
    Advance(u16),
    /// The model is gone, if no request holds it.
    Detach,
    Close(u16),
}

pub(super) fn returns() -> impl Strategy<Value = Return> {
    prop_oneof![
        20 => Just(Return::Ok),
        3 => Just(Return::Error),
        8 => Just(Return::Pending),
        10 => Just(Return::Ready),
        5 => Just(Return::Abstain),
        1 => any::<bool>().prop_map(|named| Return::Invalid { named }),
        1 => Just(Return::Failed),
        1 => Just(Return::StartFails),
    ]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let of = any::<usize>;
    prop_oneof![
        4 => Just(Step::Begin),
        6 => of().prop_map(Step::Commit),
        6 => of().prop_map(Step::Ask),
        1 => of().prop_map(Step::Withdraw),
        5 => (of(), any::<bool>()).prop_map(|(at, report)| Step::Resolve(at, report)),
        2 => of().prop_map(Step::Finish),
        1 => of().prop_map(Step::Abort),
        20 => (of(), returns()).prop_map(|(at, how)| Step::Return(at, how)),
        3 => of().prop_map(Step::Wake),
        4 => (0u16..40).prop_map(Step::Advance),
        1 => (0u16..9000).prop_map(Step::Advance),
        1 => Just(Step::Detach),
    ]
}
