//! `mallinfo` computed from outside, compared with the subject's own `mallinfo2()` field by field,
//! over random programs: threads, aligned blocks, foreign sbrk, a blocked break, settings, libcs.

use serde_json::Value;

use crate::support::mallinfo::{Case, SETTINGS, same, seeds};
use crate::support::{Libc, Outcome, Result, Subject, for_any, for_each, repetitions, strandline};

fn check(case: &Case) -> Outcome {
    let subject = case.start()?;
    let document = strandline::explain(subject.pid())?;
    match strandline::glibcs(&document)[..] {
        [glibc] => same(&glibc["mallinfo"], &subject.ready["mallinfo"])
            .map_err(|error| format!("{error} (caveats {:?})", strandline::caveats(&document)).into()),
        ref found => Err(format!("{} glibcs found, expected one", found.len()).into()),
    }
}

#[test]
fn random_programs() -> Outcome {
    for_each(seeds(1, 12, 120).map(|seed| Case::new(&Libc::system(), seed, &[])), check)
}

#[test]
fn foreign_sbrk() -> Outcome {
    let cases = seeds(1000, 4, 30).map(|seed| Case::new(&Libc::system(), seed, &["sbrk=1", "block=0"]));
    for_each(cases, check)
}

#[test]
fn blocked_break() -> Outcome {
    let cases = seeds(2000, 4, 30).map(|seed| Case::new(&Libc::system(), seed, &["block=1"]));
    for_each(cases, check)
}

#[test]
fn settings() -> Outcome {
    let cases = seeds(3000, 1, 5).flat_map(|seed| {
        SETTINGS.map(|(name, value)| Case::new(&Libc::system(), seed, &[]).set(name, value))
    });
    for_each(cases, check)
}

#[test]
fn linked_in_and_stripped() -> Outcome {
    for_each(seeds(4000, 3, 30).map(|seed| Case::new(&Libc::system_static(), seed, &[])), check)
}

#[test]
fn other_glibcs() -> Outcome {
    let cases = Libc::foreign()
        .into_iter()
        .flat_map(|libc| seeds(5000, 1, 30).map(move |seed| Case::new(&libc, seed, &[])).collect::<Vec<_>>());
    for_any(cases, check)
}

#[test]
fn two_libcs_in_one_process() -> Outcome {
    let subject = Subject::start("dlmopen2", &[])?;
    subject.at_rest()?;
    let document = strandline::explain(subject.pid())?;
    let found = strandline::glibcs(&document);
    assert_eq!(found.len(), 2, "{:?}", strandline::caveats(&document));
    for theirs in ["mallinfo", "second_mallinfo"] {
        let theirs = &subject.ready[theirs];
        let equal = found.iter().filter(|glibc| same(&glibc["mallinfo"], theirs).is_ok()).count();
        assert_eq!(equal, 1, "{theirs} in {found:?}");
    }
    Ok(())
}

/// The arenas' figures add up to mallinfo's.
#[test]
fn arenas_add_up() -> Outcome {
    for_each(seeds(6000, 3, 10).map(|seed| Case::new(&Libc::system(), seed, &["threads=6"])), |case| {
        let subject = case.start()?;
        let document = strandline::explain(subject.pid())?;
        let glibc = strandline::glibcs(&document)[0];
        let arenas = glibc["arenas"].as_array().ok_or("no arenas")?;
        let sum = |field: &str| arenas.iter().filter_map(|arena| arena[field].as_u64()).sum::<u64>();
        assert_eq!(Some(sum("mapped_bytes")), glibc["mallinfo"]["arena"].as_u64());
        assert_eq!(Some(sum("free_bytes")), glibc["mallinfo"]["fordblks"].as_u64());
        assert_eq!(Some(sum("fastbin_bytes")), glibc["mallinfo"]["fsmblks"].as_u64());
        // mallinfo counts a thread's cached chunks as in use.
        assert_eq!(Some(sum("used_bytes") + sum("tcache_bytes")), glibc["mallinfo"]["uordblks"].as_u64());
        Ok(())
    })
}

/// Figures common to all allocators: blocks in use and their bytes, as `malloc_usable_size` counts
/// them, cached bytes, free bytes and malloc's own bytes. Together they are all that malloc holds.
#[test]
fn blocks_in_use_equal_malloc_usable_size() -> Outcome {
    let figure = |allocator: &Value, name: &str| {
        allocator[name].as_u64().ok_or_else(|| format!("no {name} in {allocator}"))
    };
    let mut libcs = vec![Libc::system(), Libc::system_static()];
    libcs.extend(Libc::foreign());
    let cases: Vec<Case> = libcs
        .iter()
        .flat_map(|libc| (0..repetitions(2, 20)).map(|seed| Case::new(libc, seed, &["20000"])))
        .collect();
    for_each(cases, |case| {
        let mut subject = case.start_program("usable")?;
        // Blocks of the libc itself.
        let mut of_libc = None;
        for command in [None, Some(b'a'), Some(b'f')] {
            let answer = command.map(|command| subject.ask(command)).transpose()?;
            subject.at_rest()?;
            let document = strandline::explain(subject.pid())?;
            let [allocator] = strandline::glibcs(&document)[..] else {
                return Err("not exactly one glibc".into());
            };
            let of_program = |key: &str| {
                answer.as_ref().map_or(Ok(0), |answer| crate::support::subject::number(answer, key))
            };
            let rest = (
                figure(allocator, "live_blocks")?.checked_sub(of_program("blocks")?),
                figure(allocator, "live_bytes")?.checked_sub(of_program("usable_bytes")?),
            );
            let expected = *of_libc.get_or_insert(rest);
            if rest != expected || rest.0.is_none_or(|blocks| blocks > 50) {
                return Err(
                    format!("{command:?}: {rest:?} besides the program's, {expected:?} before").into()
                );
            }
            let own = &allocator["own"];
            let held: u64 = ["live_bytes", "cached_bytes", "free_bytes", "metadata_bytes"]
                .iter()
                .map(|name| figure(allocator, name))
                .sum::<std::result::Result<u64, String>>()?;
            if held != figure(own, "arena")? + figure(own, "hblkhd")? {
                return Err(format!("{held} bytes in total, {own}").into());
            }
        }
        Ok(())
    })
}

/// Chunks with their own mapping whose block memalign moved, by any alignment, before and after
/// mremap has moved or cut their mapping.
#[test]
fn aligned_blocks_are_exact_after_realloc() -> Outcome {
    let mut libcs = vec![Libc::system(), Libc::system_static()];
    libcs.extend(Libc::foreign());
    let shapes = ["4", "32", "128", "2048", "16384"]
        .into_iter()
        .flat_map(|alignment| ["0", "7000", "1000"].map(|later| [alignment, "4096", later]));
    let cases: Vec<_> =
        libcs.iter().flat_map(|libc| shapes.clone().map(move |shape| (libc, shape))).collect();
    for_each(cases, |&(libc, shape)| {
        let mut subject = Subject::start_with(libc, "aligned_blocks", &shape, &[])?;
        let figures = |subject: &Subject| -> Result<(u64, u64, Value)> {
            subject.at_rest()?;
            let document = strandline::explain(subject.pid())?;
            let caveats = strandline::caveats(&document);
            let [allocator] = strandline::glibcs(&document)[..] else {
                return Err("not exactly one glibc".into());
            };
            let figure = |name: &str| allocator[name].as_u64().ok_or_else(|| format!("no {name}"));
            match caveats.is_empty() {
                true => Ok((figure("live_blocks")?, figure("live_bytes")?, allocator["mallinfo"].clone())),
                false => Err(format!("caveats {caveats:?}").into()),
            }
        };
        let (blocks_before, bytes_before, _) = figures(&subject)?;
        let answer = subject.ask(b'a')?;
        let (blocks, bytes, mallinfo) = figures(&subject)?;
        same(&mallinfo, &answer["mallinfo"])?;
        let number = |key| crate::support::subject::number(&answer, key);
        let own = (blocks - blocks_before, bytes - bytes_before);
        if own != (number("blocks")?, number("usable_bytes")?) {
            return Err(format!("{own:?} are in use, not {answer}").into());
        }
        Ok(())
    })
}
