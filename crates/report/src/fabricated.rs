//! Synthetic processes for tests of the reports. The figures are made up, but they add up.

use strandline_claims::caveat::Caveat;
use strandline_inspect::facts::{
    self, Arena, ArenaKind, Cost, Explanation, HolderKind, Remedy, RemedyKind, Row, State, Target,
    TargetKind, Verdict,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A ledger row.
pub fn row(id: &str, stratum: HolderKind, state: State, holder: &str, bytes: u64) -> Row {
    Row { id: id.to_owned(), stratum, state, holder: holder.to_owned(), bytes }
}

/// Sets the totals and the RSS of `explanation` to the sums of its rows.
pub fn balanced(mut explanation: Explanation) -> Explanation {
    explanation.totals = explanation.rows.iter().map(|row| (row.state, row.bytes)).collect();
    let rss = explanation.rows.iter().map(|row| row.bytes).sum();
    explanation.kernel.rss_bytes = rss;
    explanation.kernel.anonymous_bytes = rss - explanation.kernel.file_bytes;
    explanation.kernel.pss_bytes = Some(rss);
    explanation
}

/// A service of 1.6 GiB whose heap is mostly free.
pub fn service() -> Explanation {
    balanced(Explanation {
        target: Target {
            kind: TargetKind::Live,
            pid: 4711,
            executable: Some("/usr/local/bin/tide-server".to_owned()),
            command: vec!["tide-server".to_owned(), "--port".to_owned(), "8080".to_owned()],
            threads: 24,
        },
        kernel: facts::Kernel {
            file_bytes: 22 * MIB,
            huge_bytes: 4 * MIB,
            high_water_bytes: Some(2150 * MIB),
            status_rss_bytes: Some(1638 * MIB),
            page_tables_bytes: Some(3 * MIB),
            ..facts::Kernel::default()
        },
        rows: service_rows(),
        allocators: vec![facts::Allocator {
            name: "glibc".to_owned(),
            version: Some("2.36".to_owned()),
            found_by: "structure of main_arena in libc.so.6".to_owned(),
            read: true,
            arenas: service_arenas(),
            ..Default::default()
        }],
        remedies: service_remedies(),
        verdict: Verdict {
            headline: "1.1 GiB of 1.6 GiB RSS is free heap; malloc_trim releases 1.1 GiB; \
                       96 MiB is pinned: free bytes beside 12,411 allocated chunks"
                .to_owned(),
            class: "free_heap".to_owned(),
        },
        caveats: vec![Caveat::new(
            "chunk_in_motion",
            "arena 0x7f3a03000030",
            Some(48 * KIB),
            "a thread was inside malloc at the stop; the walk resynchronised behind it",
        )],
        cost: Cost {
            wall_seconds: 0.412,
            stopped_seconds: 0.287,
            peak_rss_bytes: Some(19 * MIB),
            bytes_read: 1500 * MIB,
            copied_pages: None,
        },
        settings: [("MALLOC_ARENA_MAX".to_owned(), "4".to_owned())].into(),
        ..Explanation::default()
    })
}

fn service_arenas() -> Vec<Arena> {
    let arena = |id: &str, kind, mapped, trim| Arena {
        id: id.to_owned(),
        kind,
        mapped_bytes: mapped * MIB,
        used_bytes: mapped * MIB / 6,
        free_bytes: mapped * MIB / 6 * 5,
        tcache_bytes: Some(212 * KIB),
        fastbin_bytes: Some(12 * KIB),
        top_bytes: Some(128 * KIB),
        trim_bytes: Some(trim * MIB),
    };
    let mut arenas = vec![arena("0x7f3a5c1b2c80", ArenaKind::Main, 900, 700)];
    arenas.extend((0..11).map(|n| arena(&format!("0x7f3a{n:02}000030"), ArenaKind::Secondary, 62 - n, 40)));
    arenas
}

fn service_rows() -> Vec<Row> {
    use {
        HolderKind::{Allocator, Kernel, Program, Values},
        State::{Evictable, Live, Pinned, Stranded},
    };
    vec![
        row(
            "glibc.free.trim",
            Allocator,
            Stranded,
            "malloc: whole free pages malloc_trim returns",
            1126 * MIB,
        ),
        row("glibc.live", Values, Live, "malloc: chunks in use", 280 * MIB + 1234),
        row("glibc.free.pinned", Allocator, Pinned, "malloc: free bytes beside live ones", 96 * MIB),
        row("kernel.zero", Kernel, Stranded, "private pages that are all zero", 64 * MIB),
        row("glibc.header", Allocator, Live, "malloc: chunk headers", 30 * MIB - 1234),
        row("kernel.file", Kernel, Evictable, "clean pages of files", 14 * MIB),
        row("program.text", Program, Evictable, "code", 8 * MIB),
        row("glibc.tcache", Allocator, Stranded, "malloc: threads' caches", 5 * MIB),
        row("program.data", Program, Live, "static data", 2 * MIB),
        row("program.stack", Program, Live, "stacks in use", MIB),
        row("kernel.stack_below_sp", Kernel, Stranded, "stacks below the stack pointer", 512 * KIB),
        row("kernel.lazyfree", Kernel, Evictable, "given up with MADV_FREE", 4 * KIB),
    ]
}

fn service_remedies() -> Vec<Remedy> {
    vec![
        Remedy {
            id: "malloc_trim".to_owned(),
            kind: RemedyKind::Call,
            predicted_bytes: Some(1126 * MIB),
            how: "strandline reclaim 4711 --remedy malloc_trim".to_owned(),
            cost: "one thread runs malloc_trim for about 120 ms; freed pages fault in again when reused"
                .to_owned(),
            ..Remedy::default()
        },
        Remedy {
            id: "zero_pages".to_owned(),
            kind: RemedyKind::Call,
            predicted_bytes: Some(64 * MIB),
            how: "strandline reclaim 4711 --remedy zero_pages".to_owned(),
            cost: "needs swap to be safe at every instant".to_owned(),
            ..Remedy::default()
        },
        Remedy {
            id: "arena_max".to_owned(),
            kind: RemedyKind::Setting,
            predicted_bytes: None,
            how: "MALLOC_ARENA_MAX=2".to_owned(),
            cost: "threads wait for each other in malloc".to_owned(),
            ..Remedy::default()
        },
    ]
}

/// A shell with very little memory.
pub fn shell() -> Explanation {
    use {
        HolderKind::{Allocator, Kernel, Program, Values},
        State::{Evictable, Live, Pinned},
    };
    balanced(Explanation {
        target: Target {
            pid: 812,
            executable: Some("/usr/bin/dash".to_owned()),
            command: vec!["sh".to_owned()],
            threads: 1,
            ..Target::default()
        },
        kernel: facts::Kernel { file_bytes: 700 * KIB, ..facts::Kernel::default() },
        rows: vec![
            row("program.text", Program, Evictable, "code", 600 * KIB),
            row("kernel.file", Kernel, Evictable, "clean pages of files", 100 * KIB),
            row("program.data", Program, Live, "static data", 60 * KIB),
            row("glibc.live", Values, Live, "malloc: chunks in use", 13_000),
            row("program.stack", Program, Live, "stacks in use", 12 * KIB),
            row("glibc.header", Allocator, Live, "malloc: chunk headers", 2_056),
            row("glibc.free.pinned", Allocator, Pinned, "malloc: free bytes beside live ones", 1_328),
        ],
        verdict: Verdict {
            headline: "nearly everything is code and live data; nothing worth giving back".to_owned(),
            class: "live".to_owned(),
        },
        cost: Cost {
            wall_seconds: 0.0061,
            stopped_seconds: 0.00092,
            bytes_read: 76 * KIB,
            ..Cost::default()
        },
        ..Explanation::default()
    })
}

/// A Java process whose heap strandline cannot read.
pub fn java() -> Explanation {
    use {
        HolderKind::Values,
        State::{Live, Unattributed},
    };
    balanced(Explanation {
        target: Target {
            pid: 90_210,
            executable: Some("/usr/lib/jvm/java-17-openjdk-amd64/bin/java".to_owned()),
            threads: 61,
            ..Target::default()
        },
        rows: vec![
            row("anonymous", Values, Unattributed, "private memory that no reader knows", 2900 * MIB),
            row("glibc.live", Values, Live, "malloc: chunks in use", 80 * MIB),
        ],
        allocators: vec![facts::Allocator {
            name: "jemalloc".to_owned(),
            found_by: "mapped file libjemalloc.so.2".to_owned(),
            ..Default::default()
        }],
        runtimes: vec![facts::Runtime {
            name: "jvm".to_owned(),
            version: Some("17.0.9".to_owned()),
            found_by: "mapped file libjvm.so".to_owned(),
            ..facts::Runtime::default()
        }],
        verdict: Verdict {
            headline: "2.8 GiB of 2.9 GiB RSS is memory of the JVM, which strandline does not read yet"
                .to_owned(),
            class: "unattributed".to_owned(),
        },
        ..Explanation::default()
    })
}

/// Names that an attacker would choose.
pub fn hostile() -> Explanation {
    use {HolderKind::Kernel, State::Live};
    let evil = "\x1b[2J\x1b]0;owned\x07\u{9b}31m\u{202e}\r\n\0";
    let mut explanation = service();
    explanation.target.executable = Some(format!("/tmp/{evil}{}", "漢".repeat(3000)));
    explanation.target.command = vec![format!("/tmp/{evil}{}", "字".repeat(3000)), evil.repeat(3)];
    explanation.verdict.headline = format!("{evil}{}", "wide".repeat(60));
    explanation.rows.push(row(&format!("evil.{evil}"), Kernel, Live, &evil.repeat(30), 200 * MIB));
    explanation.remedies[0].how = evil.repeat(12);
    explanation.caveats[0].text = evil.repeat(12);
    explanation.allocators[0].found_by = evil.to_owned();
    explanation.allocators[0].arenas[1].id = evil.repeat(9);
    explanation.runtimes = vec![facts::Runtime { name: evil.to_owned(), ..facts::Runtime::default() }];
    balanced(explanation)
}
