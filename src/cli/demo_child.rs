//! The process that `demo` inspects. An ordinary program with the malloc of its libc: it fills the
//! heap, frees most of it except for a few survivors, keeps a buffer of zeros, prints `ready`, and
//! waits.
//!
//! It exits when its standard input closes, so it cannot outlive the demo, and checks before that
//! its memory is unchanged.

use std::hint::black_box;
use std::io::{BufRead, Write};

use super::arguments::DemoChild;
use super::{CommandResult, Failure, Result};

const MEBIBYTE: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// One piece in this many is kept: more pieces than fit on a page, so that most pages have no
/// survivor.
const KEPT_ONE_IN: usize = 199;

/// Fills and frees the heap, waits until its input closes, and checks its memory.
pub fn run(arguments: &DemoChild) -> Result<CommandResult> {
    let heap_bytes = arguments.heap_mebibytes as usize * MEBIBYTE;
    let (pieces, survivors) = fill_and_free(heap_bytes);
    let zeros = zeroed(arguments.zero_mebibytes as usize * MEBIBYTE);
    let mut stdout = std::io::stdout();
    // Standard input allocates its buffer now, not while the heap is inspected.
    let mut stdin = std::io::stdin().lock();
    writeln!(stdout, "ready {pieces} {}", survivors.len())?;
    stdout.flush()?;
    loop {
        let length = stdin.fill_buf()?.len();
        if length == 0 {
            break;
        }
        stdin.consume(length);
    }
    check(&survivors, &zeros)
}

struct Piece {
    bytes: Vec<u8>,
    /// The nonzero value of each of its bytes.
    fill: u8,
}

/// Allocates `heap_bytes` in pieces and frees all but a few; returns the number of pieces and the
/// survivors.
fn fill_and_free(heap_bytes: usize) -> (usize, Vec<Piece>) {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut filled = 0;
    while filled < heap_bytes {
        // xorshift64: produces the same heap in every run.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // One piece in 64 is of 16 to 48 KiB, the others are of 64 to 2048 bytes.
        let size = match random % 64 {
            0 => 16 * 1024 + (random >> 8) as usize % (32 * 1024),
            _ => 64 + (random >> 8) as usize % (2048 - 64),
        };
        let fill = (random >> 32) as u8 | 1;
        pieces.push(Piece { bytes: vec![fill; size], fill });
        filled += size;
    }
    let count = pieces.len();
    // Keep the last piece as well, so that free() does not trim the top of the heap. Use a loop, as
    // collect() would reuse the large vector's memory for the survivors.
    let mut survivors = Vec::new();
    for (index, piece) in pieces.into_iter().enumerate() {
        if index.is_multiple_of(KEPT_ONE_IN) || index + 1 == count {
            survivors.push(piece);
        }
    }
    (count, survivors)
}

/// A buffer of zeros, made resident by writing to each page.
fn zeroed(bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0u8; bytes];
    for byte in buffer.iter_mut().step_by(PAGE_BYTES) {
        // Prevents the compiler from removing the write.
        *byte = black_box(0);
    }
    black_box(buffer)
}

/// Fails if a byte of the survivors or of the zeros has changed.
fn check(survivors: &[Piece], zeros: &[u8]) -> Result<CommandResult> {
    let has_fill = |piece: &Piece| piece.bytes.iter().all(|byte| *byte == piece.fill);
    let zero_page = [0; PAGE_BYTES];
    let are_zero = || zeros.chunks(PAGE_BYTES).all(|chunk| zero_page.starts_with(chunk));
    if survivors.iter().all(has_fill) && are_zero() {
        Ok(CommandResult::Done)
    } else {
        Err(Failure("the demo's process found its memory changed; please report this".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_survive_and_all_are_right() {
        let (pieces, survivors) = fill_and_free(4 << 20);
        assert!(pieces > 2_000, "{pieces}");
        assert_eq!(
            survivors.len(),
            (pieces - 1) / KEPT_ONE_IN + 2 - usize::from((pieces - 1).is_multiple_of(KEPT_ONE_IN))
        );
        let zeros = zeroed(1 << 20);
        assert_eq!(check(&survivors, &zeros).unwrap(), CommandResult::Done);
        let damaged = [Piece { bytes: vec![1, 2], fill: 1 }];
        assert!(check(&damaged, &zeros).is_err());
        assert!(check(&survivors, &[0, 1]).is_err());
    }
}
