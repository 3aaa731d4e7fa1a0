//! Builds plugins, and what tests pass to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mesh_plugin_host::{
    AbortReason, ActivationRequest, CallError, DiscardReason, Disposition, FinishReason, GenerationAbort,
    GenerationCommit, GenerationFinish, GenerationStart, Ids, Instance, Library, LoadError, ProposalDiscard,
    ProposalOutcome, ProposalQuery, Tokenizer, Wake,
};
use tempfile::TempDir;

/// A plugin that was built, and a directory for it.
pub struct Fixture {
    directory: TempDir,
    pub path: PathBuf,
}

impl Fixture {
    /// Builds `tests/fixtures/plugin.c` with `-D` switches, given without it.
    pub fn build(switches: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin.so");
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let output = Command::new(compiler)
            .args(["-std=c11", "-shared", "-fPIC", "-pthread"])
            .arg("-I")
            .arg(here.join("../abi/include"))
            .args(switches.iter().map(|switch| format!("-D{switch}")))
            .arg("-o")
            .arg(&path)
            .arg(here.join("tests/fixtures/plugin.c"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { directory, path }
    }

    pub fn load(&self) -> Result<Library, LoadError> {
        Library::load(&self.path, None)
    }

    /// Loaded, and active without a tokenizer.
    pub fn active(switches: &[&str]) -> (Self, Instance) {
        let fixture = Self::build(switches);
        let instance = fixture.activate(&fixture.load().unwrap(), ignored()).unwrap();
        (fixture, instance)
    }

    pub fn activate(&self, library: &Library, wake: Wake) -> Result<Instance, CallError> {
        self.activate_with(library, None, wake)
    }

    pub fn activate_with(
        &self,
        library: &Library,
        tokenizer: Option<Arc<dyn Tokenizer>>,
        wake: Wake,
    ) -> Result<Instance, CallError> {
        library.activate(&self.request(), tokenizer, wake)
    }

    pub fn request(&self) -> ActivationRequest<'_> {
        ActivationRequest {
            model_id: "model",
            model_digest: [0xab; 32],
            tokenizer_id: "vocabulary",
            config_path: Some(Path::new("/etc/plugin.toml")),
            state_dir: Some(self.directory.path()),
            proposal_budget: Duration::from_micros(1500),
            context_length: 8192,
            max_candidates: 16,
        }
    }

    /// What the plugin wrote down, but for its activation.
    pub fn log(&self) -> Vec<String> {
        let mut lines = self.whole_log();
        lines.retain(|line| !line.starts_with("activate "));
        lines
    }

    pub fn whole_log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

/// Waits for something that comes about soon.
pub fn until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come about");
        thread::yield_now();
    }
}

pub fn ignored() -> Wake {
    Arc::new(|_| {})
}

/// A wake that writes down its operations.
pub fn recorder() -> (Wake, Arc<Mutex<Vec<u64>>>) {
    let woken = Arc::new(Mutex::new(Vec::new()));
    let recorded = woken.clone();
    (
        Arc::new(move |operation| recorded.lock().unwrap().push(operation)),
        woken,
    )
}

pub const IDS: Ids<'static> = Ids {
    request: "request",
    session: "session",
    agent_session: "agent",
};

pub const START: GenerationStart<'static> = GenerationStart {
    ids: IDS,
    attempt: 1,
    prompt: &[1, 2, 3],
};

pub const COMMIT: GenerationCommit<'static> = GenerationCommit {
    ids: IDS,
    tokens: &[4, 5],
    total: 2,
};

pub const FINISH: GenerationFinish<'static> = GenerationFinish {
    ids: IDS,
    attempt: 1,
    reason: FinishReason::Stop,
    incomplete: false,
    prompt_count: 3,
    prompt_digest: [0xcd; 32],
    generated: &[4, 5],
    queued: Duration::from_nanos(10),
    first_token: Duration::from_nanos(20),
    generation: Duration::from_nanos(30),
    token_ns: &[31, 32],
};

pub const ABORT: GenerationAbort<'static> = GenerationAbort {
    ids: IDS,
    attempt: 1,
    reason: AbortReason::Failed,
    incomplete: false,
    after_failed_finish: false,
    committed_count: 2,
};

pub const QUERY: ProposalQuery<'static> = ProposalQuery {
    ids: IDS,
    max_tokens: 4,
    prompt_count: 10,
    committed_count: 20,
    step: 6,
    deadline_ns: u64::MAX,
    tail: &[8, 9],
};

pub const OUTCOME: ProposalOutcome<'static> = ProposalOutcome {
    ids: IDS,
    decision_id: b"decision",
    disposition: Disposition::FullAccept,
    step: 6,
    proposed_count: 2,
    accepted_count: 2,
    committed: &[5, 5, 7],
    predictions: &[5, 5],
    base_position: 30,
    verified_position: 32,
    canonical_position: 33,
};

pub const DISCARD: ProposalDiscard<'static> = ProposalDiscard {
    ids: IDS,
    decision_id: b"decision",
    reason: DiscardReason::Cancelled,
    step: 6,
    proposed_count: 2,
    base_position: 30,
};
