//! Plugins that hang, fail and break: requests do not notice, and it is known.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use mesh_actors::{
    plugin::{Callback, Health, Loss, PluginOptions},
    ports::plugin::CallFaultKind,
    scripted::{Chain, Gate, ScriptedPlugin, Told},
};

use crate::world::*;

/// A plugin that comes by every function but abort, and hangs in one.
fn hangs_in(callback: Callback, gate: &Arc<Gate>) -> ScriptedPlugin {
    let gate = gate.clone();
    ScriptedPlugin::new("stuck", move |called, query| {
        if called == callback {
            gate.pass();
        }
        match called {
            // Pending at its deadline, it is cancelled.
            Callback::Poll if callback == Callback::Cancel => Told::Pending,
            Callback::Poll => guess(query),
            _ => Told::Fine,
        }
    })
}

async fn quarantined(chain: &Chain, callback: Callback) {
    healthy_as(chain, 0, Health::Quarantined).await;
    let figures = figures(chain, 0);
    assert!(figures.reason.contains(callback.name()), "{}", figures.reason);
    assert_eq!(lost(&figures, Loss::Thread), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_in_any_call_costs_the_plugin_its_place_and_requests_nothing() {
    for callback in [
        Callback::Begin,
        Callback::Commit,
        Callback::Start,
        Callback::Poll,
        Callback::Cancel,
        Callback::Report,
        Callback::Finish,
    ] {
        let gate = Arc::new(Gate::closed());
        let plugin = hangs_in(callback, &gate);
        // A report needs candidates in time.
        let deadline = match callback {
            Callback::Report => patient().deadline,
            _ => short().deadline,
        };
        let chain = chain_with(&plugin, PluginOptions { deadline, ..short() }).await;
        // Long after the plugin is stuck, its text is there.
        let id = answered(&chain, &request_of(8)).await;
        gate.reached(1).await;
        quarantined(&chain, callback).await;
        let later = answered(&chain, &request_of(9)).await;
        assert_eq!(gate.waiting(), 1, "{callback:?} still hangs");
        gate.open();
        heard_end(&plugin, &id).await;
        check_order(&plugin, &id);
        let ends_with = plugin.told(&id).pop().expect("an end");
        assert_eq!(ends_with.0, Callback::Finish, "{callback:?}");
        // Commits behind the call were not told any more.
        let incomplete = ends_with.1.contains("incomplete");
        assert_eq!(incomplete, callback != Callback::Finish, "{callback:?}: {ends_with:?}");
        assert_eq!(plugin.told(&later), [], "{callback:?}");
        assert_eq!(figures(&chain, 0).health, Health::Quarantined, "for good");
        chain.quiet().await;
        chain.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_in_abort_or_discard_is_no_other() {
    for callback in [Callback::Abort, Callback::Discard] {
        let gate = Arc::new(Gate::closed());
        let plugin = hangs_in(callback, &gate);
        let options = PluginOptions {
            deadline: patient().deadline,
            ..short()
        };
        let chain = chain_with(&plugin, options).await;
        let engine = chain.hold(|call| call.is_first() && call.batch.spans.iter().any(|span| span.sampled_rows > 1));
        let generation = chain.generate(request_of(8)).await.expect("admitted");
        let id = generation.started.request_id.clone();
        engine.reached(1).await;
        drop(generation);
        gate.reached(1).await;
        engine.open();
        quarantined(&chain, callback).await;
        let later = answered(&chain, &request_of(9)).await;
        gate.open();
        heard_end(&plugin, &id).await;
        check_order(&plugin, &id);
        assert_eq!(words(&plugin, &id, Callback::Abort), ["Cancelled"]);
        assert_eq!(plugin.told(&later), []);
        chain.quiet().await;
        chain.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_requests_are_told_while_one_is_stuck() {
    let (gate, begun) = (Arc::new(Gate::closed()), AtomicUsize::new(0));
    let held = gate.clone();
    let plugin = ScriptedPlugin::new("p", move |called, _| {
        if called == Callback::Begin && begun.fetch_add(1, Ordering::SeqCst) == 0 {
            held.pass();
        }
        Told::Fine
    });
    let chain = chain_with(&plugin.clone().with(FOLLOWS), patient()).await;
    let stuck = answered(&chain, &request_of(5)).await;
    let other = answered(&chain, &request_of(6)).await;
    heard_end(&plugin, &other).await;
    check_finished(&plugin, &other, &chain.expected(&request_of(6)).tokens);
    assert_eq!(callbacks(&plugin, &stuck), [Callback::Begin]);
    gate.open();
    heard_end(&plugin, &stuck).await;
    check_finished(&plugin, &stuck, &chain.expected(&request_of(5)).tokens);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serial_plugin_is_in_one_call_at_a_time() {
    let (inside, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = most.clone();
    let plugin = ScriptedPlugin::new("p", move |_, _| {
        seen.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::yield_now();
        inside.fetch_sub(1, Ordering::SeqCst);
        Told::Fine
    });
    let serial = plugin.clone().with(mesh_actors::ports::plugin::PluginAbilities {
        serial: true,
        ..FOLLOWS
    });
    let chain = chain_with(&serial, patient()).await;
    let requests = [request(0, 30), request(1, 30), request(2, 30), request(3, 30)];
    let ids = futures::future::join_all(requests.iter().map(|request| answered(&chain, request))).await;
    for (id, request) in ids.iter().zip(&requests) {
        heard_end(&plugin, id).await;
        check_finished(&plugin, id, &chain.expected(request).tokens);
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
    chain.quiet().await;
    chain.stop().await;
}

fn fails_in(callback: Callback, kind: CallFaultKind) -> ScriptedPlugin {
    ScriptedPlugin::new("fails", move |called, query| match called {
        called if called == callback => Told::Fails(kind),
        Callback::Poll => guess(query),
        _ => Told::Fine,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_lifecycle_calls_are_counted_and_nothing_else() {
    for callback in [Callback::Begin, Callback::Commit, Callback::Report, Callback::Finish] {
        let plugin = fails_in(callback, CallFaultKind::Error);
        let chain = chain_with(&plugin, patient()).await;
        let request = request_of(6);
        let id = answered(&chain, &request).await;
        let tokens = chain.expected(&request).tokens;
        if callback == Callback::Finish {
            mesh_actors::scripted::eventually("the abort", || ends(&plugin, &id) == 2).await;
            let told = plugin.told(&id);
            let last = &told[told.len() - 2..];
            assert_eq!(last[0], (Callback::Finish, format!("{tokens:?}")));
            assert_eq!(last[1], (Callback::Abort, "FinishFailed, after finish".to_owned()));
        } else {
            heard_end(&plugin, &id).await;
            check_finished(&plugin, &id, &tokens);
        }
        healthy_as(&chain, 0, Health::Degraded).await;
        let figures = figures(&chain, 0);
        assert!(
            errors(&figures, callback) > 0 && figures.last_error.contains(callback.name()),
            "{figures:?}"
        );
        // It is told of the next one all the same.
        let next = answered(&chain, &request_of(7)).await;
        heard_end(&plugin, &next).await;
        assert_eq!(committed(&plugin, &next), chain.expected(&request_of(7)).tokens);
        chain.quiet().await;
        chain.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_not_be_shuts_a_plugin_out_at_once() {
    for callback in [
        Callback::Begin,
        Callback::Commit,
        Callback::Start,
        Callback::Poll,
        Callback::Report,
        Callback::Finish,
    ] {
        for kind in [CallFaultKind::Panicked, CallFaultKind::UnknownStatus(77)] {
            let plugin = fails_in(callback, kind);
            let chain = chain_with(&plugin, patient()).await;
            let id = answered(&chain, &request_of(6)).await;
            healthy_as(&chain, 0, Health::Quarantined).await;
            let reason = figures(&chain, 0).reason;
            assert!(reason.contains(callback.name()), "{reason}");
            heard_end(&plugin, &id).await;
            let later = answered(&chain, &request_of(7)).await;
            assert_eq!(plugin.told(&later), []);
            chain.quiet().await;
            chain.stop().await;
            // With its abort, where finish failed.
            assert_eq!(ends(&plugin, &id), if callback == Callback::Finish { 2 } else { 1 });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_on_the_nodes_side_of_a_call_shuts_the_plugin_out() {
    for callback in [Callback::Begin, Callback::Start, Callback::Poll, Callback::Finish] {
        let plugin = ScriptedPlugin::new("p", move |called, _| {
            assert!(called != callback, "the adapter panics");
            Told::Fine
        });
        let chain = chain_with(&plugin, patient()).await;
        let id = answered(&chain, &request_of(6)).await;
        healthy_as(&chain, 0, Health::Quarantined).await;
        heard_end(&plugin, &id).await;
        let figures = figures(&chain, 0);
        assert_eq!(errors(&figures, callback), 1, "{figures:?}");
        assert!(figures.last_error.contains(callback.name()), "{figures:?}");
        // What was started before is over for the plugin too.
        let cancels = words(&plugin, &id, Callback::Cancel).len();
        assert_eq!(cancels, usize::from(callback == Callback::Poll), "{callback:?}");
        chain.quiet().await;
        chain.stop().await;
    }
}
