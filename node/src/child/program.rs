//! The parent's side: starts children, and ends them.

use std::{
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::BufReader,
    process::{self, ChildStdin, ChildStdout, Command},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::{ChildEnd, ChildLimits, frame, last_words::last_words};

/// The rest of stderr of a child that has ended is in the pipe. Whoever else holds that pipe open is not waited for.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(1);

/// A child that has closed its output ends at once; one that has not by then is killed.
const END_LIMIT: Duration = Duration::from_secs(2);

/// What a child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Tokenizes and renders chat templates.
    Text,
    /// Loads a stage file that this node has not loaded before, and computes some rows in it.
    Prove,
}

/// The binary that children run: this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildProgram {
    path: PathBuf,
}

/// A child that runs.
#[derive(Debug)]
pub struct Child {
    /// Frames to the child.
    pub input: ChildInput,
    /// Frames from the child.
    pub output: ChildOutput,
    /// Its life.
    pub process: ChildProcess,
}

/// Frames to a child. Dropping it ends the child.
#[derive(Debug)]
pub struct ChildInput(ChildStdin);

/// Frames from a child.
#[derive(Debug)]
pub struct ChildOutput(BufReader<ChildStdout>);

/// The life of a child: dropping this kills it, and tokio reaps it.
#[derive(Debug)]
pub struct ChildProcess {
    child: process::Child,
    last_words: Option<AbortOnDropHandle<String>>,
}

impl Job {
    /// Name of the hidden subcommand of `mesh internal`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Prove => "prove",
        }
    }
}

impl ChildProgram {
    /// The program of this process.
    ///
    /// # Errors
    ///
    /// Its file cannot be told.
    pub fn current() -> io::Result<Self> {
        // Also when the file has been replaced or removed since, as it is by an upgrade.
        if cfg!(target_os = "linux") {
            return Ok(Self::at("/proc/self/exe"));
        }
        Ok(Self::at(std::env::current_exe()?))
    }

    /// A `mesh` binary, for tests whose own program is another.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
        }
    }

    /// Starts a child. Needs a tokio runtime with IO; `exact` is as of [`crate::prepare_process`].
    ///
    /// # Errors
    ///
    /// The system has no room for another process.
    pub fn spawn(&self, job: Job, limits: ChildLimits, exact: bool) -> io::Result<Child> {
        let mut command = Command::new(&self.path);
        // Otherwise `ps` would show the path under /proc.
        command.arg0("mesh");
        command.args(["internal", job.name()]).args(limits.arguments());
        if !exact {
            command.arg("--no-exact");
        }
        Child::start(command)
    }
}

impl Child {
    fn start(mut command: Command) -> io::Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C in the terminal is for the node, which drains and needs its children for that.
            .process_group(0)
            // A failed assertion would start a debugger.
            .env("GGML_NO_BACKTRACE", "1");
        // Settings and secrets of the node are none of the child's.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"MESH_") {
                command.env_remove(name);
            }
        }
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("a child was started without its pipes"));
        };
        Ok(Self {
            input: ChildInput(stdin),
            output: ChildOutput(BufReader::new(stdout)),
            process: ChildProcess {
                child,
                last_words: Some(AbortOnDropHandle::new(tokio::spawn(last_words(stderr)))),
            },
        })
    }
}

impl ChildInput {
    /// Sends a frame. Not cancel-safe: drop the child if this is not awaited to its end.
    ///
    /// # Errors
    ///
    /// The child has ended, or the frame is longer than [`MAX_FRAME`](super::MAX_FRAME).
    pub async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        frame::send(&mut self.0, frame).await
    }
}

impl ChildOutput {
    /// The next frame; `None` when the child has ended. Not cancel-safe, as [`ChildInput::send`].
    ///
    /// # Errors
    ///
    /// What came is no frame.
    pub async fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        frame::receive(&mut self.0).await
    }
}

impl ChildProcess {
    /// Process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Tells how a child ended that is ending by itself, as its output says.
    pub async fn wait(mut self) -> ChildEnd {
        match timeout(END_LIMIT, self.child.wait()).await {
            Ok(status) => self.ended(status.ok()).await,
            Err(_) => self.end().await,
        }
    }

    /// Kills the child if it still runs, and tells how it ended.
    pub async fn end(mut self) -> ChildEnd {
        // It is gone already if it cannot be killed.
        let _ = self.child.start_kill();
        let status = self.child.wait().await.ok();
        self.ended(status).await
    }

    async fn ended(&mut self, status: Option<ExitStatus>) -> ChildEnd {
        let last_words = match self.last_words.take() {
            Some(words) => timeout(LAST_WORDS_LIMIT, words).await.ok().and_then(Result::ok),
            None => None,
        };
        ChildEnd {
            status,
            last_words: last_words.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::start(command).unwrap()
    }

    #[tokio::test]
    async fn frames_go_there_and_come_back() {
        let mut child = shell("exec cat");
        // More than a pipe holds, so that both directions run at once.
        let long = vec![7; 1 << 20];
        let (sent, received) = tokio::join!(child.input.send(&long), child.output.receive());
        sent.unwrap();
        assert_eq!(received.unwrap(), Some(long));
    }

    #[tokio::test]
    async fn the_end_is_told_with_signal_and_last_words() {
        let mut child = shell("echo first >&2; echo last >&2; kill -ABRT $$");
        assert_eq!(child.output.receive().await.unwrap(), None);
        let end = child.process.wait().await;
        assert_eq!(end.to_string(), "it was ended by SIGABRT: first; last");
    }

    #[tokio::test]
    async fn a_child_that_does_not_end_by_itself_is_killed() {
        let child = shell("trap '' TERM; while :; do :; done");
        let end = child.process.end().await;
        assert_eq!(end.to_string(), "it was ended by SIGKILL");
    }

    #[tokio::test]
    async fn output_that_is_no_frame_is_an_error() {
        let mut child = shell("echo this is no frame; exec sleep 60");
        let error = child.output.receive().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
