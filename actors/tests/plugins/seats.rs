//! Plugins at the start and at the end of a model.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use mesh_actors::{
    plugin::{Callback, Health, PluginOptions},
    ports::plugin::CallFaultKind,
    scripted::{Gate, ScriptedPlugin, Told, chain_owner, eventually},
};
use mesh_proto::wire::host_event::Event;

use crate::world::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_served_without_a_plugin_that_refuses_it() {
    let plugin = ScriptedPlugin::new("refuses", |called, _| match called {
        Callback::Activate => Told::Fails(CallFaultKind::Error),
        _ => Told::Fine,
    });
    let follows = ScriptedPlugin::new("follows", |_, _| Told::Fine);
    let chain = chain_of(STAGES, &[(&plugin, patient()), (&follows, patient())]).await;
    let id = answered(&chain, &request_of(6)).await;
    heard_end(&follows, &id).await;
    check_finished(&follows, &id, &chain.expected(&request_of(6)).tokens);
    assert_eq!(plugin.told(&id), []);
    assert_eq!(figures(&chain, 0).health, Health::Degraded);
    chain.quiet().await;
    chain.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activation_that_hangs_is_given_up_and_ended_when_it_returns() {
    let (gate, shutdowns) = (Arc::new(Gate::closed()), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (gate.clone(), shutdowns.clone());
    let plugin = ScriptedPlugin::new("hangs", move |called, _| {
        match called {
            Callback::Activate => held.pass(),
            Callback::Shutdown => drop(count.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        }
        Told::Fine
    });
    let chain = chain_with(&plugin, short()).await;
    let id = answered(&chain, &request_of(6)).await;
    assert_eq!(plugin.told(&id), []);
    assert_eq!(figures(&chain, 0).health, Health::Quarantined);
    gate.open();
    eventually("what it made is ended", || shutdowns.load(Ordering::SeqCst) == 1).await;
    chain.quiet().await;
    chain.stop().await;
    assert_eq!(shutdowns.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_not_served_without_a_plugin_that_is_required() {
    for hangs in [false, true] {
        let (gate, activations) = (Arc::new(Gate::closed()), AtomicUsize::new(0));
        let held = gate.clone();
        // It takes the first epoch, not the second.
        let plugin = ScriptedPlugin::new("needed", move |called, _| {
            if called != Callback::Activate || activations.fetch_add(1, Ordering::SeqCst) == 0 {
                return Told::Fine;
            }
            if hangs {
                held.pass();
            }
            Told::Fails(CallFaultKind::Error)
        });
        let required = PluginOptions {
            required: true,
            ..short()
        };
        let chain = chain_with(&plugin, required).await;
        answered(&chain, &request_of(6)).await;
        chain.quiet().await;
        chain.stop_soon();
        let mut next = chain.ask_again(0, chain_owner(), 2).await;
        let Event::Failed(error) = next.says().await else {
            panic!("it is served")
        };
        assert!(error.message.contains("needed"), "{error:?}");
        gate.open();
        next.host.stop().await;
        eventually("all engines are gone", || chain.loader.loaded() == 0).await;
        chain.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_has_an_instance_for_each_epoch_and_both_are_ended() {
    let (activations, shutdowns) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (up, down) = (activations.clone(), shutdowns.clone());
    let plugin = ScriptedPlugin::new("p", move |called, _| {
        match called {
            Callback::Activate => drop(up.fetch_add(1, Ordering::SeqCst)),
            Callback::Shutdown => drop(down.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        }
        Told::Fine
    });
    let chain = chain_with(&plugin, patient()).await;
    answered(&chain, &request_of(6)).await;
    chain.quiet().await;
    chain.stop_soon();
    let mut next = chain.ask_again(0, chain_owner(), 2).await;
    assert!(matches!(next.says().await, Event::Loaded(_)));
    assert_eq!(activations.load(Ordering::SeqCst), 2);
    next.host.stop().await;
    // The first hosts were told to stop, and nobody waited for their engines.
    eventually("all engines are gone", || chain.loader.loaded() == 0).await;
    chain.stop().await;
    assert_eq!(shutdowns.load(Ordering::SeqCst), 2);
}
