//! A copy of the static data of the program or library that contains tcmalloc. Nearly all
//! structures are reachable from it, but by no symbol, so it is scanned several times.

use crate::radix::StaticWord;
use strandline_claims::allocator::Context;
use strandline_process::memory::word_at;
use strandline_process::range::AddressRange;

/// Maximum bytes copied: tcmalloc's own data is a few MiB, as most of the root of a page map is
/// untouched.
const MAX_BYTES: usize = 64 << 20;

/// The resident parts of static data.
#[derive(Default)]
pub struct Statics {
    runs: Vec<CopiedRun>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// A resident run.
struct CopiedRun {
    start: u64,
    bytes: Vec<u8>,
}

impl Statics {
    /// Copies `range`, where it is resident.
    pub fn read(context: &Context<'_>, range: AddressRange) -> Self {
        let mut statics = Self::default();
        let mut remaining_bytes = MAX_BYTES;
        for run in context.resident_runs(range) {
            let mut bytes = vec![0; (run.len() as usize).min(remaining_bytes)];
            let read_length = context.memory.read_some(run.start, &mut bytes);
            bytes.truncate(read_length & !7);
            remaining_bytes -= bytes.len();
            statics.bytes_read += read_length as u64;
            statics.runs.push(CopiedRun { start: run.start, bytes });
        }
        statics
    }

    /// Returns each non-zero word.
    pub fn words(&self) -> impl Iterator<Item = StaticWord> + '_ {
        self.runs.iter().flat_map(|CopiedRun { start, bytes }| {
            let words = (0..bytes.len()).step_by(8).filter_map(move |offset| {
                Some(StaticWord { address: start + offset as u64, value: word_at(bytes, offset)? })
            });
            words.filter(|word| word.value != 0)
        })
    }

    /// Returns the word at `address`; `None` if it was not copied.
    pub fn word(&self, address: u64) -> Option<u64> {
        let next = self.runs.partition_point(|run| run.start <= address);
        let run = self.runs.get(next.checked_sub(1)?)?;
        word_at(&run.bytes, usize::try_from(address - run.start).ok()?)
    }
}
