//! Models that llama.cpp itself makes from metadata: it creates every tensor the architecture needs.

use std::{
    ffi::{CStr, CString},
    os::raw::{c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    ptr::NonNull,
};

use llama_cpp_sys_2 as sys;

use super::{backend, log};

/// Metadata of a model to be.
pub(crate) struct Metadata {
    pointer: NonNull<sys::gguf_context>,
}

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Entry {
    U32(u32),
    F32(f32),
    Text(String),
}

/// Fills a tensor of f32 by its name.
type Fill<'a> = &'a mut dyn FnMut(&str, &mut [f32]);

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} holds a zero byte"))
}

impl Metadata {
    pub(crate) fn new() -> Self {
        // SAFETY: allocates an empty context; never null.
        let pointer = unsafe { sys::gguf_init_empty() };
        Self {
            pointer: NonNull::new(pointer).unwrap_or_else(|| unreachable!("out of memory aborts in C++")),
        }
    }

    pub(crate) fn set(&mut self, key: &str, value: &Entry) -> Result<(), String> {
        let key = c_string(key)?;
        let (context, key) = (self.pointer.as_ptr(), key.as_ptr());
        match value {
            // SAFETY: context and key are alive; gguf copies both key and value.
            Entry::U32(value) => unsafe { sys::gguf_set_val_u32(context, key, *value) },
            // SAFETY: as above.
            Entry::F32(value) => unsafe { sys::gguf_set_val_f32(context, key, *value) },
            Entry::Text(value) => {
                let value = c_string(value)?;
                // SAFETY: as above.
                unsafe { sys::gguf_set_val_str(context, key, value.as_ptr()) }
            }
        }
        Ok(())
    }

    /// Makes the model, its tensors filled by `fill`, and writes it to a file.
    pub(crate) fn write_model(&self, path: &Path, fill: Fill<'_>) -> Result<(), String> {
        backend::backend();
        log::clear();
        let path = c_string(&path.to_string_lossy())?;
        // SAFETY: returns a plain struct.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.n_gpu_layers = 0;
        let mut fill = fill;
        // SAFETY: metadata and fill outlive the call; llama.cpp keeps neither.
        let model = unsafe {
            let data = (&raw mut fill).cast::<c_void>();
            sys::llama_model_init_from_user(self.pointer.as_ptr(), Some(on_tensor), data, params)
        };
        let model = NonNull::new(model).ok_or_else(log::last_words)?;
        // SAFETY: the model is alive and freed once.
        unsafe {
            sys::llama_model_save_to_file(model.as_ptr(), path.as_ptr());
            sys::llama_model_free(model.as_ptr());
        }
        Ok(())
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        // SAFETY: owned here and freed once.
        unsafe { sys::gguf_free(self.pointer.as_ptr()) };
    }
}

unsafe extern "C" fn on_tensor(tensor: *mut sys::ggml_tensor, data: *mut c_void) {
    // SAFETY: `data` is the `Fill` that `write_model` keeps alive, used by this thread only.
    let fill = unsafe { &mut *data.cast::<Fill<'_>>() };
    // SAFETY: llama.cpp passes a tensor it has allocated, with a name that ends with a zero.
    let (name, bytes) = unsafe {
        (
            CStr::from_ptr((*tensor).name.as_ptr()).to_string_lossy(),
            sys::ggml_nbytes(tensor),
        )
    };
    let mut values = vec![0.0f32; bytes.div_ceil(size_of::<f32>())];
    // SAFETY: reads the type of a live tensor.
    if unsafe { (*tensor).type_ } == sys::GGML_TYPE_F32 {
        // A panic must not cross into C++; the tensor stays zero.
        let _ = catch_unwind(AssertUnwindSafe(|| fill(&name, &mut values)));
    }
    // SAFETY: `values` has at least `bytes` bytes.
    unsafe { sys::ggml_backend_tensor_set(tensor, values.as_ptr().cast(), 0, bytes) };
}

/// Copies a GGUF file without one tensor.
pub(crate) fn copy_without(source: &Path, target: &Path, tensor: &str) -> Result<(), String> {
    let (source, target) = (
        c_string(&source.to_string_lossy())?,
        c_string(&target.to_string_lossy())?,
    );
    let mut tensors: *mut sys::ggml_context = std::ptr::null_mut();
    let params = sys::gguf_init_params {
        no_alloc: false,
        ctx: &raw mut tensors,
    };
    // SAFETY: path and params are alive during the call; `tensors` receives a context that is freed below.
    let old = unsafe { sys::gguf_init_from_file(source.as_ptr(), params) };
    let old = NonNull::new(old).ok_or_else(log::last_words)?;
    let new = Metadata::new();
    // SAFETY: all pointers are alive; indices are below the count; `new` only reads the tensors, which outlive it.
    let written = unsafe {
        sys::gguf_set_kv(new.pointer.as_ptr(), old.as_ptr());
        for index in 0..sys::gguf_get_n_tensors(old.as_ptr()) {
            let name: *const c_char = sys::gguf_get_tensor_name(old.as_ptr(), index);
            if CStr::from_ptr(name).to_bytes() != tensor.as_bytes() {
                sys::gguf_add_tensor(new.pointer.as_ptr(), sys::ggml_get_tensor(tensors, name));
            }
        }
        sys::gguf_write_to_file(new.pointer.as_ptr(), target.as_ptr(), false)
    };
    drop(new);
    // SAFETY: both are owned here and freed once.
    unsafe {
        sys::gguf_free(old.as_ptr());
        sys::ggml_free(tensors);
    }
    if written { Ok(()) } else { Err(log::last_words()) }
}
