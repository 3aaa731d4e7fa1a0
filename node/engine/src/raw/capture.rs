//! Reads the output of the last layer while the graph runs, then ends it.

use std::{
    ffi::CStr,
    os::raw::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
};

use llama_cpp_sys_2 as sys;

/// Rows of one tensor, caught by the evaluation callback.
pub(super) struct Capture {
    /// Name of the tensor, `l_out-<last local layer>`.
    name: Vec<u8>,
    /// Values caught in the current call.
    pub(super) values: Vec<f32>,
    /// How often the tensor came in the current call.
    pub(super) hits: u32,
}

impl Capture {
    pub(super) fn new(last_layer: u32) -> Self {
        Self {
            name: format!("l_out-{last_layer}").into_bytes(),
            values: Vec::new(),
            hits: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.hits = 0;
    }

    /// Copies a tensor of f32; any other type is left out, which the caller sees by the count of values.
    fn copy(&mut self, tensor: *mut sys::ggml_tensor) {
        self.hits += 1;
        // SAFETY: ggml passes a computed tensor; these only read it.
        let (kind, elements) = unsafe { ((*tensor).type_, sys::ggml_nelements(tensor)) };
        let (true, Ok(elements)) = (kind == sys::GGML_TYPE_F32, usize::try_from(elements)) else {
            return;
        };
        let start = self.values.len();
        self.values.resize(start + elements, 0.0);
        let target = self.values[start..].as_mut_ptr().cast::<c_void>();
        // SAFETY: `target` has room for `elements` floats, and the tensor holds as many.
        unsafe { sys::ggml_backend_tensor_get(tensor, target, 0, elements * size_of::<f32>()) };
    }
}

/// `ggml_backend_sched_eval_callback`: asked for every tensor, told when one it wanted is computed. `false` then ends
/// the graph of that back end, so that the final norm and the vocabulary matrix are not computed.
pub(super) unsafe extern "C" fn on_tensor(tensor: *mut sys::ggml_tensor, ask: bool, data: *mut c_void) -> bool {
    // SAFETY: `data` is the `Capture` owned by the context that runs this graph, which touches it only between calls.
    let capture = unsafe { &mut *data.cast::<Capture>() };
    // SAFETY: the name of a tensor is an array in it that ends with a zero.
    let wanted = unsafe { CStr::from_ptr((*tensor).name.as_ptr()) }.to_bytes() == capture.name;
    if ask || !wanted {
        return if ask { wanted } else { true };
    }
    // A panic must not cross into C++; the caller sees that values are missing.
    let _ = catch_unwind(AssertUnwindSafe(|| capture.copy(tensor)));
    false
}
