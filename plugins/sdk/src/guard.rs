//! The one place where panics end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mesh_plugin_abi::{MESH_ERROR, MESH_PANICKED, MeshStatus};

use crate::{Error, last_error};

/// Runs a call; errors and panics become a status and the thread's last error.
///
/// What the call left half done is the plugin's affair: after a panic the node calls it only to end what has begun.
pub(crate) fn guard(call: impl FnOnce() -> Result<MeshStatus, Error>) -> MeshStatus {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => {
            last_error::set(error.message());
            MESH_ERROR
        }
        Err(payload) => {
            last_error::set(&describe(payload));
            MESH_PANICKED
        }
    }
}

fn describe(payload: Box<dyn Any + Send>) -> String {
    let payload = match payload.downcast::<&'static str>() {
        Ok(text) => return format!("panicked: {text}"),
        Err(payload) => payload,
    };
    match payload.downcast::<String>() {
        Ok(text) => format!("panicked: {text}"),
        Err(payload) => {
            // Dropping a value of the plugin's own could panic again, and nothing would catch that.
            Box::leak(payload);
            "panicked with something that is no text".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_plugin_abi::MESH_OK;

    use super::*;

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    fn message() -> String {
        let mut buffer = [0_u8; 256];
        let length = last_error::copy(&mut buffer);
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_status_passes_through() {
        assert_eq!(guard(|| Ok(MESH_OK)), MESH_OK);
    }

    #[test]
    fn an_error_is_kept_for_the_node() {
        assert_eq!(guard(|| Err(Error::new("no place"))), MESH_ERROR);
        assert_eq!(message(), "no place");
    }

    #[test]
    fn panics_of_every_kind_become_a_status() {
        assert_eq!(guard(|| panic!("plain")), MESH_PANICKED);
        assert_eq!(message(), "panicked: plain");
        assert_eq!(guard(|| panic!("number {}", 7)), MESH_PANICKED);
        assert_eq!(message(), "panicked: number 7");
        assert_eq!(guard(|| std::panic::panic_any(PanicsWhenDropped)), MESH_PANICKED);
        assert_eq!(message(), "panicked with something that is no text");
    }
}
