//! The reader's figures compared with the perl's own: heads, buffers, memory retained by pads, and
//! its names.

use serde_json::Value;

use crate::support::perl::{
    NAMED_BYTES, PerlLedger, RetainedBuffer, buffers_in_pads, list, name, number, own_figures, start,
};
use crate::support::waiting::until_true;
use crate::support::{Outcome, Result, for_any, for_each, here, perls};

/// Cases of retained.pl that stay unchanged and whose figures are all equal inside and outside.
const CASES: [&str; 25] = [
    "functions",
    "undef",
    "closures",
    "closure_pads",
    "recursion",
    "recursion_within",
    "constants",
    "local",
    "small_strings",
    "hashes",
    "cow",
    "ook",
    "arrays",
    "state",
    "formats",
    "string_evals",
    "nested",
    "sortsubs",
    "ours",
    "magic",
    "utf8",
    "numbers",
    "weak",
    "destroy",
    "regex",
];

fn check(perl: &str, case: &str) -> Outcome {
    let mut subject = start(perl, case)?;
    let theirs = own_figures(&mut subject)?;
    let seen = PerlLedger::of(subject.pid())?;
    let main = seen.main()?;
    check_heads(main, &theirs)?;
    check_strings(main, &theirs)?;
    check_retained(main, &theirs)?;
    check_names(main, &theirs)?;
    expected(main, &subject.ready)?;
    check_rows(&seen, main)
}

fn check_equal(what: &str, ours: u64, theirs: u64) -> Outcome {
    if ours == theirs { Ok(()) } else { Err(format!("{what}: {ours}, the perl has {theirs}").into()) }
}

fn check_heads(main: &Value, theirs: &Value) -> Outcome {
    check_equal("sv_count", number(main, "sv_count")?, number(theirs, "sv_count")?)?;
    check_equal("live heads", number(main, "heads.live")?, number(theirs, "live_heads")?)?;
    check_equal("free heads", number(main, "heads.free")?, number(theirs, "free_heads")?)?;
    check_equal("arenas", number(main, "heads.arenas")?, number(theirs, "arenas")?)?;
    let by_type: u64 =
        main["heads"]["by_type"].as_object().ok_or("no types")?.values().filter_map(Value::as_u64).sum();
    check_equal("heads by type", by_type, number(theirs, "live_heads")?)?;
    let types = theirs["types"].as_object().ok_or("no types")?;
    let mut ours: Vec<u64> =
        main["heads"]["by_type"].as_object().into_iter().flatten().filter_map(|one| one.1.as_u64()).collect();
    let mut theirs: Vec<u64> = types.values().filter_map(Value::as_u64).collect();
    ours.retain(|&count| count > 0);
    ours.sort_unstable();
    theirs.sort_unstable();
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("heads by type: {ours:?}, the perl has {theirs:?}").into())
    }
}

/// Strings in use: those with a value, except values that are only retained.
fn check_strings(main: &Value, theirs: &Value) -> Outcome {
    check_equal("buffers of strings", number(main, "strings.buffers")?, number(theirs, "strings_in_use")?)?;
    check_equal("shared buffers", number(main, "strings.cow.buffers")?, number(theirs, "shared_strings")?)?;
    check_equal(
        "shared bytes",
        number(main, "strings.cow.shared_bytes")?,
        number(theirs, "shared_string_bytes")?,
    )?;
    let kept =
        list(&theirs["retained"]).iter().filter(|buffer| buffer["string"] == 1 && buffer["owners"] == 1);
    let bytes: u64 = kept.filter_map(|buffer| buffer["cur"].as_u64()).sum();
    // Keys shared by values count as payload too, without a buffer.
    let payload = number(main, "strings.payload_bytes")?;
    let least = number(theirs, "payload_bytes")? - bytes;
    if payload < least {
        return Err(format!("{payload} bytes of payload, the perl has {least}").into());
    }
    Ok(())
}

/// Bytes retained by pads in strings, within 0.01 %, or a few of the shortest buffers.
fn check_retained(main: &Value, theirs: &Value) -> Outcome {
    // Bytes retained by lexicals include the storage of arrays and hashes.
    let lexicals = number(main, "retained.lexicals.bytes")? - number(main, "retained.containers.bytes")?;
    let temporaries = number(main, "retained.temporaries.bytes")?;
    for (ours, key) in [(lexicals, "retained_lexicals_bytes"), (temporaries, "retained_temporaries_bytes")] {
        let inside = number(theirs, key)?;
        if ours.abs_diff(inside) > (inside / 10_000).max(64) {
            return Err(format!("{key}: {ours} bytes, the perl has {inside}").into());
        }
    }
    Ok(())
}

/// Every buffer above the limit has the same name, depth, size and address as inside.
fn check_names(main: &Value, theirs: &Value) -> Outcome {
    let alone = |buffer: &&Value| buffer["owners"] == 1 && buffer["len"].as_u64() > Some(NAMED_BYTES);
    let inside = list(&theirs["retained"]).iter().filter(alone).map(|buffer| {
        Ok(RetainedBuffer {
            address: number(buffer, "buffer")?,
            sub: name(buffer, "sub"),
            lexical: name(buffer, "name"),
            depth: number(buffer, "depth")?,
            bytes: number(buffer, "len")?,
        })
    });
    let mut inside = inside.collect::<Result<Vec<RetainedBuffer>>>()?;
    let mut outside = buffers_in_pads(main)?;
    inside.sort_unstable();
    outside.sort_unstable();
    if inside == outside {
        return Ok(());
    }
    let missing: Vec<_> = inside.iter().filter(|one| !outside.contains(one)).take(3).collect();
    let surplus: Vec<_> = outside.iter().filter(|one| !inside.contains(one)).take(3).collect();
    Err(format!(
        "{} named, {} inside; missing {missing:?}; too many {surplus:?}",
        outside.len(),
        inside.len()
    )
    .into())
}

/// A buffer that the source of a case names.
#[derive(Debug)]
struct NamedBuffer<'a> {
    sub: &'a str,
    lexical: &'a str,
    depth: u64,
    /// 0 if the source says nothing of its size.
    min_bytes: u64,
}

impl NamedBuffer<'_> {
    /// Whether `buffer` has these names and this depth.
    fn names(&self, buffer: &RetainedBuffer) -> bool {
        buffer.sub.as_deref() == Some(self.sub)
            && buffer.lexical.as_deref() == Some(self.lexical)
            && buffer.depth == self.depth
    }
}

/// The buffers in a list of the case, each an array of sub, lexical, depth and perhaps bytes.
fn in_list<'a>(ready: &'a Value, key: &str) -> Result<Vec<NamedBuffer<'a>>> {
    let named = |entry: &'a Value| {
        Some(NamedBuffer {
            sub: entry[0].as_str()?,
            lexical: entry[1].as_str()?,
            depth: entry[2].as_u64()?,
            min_bytes: entry[3].as_u64().unwrap_or(0),
        })
    };
    let entries = list(&ready[key]).iter();
    entries.map(|entry| named(entry).ok_or_else(|| format!("{key}: {entry}").into())).collect()
}

/// Checks the figures that are known from the source of the case.
fn expected(main: &Value, ready: &Value) -> Outcome {
    let mut found = buffers_in_pads(main)?;
    for expected in in_list(ready, "expected")? {
        let is_it = |buffer: &RetainedBuffer| expected.names(buffer) && buffer.bytes >= expected.min_bytes;
        let at = found.iter().position(is_it).ok_or_else(|| format!("no {expected:?} in {found:?}"))?;
        found.remove(at);
    }
    for live in in_list(ready, "live")? {
        if found.iter().any(|buffer| live.names(buffer)) {
            return Err(format!("{live:?} is in use, but is reported as retained").into());
        }
    }
    for absent in list(&ready["absent"]) {
        if found.iter().any(|buffer| buffer.lexical.as_deref() == absent.as_str()) {
            return Err(format!("{absent} is reported as retained").into());
        }
    }
    for (key, path) in [
        ("least_strings", "strings.buffers"),
        ("least_payload_bytes", "strings.payload_bytes"),
        ("live_strings_bytes", "strings.payload_bytes"),
        ("least_short", "strings.short.strings"),
        ("constant_bytes", "strings.constants.capacity_bytes"),
        ("shared_bytes", "strings.cow.shared_bytes"),
        ("owners", "strings.cow.owners"),
        ("offset_strings", "strings.offset"),
        ("other_bytes", "retained.other.bytes"),
        ("least_keys", "containers.shared_keys"),
    ] {
        if let Some(least) = ready[key].as_u64()
            && number(main, path)? < least
        {
            return Err(format!("{path} is {}, at least {least} are known", number(main, path)?).into());
        }
    }
    check_containers(main, ready)
}

fn check_containers(main: &Value, ready: &Value) -> Outcome {
    for container in in_list(ready, "containers")? {
        let is_it = |buffer: &Value| {
            buffer["kind"] != "string"
                && buffer["sub"] == container.sub
                && buffer["lexical"] == container.lexical
                && buffer["depth"] == container.depth
        };
        if !list(&main["retained"]["top"]).iter().any(is_it) {
            return Err(format!("no storage of {container:?}: {}", main["retained"]).into());
        }
    }
    Ok(())
}

/// Retained memory of pads is on its rows: all of it that malloc confirms, no byte twice, and each
/// large buffer with its holder.
fn check_rows(seen: &PerlLedger, main: &Value) -> Outcome {
    let rows = seen.rows("perl.pad.retained");
    let sum: u64 = rows.iter().map(|row| row.1).sum();
    let (lexicals, temporaries) = (&main["retained"]["lexicals"], &main["retained"]["temporaries"]);
    let of =
        |key: &str| Ok::<_, Box<dyn std::error::Error>>(number(lexicals, key)? + number(temporaries, key)?);
    let (kept, buffers) = (of("bytes")?, of("buffers")?);
    // The rows may exceed the capacities by malloc's rounding to multiples of 16. Pages of a buffer
    // that were never written are not resident, and storage without elements may be zero pages,
    // which have their own row.
    let strings = kept - number(main, "retained.containers.bytes")?;
    if sum > kept + 16 * buffers || sum + kept / 5 + 65_536 < strings {
        return Err(format!("perl.pad.retained has {sum} bytes, the perl keeps {kept}").into());
    }
    for buffer in list(&main["retained"]["top"]).iter().filter(|buffer| buffer["keeper"] == "lexical") {
        let holder = buffer["holder"].as_str().ok_or("no holder")?;
        if !rows.iter().any(|row| row.0 == holder) {
            return Err(format!("no row of {holder:?}").into());
        }
    }
    Ok(())
}

fn all(perl: &str) -> Outcome {
    for_each(CASES, |case| check(perl, case))
}

#[test]
fn figures_equal_perls_own() -> Outcome {
    for_any(perls::all(here!()), |perl| all(perl))
}

/// Perls of other builds, such as without ithreads, given by a list of paths.
#[test]
fn figures_equal_those_of_perls_named_by_the_caller() -> Outcome {
    let named = std::env::var("STRANDLINE_PERL").unwrap_or_default();
    let perls: Vec<&str> = named.split(':').filter(|perl| !perl.is_empty()).collect();
    if perls.is_empty() {
        crate::support::skipped(here!(), "STRANDLINE_PERL names no perl (PATH:PATH)");
    }
    for_any(perls, |perl| all(perl))
}

#[test]
fn a_forked_child_has_the_figures_of_its_parent() -> Outcome {
    let Some(perl) = perls::all(here!()).into_iter().next() else { return Ok(()) };
    let subject = start(&perl, "fork")?;
    let child = i32::try_from(subject.number("child")?)?;
    // The child reads from a pipe: its preparations are over.
    until_true("the child to sleep", || {
        let call = std::fs::read_to_string(format!("/proc/{child}/syscall")).unwrap_or_default();
        call.starts_with("0 ")
    })?;
    let seen: Result<Vec<Value>> = [subject.pid(), child]
        .into_iter()
        .map(|pid| Ok(PerlLedger::of(pid)?.main()?["retained"].clone()))
        .collect();
    for retained in seen? {
        let named = list(&retained["top"]).iter().filter(|buffer| buffer["lexical"] == "$s").count();
        check_equal("functions with a buffer", named as u64, 20)?;
    }
    Ok(())
}
