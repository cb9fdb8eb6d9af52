//! What the ledger comes to: one sentence, a class, and the remedies, best first.
//!
//! Everything here is a prediction and says so; only `reclaim` proves.

mod java;
mod programs;
pub mod remedies;

use std::collections::BTreeSet;

use crate::facts::{Remedy, RemedyKind, Row, Runtime, State, Verdict};
use crate::ledger::rows;
use crate::readers::ALLOCATORS;
use strandline_claims::facts::SizeClass;
use strandline_claims::palette::BlockRows;
use strandline_claims::rows::Id;
use strandline_claims::units::{self, bytes};
use strandline_runtimes::cpython::census::FEW_OBJECTS;
use strandline_runtimes::cpython::facts::CPython;
use strandline_runtimes::jvm::facts::Jvm;

/// What the verdict is made of.
#[derive(Default)]
pub struct Findings<'a> {
    /// The ledger's rows.
    pub rows: &'a [Row],
    /// The kernel's RSS.
    pub rss_bytes: u64,
    /// What `malloc_trim(0)` gives back; `None` where no glibc heap was read.
    pub trim_bytes: Option<u64>,
    /// Live chunks that pin free bytes.
    pub pinning_chunks: u64,
    /// Allocators, and runtimes with a heap of their own, that were recognised but not read.
    pub unread: &'a [String],
    /// What readers say gives memory back.
    pub of_readers: &'a [Remedy],
    /// What allocators have by sizes of blocks, with their names.
    pub size_classes: &'a [(&'a str, &'a SizeClass)],
    /// Language runtimes that were found.
    pub runtimes: &'a [Runtime],
    /// Threads of the process.
    pub threads: u64,
}

impl Findings<'_> {
    fn row(&self, id: &str) -> u64 {
        self.rows.iter().filter(|row| row.id == id).map(|row| row.bytes).sum()
    }

    /// What all allocators have on rows of theirs, each row once: an allocator may have one row for several of them.
    fn blocks(&self, of: &[fn(&BlockRows) -> Id]) -> u64 {
        let rows = ALLOCATORS.iter().filter_map(|entry| entry.about.blocks);
        let ids: BTreeSet<&str> = rows.flat_map(|rows| of.iter().map(|of| of(rows).id)).collect();
        ids.into_iter().map(|id| self.row(id)).sum()
    }

    /// What is free in glibc's heaps.
    fn glibc_free(&self) -> u64 {
        ["glibc.free.trim", "glibc.free.kept", "glibc.free.pinned"].iter().map(|id| self.row(id)).sum()
    }

    fn state(&self, state: State) -> u64 {
        self.rows.iter().filter(|row| row.state == state).map(|row| row.bytes).sum()
    }

    /// What a runtime's remedy is predicted to give back, as the end of a sentence.
    fn given_back_by(&self, id: &str, words: &str) -> String {
        let remedy = self.of_readers.iter().find(|remedy| remedy.id == id);
        let predicted = remedy.and_then(|remedy| remedy.predicted_bytes).filter(|&bytes| bytes > 0);
        predicted.map_or_else(String::new, |predicted| format!("; {words} {}", bytes(predicted)))
    }

    /// Pages of zeros within free chunks that malloc_trim gives back with the others: the ledger has them on
    /// kernel.zero, but who asks what the heap holds free means them too.
    fn free_zero_bytes(&self) -> u64 {
        let trim = self.trim_bytes.unwrap_or(0);
        trim.saturating_sub(self.row("glibc.free.trim")).min(self.row("kernel.zero"))
    }

    /// Pages released with MADV_FREE that allocators' calls give back too: they are on kernel.lazyfree, and part of the free heap.
    fn free_lazy_bytes(&self) -> u64 {
        let is_call = |remedy: &&Remedy| {
            ALLOCATORS.iter().any(|entry| entry.about.remedies.contains(&remedy.id.as_str()))
        };
        let calls = self.of_readers.iter().filter(is_call).filter_map(|remedy| remedy.predicted_bytes);
        let besides = calls.sum::<u64>().saturating_sub(self.blocks(&[|rows| rows.purge]));
        besides.min(self.row("kernel.lazyfree"))
    }

    /// Whether a JVM is in it that takes requests.
    fn has_listening_jvm(&self) -> bool {
        let jvms = self.runtimes.iter().filter(|runtime| runtime.name == "jvm");
        jvms.filter_map(|jvm| jvm.details::<Jvm>("jvm")).any(|jvm| jvm.attach == Some(true))
    }

    /// Whether `part` is worth a sentence: a tenth of RSS, and a megabyte.
    fn matters(&self, part: u64) -> bool {
        part >= self.rss_bytes / 10 && part >= 1 << 20
    }
}

/// The sentence and the class: of what holds memory for nobody, the largest that is worth a sentence.
pub fn verdict(findings: &Findings<'_>) -> Verdict {
    let pinned = findings.blocks(&[|rows| rows.pinned]);
    let free =
        findings.blocks(&[|rows| rows.purge, |rows| rows.kept, |rows| rows.pinned, |rows| rows.cached])
            + findings.free_zero_bytes()
            + findings.free_lazy_bytes();
    let zero = findings.row("kernel.zero") - findings.free_zero_bytes();
    let unattributed = findings.state(State::Unattributed);
    let retained = findings.row("perl.pad.retained") + findings.row("perl.buffer.retained");
    let dead = findings.row("sbcl.dead") + findings.row("sbcl.free");
    // Of two as large, the earlier one.
    let slots = findings.row("perl.arena.free");
    let arenas = ["cpython.free.kept", "cpython.free.pinned", "cpython.free_list"];
    let arenas = arenas.map(|id| findings.row(id)).iter().sum();
    let spans = ["go.free.purge", "go.free.kept", "go.free.pinned"];
    let spans = spans.map(|id| findings.row(id)).iter().sum();
    let regions = ["jvm.dead", "jvm.free.purge", "jvm.free.kept", "jvm.shmem.free"];
    let regions = regions.map(|id| findings.row(id)).iter().sum();
    let stacks = findings.row(STACKS);
    let all = [free, retained, dead, unattributed, zero, slots, arenas, spans, regions, stacks];
    let largest = all.into_iter().filter(|&bytes| findings.matters(bytes)).max();
    let (class, headline) = match largest.and_then(|bytes| all.iter().position(|&one| one == bytes)) {
        Some(0) => {
            let class = if pinned > free / 2 { "pinned_heap" } else { "free_heap" };
            (class, free_heap(findings, free, pinned))
        }
        Some(1) => ("retained_buffers", retained_buffers(findings, retained)),
        Some(2) => ("dead_objects", dead_objects(findings, dead)),
        Some(3) => ("unattributed", unattributed_memory(findings, unattributed)),
        Some(4) => ("zero_pages", zero_pages(findings, zero)),
        Some(5) => ("free_slots", free_slots(findings, slots)),
        Some(6) => ("free_arenas", free_arenas(findings, arenas)),
        Some(7) => ("idle_spans", idle_spans(findings, spans)),
        Some(8) => ("free_regions", java::free_regions(findings, regions)),
        Some(_) => ("stacks", below_pointers(findings, stacks)),
        None => java::beside_its_heap(findings).unwrap_or_else(|| mostly_used(findings)),
    };
    Verdict { headline, class: class.to_owned() }
}

fn zero_pages(findings: &Findings<'_>, zero: u64) -> String {
    format!(
        "{} of {} RSS is pages that hold only zeros; giving them back changes nothing the program reads",
        bytes(zero),
        bytes(findings.rss_bytes)
    )
}

/// What threads used of their stacks before.
const STACKS: &str = "kernel.stack_below_sp";

fn below_pointers(findings: &Findings<'_>, stacks: u64) -> String {
    format!(
        "{} of {} RSS is what {} thread{} used of their stacks before and use no more: it goes back when a thread ends; fewer threads \
         (a smaller pool) or smaller stacks (ulimit -s, pthread_attr_setstacksize, -Xss) hold less",
        bytes(stacks),
        bytes(findings.rss_bytes),
        units::thousands(findings.threads),
        if findings.threads == 1 { "" } else { "s" },
    )
}

fn free_slots(findings: &Findings<'_>, slots: u64) -> String {
    format!(
        "{} of {} RSS is free places for Perl's values: perl uses them again and never gives them back, only a \
         restart does",
        bytes(slots),
        bytes(findings.rss_bytes)
    )
}

fn idle_spans(findings: &Findings<'_>, spans: u64) -> String {
    let idle = findings.row("go.free.purge");
    let mut text = format!(
        "{} of {} RSS is free in Go's heap: {} of idle spans that it has not given back",
        bytes(spans),
        bytes(findings.rss_bytes),
        bytes(idle)
    );
    let places = spans - idle;
    if places > 0 {
        text +=
            &format!(" and {} of free places between objects, which only other objects take", bytes(places));
    }
    text += &findings.given_back_by("go_free_os_memory", "debug.FreeOSMemory gives back");
    if let Some(limit) = findings.of_readers.iter().find(|remedy| remedy.id == "go_memory_limit") {
        text += &findings.given_back_by("go_memory_limit", &format!("{} would keep", limit.how));
        text += " of it away";
    }
    text
}

fn free_arenas(findings: &Findings<'_>, arenas: u64) -> String {
    let mut text = format!(
        "{} of {} RSS is free places in arenas of CPython's, of which each goes back when its last object dies",
        bytes(arenas),
        bytes(findings.rss_bytes)
    );
    let of_python = |runtime: &Runtime| {
        Some((runtime.own_figure("arenas_allocated_current")?, runtime.details::<CPython>("cpython")?))
    };
    let Some((all, python)) = findings.runtimes.iter().find_map(of_python) else { return text };
    if let Some(sparse) = python.sparse_arenas.filter(|sparse| sparse.arenas > 0) {
        text += &format!(
            "; {} of its {} arenas are kept by fewer than {FEW_OBJECTS} objects each",
            units::thousands(sparse.arenas),
            units::thousands(all)
        );
        if let Some(most) = sparse.kept_by.first() {
            text += &format!(", most of them {}", most.name);
        }
    }
    text
}

fn retained_buffers(findings: &Findings<'_>, retained: u64) -> String {
    let mut text = format!(
        "{} of {} RSS is buffers that Perl keeps for variables out of use",
        bytes(retained),
        bytes(findings.rss_bytes)
    );
    let kept = |row: &&Row| ["perl.pad.retained", "perl.buffer.retained"].contains(&row.id.as_str());
    let named = findings.rows.iter().filter(kept).filter(|row| rows::holder(&row.id) != Some(&row.holder));
    // Of several as large, the first.
    if let Some(largest) = named.rev().max_by_key(|row| row.bytes) {
        text += &format!("; the largest is that of {}, {}", largest.holder, bytes(largest.bytes));
    }
    text + &findings.given_back_by("perl_undef", "undef of them gives back")
}

fn dead_objects(findings: &Findings<'_>, sum: u64) -> String {
    let (dead, free) = (findings.row("sbcl.dead"), findings.row("sbcl.free"));
    let mut text =
        format!("{} of {} RSS is of no use to SBCL any more", bytes(sum), bytes(findings.rss_bytes));
    let of_generation = findings.rows.iter().filter(|row| row.id == "sbcl.dead");
    if let Some(most) = of_generation.max_by_key(|row| row.bytes) {
        text += &format!(
            ": {} of objects that nothing reaches ({} of them in {})",
            bytes(dead),
            bytes(most.bytes),
            most.holder
        );
    }
    if free > 0 {
        text += if dead > 0 { " and" } else { ":" };
        text += &format!(" {} of free pages", bytes(free));
    }
    text + &findings.given_back_by("sbcl_full_gc", "(gc :full t) gives back")
}

fn free_heap(findings: &Findings<'_>, free: u64, pinned: u64) -> String {
    let mut text = format!("{} of {} RSS is free heap", bytes(free), bytes(findings.rss_bytes));
    match findings.free_lazy_bytes() {
        0 => {}
        lazy => {
            text += &format!(
                " ({} of it released with MADV_FREE, which the kernel drops under pressure)",
                bytes(lazy)
            )
        }
    }
    match findings.trim_bytes {
        Some(trim) if trim > 0 => text += &format!("; malloc_trim gives back {}", bytes(trim)),
        // Beside another allocator a glibc with hardly a heap is not worth a word.
        Some(_) if findings.matters(findings.glibc_free()) => text += "; malloc_trim gives back nothing",
        Some(_) if findings.size_classes.is_empty() => text += "; malloc_trim gives back nothing",
        Some(_) => {}
        None => {}
    }
    let purges = findings.of_readers.iter().filter(|remedy| remedy.kind == RemedyKind::Call);
    for (remedy, predicted) in purges.filter_map(|remedy| Some((remedy, remedy.predicted_bytes?))) {
        text += &format!("; {} gives back {}", remedy.id, bytes(predicted));
    }
    if pinned > 0 {
        let (count, noun, verb) = (findings.pinning_chunks, "live chunk", "is");
        let plural = if count == 1 { "" } else { "s" };
        text += &format!("; {} {verb} pinned by {} {noun}{plural}", bytes(pinned), units::thousands(count));
    }
    text + &fragmentation(findings)
}

/// Where free places between blocks of one size are worth a word: how many there are, and how many blocks hold them.
fn fragmentation(findings: &Findings<'_>) -> String {
    let free = |class: &SizeClass| class.free_blocks.saturating_mul(class.bytes);
    let worst = findings.size_classes.iter().max_by_key(|(_, class)| free(class));
    let Some((name, class)) = worst.filter(|(_, class)| findings.matters(free(class))) else {
        return String::new();
    };
    let live = class.live_blocks + class.cached_blocks;
    let used = 100.0 * live as f64 / (live + class.free_blocks).max(1) as f64;
    format!(
        "; {} of it are free places between {} blocks of {} bytes, {used:.0} % used, which {name} gives back only where a \
         whole group of them is free",
        // Of address space: no more of it can be resident than is free at all.
        bytes(free(class).min(findings.blocks(&[|rows| rows.kept, |rows| rows.pinned]))),
        units::thousands(live),
        units::thousands(class.bytes)
    )
}

fn unattributed_memory(findings: &Findings<'_>, unattributed: u64) -> String {
    let untraced = findings.row("sbcl.allocated");
    if untraced > unattributed / 2 {
        return format!(
            "{} of {} RSS is objects of SBCL of which it is not known whether anything needs them",
            bytes(untraced),
            bytes(findings.rss_bytes)
        );
    }
    let mut text = format!(
        "{} of {} RSS is anonymous memory that strandline cannot look into",
        bytes(unattributed),
        bytes(findings.rss_bytes)
    );
    if !findings.unread.is_empty() {
        let names = findings.unread.join(", ");
        let whose =
            if findings.unread.len() == 1 { "manages its own memory" } else { "manage their own memory" };
        text += &format!(" ({names} {whose})");
    }
    text
}

fn mostly_used(findings: &Findings<'_>) -> (&'static str, String) {
    let rss = bytes(findings.rss_bytes);
    let (live, evictable) = (findings.state(State::Live), findings.state(State::Evictable));
    let stranded = findings.state(State::Stranded);
    if evictable > live {
        let freed = findings.row("kernel.lazyfree");
        let what = match (freed, evictable - freed) {
            (0, _) => "file pages".to_owned(),
            (_, 0) => "pages that the program released with MADV_FREE".to_owned(),
            (freed, files) => {
                format!(
                    "file pages ({}) and pages that the program released with MADV_FREE ({})",
                    bytes(files),
                    bytes(freed)
                )
            }
        };
        let (all, stranded) = (bytes(evictable), bytes(stranded));
        let text = format!(
            "{all} of {rss} RSS is {what}, which the kernel drops under pressure; {stranded} is stranded"
        );
        return ("evictable", text);
    }
    let holder = findings.rows.iter().filter(|row| row.state == State::Live).max_by_key(|row| row.bytes);
    let holder = holder.map_or(String::new(), |row| format!(", most of it {}", row.holder));
    let class = if findings.matters(live) { "live" } else { "mixed" };
    let rest = findings
        .rows
        .iter()
        .filter(|row| row.state != State::Live && row.bytes > 0)
        .max_by_key(|row| row.bytes);
    let rest = rest.map_or(String::new(), |row| {
        format!("; the most of what is not in use is {}, {}", row.holder, bytes(row.bytes))
    });
    (class, format!("{} of {rss} RSS is in use{holder}; {} is stranded{rest}", bytes(live), bytes(stranded)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Stratum;

    fn row(id: &str, state: State, bytes: u64) -> Row {
        Row { id: id.to_owned(), stratum: Stratum::Allocator, state, holder: "x".to_owned(), bytes }
    }

    #[test]
    fn a_fragmented_service_reads_like_the_promise() {
        let rows = [
            row("glibc.free.trim", State::Stranded, 1100 << 20),
            row("glibc.free.pinned", State::Pinned, 96 << 20),
            row("glibc.live", State::Live, 404 << 20),
        ];
        let findings = Findings {
            rows: &rows,
            rss_bytes: 1600 << 20,
            trim_bytes: Some(1100 << 20),
            pinning_chunks: 12_411,
            ..Findings::default()
        };
        let verdict = verdict(&findings);
        assert_eq!(verdict.class, "free_heap");
        assert_eq!(
            verdict.headline,
            "1.17 GiB of 1.56 GiB RSS is free heap; malloc_trim gives back 1.07 GiB; \
             96.0 MiB is pinned by 12,411 live chunks"
        );
    }

    #[test]
    fn a_row_for_several_classes_counts_once() {
        let rows =
            [row("musl.free.kept", State::Stranded, 50 << 20), row("musl.live", State::Live, 10 << 20)];
        let findings = Findings { rows: &rows, rss_bytes: 60 << 20, ..Findings::default() };
        assert_eq!(verdict(&findings).headline, "50.0 MiB of 60.0 MiB RSS is free heap");
    }

    #[test]
    fn lazily_freed_pages_are_no_file_pages() {
        let rows = [
            row("kernel.lazyfree", State::Evictable, 500 << 20),
            row("kernel.file", State::Evictable, 2 << 20),
            row("glibc.live", State::Live, 40 << 20),
        ];
        let findings = Findings { rows: &rows, rss_bytes: 542 << 20, ..Findings::default() };
        assert_eq!(
            verdict(&findings).headline,
            "502 MiB of 542 MiB RSS is file pages (2.00 MiB) and pages that the program released with MADV_FREE (500 MiB), \
             which the kernel drops under pressure; 0 B is stranded"
        );
    }

    #[test]
    fn what_trimming_gives_back_is_part_of_what_is_free() {
        let rows = [
            row("glibc.free.trim", State::Stranded, 190 << 20),
            row("kernel.zero", State::Stranded, 70 << 20),
            row("glibc.live", State::Live, 40 << 20),
        ];
        let of = |trim| {
            let findings =
                Findings { rows: &rows, rss_bytes: 300 << 20, trim_bytes: Some(trim), ..Findings::default() };
            verdict(&findings).headline
        };
        assert_eq!(of(200 << 20), "200 MiB of 300 MiB RSS is free heap; malloc_trim gives back 200 MiB");
        // It brings pages in itself where it writes to free chunks.
        assert_eq!(of(189 << 20), "190 MiB of 300 MiB RSS is free heap; malloc_trim gives back 189 MiB");
    }

    #[test]
    fn what_a_runtime_keeps_is_named() {
        let named = |id: &str, holder: &str, bytes| Row {
            holder: holder.to_owned(),
            ..row(id, State::Stranded, bytes)
        };
        let perl = [
            named("perl.pad.retained", "main::f1 $s (depth 1)", 40 << 20),
            named("perl.pad.retained", rows::holder("perl.pad.retained").unwrap(), 41 << 20),
        ];
        let remedy =
            Remedy { id: "perl_undef".to_owned(), predicted_bytes: Some(39 << 20), ..Remedy::default() };
        let of = |rows, of_readers| {
            let unread: &[String] = &[];
            let findings = Findings { rows, rss_bytes: 100 << 20, unread, of_readers, ..Findings::default() };
            verdict(&findings)
        };
        assert_eq!(
            of(&perl, std::slice::from_ref(&remedy)).headline,
            "81.0 MiB of 100 MiB RSS is buffers that Perl keeps for variables out of use; the largest is that of \
             main::f1 $s (depth 1), 40.0 MiB; undef of them gives back 39.0 MiB"
        );
        let sbcl = [
            named("sbcl.dead", "generation 1", 2 << 20),
            named("sbcl.dead", "generation 2", 20 << 20),
            row("sbcl.free", State::Stranded, 5 << 20),
            row("anonymous", State::Unattributed, 9 << 20),
        ];
        let slots = [row("perl.arena.free", State::Pinned, 30 << 20)];
        assert_eq!(of(&slots, &[]).class, "free_slots");
        let said = of(&sbcl, &[]);
        assert_eq!(said.class, "dead_objects");
        assert_eq!(
            said.headline,
            "27.0 MiB of 100 MiB RSS is of no use to SBCL any more: 22.0 MiB of objects that nothing reaches \
             (20.0 MiB of them in generation 2) and 5.00 MiB of free pages"
        );
    }

    #[test]
    fn memory_of_others_is_not_called_live() {
        let rows = [
            row("anonymous", State::Unattributed, 900 << 20),
            row("program.text", State::Evictable, 10 << 20),
        ];
        let names = ["jvm".to_owned()];
        let findings = Findings { rows: &rows, rss_bytes: 910 << 20, unread: &names, ..Findings::default() };
        let verdict = verdict(&findings);
        assert_eq!(verdict.class, "unattributed");
        assert!(verdict.headline.contains("jvm"), "{}", verdict.headline);
    }
}
