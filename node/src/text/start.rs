//! Starts a text child and has it load its vocabulary.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use mesh_proto::{ErrorCode, MeshError};
use prost::Message as _;
use tokio::time::timeout;

use super::wire::{Load, Order, OrderKind, Ready, Report, ReportKind};
use crate::child::{Child, ChildLimits, ChildProgram, Job};

/// Memory of a text child, bytes: a gigabyte of stack for a long text, half a gigabyte for each template that is rendered,
/// and what tokenizing eight megabytes takes.
const MEMORY: u64 = 4 << 30;

/// The largest vocabularies (262,144 tokens) load in a second.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// Templates of real models compile and render within milliseconds. What compiling folds is not limited by fuel.
const TEMPLATE_LIMIT: Duration = Duration::from_secs(5);

/// What a child is started with, each time.
#[derive(Debug, Clone)]
pub(super) struct Start {
    pub program: ChildProgram,
    pub path: PathBuf,
    /// The model's template ended a child.
    pub fallback: Option<String>,
}

/// Why loading came to nothing.
enum Failure {
    Refused(MeshError),
    /// In the tokenizer, or before.
    Tokenizer(String),
    Template(String),
}

impl Start {
    /// A child that has loaded and tried the vocabulary. A template that ends it is replaced by a fallback.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ModelInvalid`], or the system has no room for a process.
    pub async fn run(&mut self) -> Result<(Child, Ready), MeshError> {
        match self.attempt().await {
            Err(Failure::Template(why)) if self.fallback.is_none() => {
                self.fallback = Some(format!("the model's does not work: {why}"));
                self.attempt().await.map_err(|failure| self.explain(failure))
            }
            other => other.map_err(|failure| self.explain(failure)),
        }
    }

    async fn attempt(&self) -> Result<(Child, Ready), Failure> {
        let limits = ChildLimits {
            memory: Some(MEMORY),
            cpu: None,
        };
        let mut child = self
            .program
            .spawn(Job::Text, limits, true)
            .map_err(|error| Failure::Refused(not_started(&error)))?;
        let order = Order {
            kind: Some(OrderKind::Load(Load {
                path: self.path.as_os_str().as_bytes().to_vec(),
                fallback: self.fallback.clone(),
            })),
        };
        // If it cannot be told, it has ended, and says so below.
        let _ = child.input.send(&order.encode_to_vec()).await;
        match report(&mut child, LOAD_LIMIT).await {
            Ok(ReportKind::TokenizerWorks(_)) => {}
            Ok(ReportKind::Refused(refusal)) => return Err(Failure::Refused(refusal.into())),
            Ok(_) => return Err(Failure::Tokenizer("it said something out of turn".to_owned())),
            Err(silence) => return Err(Failure::Tokenizer(silence.explain(child).await)),
        }
        match report(&mut child, TEMPLATE_LIMIT).await {
            Ok(ReportKind::Ready(ready)) => Ok((child, ready)),
            Ok(ReportKind::Refused(refusal)) => Err(Failure::Refused(refusal.into())),
            Ok(_) => Err(Failure::Template("it said something out of turn".to_owned())),
            Err(silence) => Err(Failure::Template(silence.explain(child).await)),
        }
    }

    fn explain(&self, failure: Failure) -> MeshError {
        let (part, why) = match failure {
            Failure::Refused(error) => return error,
            Failure::Tokenizer(why) => ("tokenizer", why),
            Failure::Template(why) => ("chat template", why),
        };
        let message = format!(
            "the {part} of {} cannot be used: tried in a process of its own, {why}; convert or fetch the model again",
            Path::new(self.path.file_name().unwrap_or_default()).display()
        );
        MeshError::new(ErrorCode::ModelInvalid, message)
    }
}

pub(super) fn not_started(error: &std::io::Error) -> MeshError {
    let message = format!("cannot start a process for the tokenizer: {error}; check the limits of this user");
    MeshError::new(ErrorCode::InsufficientResources, message)
}

/// Why there is no report.
enum Silence {
    /// The child has ended, or says nonsense.
    Ended,
    /// It takes longer than this.
    Late(Duration),
}

impl Silence {
    async fn explain(self, child: Child) -> String {
        match self {
            Self::Ended => child.process.wait().await.to_string(),
            Self::Late(limit) => {
                drop(child);
                format!("it took more than {} s", limit.as_secs())
            }
        }
    }
}

async fn report(child: &mut Child, limit: Duration) -> Result<ReportKind, Silence> {
    let frame = timeout(limit, child.output.receive())
        .await
        .map_err(|_| Silence::Late(limit))?;
    let frame = frame.ok().flatten().ok_or(Silence::Ended)?;
    let report = Report::decode(&*frame).map_err(|_| Silence::Ended)?;
    report.kind.ok_or(Silence::Ended)
}
