use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use mesh_proto::{
    ErrorCode, MeshError, RequestId,
    v1::{Cursor, EventKind, NodePosition, RequestState, SubscribeRequest},
};
use proptest::prelude::*;

use super::*;

fn bus(options: EventOptions) -> EventBus {
    EventBus::new("n", 7, options, Vec::new())
}

fn facts(number: u128) -> Arc<RequestFacts> {
    Arc::new(RequestFacts {
        request: RequestId(uuid::Uuid::from_u128(number)),
        deployment: "d".into(),
        operation: Operation::Chat,
        agent_session: None,
        attempt: 1,
        arrived: Instant::now(),
        trace: None,
    })
}

fn begin(bus: &EventBus, number: u128) -> Arc<RequestFacts> {
    let facts = facts(number);
    assert!(bus.open(facts.clone()));
    bus.publish(facts.request, Change::default(), || Lifecycle::Queued);
    facts
}

fn commit(bus: &EventBus, facts: &RequestFacts, total: u32) {
    let change = Change {
        state: Some(RequestState::Decoding),
        completion_tokens: Some(total),
        ..Change::default()
    };
    bus.publish(facts.request, change, || Lifecycle::Committed {
        tokens: vec![total],
        text: "x".into(),
        total,
        stage_us: Vec::new(),
    });
}

fn end(bus: &EventBus, facts: &RequestFacts) {
    bus.end(facts, Lifecycle::Rejected(MeshError::new(ErrorCode::QueueFull, "full")));
}

fn everything() -> SubscribeRequest {
    SubscribeRequest::default()
}

fn after(run: u64, sequence: u64) -> SubscribeRequest {
    let position = NodePosition {
        node: "n".into(),
        run,
        sequence,
    };
    SubscribeRequest {
        cursor: Some(Cursor {
            positions: vec![position],
        }),
        ..everything()
    }
}

/// Sequences told; every other notice by name.
fn told(subscription: &mut Subscription) -> (Vec<u64>, Vec<Notice>) {
    let (mut events, mut others) = (Vec::new(), Vec::new());
    while let Some(notice) = subscription.ready() {
        match notice {
            Notice::Event(event) => events.push(event.node_sequence),
            other => others.push(other),
        }
    }
    (events, others)
}

#[test]
fn nothing_is_built_or_kept_while_nobody_listens() {
    let bus = bus(EventOptions::default());
    let facts = begin(&bus, 1);
    let built = AtomicU32::new(0);
    for _ in 0..100 {
        bus.publish(facts.request, Change::default(), || {
            built.fetch_add(1, Ordering::Relaxed);
            Lifecycle::Queued
        });
    }
    assert_eq!(built.into_inner(), 0);
    let figures = bus.figures();
    assert_eq!((figures.events, figures.window_events, figures.open), (101, 0, 1));
}

#[test]
fn events_are_kept_for_a_while_after_the_last_subscriber_and_then_no_longer() {
    for (linger, kept) in [(Duration::from_secs(60), 1), (Duration::ZERO, 0)] {
        let bus = bus(EventOptions {
            linger,
            ..EventOptions::default()
        });
        let facts = begin(&bus, 1);
        drop(bus.subscribe(&everything()).unwrap());
        let left = Instant::now();
        while left.elapsed().is_zero() {}
        commit(&bus, &facts, 1);
        assert_eq!(bus.figures().window_events, kept);
        let mut resumed = bus.subscribe(&after(7, 1)).unwrap();
        let (events, others) = told(&mut resumed);
        let gap = Notice::Gap { run: 7, from: 2, to: 2 };
        match kept {
            1 => assert_eq!((events, others), (vec![2], vec![])),
            _ => assert_eq!((events, others), (vec![], vec![gap])),
        }
    }
}

#[test]
fn a_snapshot_and_the_events_after_it_fit_together() {
    let bus = bus(EventOptions::default());
    let facts = begin(&bus, 1);
    commit(&bus, &facts, 1);
    let ended = begin(&bus, 2);
    end(&bus, &ended);
    let mut late = bus.subscribe(&everything()).unwrap();
    commit(&bus, &facts, 2);
    let Some(Notice::Snapshot(open)) = late.ready() else {
        panic!("no snapshot")
    };
    assert_eq!((open.len(), open[0].sequence, open[0].completion_tokens), (1, 2, 1));
    let Some(Notice::Event(event)) = late.ready() else {
        panic!("no event")
    };
    assert_eq!((event.sequence, event.node_sequence), (3, 5));
}

#[test]
fn an_id_that_is_open_is_not_opened_again() {
    let bus = bus(EventOptions::default());
    let open = begin(&bus, 1);
    assert!(!bus.open(facts(1)));
    end(&bus, &open);
    assert!(bus.open(facts(1)));
}

#[test]
fn filters_and_cursors_that_make_no_sense_are_refused_by_name() {
    let bus = bus(EventOptions {
        max_subscribers: 1,
        ..EventOptions::default()
    });
    let refused = |request: SubscribeRequest| bus.subscribe(&request).unwrap_err();
    let bad = [
        (
            SubscribeRequest {
                kinds: vec![99],
                ..everything()
            },
            "kinds",
        ),
        (
            SubscribeRequest {
                kinds: vec![0],
                ..everything()
            },
            "kinds",
        ),
        (
            SubscribeRequest {
                request_ids: vec!["x".into()],
                ..everything()
            },
            "request_ids",
        ),
        (
            SubscribeRequest {
                deployments: vec!["d".into(); MAX_FILTER_VALUES + 1],
                ..everything()
            },
            "deployments",
        ),
        (
            SubscribeRequest {
                agent_sessions: vec!["s".repeat(513)],
                ..everything()
            },
            "agent_sessions",
        ),
        (after(7, 1), "cursor"),
    ];
    for (request, field) in bad {
        assert_eq!(refused(request).param.as_deref(), Some(field));
    }
    assert_eq!(bus.figures().subscribers, 0);
    let _one = bus.subscribe(&everything()).unwrap();
    assert_eq!(refused(everything()).code, ErrorCode::QueueFull);
    bus.close();
    assert_eq!(refused(everything()).code, ErrorCode::Draining);
}

#[tokio::test]
async fn a_closed_bus_tells_what_it_has_and_ends() {
    let bus = bus(EventOptions::default());
    let mut subscription = bus.subscribe(&everything()).unwrap();
    let open = begin(&bus, 1);
    end(&bus, &open);
    bus.close();
    let mut notices = 0;
    while subscription.next().await.is_some() {
        notices += 1;
    }
    assert_eq!(notices, 3, "a snapshot and two events");
}

#[tokio::test(start_paused = true)]
async fn silence_is_broken_by_heartbeats_that_pass_over_what_is_filtered() {
    let bus = bus(EventOptions::default());
    let request = SubscribeRequest {
        kinds: vec![EventKind::Finished.into()],
        ..everything()
    };
    let mut subscription = bus.subscribe(&request).unwrap();
    let open = begin(&bus, 1);
    commit(&bus, &open, 1);
    assert!(matches!(subscription.next().await, Some(Notice::Snapshot(_))));
    assert_eq!(subscription.next().await, Some(Notice::Heartbeat));
    assert_eq!(subscription.position(), 2);
    // Events that are filtered do not put it off.
    let busy = async {
        for total in 2.. {
            tokio::time::sleep(Duration::from_secs(1)).await;
            commit(&bus, &open, total);
        }
    };
    tokio::select! {
        notice = subscription.next() => assert_eq!(notice, Some(Notice::Heartbeat)),
        () = busy => {}
    }
    assert!(subscription.position() > 2);
}

/// Keeps the terminals it hears of.
#[derive(Debug, Default)]
struct Ends(Mutex<Vec<RequestId>>);

impl EndObserver for Ends {
    fn ended(&self, end: &RequestEnd<'_>) {
        self.0.lock().unwrap().push(end.request);
    }
}

#[test]
fn observers_hear_of_every_end_even_where_events_are_off() {
    let ends = Arc::new(Ends::default());
    let options = EventOptions {
        enabled: false,
        ..EventOptions::default()
    };
    let bus = EventBus::new("n", 1, options, vec![ends.clone()]);
    let open = begin(&bus, 1);
    end(&bus, &open);
    assert_eq!(ends.0.lock().unwrap().len(), 1);
    assert_eq!(bus.subscribe(&everything()).unwrap_err().code, ErrorCode::Conflict);
}

proptest! {
    /// Whatever the pace of two subscribers: each event is told once and in order, or counted as dropped.
    #[test]
    fn a_subscriber_gets_everything_or_is_told_how_much_it_missed(steps in proptest::collection::vec(0u8..6, 1..300)) {
        let bus = bus(EventOptions { window_events: 8, ..EventOptions::default() });
        let facts = begin(&bus, 1);
        let mut readers = [bus.subscribe(&everything()).unwrap(), bus.subscribe(&everything()).unwrap()];
        let mut positions = [1u64; 2];
        let mut published = 1;
        for step in steps.into_iter().chain([4, 5]) {
            if step < 4 {
                published += 1;
                commit(&bus, &facts, published);
                continue;
            }
            let index = usize::from(step - 4);
            while let Some(notice) = readers[index].ready() {
                match notice {
                    Notice::Event(event) => {
                        positions[index] += 1;
                        prop_assert_eq!(event.node_sequence, positions[index]);
                    }
                    Notice::Lagged(dropped) => positions[index] += dropped,
                    Notice::Snapshot(open) => prop_assert_eq!(open.len(), 1),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert_eq!(readers[index].position(), u64::from(published));
        }
        prop_assert_eq!(positions, [u64::from(published); 2]);
    }
}
