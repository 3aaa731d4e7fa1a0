//! Numbers of epochs, which never come again for one owner: what is left anywhere of an earlier epoch, even one of a
//! run of the node before this, is not taken for the present one.

use std::sync::{Arc, Mutex, PoisonError};

use mesh_proto::MeshError;

use crate::ports::desired::DesiredState;

/// Epochs that are taken at once, so that not each needs the disk. Those left over when the node ends are not used.
const TAKEN_AT_ONCE: u64 = 1000;

/// The epochs of one owner.
pub struct Epochs {
    desired: Arc<dyn DesiredState>,
    taken: Mutex<Taken>,
}

struct Taken {
    last: u64,
    until: u64,
    /// The next ones are being taken.
    more: bool,
}

impl Epochs {
    /// Takes the first ones of this run. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// They cannot be written down.
    pub fn take(desired: Arc<dyn DesiredState>) -> Result<Self, MeshError> {
        let last = desired.take_epochs(TAKEN_AT_ONCE)?;
        let taken = Taken {
            last,
            until: last + TAKEN_AT_ONCE,
            more: false,
        };
        Ok(Self {
            desired,
            taken: Mutex::new(taken),
        })
    }

    /// An epoch that no deployment of this node has had.
    pub(super) fn next(self: &Arc<Self>) -> u64 {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.last += 1;
        // The disk has as many arrangements as are left to do it, each of which takes its back-off.
        if !taken.more && taken.until - taken.last.min(taken.until) < TAKEN_AT_ONCE / 2 {
            taken.more = true;
            let epochs = self.clone();
            // It owns all it needs, and ends with the disk's answer.
            drop(tokio::task::spawn_blocking(move || epochs.take_more()));
        }
        taken.last
    }

    fn take_more(&self) {
        let more = self.desired.take_epochs(TAKEN_AT_ONCE);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.more = false;
        match more {
            // Nobody else takes any, so that they follow those taken before.
            Ok(_) => taken.until += TAKEN_AT_ONCE,
            Err(error) => tracing::warn!(%error, "epochs of this run may come again in the next"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::{ScriptedDesired, eventually};

    #[tokio::test]
    async fn no_epoch_comes_again_in_another_run_however_many_there_are() {
        let desired = Arc::new(ScriptedDesired::default());
        let mut last = 0;
        for run in 0..3 {
            let epochs = Arc::new(Epochs::take(desired.clone()).unwrap());
            for _ in 0..2 * TAKEN_AT_ONCE + 1 {
                let next = epochs.next();
                assert!(next > last, "run {run}: {next} after {last}");
                last = next;
                if epochs.taken.lock().unwrap().more {
                    eventually("more epochs", || !epochs.taken.lock().unwrap().more).await;
                }
            }
            assert!(desired.epochs() > last);
        }
    }
}
