//! The tokenizer, as the plugin sees it.

use std::sync::Arc;

use mesh_plugin_host::Tokenizer;

use crate::fixture::{Fixture, START, ignored};

/// Letters `a` and `b`.
struct Letters;

impl Tokenizer for Letters {
    fn len(&self) -> usize {
        2
    }

    fn piece(&self, token: u32, out: &mut Vec<u8>) -> bool {
        out.push(b"ab"[token as usize]);
        true
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        text.bytes()
            .map(|byte| b"ab".iter().position(|letter| *letter == byte))
            .map(|id| id.and_then(|id| u32::try_from(id).ok()))
            .collect()
    }
}

#[test]
fn the_tokenizer_answers_during_activation() {
    let fixture = Fixture::build(&[]);
    let library = fixture.load().unwrap();
    let _instance = fixture
        .activate_with(&library, Some(Arc::new(Letters)), ignored())
        .unwrap();
    assert_eq!(
        fixture.log(),
        [
            "piece token=-1 status=1 length=0 ",
            "piece token=0 status=0 length=1 61",
            "piece token=1 status=0 length=1 62",
            "piece token=2 status=1 length=0 ",
            "encode status=0 4:0,1,1,0",
            "encode without room status=1 count=4",
        ]
    );
}

#[test]
fn the_tokenizer_returns_an_error_after_activation() {
    let fixture = Fixture::build(&[]);
    let library = fixture.load().unwrap();
    let tokenizer = Arc::new(Letters);
    let instance = fixture
        .activate_with(&library, Some(tokenizer.clone()), ignored())
        .unwrap();
    assert_eq!(Arc::strong_count(&tokenizer), 1, "the host kept the tokenizer");
    instance.begin(&START).unwrap();
    assert_eq!(
        fixture.log()[7..],
        [
            "later pointer piece status=1 length=0",
            "later pointer encode status=1 count=0",
            "later copy piece status=1 length=0",
            "later copy encode status=1 count=0",
        ]
    );
}
