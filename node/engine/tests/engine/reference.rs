//! The oracle: the original file in plain llama.cpp, with nothing of our engine but the same calls.

use std::{ffi::CString, path::Path, ptr::null_mut};

use llama_cpp_sys_2 as sys;

pub struct Reference {
    model: *mut sys::llama_model,
    context: *mut sys::llama_context,
    n_vocab: usize,
    length: i32,
    /// Lone rows get a second one behind them: what our engine does for models whose lone rows come out otherwise.
    pub pads: bool,
}

impl Reference {
    pub fn load(path: &Path, context: u32) -> Self {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: plain calls on objects that this value owns.
        unsafe {
            sys::llama_backend_init();
            let mut params = sys::llama_model_default_params();
            params.n_gpu_layers = 0;
            params.use_extra_bufts = false;
            let model = sys::llama_model_load_from_file(path.as_ptr(), params);
            assert!(!model.is_null(), "the original does not load");
            let mut params = sys::llama_context_default_params();
            params.n_ctx = context;
            params.n_batch = 128;
            params.n_ubatch = 128;
            params.type_v = sys::GGML_TYPE_BF16;
            params.n_threads = 1;
            params.n_threads_batch = 1;
            params.kv_unified = false;
            params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
            let context = sys::llama_init_from_model(model, params);
            assert!(!context.is_null());
            let n_vocab = usize::try_from(sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(model))).unwrap();
            Self {
                model,
                context,
                n_vocab,
                length: 0,
                pads: false,
            }
        }
    }

    /// Logits of every row, in calls of at most 128 rows.
    pub fn forward(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        tokens.chunks(128).flat_map(|chunk| self.call(chunk)).collect()
    }

    fn call(&mut self, tokens: &[u32]) -> Vec<Vec<f32>> {
        let mut tokens: Vec<i32> = tokens.iter().map(|token| token.cast_signed()).collect();
        let wanted = tokens.len();
        if self.pads && wanted == 1 {
            tokens.push(tokens[0]);
        }
        let rows = tokens.len();
        let mut positions: Vec<i32> = (self.length..).take(rows).collect();
        let (mut counts, mut lane, mut outputs) = (vec![1; rows], 0, vec![1i8; rows]);
        let mut lanes = vec![&raw mut lane; rows];
        self.length += i32::try_from(wanted).unwrap();
        // SAFETY: the batch points into vectors that live through the call and have as many entries as rows.
        unsafe {
            let batch = sys::llama_batch {
                n_tokens: i32::try_from(rows).unwrap(),
                token: tokens.as_mut_ptr(),
                embd: null_mut(),
                pos: positions.as_mut_ptr(),
                n_seq_id: counts.as_mut_ptr(),
                seq_id: lanes.as_mut_ptr(),
                logits: outputs.as_mut_ptr(),
            };
            assert_eq!(sys::llama_decode(self.context, batch), 0);
            sys::llama_memory_seq_rm(sys::llama_get_memory(self.context), 0, self.length, -1);
            (0..wanted)
                .map(|row| {
                    let logits = sys::llama_get_logits_ith(self.context, i32::try_from(row).unwrap());
                    std::slice::from_raw_parts(logits, self.n_vocab).to_vec()
                })
                .collect()
        }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // SAFETY: owned here, freed once, in order.
        unsafe {
            sys::llama_free(self.context);
            sys::llama_model_free(self.model);
        }
    }
}
