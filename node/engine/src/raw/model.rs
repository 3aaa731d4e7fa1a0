//! A loaded model.

use std::{
    ffi::CString,
    ops::ControlFlow,
    os::raw::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
};

use llama_cpp_sys_2 as sys;

use super::{backend, log};

/// Owner of a `llama_model`.
pub(crate) struct Model {
    pointer: NonNull<sys::llama_model>,
}

/// Why a model did not load.
pub(crate) enum ModelError {
    /// The progress callback gave up.
    Cancelled,
    /// Last words of llama.cpp.
    Refused(String),
}

struct Progress<'a> {
    report: &'a mut dyn FnMut(f32) -> ControlFlow<()>,
    cancelled: bool,
}

unsafe extern "C" fn on_progress(fraction: f32, data: *mut c_void) -> bool {
    // SAFETY: `data` is the `Progress` that `Model::load` keeps alive for as long as the load runs, and nobody else
    // touches it meanwhile.
    let progress = unsafe { &mut *data.cast::<Progress<'_>>() };
    // A panic must not cross into C++; it counts as giving up.
    let flow = catch_unwind(AssertUnwindSafe(|| (progress.report)(fraction))).unwrap_or(ControlFlow::Break(()));
    progress.cancelled = flow.is_break();
    flow.is_continue()
}

impl Model {
    /// Loads a file. `gpu_layers` below zero offloads all; `repack` allows weights in formats whose kernels depend on
    /// the shape of a batch.
    pub(crate) fn load(
        path: &str,
        gpu_layers: i32,
        repack: bool,
        report: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Self, ModelError> {
        backend::backend();
        log::clear();
        let path = CString::new(path).map_err(|_| ModelError::Refused("the path holds a zero byte".to_owned()))?;
        let mut progress = Progress {
            report,
            cancelled: false,
        };
        // SAFETY: returns a plain struct.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.n_gpu_layers = gpu_layers;
        params.use_extra_bufts = repack;
        params.progress_callback = Some(on_progress);
        params.progress_callback_user_data = (&raw mut progress).cast();
        // SAFETY: path and progress outlive the call, and llama.cpp keeps neither; it catches its own exceptions and
        // gives null.
        let pointer = unsafe { sys::llama_model_load_from_file(path.as_ptr(), params) };
        match NonNull::new(pointer) {
            Some(pointer) => Ok(Self { pointer }),
            None if progress.cancelled => Err(ModelError::Cancelled),
            None => Err(ModelError::Refused(log::last_words())),
        }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.pointer.as_ptr()
    }

    /// Width of an activation.
    pub(crate) fn n_embd(&self) -> u32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_embd(self.as_ptr()) }.unsigned_abs()
    }

    /// Layers in this file.
    pub(crate) fn n_layer(&self) -> u32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_layer(self.as_ptr()) }.unsigned_abs()
    }

    /// Size of the vocabulary in this file.
    pub(crate) fn n_vocab(&self) -> u32 {
        // SAFETY: the model is alive, and its vocabulary lives in it.
        unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.as_ptr())) }.unsigned_abs()
    }

    /// Bytes of all tensors.
    pub(crate) fn tensor_bytes(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_size(self.as_ptr()) }
    }

    /// The model keeps a state that cannot go back to an earlier position.
    pub(crate) fn is_recurrent(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_is_recurrent(self.as_ptr()) || sys::llama_model_is_hybrid(self.as_ptr()) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the pointer came from llama.cpp, is owned here and freed once; contexts own their model, so none
        // outlives it.
        unsafe { sys::llama_model_free(self.as_ptr()) }
    }
}
