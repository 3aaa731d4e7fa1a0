//! Places of a plugin's mailbox under every order of concurrent takers, by the model checker loom.

/// The checker's types, where `permits.rs` looks for its own.
mod sync {
    pub use loom::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
}

#[path = "../src/plugin/permits.rs"]
#[allow(dead_code)]
mod permits;

use loom::thread;
use permits::{Class, Permits};

/// Explores all orders with at most so many pre-emptions: enough for three threads of a few steps each.
const PREEMPTIONS: usize = 3;

fn check(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(test);
}

#[test]
fn never_more_than_a_class_may_have_are_taken() {
    check(|| {
        let permits = Permits::new(1, 2);
        let take = |class, limit| {
            let permits = permits.clone();
            thread::spawn(move || {
                let place = permits.try_acquire(class);
                // Those with a higher limit may stand above it; a class alone never gets beyond its own.
                assert!(place.is_none() || (1..=permits.capacity()).contains(&permits.taken()));
                (place, limit)
            })
        };
        let first = take(Class::Ordinary, 1);
        let second = take(Class::Ordinary, 1);
        let third = permits.try_acquire(Class::Ordinary);
        let held = [first.join().unwrap().0, second.join().unwrap().0, third];
        assert_eq!(
            held.iter().flatten().count(),
            1,
            "one ordinary place, all three kept what they got"
        );
        assert_eq!(permits.taken(), 1);
        drop(held);
        assert_eq!(permits.taken(), 0, "everything is given back");
    });
}

#[test]
fn endings_find_their_reserve_when_ordinary_messages_fill_up() {
    check(|| {
        let permits = Permits::new(1, 3);
        let fill = {
            let permits = permits.clone();
            thread::spawn(move || {
                [
                    permits.try_acquire(Class::Ordinary),
                    permits.try_acquire(Class::Ordinary),
                ]
            })
        };
        let end = {
            let permits = permits.clone();
            thread::spawn(move || permits.try_acquire(Class::Ending))
        };
        let here = permits.try_acquire(Class::Ending);
        let (ordinary, there) = (fill.join().unwrap(), end.join().unwrap());
        assert!(
            here.is_some() && there.is_some(),
            "two endings, two places in reserve before the fence's"
        );
        assert!(ordinary.iter().flatten().count() <= 1);
        let fence = permits.try_acquire(Class::Fence);
        assert!(fence.is_some(), "the last place");
        drop((here, there, ordinary, fence));
        assert_eq!(permits.taken(), 0);
    });
}

#[test]
fn the_last_place_is_a_fences_alone() {
    check(|| {
        let permits = Permits::new(1, 2);
        // The ordinary place is taken: one is left for endings, one for a fence.
        let ordinary = permits.try_acquire(Class::Ordinary);
        assert!(ordinary.is_some());
        let endings: Vec<_> = (0..2)
            .map(|_| {
                let permits = permits.clone();
                thread::spawn(move || permits.try_acquire(Class::Ending))
            })
            .collect();
        let endings: Vec<_> = endings.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(endings.iter().flatten().count(), 1, "one of the two");
        let fences: Vec<_> = (0..2)
            .map(|_| {
                let permits = permits.clone();
                thread::spawn(move || permits.try_acquire(Class::Fence))
            })
            .collect();
        let fences: Vec<_> = fences.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(fences.iter().flatten().count(), 1, "the last place, once");
        assert_eq!(permits.taken(), permits.capacity());
        drop((ordinary, endings, fences));
        assert_eq!(permits.taken(), 0);
    });
}

#[test]
fn a_place_that_is_given_back_can_be_taken_again() {
    check(|| {
        let permits = Permits::new(1, 3);
        let others: Vec<_> = [Class::Ordinary, Class::Fence]
            .into_iter()
            .map(|class| {
                let permits = permits.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let place = permits.try_acquire(class);
                        assert!(permits.taken() <= permits.capacity());
                        drop(place);
                    }
                })
            })
            .collect();
        let kept = permits.try_acquire(Class::Ending);
        assert!(kept.is_some(), "the other two threads hold one place each");
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(permits.taken(), 1);
        drop(kept);
        assert_eq!(permits.taken(), 0);
        assert!(permits.try_acquire(Class::Ordinary).is_some());
    });
}
