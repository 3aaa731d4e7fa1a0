//! One timer for an actor that has many deadlines: it fires at the earliest one it was told of.

use std::time::Instant;

use tokio::{sync::watch, task::AbortHandle};

/// The timer and its task, which ends with it.
pub struct Alarm {
    at: watch::Sender<Option<Instant>>,
    /// When it fires next, as far as this side knows.
    armed: Option<Instant>,
    task: AbortHandle,
}

impl Alarm {
    /// `fire` is called each time; it must not block.
    pub fn start(fire: impl Fn() + Send + 'static) -> Self {
        let (at, mut times) = watch::channel(None::<Instant>);
        let task = tokio::spawn(async move {
            loop {
                let time = *times.borrow_and_update();
                let sleep = async {
                    match time {
                        Some(time) => tokio::time::sleep_until(time.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = times.changed() => if changed.is_err() { return },
                    () = sleep => {
                        fire();
                        // It is armed again by whoever was told.
                        if times.changed().await.is_err() { return }
                    }
                }
            }
        });
        Self {
            at,
            armed: None,
            task: task.abort_handle(),
        }
    }

    /// It has fired.
    pub fn fired(&mut self) {
        self.armed = None;
    }

    /// Fires at this time at the latest. A later time than the one it is set to changes nothing: it fires early then,
    /// which costs less than setting it anew with every deadline that passes unused.
    pub fn set(&mut self, at: Option<Instant>) {
        if let Some(at) = at
            && self.armed.is_none_or(|armed| at < armed)
        {
            self.armed = Some(at);
            self.at.send_replace(Some(at));
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.task.abort();
    }
}
