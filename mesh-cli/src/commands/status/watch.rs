//! `mesh status --watch`: the mesh as it is, drawn again when something happens.
//!
//! ```text
//! Subscribe (everything, whole mesh) ──▶ Rates ┐
//!   each event wakes ──▶ GetStatus, ListRequests ──▶ WatchView ──▶ screen, block or JSON line
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    io::IsTerminal as _,
    time::Duration,
};

use mesh_proto::{
    ErrorCode, MeshError,
    v1::{
        GetStatusRequest, Scope, SubscribeRequest, SubscribeResponse, lifecycle_event::Kind,
        subscribe_response::Response,
    },
};
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tonic::Streaming;

use crate::{
    client::Client,
    commands::requests::requests,
    failure::Failure,
    output::{self, OutputFormat},
    request_view::{RequestsView, requests_table},
    screen::LiveScreen,
    signals::Interrupts,
    status_view::StatusView,
};

/// Between two drawings on a terminal: no eye follows more.
const SCREEN_PAUSE: Duration = Duration::from_millis(250);

/// Between two blocks or lines for who reads them later.
const BLOCK_PAUSE: Duration = Duration::from_secs(1);

/// Drawn again even when nothing is told: nodes come and go without an event, and rates fade.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

/// Rates are over this long.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// Commits that are kept to compute them; with more, the window gets shorter.
const RATE_COMMITS: usize = 65_536;

/// What is shown, and what `--output json` prints a line of.
#[derive(Debug, Serialize)]
struct WatchView {
    #[serde(flatten)]
    status: StatusView,
    /// Requests that have not ended.
    requests: RequestsView,
    /// Of each deployment, over the last seconds; absent if the node tells no events.
    tokens_per_second: Option<BTreeMap<String, f64>>,
}

pub(super) async fn run(client: &Client, format: OutputFormat) -> Result<(), Failure> {
    let mut interrupts = Interrupts::listen()?;
    let screen = format == OutputFormat::Table && std::io::stdout().is_terminal();
    let mut watch = Watch {
        client: client.clone(),
        notices: subscribe(client).await?,
        rates: Rates::default(),
        format,
        screen: if screen { Some(LiveScreen::open()?) } else { None },
    };
    let watched = tokio::select! {
        watched = watch.run() => watched,
        // Whoever watches leaves so: it is the normal end.
        () = interrupts.next() => Ok(()),
    };
    drop(watch);
    watched
}

/// `None` if the node tells no events.
async fn subscribe(client: &Client) -> Result<Option<Streaming<SubscribeResponse>>, Failure> {
    let request = SubscribeRequest {
        scope: Scope::Mesh.into(),
        ..SubscribeRequest::default()
    };
    match client.lifecycle().subscribe(request).await {
        Ok(notices) => Ok(Some(notices.into_inner())),
        Err(status) if MeshError::from(&status).code == ErrorCode::Conflict => Ok(None),
        Err(status) => Err(status.into()),
    }
}

struct Watch {
    client: Client,
    notices: Option<Streaming<SubscribeResponse>>,
    rates: Rates,
    format: OutputFormat,
    screen: Option<LiveScreen>,
}

impl Watch {
    /// Until the node stops, or nobody reads any more.
    async fn run(&mut self) -> Result<(), Failure> {
        let pause = if self.screen.is_some() {
            SCREEN_PAUSE
        } else {
            BLOCK_PAUSE
        };
        loop {
            let drawn = Instant::now();
            let view = self.view().await?;
            if !self.draw(&view)? {
                return Ok(());
            }
            if !self.listen(drawn + pause).await? {
                output::note("mesh: the node stops");
                return Ok(());
            }
        }
    }

    /// Hears events until something happened and the pause is over; `false` if the node stops.
    async fn listen(&mut self, earliest: Instant) -> Result<bool, Failure> {
        let mut idle = interval(IDLE_PAUSE);
        idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
        idle.reset();
        let mut changed = false;
        loop {
            let Some(notices) = &mut self.notices else {
                sleep_until(earliest.max(Instant::now() + IDLE_PAUSE)).await;
                return Ok(true);
            };
            tokio::select! {
                notice = notices.message() => match notice? {
                    Some(notice) => changed |= self.rates.take(notice, Instant::now()),
                    None => return Ok(false),
                },
                () = sleep_until(earliest), if changed => return Ok(true),
                _ = idle.tick() => changed = true,
            }
        }
    }

    async fn view(&mut self) -> Result<WatchView, Failure> {
        let status = self.client.nodes().get_status(GetStatusRequest {}).await?.into_inner();
        let requests = requests(&self.client, Vec::new(), false, Scope::Mesh).await?;
        let status = StatusView::from(status);
        let names = status.deployments.iter().map(|deployment| deployment.name.clone());
        let rates = self.notices.as_ref().map(|_| self.rates.now(names, Instant::now()));
        Ok(WatchView {
            status,
            requests,
            tokens_per_second: rates,
        })
    }

    /// `false` if nobody reads any more.
    fn draw(&mut self, view: &WatchView) -> Result<bool, Failure> {
        match (&mut self.screen, self.format) {
            (Some(screen), _) => screen.draw(&view.describe()),
            (None, OutputFormat::Table) => output::print_lines(&(view.describe() + "\n")),
            (None, OutputFormat::Json) => output::print_json_line(view),
        }
    }
}

impl WatchView {
    fn describe(&self) -> String {
        let mut text = self.status.describe() + "\n";
        for (name, rate) in self.tokens_per_second.iter().flatten() {
            text += &format!("{}: {rate:.1} tokens/s\n", output::name(name));
        }
        if self.tokens_per_second.is_none() {
            text += "the node tells no events (--no-events), so rates are not known\n";
        }
        if !self.requests.missing.is_empty() {
            text += &format!(
                "no answer from {}\n",
                output::sentence(&self.requests.missing.join(", "))
            );
        }
        if !self.requests.requests.is_empty() {
            text += &format!("\n{}", requests_table(&self.requests.requests));
        }
        text
    }
}

/// Commits of the last seconds.
#[derive(Debug, Default)]
struct Rates {
    commits: VecDeque<(Instant, String, u32)>,
}

impl Rates {
    /// Whether the notice changes what is shown.
    fn take(&mut self, notice: SubscribeResponse, now: Instant) -> bool {
        let Some(Response::Event(event)) = notice.response else {
            return false;
        };
        if let Some(Kind::Committed(committed)) = event.kind {
            if self.commits.len() == RATE_COMMITS {
                self.commits.pop_front();
            }
            self.commits.push_back((now, event.deployment, committed.count));
        }
        true
    }

    /// Tokens per second of each of these, and of those that had commits.
    fn now(&mut self, names: impl Iterator<Item = String>, now: Instant) -> BTreeMap<String, f64> {
        let old = |(at, ..): &(Instant, String, u32)| now.saturating_duration_since(*at) > RATE_WINDOW;
        while self.commits.front().is_some_and(old) {
            self.commits.pop_front();
        }
        let mut tokens: BTreeMap<String, u64> = names.map(|name| (name, 0)).collect();
        for (_, deployment, count) in &self.commits {
            *tokens.entry(deployment.clone()).or_default() += u64::from(*count);
        }
        let rate = |tokens: u64| tokens as f64 / RATE_WINDOW.as_secs_f64();
        tokens.into_iter().map(|(name, tokens)| (name, rate(tokens))).collect()
    }
}

#[cfg(test)]
mod tests {
    use mesh_proto::v1::{Committed, LifecycleEvent, Queued};

    use super::*;

    fn notice(kind: Kind) -> SubscribeResponse {
        let event = LifecycleEvent {
            deployment: "smol".into(),
            kind: Some(kind),
            ..LifecycleEvent::default()
        };
        SubscribeResponse {
            response: Some(Response::Event(event)),
        }
    }

    #[test]
    fn rates_are_over_the_last_seconds_and_fade() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let names = || ["other".to_owned()].into_iter();
        for _ in 0..10 {
            let committed = Committed {
                count: 2,
                ..Committed::default()
            };
            assert!(rates.take(notice(Kind::Committed(committed)), start));
        }
        assert!(rates.take(notice(Kind::Queued(Queued {})), start));
        let heard = rates.now(names(), start + RATE_WINDOW / 2);
        assert_eq!((heard["smol"], heard["other"]), (4.0, 0.0));
        let later = rates.now(names(), start + RATE_WINDOW * 2);
        assert_eq!(later.into_iter().collect::<Vec<_>>(), [("other".to_owned(), 0.0)]);
    }
}
