//! What a plugin may call at any time, from any thread.

use std::ffi::c_void;
use std::fmt;
use std::time::Duration;

use mesh_plugin_abi::MeshActivation;

use crate::Operation;

type NowNs = unsafe extern "C" fn(host: *mut c_void) -> u64;
type Wake = unsafe extern "C" fn(host: *mut c_void, operation: u64);

/// Tells the node that a pending operation changed state. Cheap; unknown operations are ignored, also after shutdown.
#[derive(Clone)]
pub struct Waker {
    host: *mut c_void,
    wake: Option<Wake>,
}

// SAFETY: the node takes wakes from any thread for as long as the process lives.
unsafe impl Send for Waker {}
// SAFETY: as above.
unsafe impl Sync for Waker {}

impl Waker {
    pub(crate) fn new(activation: &MeshActivation) -> Self {
        Self {
            host: activation.host,
            wake: activation.wake,
        }
    }

    /// The node polls this operation soon.
    pub fn wake(&self, operation: Operation) {
        if let Some(wake) = self.wake {
            // SAFETY: the function and its argument came together, and are valid as long as the process.
            unsafe { wake(self.host, operation.0) }
        }
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").finish_non_exhaustive()
    }
}

/// The monotonic clock of deadlines.
#[derive(Clone)]
pub struct Clock {
    host: *mut c_void,
    now_ns: Option<NowNs>,
}

// SAFETY: the node's clock may be read from any thread for as long as the process lives.
unsafe impl Send for Clock {}
// SAFETY: as above.
unsafe impl Sync for Clock {}

impl Clock {
    pub(crate) fn new(activation: &MeshActivation) -> Self {
        Self {
            host: activation.host,
            now_ns: activation.now_ns,
        }
    }

    /// Now, from the clock's own beginning. Zero if the node gave no clock.
    pub fn now(&self) -> Duration {
        let Some(now_ns) = self.now_ns else {
            return Duration::ZERO;
        };
        // SAFETY: the function and its argument came together, and are valid as long as the process.
        Duration::from_nanos(unsafe { now_ns(self.host) })
    }

    /// What is left until a deadline, zero after it.
    pub fn left(&self, deadline: Duration) -> Duration {
        deadline.saturating_sub(self.now())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}
