//! Remedies that make SBCL release memory.
//!
//! A full collection cannot be requested from outside: nothing that SBCL reacts to starts one
//! (2.1.1 to 2.6.4; src/code/target-signal.lisp, src/runtime/interrupt.c, src/code/final.lisp,
//! src/code/gc.lisp):
//!
//! - signals: SIGINT enters the debugger, SIGTERM and SIGHUP end the program, SIGALRM runs timers,
//!   SIGPROF the profiler, SIGUSR2 (SIG_STOP_FOR_GC) stops a thread until the collecting thread
//!   releases it, which never happens if the signal came from outside;
//! - the finalizer thread runs finalizers after a collection and starts none;
//! - `collect_garbage` may be called only by a Lisp thread that has stopped all others: a call
//!   injected into a stopped thread would find the others at any instruction, also within an
//!   allocation;
//! - `auto_gc_trigger` in the target's memory would start a collection of the youngest generation
//!   only, and nothing of the target is written here.
//!
//! So it is advice: the program itself calls `(sb-ext:gc :full t)`, or a user at its REPL (Swank,
//! Slynk) does.

use super::facts::Sbcl;
use super::figures::mib;
use super::layout::OLDEST;
use strandline_claims::facts::Remedy;
use strandline_claims::remedy::{Answer, Request};

/// Minimum bytes for which a remedy is worthwhile.
const MIN_WORTHWHILE_BYTES: u64 = 1 << 20;

/// The remedies that follow from `figures`.
pub fn remedies(figures: &Sbcl) -> Vec<Remedy> {
    let released_bytes = figures.full_gc_gives_back_bytes;
    if released_bytes.is_some_and(|bytes| bytes < MIN_WORTHWHILE_BYTES) {
        return Vec::new();
    }
    let live = match figures.live_bytes {
        Some(live_bytes) => mib(live_bytes),
        None => format!("at most {}", mib(figures.dynamic_usage_bytes)),
    };
    let advice = "(sb-ext:gc :full t) in the program after its peak, or from a REPL it serves (Swank, Slynk); \
                  it cannot be requested safely from outside";
    let cost = format!("all Lisp threads wait while the collector copies or scans {live} of live objects");
    let collection = Remedy::advice("sbcl_full_gc", released_bytes, advice, &cost);
    let settings = Remedy::setting(
        "sbcl_generations",
        &generation_settings(figures),
        "more collections of young objects, or more copying of their survivors",
    );
    let older_generations = figures.generations.iter().filter(|generation| generation.number >= 1);
    let older_dead_bytes = older_generations.filter_map(|generation| generation.dead_bytes).sum::<u64>();
    if older_dead_bytes >= MIN_WORTHWHILE_BYTES { vec![collection, settings] } else { vec![collection] }
}

/// Settings that keep short-lived objects out of the generation that holds most dead bytes.
fn generation_settings(figures: &Sbcl) -> String {
    let collected =
        figures.generations.iter().filter(|generation| (1..=OLDEST as u64).contains(&generation.number));
    let largest_dead = collected.max_by_key(|generation| generation.dead_bytes);
    let number = largest_dead.map_or(1, |generation| generation.number);
    let present_value =
        |bytes: Option<u64>| bytes.map_or_else(String::new, |bytes| format!(" ({} now)", mib(bytes)));
    let between_collections =
        present_value(largest_dead.map(|generation| generation.bytes_consed_between_gcs));
    let nursery = present_value(figures.bytes_consed_between_gcs);
    format!(
        "(setf (sb-ext:generation-number-of-gcs-before-promotion 0) 3) keeps short-lived objects from being promoted; \
         (setf (sb-ext:generation-minimum-age-before-gc {number}) 0.0d0) collects generation {number} at each promotion \
         into it, whatever its age; a smaller (sb-ext:generation-bytes-consed-between-gcs {number}){between_collections} \
         collects it sooner, from its next collection on; a larger (sb-ext:bytes-consed-between-gcs){nursery} \
         collects less often and promotes fewer objects that are still in use"
    )
}

/// `sbcl_full_gc`: predicted, but never applied from outside. SBCL collects only if one of its own
/// threads requests it in Lisp: `gc_stop_the_world` waits until every other thread has reached a
/// safepoint or has taken a signal, while `collect_garbage` (gencgc.c) holds its locks. A thread
/// stopped anywhere else may hold `free_pages_lock` or be in without-gcing; a call would then
/// deadlock or corrupt the heap.
pub fn full_collection(request: &Request<'_>) -> Answer {
    match request.runtime {
        None => Answer::Refused("the process has no SBCL".to_owned()),
        Some(runtime) if !runtime.read => Answer::Refused(
            "SBCL was not read (see the caveats of explain): nothing can be predicted".to_owned(),
        ),
        Some(_) if request.remedy.and_then(|remedy| remedy.predicted_bytes) == Some(0) => {
            Answer::Nothing("no object in it is dead".to_owned())
        }
        Some(_) if request.is_dry_run => Answer::Possible,
        Some(_) => Answer::Refused(format!(
            "a collection of a running SBCL cannot be started safely from outside; evaluate (sb-ext:gc :full t) in it (a REPL, Swank \
             or Slynk, or a timer of its own), or start it with settings that `strandline try` compares; `strandline reclaim \
             --dry-run --remedy sbcl_full_gc {}` predicts what that releases",
            request.pid
        )),
    }
}

#[cfg(test)]
mod tests {
    use strandline_claims::facts::RemedyKind;

    use super::super::facts::Generation;
    use super::*;

    #[test]
    fn a_full_collection_is_advice_with_what_it_gives_back() {
        let mut figures = Sbcl { full_gc_gives_back_bytes: Some(50 << 20), ..Sbcl::default() };
        let proposed = remedies(&figures);
        assert_eq!(proposed.len(), 1, "nothing dead in older generations");
        assert_eq!((proposed[0].id.as_str(), proposed[0].kind), ("sbcl_full_gc", RemedyKind::Program));
        assert_eq!(proposed[0].predicted_bytes, Some(50 << 20));
        figures.generations = (0..8)
            .map(|number| Generation { number, dead_bytes: Some(number << 20), ..Generation::default() })
            .collect();
        let proposed = remedies(&figures);
        assert_eq!(proposed[1].id, "sbcl_generations");
        assert!(proposed[1].how.contains("generation 5"), "{}", proposed[1].how);
        figures.full_gc_gives_back_bytes = Some(4096);
        assert!(remedies(&figures).is_empty());
    }
}
