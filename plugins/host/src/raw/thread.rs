//! Threads, as the system's scheduler knows them.

/// On Linux, the number that the system knows this thread by.
#[cfg(target_os = "linux")]
pub(crate) fn current() -> Option<i32> {
    // SAFETY: the call takes nothing and cannot fail.
    let number = unsafe { libc::syscall(libc::SYS_gettid) };
    i32::try_from(number).ok()
}

/// Whether the thread was found and has a lower rank now.
#[cfg(target_os = "linux")]
pub(crate) fn demote(thread: i32) -> bool {
    // The kernel's `sched_param`, of which an idle thread's is 0.
    let priority: libc::c_int = 0;
    // Straight to the kernel: not every libc lets this name a single thread, and musl not at all.
    // SAFETY: signal 0 is not sent, it asks whether the thread is one of this process; the parameter outlives the call.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0
            && (libc::syscall(
                libc::SYS_sched_setscheduler,
                thread,
                libc::SCHED_IDLE,
                &raw const priority,
            ) == 0
                || libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, thread, LEAST_NICE) == 0)
    }
}

/// The last of the nice values.
#[cfg(target_os = "linux")]
const LEAST_NICE: libc::c_int = 19;

#[cfg(not(target_os = "linux"))]
pub(crate) fn current() -> Option<i32> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn demote(_thread: i32) -> bool {
    false
}
