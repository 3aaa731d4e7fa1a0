//! What a plugin may call: the clock, `wake` and the tokenizer.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{from_ref, null};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_plugin_abi::{MESH_ERROR, MESH_MAX_ENCODE_BYTES, MESH_OK, MeshBytes, MeshStatus, MeshTokenizer};

use super::pass;
use crate::{Tokenizer, Wake, clock};

/// Behind the `host` and `context` pointers of one activation. It is leaked on purpose, a small allocation for each
/// activation: a plugin may call `wake` long after it was shut down, and then must find it. What it holds is taken out
/// when it is no longer due.
pub(crate) struct HostContext {
    wake: Mutex<Option<Wake>>,
    tokenizer: Mutex<Option<Arc<dyn Tokenizer>>>,
    token_count: u32,
}

impl HostContext {
    /// For `MeshActivation.now_ns`.
    pub(super) const NOW_NS: Option<unsafe extern "C" fn(*mut c_void) -> u64> = Some(now_ns);
    /// For `MeshActivation.wake`.
    pub(super) const WAKE: Option<unsafe extern "C" fn(*mut c_void, u64)> = Some(wake);

    /// One that is never freed.
    pub(crate) fn leak(tokenizer: Option<Arc<dyn Tokenizer>>, wake: Wake) -> &'static Self {
        let tokens = tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.len());
        Box::leak(Box::new(Self {
            wake: Mutex::new(Some(wake)),
            tokenizer: Mutex::new(tokenizer),
            // Ids are signed in the header.
            token_count: tokens.min(i32::MAX as usize) as u32,
        }))
    }

    /// From now on, the plugin's tokenizer calls return an error. One that runs on another thread ends as it would have.
    pub(crate) fn take_tokenizer(&self) {
        let taken = lock(&self.tokenizer).take();
        drop(taken);
    }

    /// From now on, the plugin's wakes go nowhere. One that runs on another thread may still come through.
    pub(crate) fn disconnect(&self) {
        let taken = lock(&self.wake).take();
        drop(taken);
    }

    pub(super) fn pointer(&'static self) -> *mut c_void {
        from_ref(self).cast_mut().cast()
    }

    /// The plugin's view of the tokenizer, null if there is none. Leaked like the context, in case that the plugin keeps
    /// the pointer instead of a copy.
    pub(super) fn tokenizer_view(&'static self) -> *const MeshTokenizer {
        if lock(&self.tokenizer).is_none() {
            return null();
        }
        Box::leak(Box::new(MeshTokenizer {
            struct_size: pass::struct_size::<MeshTokenizer>(),
            token_count: self.token_count,
            context: self.pointer(),
            piece: Some(piece),
            encode: Some(encode),
        }))
    }

    fn woken(&self, operation: u64) {
        // Called without the lock: it may come back here, from this thread too.
        let wake = lock(&self.wake).clone();
        if let Some(wake) = wake {
            wake(operation);
        }
    }

    fn piece(&self, token: i32) -> Option<Vec<u8>> {
        let id = u32::try_from(token).ok().filter(|id| *id < self.token_count)?;
        let tokenizer = lock(&self.tokenizer).clone()?;
        let mut bytes = Vec::new();
        tokenizer.piece(id, &mut bytes).then_some(bytes)
    }

    fn encode(&self, text: &[u8]) -> Option<Vec<i32>> {
        let text = std::str::from_utf8(text).ok()?;
        let tokenizer = lock(&self.tokenizer).clone()?;
        let ids = tokenizer.encode(text)?;
        ids.into_iter().map(|id| i32::try_from(id).ok()).collect()
    }
}

/// A panic while it was held left it as it was: nothing is done under it but a clone or a take.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what may panic: nothing unwinds into C.
fn guarded<T>(run: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).ok().flatten()
}

unsafe extern "C" fn now_ns(_host: *mut c_void) -> u64 {
    clock::now_ns()
}

unsafe extern "C" fn wake(host: *mut c_void, operation: u64) {
    // SAFETY: the header makes it the pointer that came with this function, or at worst null.
    let host = unsafe { context(host) };
    guarded(|| host.map(|host| host.woken(operation)));
}

unsafe extern "C" fn piece(
    host: *mut c_void,
    token: i32,
    buffer: *mut u8,
    capacity: u64,
    length: *mut u64,
) -> MeshStatus {
    // SAFETY: as for `wake`.
    let host = unsafe { context(host) };
    let bytes = guarded(|| host?.piece(token));
    // SAFETY: the header makes them a buffer of that capacity, and a number.
    unsafe { give(bytes, buffer, capacity, length) }
}

unsafe extern "C" fn encode(
    host: *mut c_void,
    text: MeshBytes,
    tokens: *mut i32,
    capacity: u64,
    count: *mut u64,
) -> MeshStatus {
    // SAFETY: as for `wake`.
    let host = unsafe { context(host) };
    // SAFETY: the header makes it a text of that length.
    let text = unsafe { borrow(&text) };
    let ids = guarded(|| host?.encode(text?));
    // SAFETY: as for `piece`.
    unsafe { give(ids, tokens, capacity, count) }
}

/// # Safety
///
/// The pointer is null or comes from [`HostContext::pointer`].
unsafe fn context(pointer: *mut c_void) -> Option<&'static HostContext> {
    // SAFETY: contexts are never freed, and only shared.
    unsafe { pointer.cast::<HostContext>().as_ref() }
}

/// The bytes of a text that is not too long.
///
/// # Safety
///
/// The pointer is null or points to as many bytes as the length says.
unsafe fn borrow(text: &MeshBytes) -> Option<&[u8]> {
    let length = usize::try_from(text.length).ok()?;
    if length == 0 {
        return Some(&[]);
    }
    if text.data.is_null() || length > MESH_MAX_ENCODE_BYTES {
        return None;
    }
    // SAFETY: neither null nor too long; the rest is the caller's promise.
    Some(unsafe { std::slice::from_raw_parts(text.data, length) })
}

/// Writes an answer and how long it is; only the length if it does not fit, and 0 if there is none.
///
/// # Safety
///
/// `buffer` is null or has room for `capacity` items; `count` is null or points to a number.
unsafe fn give<T: Copy>(answer: Option<Vec<T>>, buffer: *mut T, capacity: u64, count: *mut u64) -> MeshStatus {
    if count.is_null() || !count.is_aligned() {
        return MESH_ERROR;
    }
    let length = answer.as_ref().map_or(0, |items| items.len() as u64);
    // SAFETY: neither null nor misaligned.
    unsafe { count.write(length) };
    let Some(items) = answer.filter(|_| length <= capacity) else {
        return MESH_ERROR;
    };
    if items.is_empty() {
        return MESH_OK;
    }
    if buffer.is_null() || !buffer.is_aligned() {
        return MESH_ERROR;
    }
    // SAFETY: the items fit, and the buffer is neither null nor misaligned.
    unsafe { std::ptr::copy_nonoverlapping(items.as_ptr(), buffer, items.len()) };
    MESH_OK
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Words;

    impl Tokenizer for Words {
        fn len(&self) -> usize {
            3
        }

        fn piece(&self, token: u32, out: &mut Vec<u8>) -> bool {
            assert_ne!(token, 2, "a tokenizer that panics");
            out.extend_from_slice(b"word");
            true
        }

        fn encode(&self, text: &str) -> Option<Vec<u32>> {
            assert_ne!(text, "panic", "a tokenizer that panics");
            (text != "lossy").then(|| vec![0; text.split_whitespace().count()])
        }
    }

    fn view() -> (&'static HostContext, MeshTokenizer) {
        let host = HostContext::leak(Some(Arc::new(Words)), Arc::new(|_| panic!("a wake that panics")));
        // SAFETY: there is a tokenizer, so the view is not null; it is never freed.
        let view = unsafe { *host.tokenizer_view() };
        (host, view)
    }

    fn ask_piece(view: &MeshTokenizer, token: i32, buffer: &mut [u8]) -> (MeshStatus, u64) {
        let mut length = 99;
        // SAFETY: the buffer has that capacity.
        let status = unsafe {
            view.piece.unwrap()(
                view.context,
                token,
                buffer.as_mut_ptr(),
                buffer.len() as u64,
                &mut length,
            )
        };
        (status, length)
    }

    fn ask_encode(view: &MeshTokenizer, text: MeshBytes, room: &mut [i32]) -> (MeshStatus, u64) {
        let mut count = 99;
        // SAFETY: the room has that capacity.
        let status =
            unsafe { view.encode.unwrap()(view.context, text, room.as_mut_ptr(), room.len() as u64, &mut count) };
        (status, count)
    }

    #[test]
    fn a_piece_that_does_not_fit_says_how_long_it_is() {
        let (_, view) = view();
        let mut buffer = [0; 4];
        assert_eq!(ask_piece(&view, 0, &mut buffer), (MESH_OK, 4));
        assert_eq!(&buffer, b"word");
        let mut short = [7; 3];
        assert_eq!(ask_piece(&view, 0, &mut short), (MESH_ERROR, 4));
        assert_eq!(short, [7; 3]);
    }

    #[test]
    fn a_token_outside_the_vocabulary_has_no_piece() {
        let (_, view) = view();
        for token in [-1, 3, i32::MIN, i32::MAX] {
            assert_eq!(ask_piece(&view, token, &mut [0; 8]), (MESH_ERROR, 0));
        }
    }

    #[test]
    fn no_panic_of_a_tokenizer_or_a_wake_reaches_the_plugin() {
        let (host, view) = view();
        assert_eq!(ask_piece(&view, 2, &mut [0; 8]), (MESH_ERROR, 0));
        assert_eq!(ask_encode(&view, pass::bytes(b"panic"), &mut [0; 8]), (MESH_ERROR, 0));
        // SAFETY: the context is never freed.
        unsafe { wake(host.pointer(), 1) };
        assert_eq!(ask_piece(&view, 0, &mut [0; 8]), (MESH_OK, 4));
    }

    #[test]
    fn a_text_that_is_too_long_or_no_text_has_no_tokens() {
        let (_, view) = view();
        let longest = vec![b'a'; MESH_MAX_ENCODE_BYTES];
        let longer = vec![b'a'; MESH_MAX_ENCODE_BYTES + 1];
        assert_eq!(ask_encode(&view, pass::bytes(&longest), &mut [0; 1]), (MESH_OK, 1));
        assert_eq!(ask_encode(&view, pass::bytes(&longer), &mut [0; 1]), (MESH_ERROR, 0));
        assert_eq!(ask_encode(&view, pass::bytes(b"\xff"), &mut [0; 1]), (MESH_ERROR, 0));
        assert_eq!(ask_encode(&view, pass::bytes(b"lossy"), &mut [0; 1]), (MESH_ERROR, 0));
        let mut null_text = pass::bytes(b"text");
        null_text.data = null();
        assert_eq!(ask_encode(&view, null_text, &mut [0; 1]), (MESH_ERROR, 0));
    }

    #[test]
    fn tokens_that_do_not_fit_say_how_many_they_are() {
        let (_, view) = view();
        assert_eq!(ask_encode(&view, pass::bytes(b"a b c"), &mut [0; 2]), (MESH_ERROR, 3));
        assert_eq!(ask_encode(&view, pass::bytes(b""), &mut []), (MESH_OK, 0));
    }

    #[test]
    fn null_pointers_are_an_error() {
        let (_, view) = view();
        let mut length = 0;
        // SAFETY: null is allowed for each of these pointers.
        unsafe {
            let piece = view.piece.unwrap();
            assert_eq!(piece(view.context, 0, std::ptr::null_mut(), 8, &mut length), MESH_ERROR);
            assert_eq!(
                piece(view.context, 0, [0; 8].as_mut_ptr(), 8, std::ptr::null_mut()),
                MESH_ERROR
            );
            assert_eq!(
                piece(std::ptr::null_mut(), 0, [0; 8].as_mut_ptr(), 8, &mut length),
                MESH_ERROR
            );
            wake(std::ptr::null_mut(), 1);
        }
    }

    #[test]
    fn a_view_is_dead_once_the_tokenizer_is_taken() {
        let (host, view) = view();
        host.take_tokenizer();
        assert_eq!(ask_piece(&view, 0, &mut [0; 8]), (MESH_ERROR, 0));
        assert_eq!(ask_encode(&view, pass::bytes(b"a"), &mut [0; 8]), (MESH_ERROR, 0));
        assert!(host.tokenizer_view().is_null());
    }
}
