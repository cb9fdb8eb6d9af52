use super::*;
use crate::facts::{HolderKind, Remedy, Row, State};
use crate::readers;

/// A ledger of these rows.
fn inputs<'a>(rows: &'a [Row], rss_bytes: u64, remedies: &'a [Remedy]) -> VerdictInputs<'a> {
    VerdictInputs {
        view: LedgerView { rows, rss_bytes, remedies, ..LedgerView::default() },
        ..VerdictInputs::default()
    }
}

fn call(id: &str, bytes: u64) -> [Remedy; 1] {
    [Remedy::call(id, Some(bytes), 1, "")]
}

fn row(id: &str, state: State, bytes: u64) -> Row {
    Row { id: id.to_owned(), stratum: HolderKind::Allocator, state, holder: "x".to_owned(), bytes }
}

#[test]
fn a_fragmented_heap_is_a_free_heap() {
    let rows = [
        row("glibc.free.trim", State::Stranded, 1100 << 20),
        row("glibc.free.pinned", State::Pinned, 96 << 20),
        row("glibc.live", State::Live, 404 << 20),
    ];
    let remedies = call("malloc_trim", 1100 << 20);
    let verdict = verdict(&VerdictInputs { pinning_blocks: 12_411, ..inputs(&rows, 1600 << 20, &remedies) });
    assert_eq!(verdict.class, "free_heap");
    assert_eq!(
        verdict.headline,
        "1.17 GiB of 1.56 GiB RSS is free heap; malloc_trim releases 1.07 GiB; \
         96.0 MiB is pinned: free bytes beside 12,411 allocated chunks"
    );
}

#[test]
fn a_row_for_several_classes_counts_once() {
    let rows = [row("musl.free.kept", State::Stranded, 50 << 20), row("musl.live", State::Live, 10 << 20)];
    assert_eq!(verdict(&inputs(&rows, 60 << 20, &[])).headline, "50.0 MiB of 60.0 MiB RSS is free heap");
}

#[test]
fn calls_and_blocks_are_those_of_the_allocator_with_the_free_memory() {
    let rows = [
        row("jemalloc.free.pinned", State::Pinned, 90 << 20),
        row("glibc.live", State::Live, 1 << 20),
        row("jemalloc.live", State::Live, 9 << 20),
    ];
    let remedies = call("malloc_trim", 0);
    let of = |pinning_blocks| {
        verdict(&VerdictInputs { pinning_blocks, ..inputs(&rows, 100 << 20, &remedies) }).headline
    };
    let start = "90.0 MiB of 100 MiB RSS is free heap; 90.0 MiB is pinned: free bytes ";
    assert_eq!(of(7), format!("{start}beside 7 allocated blocks"));
    assert_eq!(of(0), format!("{start}on pages that are in use"));
}

#[test]
fn lazily_freed_pages_are_no_file_pages() {
    let rows = [
        row("kernel.lazyfree", State::Evictable, 500 << 20),
        row("kernel.file", State::Evictable, 2 << 20),
        row("glibc.live", State::Live, 40 << 20),
    ];
    assert_eq!(
        verdict(&inputs(&rows, 542 << 20, &[])).headline,
        "502 MiB of 542 MiB RSS is file pages (2.00 MiB) and pages that the program released with MADV_FREE (500 MiB), \
         which the kernel drops under pressure; 0 B is stranded"
    );
}

#[test]
fn releasable_bytes_are_part_of_the_free_bytes() {
    let rows = [
        row("glibc.free.trim", State::Stranded, 190 << 20),
        row("kernel.zero", State::Stranded, 70 << 20),
        row("glibc.live", State::Live, 40 << 20),
    ];
    let of = |trim| {
        let remedies = call("malloc_trim", trim);
        verdict(&VerdictInputs { trimmed_zero_bytes: 10 << 20, ..inputs(&rows, 300 << 20, &remedies) })
            .headline
    };
    assert_eq!(of(200 << 20), "200 MiB of 300 MiB RSS is free heap; malloc_trim releases 200 MiB");
    // malloc_trim faults in pages where it writes to free chunks.
    assert_eq!(of(189 << 20), "190 MiB of 300 MiB RSS is free heap; malloc_trim releases 189 MiB");
}

#[test]
fn what_a_runtime_keeps_is_named() {
    let named =
        |id: &str, holder: &str, bytes| Row { holder: holder.to_owned(), ..row(id, State::Stranded, bytes) };
    let retained = readers::rows().find(|row| row.id == "perl.pad.retained").unwrap();
    let perl = [
        named("perl.pad.retained", "main::f1 $s (depth 1)", 40 << 20),
        named(retained.id, retained.holder, 41 << 20),
    ];
    let remedy = Remedy { id: "perl_undef".to_owned(), predicted_bytes: Some(39 << 20), ..Remedy::default() };
    let of = |rows, remedies| verdict(&inputs(rows, 100 << 20, remedies));
    assert_eq!(
        of(&perl, std::slice::from_ref(&remedy)).headline,
        "81.0 MiB of 100 MiB RSS is buffers that Perl retains for unused variables; the largest is \
         main::f1 $s (depth 1), 40.0 MiB; undef of these variables releases 39.0 MiB"
    );
    let sbcl = [
        named("sbcl.dead", "generation 1", 2 << 20),
        named("sbcl.dead", "generation 2", 20 << 20),
        row("sbcl.free", State::Stranded, 5 << 20),
        row("anonymous", State::Unattributed, 9 << 20),
    ];
    let slots = [row("perl.arena.free", State::Pinned, 30 << 20)];
    assert_eq!(of(&slots, &[]).class, "free_slots");
    let dead = of(&sbcl, &[]);
    assert_eq!(dead.class, "dead_objects");
    assert_eq!(
        dead.headline,
        "27.0 MiB of 100 MiB RSS is free or dead in SBCL's heap: 22.0 MiB of unreachable objects \
         (20.0 MiB of them in generation 2) and 5.00 MiB of free pages"
    );
}

#[test]
fn memory_of_others_is_not_called_live() {
    let rows =
        [row("anonymous", State::Unattributed, 900 << 20), row("program.text", State::Evictable, 10 << 20)];
    let names = ["jvm".to_owned()];
    let verdict = verdict(&VerdictInputs { unread_names: &names, ..inputs(&rows, 910 << 20, &[]) });
    assert_eq!(verdict.class, "unattributed");
    assert!(verdict.headline.contains("jvm"), "{}", verdict.headline);
}

#[test]
fn a_reading_that_was_cut_short_says_why() {
    let rows = [row("glibc.unread", State::Unattributed, 900 << 20)];
    let of = |late_bytes| verdict(&VerdictInputs { late_bytes, ..inputs(&rows, 910 << 20, &[]) });
    let late = of(900 << 20);
    assert_eq!(late.class, "unattributed");
    assert_eq!(
        late.headline,
        "900 MiB of 910 MiB RSS was not read in the time of the stop (--max-stop); --snapshot reads more"
    );
    assert!(of(8 << 20).headline.ends_with("that strandline cannot read"), "{}", of(8 << 20).headline);
}
