//! A request to a runtime by one of its functions that any thread may call.

/// A function of a runtime to be called in an idle helper thread: once for each of its heaps, whose
/// owner sleeps in its event loop meanwhile. It posts a task; the owner does the work later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The remedy's name.
    pub remedy: &'static str,
    /// The object with the function: an address within one of its mappings.
    pub object: u64,
    /// The function's symbol.
    pub function: &'static str,
    /// Functions in which a helper thread waits for work: in a condition variable, directly called
    /// by the loop of the thread. Such a thread holds no lock.
    pub idle_in: &'static [&'static str],
    /// Functions that run the event loop of a heap's owner.
    pub loops_in: &'static [&'static str],
    /// How the names of other files begin that may hold these functions.
    pub files: &'static [&'static str],
    /// Bytes of stack that the function may use.
    pub stack_bytes: u64,
    /// The calls.
    pub calls: Vec<NotifyCall>,
}

/// A call for one heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyCall {
    /// Its arguments.
    pub arguments: [u64; 2],
    /// The thread that owns the heap, which alone ends it. Without an owner strandline makes no
    /// call.
    pub owner: Option<Owner>,
    /// Lower bound of the bytes that the call releases.
    pub least_bytes: u64,
    /// Words that have these values as long as the heap exists.
    pub identity: Vec<Word>,
    /// Words that have these values while it is idle: no earlier request is pending, and it does
    /// not collect. They have them again when the work is done.
    pub idle: Vec<Word>,
}

/// The thread that owns a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The thread.
    pub tid: i32,
    /// Its thread pointer.
    pub thread_pointer: u64,
    /// A word of its thread-local storage that has this value as long as it owns the heap.
    pub proof: Word,
}

/// A word of the process and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its address.
    pub at: u64,
    /// Its size in bytes: 4 or 8.
    pub bytes: usize,
    /// Its value.
    pub value: u64,
}

impl Word {
    /// A word of 32 bits.
    pub const fn half(at: u64, value: u32) -> Self {
        Self { at, bytes: 4, value: value as u64 }
    }

    /// A word of 64 bits.
    pub const fn whole(at: u64, value: u64) -> Self {
        Self { at, bytes: 8, value }
    }
}
