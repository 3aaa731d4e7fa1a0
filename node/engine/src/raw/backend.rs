//! Process-wide state of llama.cpp: environment, one initialisation, log callback.

use std::sync::OnceLock;

use llama_cpp_2::{LlamaCppError, llama_backend::LlamaBackend};
use llama_cpp_sys_2 as sys;

use super::log;

/// Switch of ggml's tiled matrix kernels, whose sums depend on the number of rows.
const TILED_KERNELS: &str = "GGML_CPU_TILED_MM";

/// Prepares the process for llama.cpp. Call it first in `main`, before any thread starts.
///
/// With `exact`, sets `GGML_CPU_TILED_MM=0`: ggml reads it once, at the first matrix product
/// (`ggml-cpu/tiled/tiled.cpp`), and without it the rounding of a row depends on how many rows share its call.
/// A value that the user has set is overridden. Without `exact` the environment stays as it is.
pub fn prepare_process(exact: bool) {
    if exact {
        // SAFETY: the caller promises, as documented, that no other thread runs yet, so nobody reads the
        // environment at the same time.
        unsafe { std::env::set_var(TILED_KERNELS, "0") };
    }
}

/// Whether this process was prepared for exact arithmetic.
pub fn is_process_exact() -> bool {
    std::env::var(TILED_KERNELS).is_ok_and(|value| value == "0")
}

/// The back end, initialised at the first call and never ended.
pub(crate) fn backend() -> &'static LlamaBackend {
    static BACKEND: OnceLock<LlamaBackend> = OnceLock::new();
    BACKEND.get_or_init(|| {
        // SAFETY: the callback is a plain function that lives as long as the process and takes no user data.
        unsafe { sys::llama_log_set(Some(log::on_line), std::ptr::null_mut()) };
        match LlamaBackend::init() {
            Ok(backend) => backend,
            // Somebody else in this process initialised it: the type is only a token of that.
            Err(LlamaCppError::BackendAlreadyInitialized) => LlamaBackend {},
            Err(error) => unreachable!("initialisation has one error: {error}"),
        }
    })
}

/// Most lanes that llama.cpp can hold.
pub(crate) fn max_lanes() -> usize {
    // SAFETY: returns a constant.
    unsafe { sys::llama_max_parallel_sequences() }
}
