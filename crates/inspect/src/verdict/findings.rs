//! Findings that every process can have.

use std::collections::BTreeSet;

use strandline_claims::facts::{Allocator, Remedy, RemedyKind, SizeClass, State};
use strandline_claims::finding::{Finding, LedgerView};
use strandline_claims::palette::BlockRows;
use strandline_claims::reader::ReaderInfo;
use strandline_claims::rows::RowRef;
use strandline_claims::units::{bytes, counted, thousands};

use super::VerdictInputs;
use crate::readers;

/// The row of the parts of stacks below the stack pointers.
const UNUSED_STACKS: &str = "kernel.stack_below_sp";

/// Returns all findings, in no particular order.
pub fn of_every_process(inputs: &VerdictInputs<'_>) -> Vec<Finding> {
    vec![free_heap(inputs), unattributed(inputs), zero_pages(inputs), stacks(&inputs.view)]
}

/// The row of a class of an allocator's blocks.
type RowOfClass = fn(&BlockRows) -> RowRef;

/// The rows of free memory outside of caches.
const FREE_PAGES: [RowOfClass; 3] = [|rows| rows.releasable, |rows| rows.kept, |rows| rows.pinned];
/// The rows of all free memory.
const FREE: [RowOfClass; 4] =
    [|rows| rows.releasable, |rows| rows.kept, |rows| rows.pinned, |rows| rows.cached];

/// Resident bytes on rows of these classes. Each row counts once, because an allocator may have one
/// row for several classes.
fn bytes_on_rows<'a>(
    view: &LedgerView<'_>,
    allocators: impl Iterator<Item = &'a BlockRows>,
    classes: &[RowOfClass],
) -> u64 {
    let ids: BTreeSet<&str> =
        allocators.flat_map(|rows| classes.iter().map(|class| class(rows).id)).collect();
    ids.into_iter().map(|id| view.row_bytes(id)).sum()
}

/// Resident bytes of all allocators on rows of these classes.
fn bytes_of_classes(view: &LedgerView<'_>, classes: &[RowOfClass]) -> u64 {
    bytes_on_rows(view, readers::allocators().filter_map(|about| about.blocks), classes)
}

/// Bytes on rows of the kernel that calls into allocators release too.
struct KernelRowBytes {
    /// Pages of zeros within free blocks, on `kernel.zero`.
    zero_bytes: u64,
    /// Pages that the allocator released with MADV_FREE, on `kernel.lazyfree`.
    lazy_free_bytes: u64,
}

/// Returns what calls are predicted to release beyond the rows of free pages, by row.
fn released_on_kernel_rows(inputs: &VerdictInputs<'_>) -> KernelRowBytes {
    let view = &inputs.view;
    let calls = view.remedies.iter().filter(|remedy| readers::frees_pages_of(&remedy.id).is_some());
    let predicted: u64 = calls.filter_map(|remedy| remedy.predicted_bytes).sum();
    let beyond = predicted.saturating_sub(bytes_of_classes(view, &[|rows| rows.releasable]));
    let zero_bytes = beyond.min(inputs.trimmed_zero_bytes).min(view.row_bytes("kernel.zero"));
    KernelRowBytes {
        zero_bytes,
        lazy_free_bytes: (beyond - zero_bytes).min(view.row_bytes("kernel.lazyfree")),
    }
}

/// Free memory of allocators.
fn free_heap(inputs: &VerdictInputs<'_>) -> Finding {
    let view = &inputs.view;
    let KernelRowBytes { zero_bytes, lazy_free_bytes } = released_on_kernel_rows(inputs);
    let pinned = bytes_of_classes(view, &[|rows| rows.pinned]);
    let free = bytes_of_classes(view, &FREE) + zero_bytes + lazy_free_bytes;
    let mut headline = format!("{} is free heap", view.of_rss(free));
    if lazy_free_bytes > 0 {
        headline += &format!(
            " ({} of it released with MADV_FREE, which the kernel drops under pressure)",
            bytes(lazy_free_bytes)
        );
    }
    headline += &released_by_calls(view);
    if pinned > 0 {
        headline += &format!("; {} is pinned: free bytes {}", bytes(pinned), pinning_clause(inputs));
    }
    headline += &fragmentation(view);
    let class = if pinned > free / 2 { "pinned_heap" } else { "free_heap" };
    Finding { class, bytes: free, headline }
}

/// Describes what pins free bytes. Says "allocated" and not "live", because leaked blocks pin free
/// bytes as well.
fn pinning_clause(inputs: &VerdictInputs<'_>) -> String {
    if inputs.pinning_blocks == 0 {
        return "on pages that are in use".to_owned();
    }
    let has_pinned =
        |about: &&ReaderInfo| about.blocks.is_some_and(|rows| inputs.view.row_bytes(rows.pinned.id) > 0);
    // A block with its header is a chunk in allocators with arenas like glibc's.
    let has_chunks = readers::allocators().filter(has_pinned).all(|about| about.has_main_arena);
    let thing = if has_chunks { "allocated chunk" } else { "allocated block" };
    format!("beside {}", counted(inputs.pinning_blocks, thing))
}

/// Returns a clause on each call into an allocator. A call that releases nothing is omitted, unless
/// its allocator has much free memory, or it is the only call and its allocator has most of the
/// free memory.
fn released_by_calls(view: &LedgerView<'_>) -> String {
    let is_predicted_call = |remedy: &&Remedy| {
        let is_call = remedy.kind == RemedyKind::Call && readers::frees_pages_of(&remedy.id).is_some();
        is_call && remedy.predicted_bytes.is_some()
    };
    let calls: Vec<&Remedy> = view.remedies.iter().filter(is_predicted_call).collect();
    let free_bytes = |remedy: &Remedy, classes: &[RowOfClass]| {
        let rows = readers::frees_pages_of(&remedy.id).and_then(|about| about.blocks);
        bytes_on_rows(view, rows.into_iter(), classes)
    };
    let has_much_free = |remedy: &Remedy| view.matters(free_bytes(remedy, &FREE_PAGES));
    let has_most_free = |remedy: &Remedy| free_bytes(remedy, &FREE) >= bytes_of_classes(view, &FREE) / 2;
    let is_mentioned = |remedy: &&&Remedy| {
        remedy.predicted_bytes > Some(0) || has_much_free(remedy) || calls.len() == 1 && has_most_free(remedy)
    };
    let clauses = calls.iter().filter(is_mentioned).map(|remedy| {
        let released = remedy.predicted_bytes.filter(|&released| released > 0);
        format!("; {} releases {}", remedy.id, released.map_or_else(|| "nothing".to_owned(), bytes))
    });
    clauses.collect()
}

/// Returns a clause on the size class with most free bytes, if they are worth a sentence.
fn fragmentation(view: &LedgerView<'_>) -> String {
    let free = |class: &SizeClass| class.free_blocks.saturating_mul(class.bytes);
    let worst_class =
        |allocator: &Allocator| allocator.size_classes.iter().max_by_key(|class| free(class)).cloned();
    let worst = view.allocators.iter();
    let worst = worst.filter_map(|allocator| Some((allocator.name.as_str(), worst_class(allocator)?)));
    let worst = worst.max_by_key(|(_, class)| free(class)).filter(|(_, class)| view.matters(free(class)));
    let Some((name, class)) = worst else { return String::new() };
    let live = class.live_blocks.saturating_add(class.cached_blocks);
    let used_percent = 100.0 * live as f64 / live.saturating_add(class.free_blocks).max(1) as f64;
    format!(
        "; {} of the free heap are free slots between {} blocks of {} bytes, {used_percent:.0} % used, which {name} releases only where a \
         whole group of them is free",
        // Bytes of address space: the resident part is at most the resident free bytes.
        bytes(free(&class).min(bytes_of_classes(view, &[|rows| rows.kept, |rows| rows.pinned]))),
        thousands(live),
        thousands(class.bytes)
    )
}

/// Memory of unknown use.
fn unattributed(inputs: &VerdictInputs<'_>) -> Finding {
    let unattributed = inputs.view.state_bytes(State::Unattributed);
    let subject = inputs.view.of_rss(unattributed);
    if inputs.late_bytes > unattributed / 2 {
        let headline =
            format!("{subject} was not read in the time of the stop (--max-stop); --snapshot reads more");
        return Finding { class: "unattributed", bytes: unattributed, headline };
    }
    let mut headline = format!("{subject} is anonymous memory that strandline cannot read");
    if !inputs.unread_names.is_empty() {
        let names = inputs.unread_names.join(", ");
        let predicate =
            if inputs.unread_names.len() == 1 { "manages its own memory" } else { "manage their own memory" };
        headline += &format!(" ({names} {predicate})");
    }
    Finding { class: "unattributed", bytes: unattributed, headline }
}

/// Pages of zeros that no call into an allocator releases.
fn zero_pages(inputs: &VerdictInputs<'_>) -> Finding {
    let view = &inputs.view;
    let zero = view.row_bytes("kernel.zero") - released_on_kernel_rows(inputs).zero_bytes;
    let headline = format!(
        "{} is pages that hold only zeros; giving them back changes nothing the program reads",
        view.of_rss(zero)
    );
    Finding { class: "zero_pages", bytes: zero, headline }
}

/// Parts of stacks that threads used before and use no more.
fn stacks(view: &LedgerView<'_>) -> Finding {
    let stacks = view.row_bytes(UNUSED_STACKS);
    let (of_stacks, verb) = if view.threads == 1 { ("its stack", "uses") } else { ("their stacks", "use") };
    let headline = format!(
        "{} is what {} used of {of_stacks} before and {verb} no more: it goes back when a thread ends; fewer threads (a smaller \
         pool) or smaller stacks (ulimit -s, pthread_attr_setstacksize, -Xss) hold less",
        view.of_rss(stacks),
        counted(view.threads, "thread"),
    );
    Finding { class: "stacks", bytes: stacks, headline }
}

/// Describes what most of the memory is, if nothing else matters.
pub fn mostly_used(view: &LedgerView<'_>) -> Finding {
    let (live, evictable) = (view.state_bytes(State::Live), view.state_bytes(State::Evictable));
    let stranded = bytes(view.state_bytes(State::Stranded));
    if evictable > live {
        let headline = format!(
            "{} is {}, which the kernel drops under pressure; {stranded} is stranded",
            view.of_rss(evictable),
            evictable_pages(view, evictable)
        );
        return Finding { class: "evictable", bytes: evictable, headline };
    }
    let largest = view.rows.iter().filter(|row| row.state == State::Live).max_by_key(|row| row.bytes);
    let holder = largest.map_or(String::new(), |row| format!(", most of it {} ({})", row.id, row.holder));
    let others = view.rows.iter().filter(|row| row.state != State::Live && row.bytes > 0);
    let largest_other = others.max_by_key(|row| row.bytes).map_or(String::new(), |row| {
        format!("; the largest row not in use is {} ({}), {}", row.id, row.holder, bytes(row.bytes))
    });
    let headline = format!("{} is in use{holder}; {stranded} is stranded{largest_other}", view.of_rss(live));
    Finding { class: if view.matters(live) { "live" } else { "mixed" }, bytes: live, headline }
}

/// Describes the pages that the kernel drops under pressure.
fn evictable_pages(view: &LedgerView<'_>, evictable: u64) -> String {
    let lazy = view.row_bytes("kernel.lazyfree");
    match (lazy, evictable.saturating_sub(lazy)) {
        (0, _) => "file pages".to_owned(),
        (_, 0) => "pages that the program released with MADV_FREE".to_owned(),
        (lazy, files) => format!(
            "file pages ({}) and pages that the program released with MADV_FREE ({})",
            bytes(files),
            bytes(lazy)
        ),
    }
}
