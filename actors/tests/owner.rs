//! Deployments at their owner, with hosts that the test plays.

use std::{sync::Arc, time::Duration};

use mesh_actors::{
    deployment::{DeploymentEnvironment, Epochs, Owner},
    directory::Directory,
    ports::inference::ServeStream,
    root::RootHandle,
    scripted::{ScriptedDesired, ScriptedHosts, ScriptedStage, ScriptedStore, eventually, member},
};
use mesh_proto::{
    ErrorCode, MeshError, NodeId,
    v1::{Deployment, DeploymentPhase, Node, NodeState, ServeRequest, serve_response},
    wire::{DeploymentList, DeploymentRoute, HostActivated, HostConnected, HostLoaded, host_command, host_event},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

struct World {
    owner: Owner,
    store: Arc<ScriptedStore>,
    hosts: Arc<ScriptedHosts>,
    directory: Directory,
    members: watch::Sender<Vec<Node>>,
    desired: Arc<ScriptedDesired>,
}

impl World {
    async fn new() -> Self {
        Self::after(Arc::default()).await
    }

    /// A run of the node after the one that left this.
    async fn after(desired: Arc<ScriptedDesired>) -> Self {
        let (store, hosts, directory) = (Arc::default(), Arc::default(), Directory::default());
        let (members, watched) = watch::channel(vec![member(1, "a"), member(2, "b"), member(3, "c")]);
        let environment = DeploymentEnvironment {
            node: NodeId([1; 32]),
            node_name: "a".to_owned(),
            store: Arc::clone(&store) as _,
            hosts: Arc::clone(&hosts) as _,
            members: watched,
            directory: directory.clone(),
            desired: Arc::clone(&desired) as _,
            root: RootHandle::spawn(CancellationToken::new()).await.expect("root"),
        };
        Self {
            owner: Owner::new(
                Arc::new(environment),
                Epochs::take(Arc::clone(&desired) as _).expect("epochs"),
            ),
            store,
            hosts,
            directory,
            members,
            desired,
        }
    }

    /// The node is killed and starts again.
    async fn again(&self) -> Self {
        let next = Self::after(self.desired.clone()).await;
        next.owner.restore(self.desired.deployments()).await;
        next
    }

    async fn lost_because(&self, name: &str, reason: &str) {
        eventually(reason, || {
            let listed = self.listed(name);
            listed.is_some_and(|lost| lost.phase == DeploymentPhase::Lost as i32 && lost.reason.contains(reason))
        })
        .await;
    }

    fn listed(&self, name: &str) -> Option<Deployment> {
        self.directory.find(name).and_then(|route| route.deployment)
    }

    fn is_ready(&self, name: &str) -> bool {
        self.listed(name).is_some_and(|deployment| deployment.ready)
    }

    async fn opened(&self, epoch: u64, stages: usize) -> Vec<Arc<ScriptedStage>> {
        eventually("stages asked for", || self.hosts.of_epoch(epoch).len() == stages).await;
        self.hosts.of_epoch(epoch)
    }

    async fn served(&self, name: &str) -> Deployment {
        let mut stream = self.owner.serve(serve(name)).await.expect("taken");
        answer(&mut stream).await.expect("ready")
    }
}

fn serve(name: &str) -> ServeRequest {
    ServeRequest {
        model: "m".to_owned(),
        name: name.to_owned(),
        stages: "3".to_owned(),
        ..ServeRequest::default()
    }
}

/// The one answer; the stream ends behind it.
async fn answer(stream: &mut ServeStream) -> Result<Deployment, MeshError> {
    let answer = loop {
        match stream.recv().await.expect("an answer") {
            Err(error) => break Err(error),
            Ok(response) => match response.event.expect("an event") {
                serve_response::Event::Ready(deployment) => break Ok(deployment),
                serve_response::Event::Progress(_) => {}
            },
        }
    };
    let end = tokio::time::timeout(Duration::from_secs(10), stream.recv())
        .await
        .expect("the end of the stream");
    assert_eq!(end, None, "one answer");
    answer
}

async fn command(stage: &ScriptedStage) -> host_command::Command {
    let mut command = None;
    eventually("a command", || {
        command = stage.command();
        command.is_some()
    })
    .await;
    command.expect("a command")
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_only_after_every_stage_said_so() {
    let world = World::new().await;
    world.hosts.manual();
    let mut stream = world.owner.serve(serve("x")).await.expect("taken");
    let stages = world.opened(1, 3).await;
    for stage in &stages {
        assert_eq!(stage.command(), None);
        stage.loaded();
    }
    for stage in &stages {
        assert!(matches!(command(stage).await, host_command::Command::Connect(_)));
    }
    assert!(world.listed("x").is_none());
    stages
        .iter()
        .for_each(|stage| stage.say(host_event::Event::Connected(HostConnected {})));
    assert!(matches!(command(&stages[0]).await, host_command::Command::Activate(_)));
    assert!(world.listed("x").is_none());
    stages[0].say(host_event::Event::Activated(HostActivated {}));
    let ready = answer(&mut stream).await.expect("ready");
    assert!(ready.ready && ready.epoch == 1 && ready.stages.len() == 3);
    assert_eq!(world.listed("x"), Some(ready));
    assert!(stages[1].command().is_none() && stages[2].command().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_fails_while_loading_ends_serve_with_its_error_and_leaves_nothing() {
    let world = World::new().await;
    for at in 0..3 {
        world.hosts.manual();
        let mut stream = world.owner.serve(serve("x")).await.expect("the name is free");
        eventually("stages asked for", || world.hosts.opened().len() == 3 * (at + 1)).await;
        let stages = world.hosts.opened()[3 * at..].to_vec();
        stages[at].failed("no memory");
        let error = answer(&mut stream).await.expect_err("failed");
        assert_eq!(
            (error.code, error.message.as_str()),
            (ErrorCode::EngineFailed, "no memory")
        );
        assert!(world.listed("x").is_none());
        eventually("hosts dropped", || world.hosts.held() == 0).await;
        eventually("the name", || {
            futures::FutureExt::now_or_never(world.owner.stop("x")).is_some_and(|end| end.is_err())
        })
        .await;
    }
    world.hosts.automatic();
    world.served("x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_refuses_ends_serve() {
    let world = World::new().await;
    world.hosts.refuse(Some(NodeId([2; 32])));
    let mut stream = world.owner.serve(serve("x")).await.expect("taken");
    assert_eq!(
        answer(&mut stream).await.expect_err("refused").code,
        ErrorCode::Unreachable
    );
    eventually("hosts dropped", || world.hosts.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_prepared_ends_serve_with_the_reason() {
    let world = World::new().await;
    let missing = ServeRequest {
        model: "missing".to_owned(),
        ..serve("x")
    };
    assert_eq!(
        world.owner.serve(missing).await.expect_err("missing").code,
        ErrorCode::ModelInvalid
    );
    for request in [
        ServeRequest {
            model: "uncuttable".to_owned(),
            ..serve("x")
        },
        ServeRequest {
            stages: "7".to_owned(),
            ..serve("x")
        },
        ServeRequest {
            stages: "a:0-5,b:6-12".to_owned(),
            ..serve("x")
        },
    ] {
        let mut stream = world.owner.serve(request).await.expect("taken");
        answer(&mut stream).await.expect_err("cannot be prepared");
        assert!(world.listed("x").is_none());
        eventually("the name", || {
            futures::FutureExt::now_or_never(world.owner.stop("x")).is_some_and(|end| end.is_err())
        })
        .await;
    }
    world.served("x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_stream_gives_up_wherever_it_is() {
    let world = World::new().await;
    // While cutting.
    let stream = world
        .owner
        .serve(ServeRequest {
            model: "slow".to_owned(),
            ..serve("x")
        })
        .await
        .expect("taken");
    eventually("cutting", || world.store.cutting() == 1).await;
    drop(stream);
    eventually("cutting given up", || world.store.cutting() == 0).await;
    eventually("the name", || {
        futures::FutureExt::now_or_never(world.owner.stop("x")).is_some_and(|end| end.is_err())
    })
    .await;
    // While loading.
    world.hosts.manual();
    let stream = world.owner.serve(serve("x")).await.expect("the name is free");
    world.opened(1, 3).await;
    drop(stream);
    eventually("hosts dropped", || world.hosts.held() == 0).await;
    assert!(world.listed("x").is_none());
    world.hosts.automatic();
    eventually("the name", || {
        futures::FutureExt::now_or_never(world.owner.stop("x")).is_some_and(|end| end.is_err())
    })
    .await;
    // After it was ready, it stays.
    world.served("x").await;
    assert!(world.is_ready("x") && world.hosts.held() == 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stage_is_not_ready_at_once_and_arranged_anew_when_its_node_is_up() {
    let world = World::new().await;
    world.served("x").await;
    let others = [
        member(1, "a"),
        Node {
            state: NodeState::Down.into(),
            ..member(2, "b")
        },
        member(3, "c"),
    ];
    world.members.send_replace(others.to_vec());
    world.hosts.of_epoch(1)[1].vanish();
    eventually("not ready", || !world.is_ready("x")).await;
    let lost = world.listed("x").expect("still listed");
    assert_eq!((lost.phase, lost.epoch), (DeploymentPhase::Lost as i32, 1));
    assert!(lost.reason.contains("is gone"), "{}", lost.reason);
    eventually("hosts dropped", || world.hosts.held() == 0).await;
    // Its node is back, but the first attempt fails at once, while other hosts are still being opened.
    world.hosts.refuse(Some(NodeId([2; 32])));
    world
        .members
        .send_replace(vec![member(1, "a"), member(2, "b"), member(3, "c")]);
    eventually("another attempt", || {
        world.listed("x").is_some_and(|lost| lost.epoch == 2)
    })
    .await;
    assert!(
        world
            .listed("x")
            .is_some_and(|lost| lost.reason.contains("does not answer"))
    );
    world.hosts.refuse(None);
    eventually("ready again", || world.is_ready("x")).await;
    assert_eq!(world.listed("x").map(|ready| ready.epoch), Some(3));
    assert_eq!(world.hosts.held(), 3);
    world.owner.stop("x").await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_removes_whatever_the_deployment_is_doing() {
    let world = World::new().await;
    // Ready.
    world.served("x").await;
    world.owner.stop("x").await.expect("stopped");
    assert!(world.listed("x").is_none());
    eventually("hosts dropped", || world.hosts.held() == 0).await;
    assert_eq!(world.owner.stop("x").await.expect_err("gone").code, ErrorCode::NotFound);
    // Loading, with a caller who does not read: it is told, and nobody waits for it.
    world.hosts.manual();
    let mut stream = world.owner.serve(serve("x")).await.expect("the name is free");
    eventually("stages asked for", || world.hosts.opened().len() == 6).await;
    for stage in &world.hosts.opened()[3..] {
        for _ in 0..100 {
            stage.say(host_event::Event::Progress(Default::default()));
        }
    }
    world.owner.stop("x").await.expect("stopped");
    assert_eq!(
        answer(&mut stream).await.expect_err("stopped").code,
        ErrorCode::Cancelled
    );
    eventually("hosts dropped", || world.hosts.held() == 0).await;
    // Lost.
    world.hosts.automatic();
    world.served("x").await;
    world.members.send_replace(Vec::new());
    world.hosts.opened().last().expect("hosts").vanish();
    eventually("not ready", || !world.is_ready("x")).await;
    world.owner.stop_all().await;
    assert!(world.listed("x").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_does_not_read_does_not_hold_the_deployment_up() {
    let world = World::new().await;
    world.hosts.manual();
    let mut stream = world.owner.serve(serve("x")).await.expect("taken");
    let stages = world.opened(1, 3).await;
    eventually("no more room for progress", || {
        stages[0].say(host_event::Event::Progress(Default::default()));
        stream.len() + 1 == stream.max_capacity()
    })
    .await;
    eventually("all of it heard", || stages[0].is_heard()).await;
    for stage in &stages {
        stage.loaded();
    }
    for stage in &stages {
        command(stage).await;
        stage.say(host_event::Event::Connected(HostConnected {}));
    }
    command(&stages[0]).await;
    stages[0].say(host_event::Event::Activated(HostActivated {}));
    eventually("ready", || world.is_ready("x")).await;
    stages[2].vanish();
    eventually("not ready", || !world.is_ready("x")).await;
    world.owner.stop("x").await.expect("stopped");
    answer(&mut stream).await.expect("it was ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_published_at_once_while_a_watching_node_is_stalled() {
    let world = World::new().await;
    world.directory.watcher_came(NodeId([9; 32]));
    let mut stream = world.owner.serve(serve("x")).await.expect("taken");
    eventually("ready", || world.is_ready("x")).await;
    let start = std::time::Instant::now();
    world.hosts.of_epoch(1)[2].vanish();
    eventually("not ready", || !world.is_ready("x")).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    answer(&mut stream).await.expect("it was ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_belongs_to_one_deployment_also_when_two_serves_race() {
    let world = World::new().await;
    for _ in 0..20 {
        let (a, b) = futures::join!(world.owner.serve(serve("x")), world.owner.serve(serve("x")));
        let (mut won, lost) = match (a, b) {
            (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
            other => panic!("{other:?}"),
        };
        assert_eq!(lost.code, ErrorCode::Conflict);
        answer(&mut won).await.expect("ready");
        assert_eq!(
            world.owner.serve(serve("x")).await.expect_err("taken").code,
            ErrorCode::Conflict
        );
        world.owner.stop("x").await.expect("stopped");
    }
    for name in ["a\nb", "", &"x".repeat(200)] {
        let end = world.owner.serve(serve(name)).await;
        assert_eq!(
            end.is_ok(),
            name.is_empty(),
            "{name:?}: the model's own name when none is given"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exact_is_insisted_on() {
    let world = World::new().await;
    world.hosts.manual();
    let mut stream = world
        .owner
        .serve(ServeRequest {
            exact: true,
            ..serve("x")
        })
        .await
        .expect("taken");
    let stages = world.opened(1, 3).await;
    for (stage, exact) in stages.iter().zip([true, false, true]) {
        stage.say(host_event::Event::Loaded(HostLoaded {
            exact,
            ..HostLoaded::default()
        }));
    }
    let error = answer(&mut stream).await.expect_err("not exact");
    assert!(error.message.contains("--exact"), "{error}");
    eventually("hosts dropped", || world.hosts.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_never_comes_again_while_the_node_lives() {
    let world = World::new().await;
    assert_eq!(world.served("x").await.epoch, 1);
    world.owner.stop("x").await.expect("stopped");
    assert_eq!(world.served("x").await.epoch, 2);
    world.hosts.of_epoch(2)[1].vanish();
    eventually("arranged anew", || {
        world.listed("x").is_some_and(|ready| ready.ready && ready.epoch == 3)
    })
    .await;
    assert_eq!(world.served("y").await.epoch, 4);
    world.owner.stop("x").await.expect("stopped");
    assert_eq!(world.served("x").await.epoch, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_another_node_comes_to_serve_first_is_its_own() {
    let world = World::new().await;
    world.hosts.manual();
    let mut stream = world.owner.serve(serve("x")).await.expect("nobody serves it yet");
    let stages = world.opened(1, 3).await;
    for stage in &stages {
        stage.loaded();
    }
    for stage in &stages {
        command(stage).await;
        stage.say(host_event::Event::Connected(HostConnected {}));
    }
    command(&stages[0]).await;
    let first = Deployment {
        name: "x".to_owned(),
        owner: "b".to_owned(),
        ready: true,
        ..Deployment::default()
    };
    let route = DeploymentRoute {
        deployment: Some(first.clone()),
        head: String::new(),
    };
    let list = DeploymentList {
        version: 1,
        deployments: vec![route],
    };
    world.directory.peer_list(NodeId([2; 32]), list);
    stages[0].say(host_event::Event::Activated(HostActivated {}));
    let error = answer(&mut stream).await.expect_err("another's");
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("x is already served by node b"), "{error}");
    eventually("hosts dropped", || world.hosts.held() == 0).await;
    assert_eq!(world.listed("x"), Some(first));
}

/// On one thread, so that all hosts have answered before the owner hears that the first of them refuses.
#[tokio::test]
async fn hosts_that_open_after_another_refused_are_let_go() {
    let world = World::new().await;
    world.served("x").await;
    world.hosts.refuse(Some(NodeId([1; 32])));
    world.hosts.of_epoch(1)[1].vanish();
    eventually("another attempt", || {
        world.listed("x").is_some_and(|lost| lost.epoch == 2)
    })
    .await;
    eventually("hosts dropped", || world.hosts.held() == 0).await;
    world.hosts.refuse(None);
    eventually("ready again", || world.is_ready("x")).await;
    assert_eq!(
        (world.listed("x").map(|ready| ready.epoch), world.hosts.held()),
        (Some(3), 3)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_ready_comes_back_with_its_owner_where_it_was_and_what_was_stopped_does_not() {
    let world = World::new().await;
    let first = world.served("x").await;
    world.served("y").await;
    world.owner.stop("y").await.expect("stopped");
    let next = world.again().await;
    assert!(next.listed("y").is_none());
    eventually("back", || next.is_ready("x")).await;
    let back = next.listed("x").expect("ready");
    assert!(back.epoch > 1000, "no epoch comes again: {}", back.epoch);
    assert_eq!((back.created, &back.stages), (first.created, &first.stages));
    next.owner.stop("x").await.expect("stopped");
    assert!(next.again().await.listed("x").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_ready_yet_is_not_kept_and_what_cannot_be_kept_is_not_served() {
    let world = World::new().await;
    world.hosts.manual();
    let _loading = world.owner.serve(serve("x")).await.expect("taken");
    world.opened(1, 3).await;
    assert_eq!(world.desired.deployments(), []);
    world.hosts.automatic();
    world.desired.fill(true);
    let mut stream = world.owner.serve(serve("y")).await.expect("taken");
    let error = answer(&mut stream).await.expect_err("the disk is full");
    assert_eq!(error.code, ErrorCode::InsufficientResources);
    eventually("hosts dropped", || {
        world.hosts.held() == 3 && world.listed("y").is_none()
    })
    .await;
    world.desired.fill(false);
    world.served("y").await;
    assert_eq!(world.desired.deployments().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_listed_while_it_comes_back_and_waits_for_the_nodes_that_it_was_on() {
    let world = World::new().await;
    world.served("x").await;
    let next = World::after(world.desired.clone()).await;
    let down = Node {
        state: NodeState::Down.into(),
        ..member(2, "b")
    };
    next.members.send_replace(vec![member(1, "a"), down, member(3, "c")]);
    next.hosts.manual();
    next.owner.restore(world.desired.deployments()).await;
    let listed = next.listed("x").expect("listed at once");
    assert!(!listed.ready && !listed.reason.is_empty());
    next.lost_because("x", "b").await;
    assert_eq!(next.hosts.opened().len(), 0, "it goes nowhere else");
    next.members
        .send_replace(vec![member(1, "a"), member(2, "b"), member(3, "c")]);
    let stages = next.opened(1001, 3).await;
    assert_eq!(
        next.owner
            .serve(ServeRequest { lanes: 2, ..serve("x") })
            .await
            .expect_err("taken")
            .code,
        ErrorCode::Conflict
    );
    for stage in &stages {
        stage.loaded();
    }
    for stage in &stages {
        command(stage).await;
        stage.say(host_event::Event::Connected(HostConnected {}));
    }
    command(&stages[0]).await;
    stages[0].say(host_event::Event::Activated(HostActivated {}));
    eventually("back", || next.is_ready("x")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_gone_or_another_is_told_and_serving_it_again_tries_at_once() {
    let world = World::new().await;
    world.served("x").await;
    for (state, reason) in [
        ("missing", "there is no such file"),
        ("other", "m has changed since it was served"),
    ] {
        let next = World::after(world.desired.clone()).await;
        next.store.now(state);
        next.owner.restore(world.desired.deployments()).await;
        next.lost_because("x", reason).await;
        assert_eq!(world.desired.deployments().len(), 1, "it is kept");
        next.store.now("");
        let mut stream = next.owner.serve(serve("x")).await.expect("as before");
        assert!(answer(&mut stream).await.expect("ready").ready);
        assert_eq!(
            next.owner.serve(serve("x")).await.expect_err("taken").code,
            ErrorCode::Conflict
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_another_node_serves_meanwhile_is_not_taken_back() {
    let world = World::new().await;
    world.served("x").await;
    let next = World::after(world.desired.clone()).await;
    let theirs = Deployment {
        name: "x".to_owned(),
        owner: "b".to_owned(),
        ready: true,
        ..Deployment::default()
    };
    let route = |deployment| DeploymentRoute {
        deployment: Some(deployment),
        head: String::new(),
    };
    let list = |deployments| DeploymentList {
        version: 1,
        deployments,
    };
    next.directory.peer_list(NodeId([2; 32]), list(vec![route(theirs)]));
    next.owner.restore(world.desired.deployments()).await;
    let own = || {
        let own = next.directory.watch_own().borrow().deployments.clone();
        own.into_iter().find_map(|route| route.deployment)
    };
    eventually("told", || {
        own().is_some_and(|own| own.reason.contains("already served by node b"))
    })
    .await;
    eventually("hosts dropped", || next.hosts.held() == 0).await;
    next.directory.peer_list(NodeId([2; 32]), list(Vec::new()));
    eventually("back when the name is free", || next.is_ready("x")).await;
}
