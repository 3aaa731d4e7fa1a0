//! Why known architectures are refused: the traps of ARCHITECTURE.md by name.

pub(super) const EMBEDDING_MODEL: &str = "it is an embedding or classification model, it cannot generate";

const EMBEDDING_SCALE: &str =
    "llama.cpp applies its embedding scale to the rows a stage receives too, not only to tokens";
const BEFORE_LAYER_0: &str = "it adds positions or a norm before layer 0, which must act in the first stage only";
const UNEXPLAINED: &str = "split results differ slightly from the whole, and the cause is not understood yet";
const RECURRENT: &str = "its layers have recurrent or mixed memory, which cannot rewind; such models come later";
const MLA: &str = "its compressed attention (MLA) is not proven to give equal results when split";
const CROSSING: &str = "state crosses layers besides the activations, so a stage would miss it";
const MROPE: &str = "it needs four positions per row that a stage receives (M-RoPE)";
const PATTERN: &str = "the position of a layer decides what it computes, and the pattern is not carried over yet";
const LAYER_COUNT: &str = "constants follow from the number of layers, and a stage has another number";
const UNPROVEN: &str = "splitting it is expected to work but is not proven by this project's tests yet";
const ENCODER: &str = "it is an encoder or speech model, not a decoder of text";
const DIFFUSION: &str = "it generates by diffusion, not token by token";
const DRAFT: &str = "it is a draft model that reads the hidden state of another model";
const PROJECTOR: &str = "it is a vision or audio projector (mmproj), not a language model";

const REFUSED: &[(&str, &[&str])] = &[
    (
        EMBEDDING_SCALE,
        &[
            "gemma",
            "gemma2",
            "granite",
            "granitemoe",
            "granite_swa",
            "graniteswitch",
            "minicpm",
            "minicpm3",
            "afmoe",
            "grok",
            "muse-glimmer",
        ],
    ),
    (BEFORE_LAYER_0, &["gpt2", "starcoder", "bloom", "gptj"]),
    (UNEXPLAINED, &["mpt", "glm4", "glm4moe", "talkie"]),
    (
        RECURRENT,
        &[
            "mamba",
            "mamba2",
            "rwkv6",
            "rwkv6qwen2",
            "rwkv7",
            "arwkv7",
            "jamba",
            "falcon-h1",
            "nemotron_h",
            "nemotron_h_moe",
            "granitehybrid",
            "lfm2",
            "lfm2moe",
            "plamo2",
            "kimi-linear",
            "kimi-k3",
            "qwen3next",
            "qwen35",
            "qwen35moe",
            "minimax-01",
            "bailingmoe3",
        ],
    ),
    (
        MLA,
        &["deepseek2", "deepseek2-ocr", "deepseek32", "plm", "glm-dsa", "mistral4"],
    ),
    (
        CROSSING,
        &["gemma3n", "gemma4", "qwen3vl", "qwen3vlmoe", "deepseek4", "hrm_text"],
    ),
    (MROPE, &["qwen2vl", "paddleocr", "hunyuan_vl", "cogvlm"]),
    (
        PATTERN,
        &[
            "cohere2",
            "cohere2moe",
            "exaone4",
            "exaone-moe",
            "ernie4_5-moe",
            "mimo2",
            "step35",
            "laguna",
        ],
    ),
    (LAYER_COUNT, &["baichuan", "command-r", "smallthinker"]),
    (
        UNPROVEN,
        &[
            "deci",
            "gptneox",
            "refact",
            "stablelm",
            "qwen",
            "phi2",
            "phimoe",
            "plamo",
            "plamo3",
            "codeshell",
            "orion",
            "internlm2",
            "xverse",
            "dbrx",
            "olmo",
            "olmoe",
            "openelm",
            "arctic",
            "deepseek",
            "chatglm",
            "jais",
            "jais2",
            "nemotron",
            "exaone",
            "bailingmoe",
            "bailingmoe2",
            "arcee",
            "ernie4_5",
            "hunyuan-moe",
            "hunyuan-dense",
            "seed_oss",
            "grovemoe",
            "minimax-m2",
            "pangu-embedded",
            "maincoder",
            "nanbeige",
            "dots1",
            "apertus",
            "bitnet",
        ],
    ),
    (
        EMBEDDING_MODEL,
        &[
            "bert",
            "modern-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "neo-bert",
            "jina-bert-v2",
            "jina-bert-v3",
            "eurobert",
            "gemma-embedding",
            "llama-embed",
        ],
    ),
    (
        ENCODER,
        &["t5", "t5encoder", "wavtokenizer-dec", "qwen3tts", "pockettts"],
    ),
    (DIFFUSION, &["dream", "llada", "llada-moe", "rnd1"]),
    (DRAFT, &["eagle3", "dflash", "gemma4-assistant"]),
    (PROJECTOR, &["clip"]),
];

/// Why an architecture that is not in the table is refused.
pub fn refusal_reason(name: &str) -> &'static str {
    REFUSED
        .iter()
        .find(|(_, names)| names.contains(&name))
        .map_or("it is not in the table", |(reason, _)| *reason)
}
