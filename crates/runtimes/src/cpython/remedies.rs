//! What makes CPython give memory back.

use strandline_claims::facts::Remedy;

/// So much in free places of arenas is worth a setting for the next start.
const WORTH_A_SETTING_BYTES: u64 = 1 << 20;

/// The remedies where so much is free: on whole pages of arenas, and on pages with something live. An arena goes back when its
/// last block is freed, and by nothing else.
pub fn remedies(kept_bytes: u64, pinned_bytes: u64) -> Vec<Remedy> {
    if kept_bytes + pinned_bytes < WORTH_A_SETTING_BYTES {
        return Vec::new();
    }
    let mut setting = Remedy::setting(
        "cpython_malloc",
        "PYTHONMALLOC=malloc",
        "objects stand in malloc's blocks, where malloc_trim gives back whole pages: slower, and a header for each; what it gives \
         back is predicted as the free pages of today's arenas, what survivors pin hangs on where malloc puts them",
    );
    setting.predicted_bytes = Some(kept_bytes);
    vec![setting]
}
