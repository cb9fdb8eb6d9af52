//! Objects reported as dead, compared with the effect of `(gc :full t)`.

use serde_json::Value;

use crate::support::sbcl::{Sbcl, explain, figures, figures_after, of_type, size};
use crate::support::subject::number;
use crate::support::{Outcome, Result, Subject, for_any, for_each, here, some_of, strandline};

/// Every kind of heap with a known answer that `tests/subjects/sbcl/subject.lisp` makes, and the
/// allowed error in messages: words on stacks decide about single ones.
const KINDS: [(&str, u64); 34] = [
    ("idle", 0),
    ("promoted", 1),
    ("live", 0),
    ("half", 1),
    ("generations", 4),
    ("actor", 1),
    ("weak", 2),
    ("weaktables", 4),
    ("weak-key", 2),
    ("weak-value", 2),
    ("weak-key-and-value", 2),
    ("weak-key-or-value", 2),
    ("mixed", 1),
    ("ephemerons", 2),
    ("chain", 0),
    ("finalizers", 2),
    ("large", 0),
    ("specialized", 0),
    ("closures", 1),
    ("instances", 1),
    ("conses", 0),
    ("eqtables", 1),
    ("stacks", 2),
    ("bindings", 1),
    ("shadowed", 1),
    ("pinned", 1),
    ("inside", 1),
    ("symbols", 1),
    ("constants", 1),
    ("foreign", 1),
    ("ended", 1),
    ("garbage", 1),
    ("types", 0),
    ("secret", 1),
];

/// Prediction for a heap, and the result of the collection.
#[derive(Debug)]
struct Collected {
    /// Bytes of dynamic space: before, predicted, after.
    usage: [u64; 3],
    /// Bytes of anonymous memory: before, predicted to be given back, after.
    anonymous: [u64; 3],
    /// Messages reported live and dead, and SBCL's counts before and after.
    messages: [u64; 4],
    /// The same in bytes.
    bytes: [u64; 4],
}

/// Bytes of anonymous memory: file pages, also in RSS, change with other activity on the machine.
fn anonymous(pid: i32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).ok_or("no Anonymous")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

fn collect(subject: &mut Subject) -> Result<Collected> {
    let document = explain(subject)?;
    let ours = figures(&document)?;
    if ours["traced"] != true {
        return Err(format!("not traced: {:?}", strandline::caveats(&document)).into());
    }
    let before = subject.ready.clone();
    let anonymous_before = anonymous(subject.pid())?;
    let after = figures_after(subject, b'g')?;
    let anonymous_after = anonymous(subject.pid())?;
    let counted = subject.ask(b'c')?;
    let (live, dead) = (of_type(ours, "live_by_type", "MESSAGE"), of_type(ours, "dead_by_type", "MESSAGE"));
    let (theirs, left) = (&before, &counted);
    Ok(Collected {
        usage: [
            number(&before, "dynamic_usage_bytes")?,
            number(ours, "usage_after_full_gc_bytes")?,
            number(&after, "dynamic_usage_bytes")?,
        ],
        anonymous: [anonymous_before, number(ours, "full_gc_gives_back_bytes")?, anonymous_after],
        messages: [live.0, dead.0, number(theirs, "message_instances")?, number(left, "message_instances")?],
        bytes: [live.1, dead.1, number(theirs, "message_bytes")?, number(left, "message_bytes")?],
    })
}

fn relative_error(predicted: u64, actual: u64) -> f64 {
    (predicted as f64 - actual as f64).abs() / actual as f64
}

fn check_prediction(collected: &Collected, slack: u64) -> Outcome {
    let [_, predicted, after] = collected.usage;
    if relative_error(predicted, after) > 0.02 {
        return Err(format!("usage {predicted} predicted, {after} after: {collected:?}").into());
    }
    let [live, dead, there, left] = collected.messages;
    // Only the types with most bytes are reported: a few messages are not among them.
    let is_listed = |listed: u64, count: u64| listed > 0 || count < 1000;
    if !is_listed(live, left) || !is_listed(dead, there - left) {
        return Err(format!("messages are missing: {collected:?}").into());
    }
    if live > 0
        && dead > 0
        && (live + dead != there || collected.bytes[0] + collected.bytes[1] != collected.bytes[2])
    {
        return Err(format!("messages are missing: {collected:?}").into());
    }
    if live > 0 && live.abs_diff(left) > slack || dead > 0 && dead.abs_diff(there - left) > slack {
        return Err(format!("{live} messages live, SBCL left {left}: {collected:?}").into());
    }
    let [before, given_back, after] = collected.anonymous;
    let actual = before.saturating_sub(after);
    // The runtime's own heap, stacks and tables change with a collection.
    if given_back.abs_diff(actual) > actual / 10 + (2 << 20) {
        return Err(format!(
            "{given_back} bytes of anonymous memory predicted, {actual} given back: {collected:?}"
        )
        .into());
    }
    Ok(())
}

#[test]
fn a_full_collection_leaves_the_objects_reported_as_live() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        for_each(some_of(KINDS, 6), |(kind, slack)| {
            let mut subject = sbcl.start(kind, &[&size(20_000, 200_000)])?;
            let collected = collect(&mut subject)?;
            eprintln!("{} {kind}: {collected:?}", subject.ready["version"]);
            check_prediction(&collected, *slack)
        })
    })
}

/// SBCL's type caches are reachable, yet `(gc :full t)` empties them: about 1 MB filled by the
/// compiler, independent of the heap's size.
#[test]
fn a_full_collection_empties_at_most_a_megabyte_of_caches() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        let mut subject = sbcl.start("promoted", &[&size(20_000, 200_000), "caches=1"])?;
        let [_, predicted, after] = collect(&mut subject)?.usage;
        eprintln!("{}: {predicted} predicted, {after} after", subject.ready["version"]);
        assert!(predicted.abs_diff(after) < after / 50 + (1 << 20), "{predicted} predicted, {after} after");
        Ok(())
    })
}

/// An actor whose queue had grown: all its messages are reported dead by type, and a collection
/// gives back the predicted bytes.
#[test]
fn dead_messages_of_an_actor_are_named() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        let mut subject = sbcl.start("actor", &[&size(300_000, 1_500_000)])?;
        let document = explain(&subject)?;
        let ours = figures(&document)?;
        let (instances, bytes) = of_type(ours, "dead_by_type", "MESSAGE");
        let there = number(&subject.ready, "message_instances")?;
        assert!(
            there - instances <= 1 && bytes == 64 * instances,
            "{instances} of {there} dead, {bytes} bytes"
        );
        let entry = first_of_type(ours, "MESSAGE")?;
        let generations = subject.ready["generations"].as_array().ok_or("no generations")?;
        for part in entry["by_generation"].as_array().ok_or("no by_generation")? {
            let at = part[0].as_u64().and_then(|at| usize::try_from(at).ok()).ok_or("no generation")?;
            let theirs = number(&generations[at], "message_instances")?;
            assert!(
                part[1].as_u64().is_some_and(|count| theirs - count <= 1),
                "{part}: SBCL counts {theirs}"
            );
        }
        // Closures, lists and queue cells die with the messages: most of the heap is dead.
        assert!(strandline::row(&document, "sbcl.dead") >= 2 * bytes, "{}", document["rows"]);
        let before = anonymous(subject.pid())?;
        let predicted = strandline::predicted(&document, "sbcl_full_gc").ok_or("no remedy sbcl_full_gc")?;
        figures_after(&mut subject, b'g')?;
        let given_back = before.saturating_sub(anonymous(subject.pid())?);
        eprintln!("{}: {predicted} bytes predicted, {given_back} given back", subject.ready["version"]);
        assert!(
            relative_error(predicted, given_back) < 0.05,
            "{predicted} predicted, {given_back} given back"
        );
        Ok(())
    })
}

fn first_of_type<'a>(ours: &'a Value, name: &str) -> Result<&'a Value> {
    let types = ours["dead_by_type"].as_array().ok_or("no dead_by_type")?;
    types.iter().find(|entry| entry["type"] == name).ok_or_else(|| format!("no dead {name}").into())
}
