//! What is said of a Java virtual machine.

use strandline_claims::facts::{Runtime, Stratum};
use strandline_claims::units::bytes;
use strandline_runtimes::jvm::facts::Jvm;

use super::Findings;

fn jvm<'a>(findings: &Findings<'a>) -> Option<(&'a Runtime, Jvm)> {
    findings.runtimes.iter().find_map(|runtime| Some((runtime, runtime.details("jvm")?)))
}

/// Where what is free in its heap is most of what is stranded.
pub fn free_regions(findings: &Findings<'_>, free: u64) -> String {
    let rss = bytes(findings.rss_bytes);
    let Some((runtime, known)) = jvm(findings) else {
        return format!("{} of {rss} RSS is free in the JVM's heap", bytes(free));
    };
    let collector = runtime.own.get("collector").and_then(|name| name.as_str()).unwrap_or("?");
    let what = if known.region_bytes.is_some() { "regions" } else { "space" };
    // Dead objects are no free regions before they are collected.
    let dead = findings.row("jvm.dead");
    let what = match dead {
        dead if findings.matters(dead) => format!("dead objects ({}) and free {what}", bytes(dead)),
        _ => format!("free {what}"),
    };
    let mut text = format!(
        "{} of {rss} RSS is {what} of the JVM's heap, committed and resident ({collector}; objects use {})",
        bytes(free),
        bytes(runtime.used_bytes.unwrap_or(0))
    );
    text += &findings.given_back_by("jvm_gc", "GC.run gives back");
    text + &may_live(&known) + &heap_beside(&known)
}

/// Where it is not known of some objects whether they live.
fn may_live(known: &Jvm) -> String {
    let (Some(_), Some((most, least))) =
        (known.doubtful_bytes(), known.live_bytes.zip(known.live_at_least_bytes))
    else {
        return String::new();
    };
    format!("; at most {} of its objects live, at least {}", bytes(most), bytes(least))
}

/// Where RSS is far above what the heap may have: of what it is.
pub fn beside_its_heap(findings: &Findings<'_>) -> Option<(&'static str, String)> {
    let (_, known) = jvm(findings)?;
    let rss = findings.rss_bytes;
    let heap = known.resident_bytes;
    // Otherwise the heap is what it is.
    if !findings.matters(rss.saturating_sub(heap)) {
        return None;
    }
    let sum = |ids: &[&str]| ids.iter().map(|id| findings.row(id)).sum::<u64>();
    let malloc: u64 =
        findings.rows.iter().filter(|row| row.stratum == Stratum::Allocator).map(|row| row.bytes).sum();
    let parts = [
        ("direct buffers", sum(&["jvm.direct"])),
        ("metaspace", sum(&["jvm.metaspace", "jvm.class_space", "jvm.metaspace.free"])),
        ("code cache", sum(&["jvm.code", "jvm.code.free"])),
        ("the collector's tables", sum(&["jvm.collector"])),
        ("malloc", malloc),
        ("files", sum(&["program.text", "kernel.file"])),
        ("static data and class data archive", sum(&["program.data"])),
        ("stacks", sum(&["program.stack", "kernel.stack_below_sp"])),
    ];
    let mut parts: Vec<(&str, u64)> = parts.into_iter().filter(|part| part.1 >= 1 << 20).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.1));
    let limit =
        known.max_heap_bytes.map_or_else(String::new, |most| format!(" against -Xmx {}", bytes(most)));
    let mut text = format!("RSS {}{limit}: heap {}", bytes(rss), bytes(heap));
    for (name, part) in parts.iter().take(5) {
        text += &format!(", {name} {}", bytes(*part));
    }
    let free = sum(&["glibc.free.trim", "glibc.free.kept", "glibc.free.pinned"]);
    if malloc > 0 && free > malloc / 4 {
        text += &format!(" ({} of malloc's is free)", bytes(free));
    }
    Some(("live", text + &may_live(&known) + &heap_beside(&known)))
}

/// A heap that the kernel counts several times.
fn heap_beside(known: &Jvm) -> String {
    known.views.filter(|&views| views > 1).map_or_else(String::new, |views| {
        format!("; its heap is mapped {views} times and RSS may count it as often: PSS counts it once")
    })
}
