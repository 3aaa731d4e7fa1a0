//! The node's side of the interface, as little of it as the tests need.

use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mesh_plugin_sdk::abi::*;

use super::recorder::{CALLS, activated};

const PROMPT: [i32; 3] = [1, 2, 3];
const OUTPUT: [i32; 2] = [4, 5];
const PREDICTED: [i32; 3] = [7, 8, 9];
const TOKEN_NS: [u64; 2] = [1, 2];

/// A struct of the header with all bytes zero, but for its size.
pub fn zeroed<T: Copy>() -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: all of them begin with their size and have only integers, pointers and optional functions.
    unsafe {
        value.as_mut_ptr().cast::<u32>().write(size_of::<T>() as u32);
        value.assume_init()
    }
}

/// A struct in memory of exactly `size` bytes, which says so. Bytes behind the known are not zero.
pub fn sized<T: Copy>(value: T, size: usize) -> Sized<T> {
    let mut memory = vec![u64::MAX; size.div_ceil(8)];
    // SAFETY: no more is copied than both hold; `memory` is aligned as all structs of the header are.
    unsafe {
        let bytes = memory.as_mut_ptr().cast::<u8>();
        ptr::copy_nonoverlapping(ptr::from_ref(&value).cast::<u8>(), bytes, size.min(size_of::<T>()));
        bytes.cast::<u32>().write(size as u32);
    }
    Sized {
        memory,
        of: std::marker::PhantomData,
    }
}

pub struct Sized<T> {
    memory: Vec<u64>,
    of: std::marker::PhantomData<T>,
}

impl<T> Sized<T> {
    pub fn as_ptr(&self) -> *const T {
        self.memory.as_ptr().cast()
    }
}

fn bytes(text: &str) -> MeshBytes {
    MeshBytes {
        data: text.as_ptr(),
        length: text.len() as u64,
    }
}

pub fn text(bytes: MeshBytes) -> &'static str {
    // SAFETY: only used for the constants of a table.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.data, bytes.length as usize) };
    std::str::from_utf8(bytes).unwrap()
}

fn tokens(tokens: &'static [i32]) -> MeshTokens {
    MeshTokens {
        data: tokens.as_ptr(),
        count: tokens.len() as u64,
    }
}

fn ids() -> MeshIds {
    MeshIds {
        request_id: bytes("r"),
        session_id: bytes("s"),
        agent_session_id: bytes("a"),
    }
}

/// What candidates are before a plugin writes them.
pub fn empty() -> i32 {
    -7
}

pub struct Node {
    pub woken: AtomicU64,
    tokenizer: MeshTokenizer,
    // Recorded lines of activations have no instance to tell them apart.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Node {
    pub fn new() -> Self {
        Self {
            woken: AtomicU64::new(0),
            tokenizer: MeshTokenizer {
                token_count: 2,
                piece: Some(piece),
                encode: Some(encode),
                ..zeroed()
            },
            _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    pub fn activation(&self, config: &'static str) -> MeshActivation {
        MeshActivation {
            model_id: bytes("m"),
            tokenizer_id: bytes("t"),
            tokenizer: &self.tokenizer,
            config_path: bytes(config),
            proposal_budget_ns: 8_000_000,
            context_length: 4096,
            max_candidates: 16,
            host: ptr::from_ref(&self.woken).cast_mut().cast(),
            now_ns: Some(now_ns),
            wake: Some(wake),
            ..zeroed()
        }
    }

    pub fn activate(&self, table: &'static MeshPluginTable, fault: &str) -> (MeshStatus, *mut c_void) {
        let activation = self.activation(String::leak(fault.to_owned()));
        let mut instance = ptr::null_mut();
        // SAFETY: the activation and all in it live longer than the call.
        let status = unsafe { table.activate.unwrap()(&activation, &mut instance) };
        (status, instance)
    }
}

unsafe extern "C" fn now_ns(_: *mut c_void) -> u64 {
    9
}

unsafe extern "C" fn wake(host: *mut c_void, operation: u64) {
    // SAFETY: `Node::activation` passes this.
    unsafe { &*host.cast::<AtomicU64>() }.store(operation, Ordering::SeqCst);
}

/// Token 0 is long, token 1 is "a"; there are no others.
unsafe extern "C" fn piece(_: *mut c_void, token: i32, buffer: *mut u8, capacity: u64, length: *mut u64) -> MeshStatus {
    let piece = match token {
        0 => "0".repeat(100),
        1 => "a".to_owned(),
        _ => return MESH_ERROR,
    };
    // SAFETY: the plugin's buffer holds `capacity` bytes.
    unsafe {
        *length = piece.len() as u64;
        if *length > capacity {
            return MESH_ERROR;
        }
        ptr::copy_nonoverlapping(piece.as_ptr(), buffer, piece.len());
    }
    MESH_OK
}

/// Each "a" is token 1; nothing else can be encoded.
unsafe extern "C" fn encode(
    _: *mut c_void,
    text: MeshBytes,
    tokens: *mut i32,
    capacity: u64,
    count: *mut u64,
) -> MeshStatus {
    // SAFETY: the plugin's buffers hold what it says.
    unsafe {
        let text = std::slice::from_raw_parts(text.data, text.length as usize);
        if text.iter().any(|byte| *byte != b'a') || text.len() as u64 > capacity {
            return MESH_ERROR;
        }
        for index in 0..text.len() {
            tokens.add(index).write(1);
        }
        *count = text.len() as u64;
    }
    MESH_OK
}

/// Where candidates go.
pub struct Output {
    pub raw: MeshProposalOutput,
    pub tokens: Box<[i32; 16]>,
    decision: Box<[u8; MESH_DECISION_ID_BYTES]>,
}

impl Output {
    pub fn new() -> Self {
        let mut tokens = Box::new([empty(); 16]);
        let mut decision = Box::new([0; MESH_DECISION_ID_BYTES]);
        let raw = MeshProposalOutput {
            token_capacity: 16,
            tokens: tokens.as_mut_ptr(),
            decision_id: decision.as_mut_ptr(),
            ..zeroed()
        };
        Self { raw, tokens, decision }
    }

    pub fn candidates(&self) -> &[i32] {
        &self.tokens[..self.raw.token_count as usize]
    }

    pub fn decision(&self) -> &[u8] {
        &self.decision[..self.raw.decision_id_length as usize]
    }
}

pub struct Instance {
    pub table: &'static MeshPluginTable,
    pub pointer: *mut c_void,
}

// SAFETY of all calls below: the instance is not shut down yet, and the arguments live longer than the call.
impl Instance {
    pub fn of(table: &'static MeshPluginTable, node: &Node, fault: &str) -> Self {
        let (status, pointer) = node.activate(table, fault);
        assert_eq!(status, MESH_OK);
        Self { table, pointer }
    }

    /// Lines of this instance since the last time.
    pub fn recorded(&self) -> Vec<String> {
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = calls
            .extract_if(.., |(key, _)| *key == self.pointer as usize)
            .map(|(_, line)| line);
        let activated = Some(activated()).filter(|line| !line.is_empty());
        activated.into_iter().chain(mine).collect()
    }

    pub fn call(&self, name: &str) -> MeshStatus {
        match name {
            "begin" => self.begin(),
            "commit" => self.commit(),
            "finish" => self.finish(),
            "abort" => self.abort(),
            "start" => self.start().0,
            "poll" => self.poll(41, &mut Output::new()),
            "cancel" => self.cancel(41),
            "report" => self.report(),
            "discard" => self.discard(),
            _ => panic!("no call {name}"),
        }
    }

    pub fn begin(&self) -> MeshStatus {
        let start = MeshGenerationStart {
            attempt: 1,
            ids: ids(),
            prompt: tokens(&PROMPT),
            ..zeroed()
        };
        // SAFETY: see above.
        unsafe { self.table.begin_generation.unwrap()(self.pointer, &start) }
    }

    pub fn a_commit(&self) -> MeshGenerationCommit {
        MeshGenerationCommit {
            ids: ids(),
            tokens: tokens(&OUTPUT),
            total: 2,
            ..zeroed()
        }
    }

    pub fn commit(&self) -> MeshStatus {
        // SAFETY: see above.
        unsafe { self.table.commit_generation.unwrap()(self.pointer, &self.a_commit()) }
    }

    pub fn finish(&self) -> MeshStatus {
        let finish = MeshGenerationFinish {
            flags: MESH_END_INCOMPLETE | 1 << 31,
            ids: ids(),
            reason: MESH_FINISH_LENGTH,
            attempt: 1,
            prompt_count: 3,
            prompt_digest: [9; 32],
            generated: tokens(&OUTPUT),
            final_position: 5,
            queued_ns: 1,
            first_token_ns: 2,
            generation_ns: 3,
            token_ns: TOKEN_NS.as_ptr(),
            token_ns_count: 2,
            ..zeroed()
        };
        // SAFETY: see above.
        unsafe { self.table.finish_generation.unwrap()(self.pointer, &finish) }
    }

    pub fn abort(&self) -> MeshStatus {
        let abort = MeshGenerationAbort {
            flags: MESH_END_AFTER_FAILED_FINISH,
            ids: ids(),
            reason: MESH_ABORT_FINISH_FAILED,
            attempt: 1,
            committed_count: 2,
            ..zeroed()
        };
        // SAFETY: see above.
        unsafe { self.table.abort_generation.unwrap()(self.pointer, &abort) }
    }

    pub fn start(&self) -> (MeshStatus, u64) {
        let query = MeshProposalQuery {
            max_tokens: 4,
            ids: ids(),
            prompt_count: 3,
            committed_count: 2,
            step: 1,
            deadline_ns: 100,
            tail: tokens(&OUTPUT),
            ..zeroed()
        };
        let mut operation = 0;
        // SAFETY: see above.
        let status = unsafe { self.table.start_proposal.unwrap()(self.pointer, &query, &mut operation) };
        (status, operation)
    }

    pub fn poll(&self, operation: u64, output: &mut Output) -> MeshStatus {
        // SAFETY: see above.
        unsafe { self.table.poll_proposal.unwrap()(self.pointer, operation, &mut output.raw) }
    }

    pub fn cancel(&self, operation: u64) -> MeshStatus {
        // SAFETY: see above.
        unsafe { self.table.cancel_proposal.unwrap()(self.pointer, operation) }
    }

    pub fn report(&self) -> MeshStatus {
        let outcome = MeshProposalOutcome {
            disposition: MESH_DISPOSITION_FULL_ACCEPT,
            ids: ids(),
            decision_id: bytes("5"),
            step: 1,
            proposed_count: 2,
            accepted_count: 2,
            committed: tokens(&PREDICTED),
            predictions: tokens(&PREDICTED),
            base_position: 5,
            verified_position: 8,
            canonical_position: 8,
            ..zeroed()
        };
        // SAFETY: see above.
        unsafe { self.table.report_proposal.unwrap()(self.pointer, &outcome) }
    }

    pub fn discard(&self) -> MeshStatus {
        let discard = MeshProposalDiscard {
            reason: MESH_DISCARD_DEADLINE_EXCEEDED,
            ids: ids(),
            decision_id: bytes("5"),
            step: 1,
            proposed_count: 2,
            base_position: 5,
            ..zeroed()
        };
        // SAFETY: see above.
        unsafe { self.table.discard_proposal.unwrap()(self.pointer, &discard) }
    }

    pub fn last_error(&self) -> String {
        let mut buffer = [0; MESH_MAX_ERROR_BYTES];
        // SAFETY: see above.
        let length = unsafe { self.table.last_error.unwrap()(self.pointer, buffer.as_mut_ptr(), buffer.len() as u64) };
        String::from_utf8(buffer[..length as usize].to_vec()).unwrap()
    }

    /// The last call.
    pub fn shutdown(self) -> MeshStatus {
        // SAFETY: see above.
        unsafe { self.table.shutdown.unwrap()(self.pointer) }
    }
}
