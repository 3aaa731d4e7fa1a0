//! Threads that are given up.

#![cfg(target_os = "linux")]

use std::fs;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use mesh_plugin_host::thread::{ThreadId, current, demote};

use crate::fixture::until;

const SCHED_OTHER: &str = "0";
const SCHED_IDLE: &str = "5";

/// A thread that runs until the sender is dropped, and its directory below `/proc`.
fn waiting() -> (ThreadId, String, mpsc::Sender<()>, JoinHandle<()>) {
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let directory = fs::read_link("/proc/thread-self").unwrap();
        tell.send((current().unwrap(), format!("/proc/{}", directory.display())))
            .unwrap();
        let _ = ended.recv();
    });
    let (id, directory) = told.recv().unwrap();
    (id, directory, end, thread)
}

/// Scheduling policy of a thread: field 41, see proc_pid_stat(5).
fn policy(directory: &str) -> String {
    let stat = fs::read_to_string(format!("{directory}/stat")).unwrap();
    // The name, field 2, may have spaces in it.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(41 - 3).unwrap().to_owned()
}

#[test]
fn a_thread_that_is_demoted_runs_only_when_no_other_wants_to() {
    let (id, directory, end, thread) = waiting();
    let (_, other, other_end, other_thread) = waiting();
    assert_eq!(policy(&directory), SCHED_OTHER);
    assert!(demote(id));
    assert_eq!(policy(&directory), SCHED_IDLE);
    assert_eq!(policy(&other), SCHED_OTHER);
    assert_eq!(policy("/proc/thread-self"), SCHED_OTHER);
    drop((end, other_end));
    thread.join().unwrap();
    other_thread.join().unwrap();
}

#[test]
fn a_thread_that_has_ended_cannot_be_demoted() {
    let (id, _, end, thread) = waiting();
    drop(end);
    thread.join().unwrap();
    // The system may take a moment longer to forget it.
    until(|| !demote(id));
}

#[test]
fn each_thread_is_another() {
    let (id, _, end, thread) = waiting();
    assert_ne!(current(), Some(id));
    assert_eq!(current(), current());
    drop(end);
    thread.join().unwrap();
}
