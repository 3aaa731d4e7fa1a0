//! Ports whose every step the test decides.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use mesh_actors::{
    ports::{
        inference::{Administration, Caller, Generation, Inference, ServeStream, ServedModel},
        lifecycle::{Lifecycles, NoticeStream},
    },
    request::journal::{JournalWriter, journal},
};
use mesh_proto::{
    ErrorCode, MeshError,
    v1::{self, FinishReason, GenerateFinished, GenerateRequest, GenerateStarted},
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::server::within;

/// A request that waits for the test's decision.
pub struct Asked {
    pub request: GenerateRequest,
    decide: oneshot::Sender<Result<Generation, MeshError>>,
}

impl Asked {
    /// Admits the request: the test writes its answer.
    pub fn admit(self) -> JournalWriter {
        let (writer, generation) = admitted(&self.request);
        assert!(self.decide.send(Ok(generation)).is_ok(), "the client waits");
        writer
    }

    pub fn refuse(self, error: MeshError) {
        assert!(self.decide.send(Err(error)).is_ok(), "the client waits");
    }

    /// Returns when the caller has given up before the decision.
    pub async fn abandoned(&mut self) {
        self.decide.closed().await;
    }
}

fn admitted(request: &GenerateRequest) -> (JournalWriter, Generation) {
    let (writer, events) = journal();
    let seed = request
        .sampling
        .as_ref()
        .and_then(|sampling| sampling.seed)
        .unwrap_or(42);
    let request_id = request.request_id.clone();
    let started = GenerateStarted {
        request_id,
        prompt_tokens: 7,
        seed,
        created: 1_700_000_000,
    };
    (writer, Generation { started, events })
}

pub fn finished(reason: FinishReason, completion_tokens: u32) -> GenerateFinished {
    GenerateFinished {
        reason: reason.into(),
        prompt_tokens: 7,
        completion_tokens,
        timings: None,
    }
}

/// Models `smol` and `org/name:tag` are ready, `cold` is not.
pub fn models() -> Vec<ServedModel> {
    let model = |name: &str, ready| ServedModel {
        name: name.into(),
        created: 1_700_000_000,
        ready,
        context: 2048,
    };
    vec![model("smol", true), model("org/name:tag", true), model("cold", false)]
}

/// Hands every request to the test.
pub struct Manual {
    asked: mpsc::UnboundedSender<Asked>,
}

/// The test's side of [`Manual`].
pub struct Requests(mpsc::UnboundedReceiver<Asked>);

impl Requests {
    pub async fn next(&mut self) -> Asked {
        within(self.0.recv()).await.expect("a request")
    }
}

pub fn manual() -> (Arc<Manual>, Requests) {
    let (asked, requests) = mpsc::unbounded_channel();
    (Arc::new(Manual { asked }), Requests(requests))
}

#[async_trait]
impl Inference for Manual {
    fn models(&self) -> Vec<ServedModel> {
        models()
    }

    async fn generate(&self, request: GenerateRequest, _: Caller) -> Result<Generation, MeshError> {
        let (decide, decided) = oneshot::channel();
        let asked = Asked { request, decide };
        self.asked.send(asked).expect("the test listens");
        decided.await.expect("the test decides")
    }
}

/// Answers `ok` to everything at once, and keeps the requests.
#[derive(Default)]
pub struct Immediate {
    pub seen: Mutex<Vec<(GenerateRequest, Caller)>>,
    pub models: Option<Vec<ServedModel>>,
}

impl Immediate {
    pub fn last(&self) -> GenerateRequest {
        self.seen.lock().unwrap().last().expect("a request").0.clone()
    }

    pub fn last_caller(&self) -> Caller {
        self.seen.lock().unwrap().last().expect("a request").1.clone()
    }
}

#[async_trait]
impl Inference for Immediate {
    fn models(&self) -> Vec<ServedModel> {
        self.models.clone().unwrap_or_else(models)
    }

    async fn generate(&self, request: GenerateRequest, caller: Caller) -> Result<Generation, MeshError> {
        assert!(
            !matches!(&request.prompt, Some(v1::generate_request::Prompt::Text(text)) if text == "panic"),
            "asked to"
        );
        let (writer, generation) = admitted(&request);
        self.seen.lock().unwrap().push((request, caller));
        writer.commit("ok", 1);
        writer.finish(finished(FinishReason::Stop, 1));
        Ok(generation)
    }
}

/// Answers administration with fixed values; `serve` is driven by the test.
#[derive(Default)]
pub struct Admin {
    pub progress: Mutex<Option<ServeStream>>,
}

#[async_trait]
impl Administration for Admin {
    async fn status(&self) -> Result<v1::GetStatusResponse, MeshError> {
        Ok(v1::GetStatusResponse {
            node: "a".into(),
            ..Default::default()
        })
    }
    async fn create_ticket(&self) -> Result<v1::CreateTicketResponse, MeshError> {
        Ok(v1::CreateTicketResponse {
            ticket: "ticket".into(),
            expires: 1,
        })
    }
    async fn nodes(&self) -> Result<Vec<v1::Node>, MeshError> {
        Ok(vec![v1::Node {
            name: "a".into(),
            ..Default::default()
        }])
    }
    async fn plugins(&self) -> Result<Vec<v1::Plugin>, MeshError> {
        Ok(vec![v1::Plugin {
            name: "ngram".into(),
            ..Default::default()
        }])
    }
    async fn leave(&self, force: bool) -> Result<(), MeshError> {
        if force {
            return Ok(());
        }
        Err(MeshError::new(ErrorCode::Conflict, "others depend on it"))
    }
    async fn remove_node(&self, name: &str) -> Result<(), MeshError> {
        match name {
            "b" => Ok(()),
            _ => Err(MeshError::new(ErrorCode::NotFound, "no such node")),
        }
    }
    async fn serve(&self, request: v1::ServeRequest) -> Result<ServeStream, MeshError> {
        let refused = || MeshError::new(ErrorCode::ModelInvalid, format!("{} is no model", request.model));
        self.progress.lock().unwrap().take().ok_or_else(refused)
    }
    async fn stop(&self, name: &str) -> Result<(), MeshError> {
        match name {
            "smol" => Ok(()),
            _ => Err(MeshError::new(ErrorCode::ModelNotFound, "no such deployment")),
        }
    }
    async fn deployments(&self) -> Result<Vec<v1::Deployment>, MeshError> {
        Ok(vec![v1::Deployment {
            name: "smol".into(),
            ready: true,
            ..Default::default()
        }])
    }
}

/// Tells every subscriber the same and remembers what was asked for; ends with the node.
#[derive(Default)]
pub struct Told {
    pub notices: Vec<v1::SubscribeResponse>,
    pub subscribed: Mutex<Vec<v1::SubscribeRequest>>,
    pub cancelled: Mutex<Vec<String>>,
    pub end: CancellationToken,
}

#[async_trait]
impl Lifecycles for Told {
    async fn subscribe(&self, request: v1::SubscribeRequest) -> Result<NoticeStream, MeshError> {
        if request.kinds.contains(&99) {
            return Err(MeshError::invalid("kinds", "99 is no event kind"));
        }
        self.subscribed.lock().unwrap().push(request);
        let notices = stream::iter(self.notices.clone().into_iter().map(Ok)).chain(stream::pending());
        Ok(notices.take_until(self.end.clone().cancelled_owned()).boxed())
    }

    async fn requests(&self, _: v1::ListRequestsRequest) -> Result<v1::ListRequestsResponse, MeshError> {
        Ok(v1::ListRequestsResponse {
            missing: vec!["b".into()],
            ..Default::default()
        })
    }

    async fn receipt(&self, request: v1::GetReceiptRequest) -> Result<v1::Receipt, MeshError> {
        Ok(v1::Receipt {
            request_id: request.request_id,
            ..Default::default()
        })
    }

    async fn cancel(&self, request: v1::CancelRequestRequest) -> Result<(), MeshError> {
        self.cancelled.lock().unwrap().push(request.request_id);
        Ok(())
    }

    async fn close(&self) {
        self.end.cancel();
    }
}
