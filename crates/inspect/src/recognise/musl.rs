//! musl's allocator in a static program: stripped, it leaves neither a file's name nor a symbol.
//!
//! Since 1.2.1 it is mallocng, whose state is one `struct malloc_context` (`src/malloc/mallocng/meta.h`). Its first word is
//! a secret, and each area of its metadata begins with the same secret: that a pointer of the structure leads to
//! its own first word again is told by no other data.

use super::{Known, file_name};
use strandline_process::memory::{half_word_at, word_at};

/// Bytes of the executable's writable data that are looked through.
const MOST_BYTES: u64 = 64 << 20;
const PAGE_BYTES: u64 = 4096;

/// Offsets behind the secret, without and with `pagesize`, which is there where the architecture's page size varies:
/// `init_done` and `meta_area_head`.
const LAYOUTS: [(usize, usize); 2] = [(8, 56), (16, 64)];

/// Whether the data of the executable at `path`, or the bss behind it, holds mallocng's state.
pub(super) fn is_in(known: &Known<'_>, path: &str) -> bool {
    let mappings = known.space.mappings();
    // A program with an interpreter has its libc in a file of its own.
    let has_library = mappings.iter().any(|mapping| file_name(&mapping.name).contains(".so"));
    if has_library {
        return false;
    }
    let mut rest = MOST_BYTES;
    let mut behind = 0;
    for mapping in mappings.iter().filter(|mapping| mapping.permissions.write) {
        let is_data = mapping.has_file() && mapping.name == path;
        let is_bss = mapping.is_private_anonymous() && mapping.start == behind;
        if !is_data && !is_bss {
            continue;
        }
        behind = mapping.end;
        for (from, to) in (known.resident)(mapping.start, mapping.end) {
            let to = to.min(from.saturating_add(rest));
            rest -= to - from;
            let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0)];
            let got = known.memory.read_some(from, &mut bytes);
            if (0..got).step_by(8).any(|at| is_context(known, &bytes[..got], at)) {
                return true;
            }
        }
    }
    false
}

/// Whether the structure stands at `at` of `bytes`.
fn is_context(known: &Known<'_>, bytes: &[u8], at: usize) -> bool {
    let Some(secret) = word_at(bytes, at).filter(|&secret| secret != 0) else { return false };
    LAYOUTS.iter().any(|&(init_done, head)| {
        let area = word_at(bytes, at + head).unwrap_or(0);
        let is_set = half_word_at(bytes, at + init_done) == Some(1);
        is_set
            && area != 0
            && area.is_multiple_of(PAGE_BYTES)
            && !(known.resident)(area, area + 8).is_empty()
            && known.memory.read_word(area) == Ok(secret)
    })
}
