//! Plans for nodes and models that the tests make up.

use proptest::prelude::*;

use super::*;

pub(super) fn node(name: &str, memory_mib: u64) -> Node {
    Node {
        id: name.to_owned(),
        name: name.to_owned(),
        host_id: "host".to_owned(),
        state: NodeState::Up as i32,
        cores: 8,
        memory_bytes: memory_mib << 20,
        exact: true,
        ..Node::default()
    }
}

pub(super) fn model(layers: u32, legal_cuts: Vec<u32>) -> ModelFacts {
    ModelFacts {
        architecture: "llama".to_owned(),
        layers,
        context: 8192,
        layer_bytes: vec![10 << 20; layers as usize],
        token_embd_bytes: 30 << 20,
        output_bytes: 30 << 20,
        kv_bytes_per_position: vec![1024; layers as usize],
        legal_cuts,
        ..ModelFacts::default()
    }
}

pub(super) fn wish(stages: &str) -> Wishes {
    Wishes {
        stages: stages.to_owned(),
        ..Wishes::default()
    }
}

fn error(stages: &str) -> String {
    let nodes = [
        node("a", 4096),
        node("b", 4096),
        Node {
            state: NodeState::Down as i32,
            ..node("c", 4096)
        },
    ];
    plan(&model(30, (1..30).collect()), &nodes, &wish(stages))
        .expect_err(stages)
        .message
}

#[test]
fn faults_of_a_stage_list_are_named_with_the_remedy() {
    for (stages, words) in [
        ("a:0-10,b:12-30", "layers 10-12 are in no stage"),
        ("a:0-10,b:8-30", "layers 8-10 are in two stages"),
        ("a:0-10,b:10-20", "layers 20-30 are in no stage"),
        ("a:0-10,x:10-30", "no node is named \"x\"; this mesh has a, b, c"),
        ("a:0-10,c:10-30", "node c is down"),
        ("a:0-31", "the model has layers 0-30"),
        ("a:10", "not a range of layers"),
        ("a", "is not a stage"),
        ("0", "0 stages"),
        ("3", "2 node(s) are up"),
    ] {
        let message = error(stages);
        assert!(message.contains(words), "{stages}: {message}");
    }
}

#[test]
fn an_illegal_cut_names_the_nearest_legal_ones() {
    let facts = model(12, vec![4, 8]);
    let nodes = [node("a", 4096), node("b", 4096)];
    let message = plan(&facts, &nodes, &wish("a:0-5,b:5-12"))
        .expect_err("illegal")
        .message;
    assert!(message.contains("cut at 4 or 8"), "{message}");
}

/// Twelve layers of which a stage must hold one of the first eight.
fn with_illegal_ranges() -> ModelFacts {
    let starts = 8..12;
    let illegal = starts.flat_map(|start| (start + 1..=12).map(move |end| (start..end, "of the pattern".to_owned())));
    ModelFacts {
        illegal_ranges: illegal.collect(),
        ..model(12, (1..12).collect())
    }
}

#[test]
fn an_illegal_range_is_refused_with_the_reason() {
    let facts = with_illegal_ranges();
    let nodes = [node("a", 4096), node("b", 4096)];
    let message = plan(&facts, &nodes, &wish("a:0-9,b:9-12"))
        .expect_err("illegal")
        .message;
    assert!(
        message.contains("layers 9-12 cannot be a stage, because of the pattern"),
        "{message}"
    );
    plan(&facts, &nodes, &wish("a:0-7,b:7-12")).expect("legal");
}

#[test]
fn automatic_plans_avoid_illegal_ranges() {
    let facts = with_illegal_ranges();
    // By memory alone the last stage would be layers 11-12.
    let planned = plan(&facts, &[node("a", 11_000), node("b", 1_000)], &wish("2")).expect("legal");
    let layers: Vec<_> = planned.stages.iter().map(|stage| stage.layers.clone()).collect();
    assert_eq!(layers, [0..7, 7..12]);
    // Only the whole and one layer each are left.
    let nodes = [node("a", 4096), node("b", 4096), node("c", 4096)];
    let ranges = [0..1, 0..2, 1..2, 1..3, 2..3].map(|range| (range, "it is odd".to_owned()));
    let facts = ModelFacts {
        illegal_ranges: ranges.to_vec(),
        ..model(3, vec![1, 2])
    };
    let message = plan(&facts, &nodes, &wish("2")).expect_err("impossible").message;
    assert!(
        message.contains("no 2 stages") && message.contains("it is odd"),
        "{message}"
    );
    assert_eq!(plan(&facts, &nodes, &wish("auto")).expect("whole").stages.len(), 1);
}

#[test]
fn stages_of_one_host_share_its_cores() {
    let facts = model(30, (1..30).collect());
    let elsewhere = Node {
        host_id: "other".to_owned(),
        ..node("c", 4096)
    };
    let planned = plan(&facts, &[node("a", 4096), node("b", 4096), elsewhere], &wish("")).unwrap();
    assert_eq!(
        planned.stages.iter().map(|stage| stage.threads).collect::<Vec<_>>(),
        [4, 4, 8]
    );
}

proptest! {
    /// Automatic plans cover every layer once, cut legally, and survive absurd memory figures.
    #[test]
    fn automatic_plans_cover_all_layers(
        layers in 1u32..80,
        keep in proptest::collection::vec(any::<bool>(), 80),
        refused in proptest::collection::vec((0u32..80, 1u32..80), 0..40),
        memory in proptest::collection::vec(prop_oneof![Just(0u64), Just(u64::MAX), 0u64..1 << 40], 1..8),
    ) {
        let cuts: Vec<u32> = (1..layers).filter(|cut| keep[*cut as usize]).collect();
        let illegal: Vec<Range<u32>> = refused
            .into_iter()
            .map(|(start, length)| start..start + length)
            .filter(|range| *range != (0..layers))
            .collect();
        let reasons = illegal.iter().map(|range| (range.clone(), String::new()));
        let facts = ModelFacts { illegal_ranges: reasons.collect(), ..model(layers, cuts.clone()) };
        let nodes: Vec<Node> = memory
            .iter()
            .enumerate()
            .map(|(index, bytes)| Node { memory_bytes: *bytes, ..node(&format!("n{index}"), 0) })
            .collect();
        let ranges = automatic(&facts, &nodes, None).unwrap();
        let mut end = 0;
        for (_, range) in &ranges {
            prop_assert_eq!(range.start, end);
            prop_assert!(range.end > range.start);
            prop_assert!(range.end == layers || cuts.contains(&range.end));
            prop_assert!(!illegal.contains(range));
            end = range.end;
        }
        prop_assert_eq!(end, layers);
        let _ = fit_context(&facts, &ranges, 0, Shape { lanes: 256, rows: FAST_CHUNK });
    }
}
