//! Remedies that make CPython release memory.
//!
//! A collection cannot be started by a call from outside: the thread that calls `PyGC_Collect` must
//! be between two bytecodes, and as a pending call (`Py_AddPendingCall`, tried in 3.11) its return
//! value, the number of freed objects, is an error. From 3.14 on `sys.remote_exec` in another
//! interpreter of the same version makes the program run a file at a safe place. The effect of a
//! collection is unknown: only the code of the types knows which objects are garbage.

use super::layout::Release;
use strandline_claims::facts::Remedy;
use strandline_claims::remedy::{Answer, Request};

/// Free bytes in arenas from which a setting for the next start is worthwhile.
const MIN_SETTING_BYTES: u64 = 1 << 20;
/// Bytes of objects from which a collection is worthwhile.
const MIN_COLLECTION_BYTES: u64 = 16 << 20;
/// The first minor version with `sys.remote_exec`.
const REMOTE_EXEC_MINOR: u8 = 14;

/// Returns the remedies for free bytes on whole pages of arenas, and on pages with a live block. An
/// arena is released only when its last block is freed.
pub fn remedies(kept_bytes: u64, pinned_bytes: u64) -> Vec<Remedy> {
    if kept_bytes + pinned_bytes < MIN_SETTING_BYTES {
        return Vec::new();
    }
    let setting = Remedy::setting(
        "cpython_malloc",
        "PYTHONMALLOC=malloc, then malloc_trim",
        "objects are in malloc's blocks: slower, and each has a header, so that RSS may be higher until malloc_trim releases \
         whole free pages",
    );
    vec![
        setting.unknown_because(
            "which pages live objects would pin in malloc's heap cannot be known in advance",
        ),
    ]
}

/// Returns a collection, if `object_bytes` are enough to make it worthwhile.
pub fn collection(release: &Release, pid: i32, object_bytes: u64) -> Option<Remedy> {
    if object_bytes < MIN_COLLECTION_BYTES {
        return None;
    }
    let instructions = if release.minor >= REMOTE_EXEC_MINOR {
        format!(
            "python3.{} -c 'import sys; sys.remote_exec({pid}, \"/tmp/collect.py\")', with the same version of the interpreter; the \
             file holds import gc, ctypes; gc.collect(); ctypes.CDLL(None).malloc_trim(0)",
            release.minor
        )
    } else {
        "gc.collect() in the program, then malloc_trim".to_owned()
    };
    let cost = "the collecting thread visits every container, and with a global lock all other threads wait; the amount of garbage \
                cannot be known in advance";
    Some(Remedy::advice("cpython_gc", None, &instructions, cost))
}

/// `cpython_gc`: never applied from outside (docs/safety.md lists what was tried). From 3.14 on it
/// would be possible by starting the target's own interpreter with the rights of strandline's user,
/// who may not trust that interpreter.
pub fn refuse_collection(request: &Request<'_>) -> Answer {
    let advice = request.remedy.map_or_else(
        || "the process has no CPython with enough objects to make it worthwhile".to_owned(),
        |remedy| format!("run it yourself: {}", remedy.how),
    );
    Answer::Refused(format!("no call from outside can run a collection (see docs/safety.md); {advice}"))
}

#[cfg(test)]
mod tests {
    use strandline_claims::facts::RemedyKind;

    use super::*;
    use crate::cpython::layout::RELEASES;

    #[test]
    fn a_collection_is_offered_only_with_many_objects() {
        let release = |minor: u8| RELEASES.iter().find(|release| release.minor == minor).unwrap();
        assert!(collection(release(13), 7, 1 << 20).is_none());
        let before_remote_exec = collection(release(13), 7, 1 << 30).unwrap();
        assert!(before_remote_exec.how.starts_with("gc.collect()"));
        let with_remote_exec = collection(release(14), 7, 1 << 30).unwrap();
        assert!(with_remote_exec.how.contains("sys.remote_exec(7,"), "{}", with_remote_exec.how);
        assert_eq!((before_remote_exec.predicted_bytes, with_remote_exec.kind), (None, RemedyKind::Program));
    }
}
