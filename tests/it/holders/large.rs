//! Lost blocks of more than 1 GiB.

use crate::support::libraries::libraries;
use crate::support::subject::number;
use crate::support::{Libc, Outcome, Subject, for_each, here, skipped, strandline};

/// Keys of jemalloc's lookups in its page map are multiples of 1 GiB in thread-local storage: they
/// are no references to the block that contains such an address.
#[test]
fn keys_of_an_allocator_hold_no_block() -> Outcome {
    let test = here!();
    let preloaded = libraries(test).into_iter().map(|library| library.path.display().to_string());
    for_each(std::iter::once(String::new()).chain(preloaded), |library| {
        let environment = [("LD_PRELOAD", library.as_str())];
        let subject = Subject::start_with(&Libc::system(), "lost_large", &[], &environment)?;
        let lost_blocks = subject.number("lost_blocks")?;
        if lost_blocks < 2 {
            skipped(test, "no address space for a few blocks of 1.25 GiB (ulimit -v, vm.overcommit_memory)");
            return Ok(());
        }
        let document = strandline::json(&["holders", "--json", &subject.pid_text()])?;
        let unreachable = &document["unreachable"];
        let (blocks, bytes) = (number(unreachable, "blocks")?, number(unreachable, "bytes")?);
        // Libraries leak one or two small blocks themselves.
        let (more_blocks, more_bytes) =
            (blocks.checked_sub(lost_blocks), bytes.checked_sub(subject.number("lost_bytes")?));
        let is_right =
            more_blocks.is_some_and(|more| more <= 2) && more_bytes.is_some_and(|more| more < 1 << 20);
        if is_right {
            Ok(())
        } else {
            Err(format!("{library}: {}, found {unreachable}", subject.ready).into())
        }
    })
}
