//! A context: KV streams of all lanes, and the calls that compute rows in them.

use std::{os::raw::c_void, ptr::NonNull, slice};

use llama_cpp_sys_2 as sys;

use super::{
    capture::{self, Capture},
    log,
    model::Model,
};

/// Sizes of a context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextShape {
    /// KV streams, one per lane.
    pub lanes: u32,
    /// Cells of each stream.
    pub cells: u32,
    /// Most rows of one call.
    pub rows: u32,
    /// Most rows of one call with logits.
    pub outputs: u32,
    /// Compute threads.
    pub threads: i32,
    /// Catch the output of the last layer, and stop there.
    pub captures: bool,
    /// Keep values of attention in BF16 beside keys in F16. Only where both have one type does ggml take the attention
    /// kernels whose rounding depends on the rows of a call and on the threads (`use_split_kv_path` and `use_tiled` in
    /// ggml-cpu's `ops.cpp`).
    pub mixed_kv: bool,
}

/// Owner of a `llama_context` and of its model.
pub(crate) struct Context {
    pointer: NonNull<sys::llama_context>,
    memory: sys::llama_memory_t,
    capture: Option<NonNull<Capture>>,
    n_vocab: usize,
    model: Model,
}

/// Rows of one `llama_decode`.
#[derive(Debug, Default)]
pub(crate) struct Call {
    tokens: Vec<i32>,
    activations: Vec<f32>,
    positions: Vec<i32>,
    lanes: Vec<i32>,
    outputs: Vec<i8>,
    lane_counts: Vec<i32>,
    lane_pointers: Vec<*mut i32>,
}

/// Input of one row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowInput<'a> {
    /// At the first stage.
    Token(u32),
    /// At the others, `n_embd` values.
    Activation(&'a [f32]),
}

impl Call {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.activations.clear();
        self.positions.clear();
        self.lanes.clear();
        self.outputs.clear();
    }

    /// Adds a row. All rows of a call are of the same kind.
    pub(crate) fn push(&mut self, lane: u32, position: u32, input: RowInput<'_>, output: bool) {
        match input {
            RowInput::Token(token) => self.tokens.push(token.cast_signed()),
            RowInput::Activation(values) => self.activations.extend_from_slice(values),
        }
        self.positions.push(position.cast_signed());
        self.lanes.push(lane.cast_signed());
        self.outputs.push(i8::from(output));
    }

    pub(crate) fn rows(&self) -> usize {
        self.positions.len()
    }

    /// Flags further rows until at least two are outputs, if any is.
    pub(crate) fn flag_two_outputs(&mut self) {
        let flagged = self.outputs.iter().filter(|flag| **flag != 0).count();
        if flagged == 1
            && let Some(flag) = self.outputs.iter_mut().find(|flag| **flag == 0)
        {
            *flag = 1;
        }
    }

    /// Doubles a lone row at the next position of its lane, so that it is computed as rows in company are. Gives its
    /// lane and position; the caller forgets the cell of the second row after the call.
    pub(crate) fn pad_lone_row(&mut self) -> Option<(u32, u32)> {
        let ([lane], [position]) = (&self.lanes[..], &self.positions[..]) else {
            return None;
        };
        let (lane, position) = (lane.cast_unsigned(), position.cast_unsigned());
        self.positions.push(position.cast_signed() + 1);
        for twin in [&mut self.lanes, &mut self.tokens] {
            twin.extend_from_within(..);
        }
        self.activations.extend_from_within(..);
        self.outputs.extend_from_within(..);
        Some((lane, position))
    }

    fn as_batch(&mut self) -> sys::llama_batch {
        let rows = self.rows();
        self.lane_counts.clear();
        self.lane_counts.resize(rows, 1);
        self.lane_pointers.clear();
        self.lane_pointers
            .extend(self.lanes.iter_mut().map(|lane| -> *mut i32 { lane }));
        let takes_tokens = self.activations.is_empty();
        sys::llama_batch {
            n_tokens: i32::try_from(rows).unwrap_or(i32::MAX),
            token: if takes_tokens {
                self.tokens.as_mut_ptr()
            } else {
                std::ptr::null_mut()
            },
            embd: if takes_tokens {
                std::ptr::null_mut()
            } else {
                self.activations.as_mut_ptr()
            },
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.lane_counts.as_mut_ptr(),
            seq_id: self.lane_pointers.as_mut_ptr(),
            logits: self.outputs.as_mut_ptr(),
        }
    }
}

impl Context {
    /// Makes a context; gives the last words of llama.cpp where it refuses.
    pub(crate) fn new(model: Model, shape: ContextShape) -> Result<Self, String> {
        let capture = shape.captures.then(|| {
            let boxed = Box::new(Capture::new(model.n_layer().saturating_sub(1)));
            NonNull::from(Box::leak(boxed))
        });
        // SAFETY: returns a plain struct.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = shape.cells * shape.lanes;
        params.n_batch = shape.rows;
        params.n_ubatch = shape.rows;
        params.n_seq_max = shape.lanes;
        params.n_outputs_max = shape.outputs;
        params.n_threads = shape.threads;
        params.n_threads_batch = shape.threads;
        params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.swa_full = true;
        params.kv_unified = false;
        params.no_perf = true;
        if shape.mixed_kv {
            params.type_v = sys::GGML_TYPE_BF16;
        }
        if let Some(capture) = capture {
            params.cb_eval = Some(capture::on_tensor);
            params.cb_eval_user_data = capture.as_ptr().cast::<c_void>();
        }
        // SAFETY: the model is alive; the capture is freed after the context.
        let pointer = unsafe { sys::llama_init_from_model(model.as_ptr(), params) };
        let Some(pointer) = NonNull::new(pointer) else {
            free_capture(capture);
            return Err(log::last_words());
        };
        // SAFETY: the context is alive; its memory lives in it.
        let memory = unsafe { sys::llama_get_memory(pointer.as_ptr()) };
        let n_vocab = model.n_vocab() as usize;
        Ok(Self {
            pointer,
            memory,
            capture,
            n_vocab,
            model,
        })
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// Compute threads from the next call on.
    pub(crate) fn set_threads(&mut self, threads: u32) {
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the context is alive, and no graph runs now.
        unsafe { sys::llama_set_n_threads(self.pointer.as_ptr(), threads, threads) };
    }

    /// Cells of each lane that llama.cpp really gave.
    pub(crate) fn cells(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_ctx_seq(self.pointer.as_ptr()) }
    }

    /// Runs a call; gives the status of `llama_decode` where it is not 0.
    pub(crate) fn decode(&mut self, call: &mut Call) -> Result<(), i32> {
        if let Some(capture) = self.capture {
            // SAFETY: owned by this context, and no graph runs now.
            unsafe { (*capture.as_ptr()).clear() };
        }
        log::clear();
        // SAFETY: the batch points into `call`, which outlives the call and is not changed meanwhile; its arrays have
        // `n_tokens` entries each, and activations `n_tokens * n_embd`.
        let status = unsafe { sys::llama_decode(self.pointer.as_ptr(), call.as_batch()) };
        if status == 0 { Ok(()) } else { Err(status) }
    }

    /// Values caught in the last call, rows × `n_embd`, where the tensor came exactly once.
    pub(crate) fn captured(&self) -> Option<&[f32]> {
        let capture = self.capture?;
        // SAFETY: owned by this context, and no graph runs now.
        let capture = unsafe { capture.as_ref() };
        (capture.hits == 1).then_some(capture.values.as_slice())
    }

    /// Logits of a flagged row of the last call.
    pub(crate) fn logits(&self, row: usize) -> Option<&[f32]> {
        let row = i32::try_from(row).ok()?;
        // SAFETY: the context is alive; an unflagged or unknown row gives null (with NDEBUG, as released builds of
        // llama.cpp are).
        let values = unsafe { sys::llama_get_logits_ith(self.pointer.as_ptr(), row) };
        // SAFETY: a row of logits has as many values as the vocabulary and lives until the next call, which needs
        // `&mut self`.
        (!values.is_null()).then(|| unsafe { slice::from_raw_parts(values, self.n_vocab) })
    }

    /// Forgets the cells of a lane from a position on; false where the memory cannot do that.
    #[must_use]
    pub(crate) fn forget(&mut self, lane: u32, from: u32) -> bool {
        // SAFETY: the memory lives in the context; -1 is the end.
        unsafe { sys::llama_memory_seq_rm(self.memory, lane.cast_signed(), from.cast_signed(), -1) }
    }
}

fn free_capture(capture: Option<NonNull<Capture>>) {
    if let Some(capture) = capture {
        // SAFETY: came from `Box::leak` in `Context::new` and is freed once, when no graph runs any more.
        drop(unsafe { Box::from_raw(capture.as_ptr()) });
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: owned here and freed once, before the model and the capture.
        unsafe { sys::llama_free(self.pointer.as_ptr()) };
        free_capture(self.capture);
    }
}
