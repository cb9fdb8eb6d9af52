//! Heaps in several pieces: the main arena with a blocked brk, a thread's arena in its second heap,
//! blocks that the program protected, locked or advised in part. Each figure equals the program's
//! own, and no valid heap is reported as damaged.

use crate::support::mallinfo::same;
use crate::support::{Libc, Outcome, Result, Subject, for_each, repetitions, strandline, subject};

/// Smallest and largest block size, and the number of blocks.
const SIZES: [(&str, &str, &str); 4] =
    [("16", "515", "60000"), ("16", "115", "60000"), ("600", "2100", "60000"), ("1000", "1000", "20000")];

/// Starts a subject with its main arena in pieces, which are separated if `apart` is "1".
fn blocked(libc: &Libc, seed: u64, (low, high, blocks): (&str, &str, &str), apart: &str) -> Result<Subject> {
    let seed = seed.to_string();
    let subject =
        Subject::start_with(libc, "blocked_break", &[&seed, blocks, low, high, "1024", apart], &[])?;
    match subject.number("blocked")? {
        1 => Ok(subject),
        _ => Err("the subject's break was not blocked".into()),
    }
}

/// Checks the ledger of a valid heap: mallinfo equals the program's, no caveat reports missing
/// parts, and `reclaim` releases the predicted bytes.
fn check_ledger(mut subject: Subject) -> Outcome {
    subject.at_rest()?;
    let document = strandline::explain(subject.pid())?;
    let glibc = strandline::glibcs(&document);
    same(&glibc.first().ok_or("no glibc found")?["mallinfo"], &subject.ready["mallinfo"])?;
    let caveats = strandline::caveats(&document);
    if !caveats.is_empty() {
        return Err(format!("caveats {caveats:?}").into());
    }
    let predicted = strandline::predicted(&document, "malloc_trim").unwrap_or(0);
    let actual = subject::number(&subject.ask(b't')?, "given_back_bytes")?;
    if predicted != actual {
        return Err(format!("predicted {predicted}, given back {actual}").into());
    }
    Ok(())
}

#[test]
fn pieces_of_the_main_arena_are_complete() -> Outcome {
    let mut libcs = vec![Libc::system(), Libc::system_static()];
    libcs.extend(Libc::foreign());
    let cases = libcs.iter().flat_map(|libc| {
        let of_size = |size| ["0", "1"].map(|apart| (size, apart));
        let sizes = SIZES.into_iter().flat_map(of_size);
        sizes.flat_map(move |(size, apart)| {
            (1..=repetitions(1, 12)).map(move |seed| (libc, seed, size, apart))
        })
    });
    for_each(cases, |&(libc, seed, size, apart)| check_ledger(blocked(libc, seed, size, apart)?))
}

#[test]
fn pieces_are_reclaimed() -> Outcome {
    let subject = blocked(&Libc::system(), 7, SIZES[0], "0")?;
    let document = strandline::json(&["reclaim", "--json", &subject.pid_text()])?;
    assert_eq!(document["outcome"], "done", "{}", document["reason"]);
    assert!(document["predicted_bytes"].as_u64() > Some(1 << 20), "{}", document["predicted_bytes"]);
    assert_eq!(document["predicted_bytes"], document["actual_bytes"]);
    assert!(subject.finish()?.success());
    Ok(())
}

/// The kernel lists a piece and the chunks with their own mapping before it as one mapping.
#[test]
fn full_pieces_behind_mmapped_chunks_are_found() -> Outcome {
    let mut libcs = vec![Libc::system()];
    libcs.extend(Libc::foreign());
    let shapes = [["0", "0"], ["0", "1"], ["64", "0"], ["2048", "0"], ["2048", "1"]];
    let cases = libcs.iter().flat_map(|libc| shapes.map(|shape| (libc, shape)));
    for_each(cases, |&(libc, shape)| {
        let subject = Subject::start_with(libc, "chunk_before_piece", &shape, &[])?;
        match subject.number("adjacent")? {
            1 => check_ledger(subject),
            _ => Err("the chunk is not right before the piece".into()),
        }
    })
}

/// A stack inside a malloc block is part of the block; only other stacks are outside of the heap.
#[test]
fn stacks_within_blocks_are_part_of_them() -> Outcome {
    check_ledger(Subject::start("own_stack", &[])?)
}

/// An arena with a missing part is not damaged: the caveat has the missing bytes, and free memory
/// of the found part can be released.
#[test]
fn a_missing_part_of_an_arena_is_not_reported_as_damage() -> Outcome {
    let arguments = ["3", "60000", "16", "515", "1024", "0", "448"];
    let subject = Subject::start("blocked_break", &arguments)?;
    let document = strandline::explain(subject.pid())?;
    assert_eq!(strandline::caveats(&document), ["arena_sum_differs"]);
    let reclaimed = strandline::json(&["reclaim", "--json", &subject.pid_text()])?;
    assert_eq!(reclaimed["outcome"], "done", "{}", reclaimed["reason"]);
    assert_eq!(reclaimed["predicted_bytes"], reclaimed["actual_bytes"]);
    assert!(subject.finish()?.success());
    Ok(())
}

#[test]
fn the_remainder_of_a_top_chunk_is_no_block() -> Outcome {
    let header_bytes = |left: u64| -> Result<u64> {
        let subject = Subject::start("second_heap", &[&left.to_string()])?;
        subject.at_rest()?;
        let document = strandline::explain(subject.pid())?;
        let glibc = strandline::glibcs(&document);
        same(&glibc.first().ok_or("no glibc found")?["mallinfo"], &subject.ready["mallinfo"])?;
        assert!(strandline::caveats(&document).is_empty(), "{:?}", strandline::caveats(&document));
        Ok(strandline::row(&document, "glibc.header"))
    };
    // Tops of 32 and 48 bytes are too small to be freed once they have their fencepost; larger ones
    // are freed.
    let freed = header_bytes(96)?;
    for_each([32, 48, 64], |&left| match header_bytes(left)? {
        bytes if bytes == freed => Ok(()),
        bytes => Err(format!("headers of {bytes} bytes, {freed} where the top was freed").into()),
    })
}

#[test]
fn blocks_across_several_mappings_are_complete() -> Outcome {
    let mut libcs = vec![Libc::system()];
    libcs.extend(Libc::foreign());
    let cases = libcs.iter().flat_map(|libc| [0, 1, 2, 3].map(|place| (libc, place)));
    for_each(cases, |&(libc, place)| {
        let subject = Subject::start_with(libc, "cut_blocks", &[&place.to_string()], &[])?;
        subject.at_rest()?;
        let document = strandline::explain(subject.pid())?;
        let glibc = strandline::glibcs(&document);
        same(&glibc.first().ok_or("no glibc found")?["mallinfo"], &subject.ready["mallinfo"])?;
        let caveats = strandline::caveats(&document);
        if !caveats.is_empty() {
            return Err(format!("caveats {caveats:?}").into());
        }
        let row = if place == 0 { "glibc.mmapped" } else { "glibc.live" };
        let held = strandline::row(&document, row);
        let own = subject.number("live_blocks")? * subject.number("block_bytes")?;
        // Other memory: headers and last pages of the blocks, small blocks, memory of pthreads.
        if held < own || held > own + (256 << 10) {
            return Err(format!("{row} has {held} bytes, the blocks have {own}").into());
        }
        Ok(())
    })
}
