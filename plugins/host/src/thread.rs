//! Threads that do not return. A call into a plugin cannot be ended from outside; what can be done is to see to it that
//! its thread takes no time from others. Linux only.

use crate::raw;

/// A thread of this process, by the system's number. Once it has ended, the system may give its number to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadId(i32);

/// The calling thread. None where [`demote`] does nothing.
pub fn current() -> Option<ThreadId> {
    raw::thread::current().map(ThreadId)
}

/// Lets a thread run only when no other thread wants its processor (`SCHED_IDLE`), or, where that is refused, after
/// most others (nice 19). Whether that was done: not for a thread that is no longer there.
///
/// For threads that are given up. It cannot be undone without privileges (`CAP_SYS_NICE`, or a limit on nice values that
/// was raised), so a thread that returns after all should end and not be used again; threads that it starts from now on
/// are as it is. A lock that it holds, of the allocator for instance, may stay held for longer on a busy machine. The
/// caller knows that the thread has not ended: of a number that went to another thread of this process, it would be that
/// one.
pub fn demote(thread: ThreadId) -> bool {
    raw::thread::demote(thread.0)
}
