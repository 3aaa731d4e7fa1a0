//! Logits of prefill and of 32 greedy steps, bit for bit, against the original file in plain llama.cpp.

use std::{collections::BTreeSet, path::Path};

use mesh_engine::RandomModel;
use mesh_gguf::{Gguf, SUPPORTED, Value, support};
use mesh_proto::sampling::greedy_sampling;

use crate::{
    chain::{Chain, bits, noise_tokens, prepare, span},
    models,
    reference::Reference,
};

const CONTEXT: u32 = 256;
const STEPS: usize = 32;

/// What plain llama.cpp gives: tokens fed after the prompt, and the logits of every row.
struct Expected {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

fn expect(model: &Path, prompt: &[u32], pads: bool) -> Expected {
    let mut reference = Reference::load(model, CONTEXT);
    reference.pads = pads;
    let mut logits = reference.forward(prompt);
    let mut tokens = Vec::new();
    for _ in 0..STEPS {
        tokens.push(mesh_engine::greedy(logits.last().unwrap()).unwrap());
        logits.extend(reference.forward(&tokens[tokens.len() - 1..]));
    }
    // A degenerate model would make any split look right.
    assert!(logits.iter().flatten().all(|value| value.is_finite()));
    let rows: BTreeSet<Vec<u32>> = logits.iter().map(|row| bits(row)).collect();
    assert!(
        rows.len() > logits.len() / 2,
        "{} different rows of {}",
        rows.len(),
        logits.len()
    );
    Expected {
        prompt: prompt.to_vec(),
        tokens,
        logits,
    }
}

/// Rows compared.
fn check(model: &Path, cuts: &[u32], expected: &Expected) -> usize {
    let mut chain = Chain::new(model, cuts, 2, CONTEXT);
    let rows = u32::try_from(expected.prompt.len()).unwrap();
    chain.open(1, 7, &greedy_sampling());
    let output = chain.forward(vec![span(1, 7, 0, &expected.prompt, rows)]);
    assert_eq!(output.failed, []);
    let mut next = *output.spans[0].1.last().unwrap();
    for (step, token) in expected.tokens.iter().enumerate() {
        assert_eq!(next, *token, "step {step} of {} cut {cuts:?}", model.display());
        next = chain.step(1, 7, rows + u32::try_from(step).unwrap(), &[next]);
    }
    let recorded = chain.take_logits();
    assert_eq!(recorded.len(), expected.logits.len());
    for (row, (ours, theirs)) in recorded.iter().zip(&expected.logits).enumerate() {
        assert_eq!(
            bits(&ours.values),
            bits(theirs),
            "row {row} of {} cut {cuts:?}",
            model.display()
        );
    }
    recorded.len()
}

fn check_all(model: &Path, prompt: &[u32], all_cuts: &[&[u32]]) {
    let pads = Chain::new(model, all_cuts[0], 1, CONTEXT).pads();
    let expected = expect(model, prompt, pads);
    for cuts in all_cuts {
        let rows = check(model, cuts, &expected);
        println!("{} cut {cuts:?}: {rows} of {rows} rows bit-identical", model.display());
    }
}

#[test]
fn the_built_in_model_at_uneven_cuts() {
    let prompt = noise_tokens(1, 70, 2048);
    let cuts: &[&[u32]] = &[
        &[0, 8],
        &[0, 1, 8],
        &[0, 3, 5, 8],
        &[0, 7, 8],
        &[0, 1, 2, 3, 4, 5, 6, 7, 8],
    ];
    check_all(&models::built_in(), &prompt, cuts);
}

/// Cuts of a random model of eight layers: in half, off the middle, in three, and every layer alone, as far as its
/// rules allow. Where layers differ by the sliding window, there are stages with it in all layers, and in none.
fn legal(model: &Path) -> Vec<Vec<u32>> {
    let architecture = support(&Gguf::open(model).unwrap()).unwrap();
    let single: Vec<u32> = (0..=architecture.layers()).collect();
    [&[0, 8][..], &[0, 1, 8], &[0, 3, 5, 8], &[0, 4, 8], &[0, 7, 8], &single]
        .into_iter()
        .filter(|cuts| {
            cuts.windows(2)
                .all(|pair| architecture.check_range(pair[0], pair[1]).is_ok())
        })
        .map(<[u32]>::to_vec)
        .collect()
}

fn check_random(model: &RandomModel) {
    prepare();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(format!("{}.gguf", model.architecture));
    model
        .write(&path)
        .unwrap_or_else(|words| panic!("{}: {words}", model.architecture));
    let cuts = legal(&path);
    assert!(cuts.len() > 1, "{} has no legal cut", model.architecture);
    let cuts: Vec<&[u32]> = cuts.iter().map(Vec::as_slice).collect();
    check_all(&path, &noise_tokens(model.seed, 70, model.vocabulary), &cuts);
}

macro_rules! rows {
    ($($test:ident: $name:literal;)*) => {
        $(#[test] fn $test() { check_random(&RandomModel::new($name)); })*

        #[test]
        fn every_row_of_the_table_has_a_test() {
            let mut tested = vec![$($name),*];
            tested.sort_unstable();
            let mut rows: Vec<&str> = SUPPORTED.iter().map(|row| row.name).collect();
            rows.sort_unstable();
            assert_eq!(tested, rows);
        }
    };
}

rows! {
    random_falcon: "falcon";
    random_gemma3: "gemma3";
    random_gpt_oss: "gpt-oss";
    random_llama: "llama";
    random_llama4: "llama4";
    random_mistral3: "mistral3";
    random_olmo2: "olmo2";
    random_phi3: "phi3";
    random_qwen2: "qwen2";
    random_qwen2moe: "qwen2moe";
    random_qwen3: "qwen3";
    random_qwen3moe: "qwen3moe";
    random_smollm3: "smollm3";
    random_starcoder2: "starcoder2";
}

#[test]
fn random_models_with_windows_have_two_kinds_of_layers() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["gemma3", "gpt-oss", "olmo2"] {
        let path = directory.path().join(name);
        RandomModel::new(name).write(&path).unwrap();
        let file = Gguf::open(&path).unwrap();
        let key = |suffix: &str| format!("{name}.{suffix}");
        assert_eq!(file.get(&key("rope.freq_base")), Some(&Value::F32(10_000.0)));
        assert_eq!(file.get(&key("rope.freq_base_swa")), Some(&Value::F32(5_000.0)));
        assert_eq!(file.get(&key("rope.scaling.factor")), Some(&Value::F32(4.0)));
        assert_eq!(file.get_u32(&key("attention.sliding_window")), Some(16));
    }
}

#[test]
fn random_llama_tied() {
    check_random(&RandomModel {
        tied: true,
        ..RandomModel::new("llama")
    });
}

#[test]
fn random_llama_with_experts() {
    check_random(&RandomModel {
        experts: 4,
        ..RandomModel::new("llama")
    });
}

#[test]
fn random_qwen3_tied() {
    check_random(&RandomModel {
        tied: true,
        ..RandomModel::new("qwen3")
    });
}

#[test]
fn smollm2_at_several_cuts() {
    if let Some(model) = models::real(models::SMOLLM2) {
        let cuts: &[&[u32]] = &[&[0, 30], &[0, 10, 20, 30], &[0, 3, 29, 30], &[0, 17, 30]];
        check_all(&model, &noise_tokens(2, 70, 49_152), cuts);
    }
}

#[test]
fn gemma_3_at_several_cuts() {
    if let Some(model) = models::real(models::GEMMA_3) {
        let cuts: &[&[u32]] = &[
            &[0, 18],
            &[0, 6, 12, 18],
            &[0, 5, 13, 18],
            &[0, 1, 18],
            // Layers 5 and 11 alone: full attention, and nothing else in the stage.
            &[0, 5, 6, 11, 12, 18],
        ];
        check_all(&model, &noise_tokens(3, 70, 262_144), cuts);
    }
}
