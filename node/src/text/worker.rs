//! The task that holds a text child: asks it, times it, and starts it again.

use std::{
    collections::{HashMap, VecDeque},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use mesh_proto::{ErrorCode, MeshError};
use prost::Message as _;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    machine::{Blame, Effect, Input, Machine},
    start::Start,
    wire::{Answer, Order, OrderKind, Question, Ready, Report, ReportKind, Text},
};
use crate::child::{Child, ChildEnd, ChildProcess};

/// How long a question may take. The longest text of words (8 MiB) takes a tenth on a machine of today; what takes longer
/// is made to.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Questions under way: as many as there are cores, and two at least, so that a slow one holds nobody up; more than a few
/// would only take memory.
const PLACES: std::ops::RangeInclusive<usize> = 2..=8;

/// Texts of this many bytes are asked one at a time.
const LONG_TEXT: usize = 64 << 10;

/// Pause before a child is started again, doubled with each that ends before it has answered anything.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What is being tokenized when the node begins to drain gets this long.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

pub(super) type Reply = oneshot::Sender<Result<Vec<u32>, MeshError>>;

/// A question on its way to the worker.
pub(super) struct Asked {
    pub text: Text,
    pub context: u32,
    pub reply: Reply,
}

/// A question that waits for its answer.
struct Open {
    order: Vec<u8>,
    is_chat: bool,
    reply: Reply,
    /// When it is overdue, while the child has it.
    due: Option<Instant>,
    /// The template is done.
    rendered: bool,
}

/// A child with the tasks that write to and read from it.
struct Live {
    orders: mpsc::Sender<Vec<u8>>,
    reports: mpsc::Receiver<ReportKind>,
    process: ChildProcess,
    _tasks: [AbortOnDropHandle<()>; 2],
}

pub(super) struct Worker {
    start: Start,
    tokens: usize,
    machine: Machine,
    open: HashMap<u64, Open>,
    last_id: u64,
    live: Option<Live>,
    starting: Option<AbortOnDropHandle<Result<Box<Started>, MeshError>>>,
    /// Children that have ended since the last answer.
    ended: u32,
    /// The last end, for the message.
    end: Option<ChildEnd>,
}

/// A child that was started again.
struct Started {
    child: Child,
    ready: Ready,
    /// It may have found that the template does not work.
    start: Start,
}

/// What woke the worker.
enum Event {
    Asked(Option<Asked>),
    Report(Option<ReportKind>),
    Started(Result<Box<Started>, MeshError>),
    Overdue,
}

impl Worker {
    /// For a child that has loaded a vocabulary of so many tokens.
    pub fn new(start: Start, child: Child, tokens: usize) -> Self {
        Self {
            start,
            tokens,
            machine: Machine::new(places()),
            open: HashMap::new(),
            last_id: 0,
            live: Some(Live::new(child, places())),
            starting: None,
            ended: 0,
            end: None,
        }
    }

    /// Works until the desk is closed. When the node drains, what is under way gets [`DRAIN_LIMIT`]; after that there are
    /// no answers.
    pub async fn run(mut self, mut desk: mpsc::Receiver<Asked>, draining: CancellationToken) {
        let working = async {
            loop {
                match self.next(&mut desk).await {
                    Event::Asked(None) => return,
                    event => self.take(event).await,
                }
            }
        };
        let drained = async {
            draining.cancelled().await;
            sleep(DRAIN_LIMIT).await;
        };
        tokio::select! {
            () = working => return,
            () = drained => {}
        }
        // The child, and whatever it is at, ends here.
        drop(self.live.take());
        drop(self.starting.take());
        let refuse = |reply: Reply| {
            let message = "the node is stopping; ask another node, or this one when it is back";
            let _ = reply.send(Err(MeshError::new(ErrorCode::Draining, message)));
        };
        self.open.drain().for_each(|(_, open)| refuse(open.reply));
        while let Some(asked) = desk.recv().await {
            refuse(asked.reply);
        }
    }

    async fn next(&mut self, desk: &mut mpsc::Receiver<Asked>) -> Event {
        let Self {
            open,
            machine,
            live,
            starting,
            ..
        } = self;
        let due = open.values().filter_map(|open| open.due).min();
        let report = async {
            match live {
                Some(live) => live.reports.recv().await,
                None => std::future::pending().await,
            }
        };
        let started = async {
            match starting {
                Some(starting) => starting
                    .await
                    .unwrap_or_else(|error| Err(MeshError::internal(format!("the tokenizer did not start: {error}")))),
                None => std::future::pending().await,
            }
        };
        let overdue = async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // An answer in time counts, even if it is read late.
            biased;
            report = report => Event::Report(report),
            started = started => Event::Started(started),
            () = overdue => Event::Overdue,
            asked = desk.recv(), if machine.has_room() => Event::Asked(asked),
        }
    }

    async fn take(&mut self, event: Event) {
        match event {
            Event::Asked(asked) => asked.into_iter().for_each(|asked| self.asked(asked)),
            Event::Report(Some(report)) => self.report(report),
            Event::Report(None) => self.ended().await,
            Event::Started(started) => self.started(started),
            Event::Overdue => self.overdue(),
        }
    }

    fn asked(&mut self, asked: Asked) {
        let Asked { text, context, reply } = asked;
        self.forget_gone();
        self.last_id += 1;
        let id = self.last_id;
        let is_chat = matches!(text, Text::Chat(_));
        let order = Order {
            kind: Some(OrderKind::Question(Question {
                id,
                context,
                text: Some(text),
            })),
        };
        let order = order.encode_to_vec();
        let long = order.len() >= LONG_TEXT;
        let open = Open {
            order,
            is_chat,
            reply,
            due: None,
            rendered: false,
        };
        self.open.insert(id, open);
        self.handle(Input::Asked { id, long });
    }

    /// Those that the child has not got yet.
    fn forget_gone(&mut self) {
        let is_gone = |open: &Open| open.due.is_none() && open.reply.is_closed();
        let gone: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, open)| is_gone(open))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.open.remove(&id);
            self.handle(Input::Gone(id));
        }
    }

    fn report(&mut self, report: ReportKind) {
        match report {
            ReportKind::Answer(Answer {
                id,
                outcome: Some(outcome),
            }) => {
                self.ended = 0;
                if let Some(open) = self.open.remove(&id) {
                    // Whoever asked may have gone.
                    let _ = open.reply.send(outcome.into());
                }
                self.handle(Input::Answered(id));
            }
            ReportKind::Rendered(id) => {
                if let Some(open) = self.open.get_mut(&id) {
                    open.rendered = true;
                }
            }
            _ => tracing::warn!("the tokenizer's process said something out of turn"),
        }
    }

    async fn ended(&mut self) {
        let Some(live) = self.live.take() else { return };
        let end = live.process.wait().await;
        tracing::warn!(%end, under_way = self.open.len(), "the tokenizer's process ended; it is started again");
        self.end = Some(end);
        self.nothing_is_due();
        self.handle(Input::Down);
        self.start_again();
    }

    fn overdue(&mut self) {
        let now = Instant::now();
        let overdue = self
            .open
            .iter()
            .find(|(_, open)| open.due.is_some_and(|due| due <= now));
        if let Some((id, _)) = overdue {
            tracing::warn!(limit = ?ANSWER_LIMIT, "a text took the tokenizer too long; its process is started again");
            let id = *id;
            self.nothing_is_due();
            self.handle(Input::Overdue(id));
        }
    }

    fn nothing_is_due(&mut self) {
        self.open.values_mut().for_each(|open| open.due = None);
    }

    fn start_again(&mut self) {
        let pause = match self.ended {
            0 => Duration::ZERO,
            times => FIRST_PAUSE.saturating_mul(1 << (times - 1).min(16)).min(LONGEST_PAUSE),
        };
        self.ended += 1;
        let mut start = self.start.clone();
        self.starting = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            sleep(pause).await;
            let (child, ready) = start.run().await?;
            Ok(Box::new(Started { child, ready, start }))
        })));
    }

    fn started(&mut self, started: Result<Box<Started>, MeshError>) {
        self.starting = None;
        match started {
            Ok(started) if started.ready.lengths.len() == self.tokens => {
                self.start = started.start;
                self.live = Some(Live::new(started.child, places()));
                self.handle(Input::Up);
            }
            Ok(_) => self.unavailable("the vocabulary file is another than it was"),
            Err(error) => self.unavailable(&error.message),
        }
    }

    fn unavailable(&mut self, why: &str) {
        tracing::error!(%why, "the tokenizer's process does not start again; it is tried once more");
        self.handle(Input::Unavailable);
        self.start_again();
    }

    fn handle(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        let mut effects = Vec::new();
        while let Some(input) = inputs.pop_front() {
            self.machine.handle(input, &mut effects);
            for effect in std::mem::take(&mut effects) {
                match effect {
                    Effect::Ask(id) if self.ask(id) => {}
                    Effect::Ask(id) => inputs.push_back(Input::Answered(id)),
                    Effect::Refuse(id, blame) => self.refuse(id, blame),
                    Effect::Kill => {
                        // The machine knows; nobody waits for the end.
                        self.live = None;
                        self.start_again();
                    }
                }
            }
        }
    }

    /// False if nobody waits for the answer.
    fn ask(&mut self, id: u64) -> bool {
        let Some(open) = self.open.get_mut(&id).filter(|open| !open.reply.is_closed()) else {
            self.open.remove(&id);
            return false;
        };
        open.due = Some(Instant::now() + ANSWER_LIMIT);
        open.rendered = false;
        if let Some(live) = &self.live {
            // There is room for all that may be under way. If its writer has ended, so has the child, and the end comes as
            // a report.
            let _ = live.orders.try_send(open.order.clone());
        }
        true
    }

    fn refuse(&mut self, id: u64, blame: Blame) {
        if let Some(open) = self.open.remove(&id) {
            let error = explain(&open, blame, self.end.as_ref());
            let _ = open.reply.send(Err(error));
        }
    }
}

fn places() -> usize {
    available_parallelism()
        .map_or(1, usize::from)
        .clamp(*PLACES.start(), *PLACES.end())
}

/// The error for a question that has no answer.
fn explain(open: &Open, blame: Blame, end: Option<&ChildEnd>) -> MeshError {
    let why = match (blame, end) {
        (Blame::Unavailable, _) => {
            let message = "the model's tokenizer is being started again; try again";
            return MeshError::new(ErrorCode::NotReady, message);
        }
        (Blame::Overdue, _) => format!("it took more than {} s", ANSWER_LIMIT.as_secs()),
        (Blame::Ended, Some(end)) => format!("in a process of its own, {end}"),
        (Blame::Ended, None) => "its process ended".to_owned(),
    };
    if open.is_chat && !open.rendered {
        let message = format!(
            "the chat template uses too much time or memory on this conversation ({why}); shorten the messages, or send \
             the prompt as text"
        );
        return MeshError::new(ErrorCode::TemplateError, message).with_param("messages");
    }
    let message =
        format!("the prompt is too hard to tokenize ({why}); shorten it, or break long runs of it into lines");
    MeshError::invalid("prompt", message)
}

impl Live {
    /// Room for all questions under way, twice: those of askers that went may be answered yet.
    fn new(child: Child, places: usize) -> Self {
        let (orders, mut outgoing) = mpsc::channel::<Vec<u8>>(places * 2);
        let (incoming, reports) = mpsc::channel(places * 2);
        let Child {
            mut input,
            mut output,
            process,
        } = child;
        let writer = tokio::spawn(async move {
            while let Some(order) = outgoing.recv().await {
                if input.send(&order).await.is_err() {
                    return;
                }
            }
        });
        let reader = tokio::spawn(async move {
            while let Ok(Some(frame)) = output.receive().await {
                let report = Report::decode(&*frame).ok().and_then(|report| report.kind);
                let Some(report) = report else { return };
                if incoming.send(report).await.is_err() {
                    return;
                }
            }
        });
        Self {
            orders,
            reports,
            process,
            _tasks: [AbortOnDropHandle::new(writer), AbortOnDropHandle::new(reader)],
        }
    }
}
