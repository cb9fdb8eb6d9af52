//! Applies the remedies of a JVM: requests a collection, or a trim of its malloc.

use std::ops::Range;

use strandline_claims::remedy::{Answer, Request};
use strandline_process::procfs::Process;

use super::attach::{self, Command, GC_RUN, TRIM_NATIVE_HEAP};
use super::facts::Jvm;

/// Applies `jvm_gc`: a full collection.
pub fn collect(request: &Request<'_>) -> Answer {
    // A collection takes memory elsewhere, so the bytes released are counted in the heap only.
    run(request, GC_RUN, |facts| facts.heap_range.map(|(start, end)| start..end))
}

/// Applies `jvm_trim`: `malloc_trim` by the JVM.
pub fn trim(request: &Request<'_>) -> Answer {
    run(request, TRIM_NATIVE_HEAP, |_| None)
}

/// Makes the JVM run a command. `counted_range` gives the range in which released bytes are
/// counted; `None` for RSS.
fn run(request: &Request<'_>, command: Command, counted_range: fn(&Jvm) -> Option<Range<u64>>) -> Answer {
    let refused = |reason: &str| Answer::Refused(reason.to_owned());
    let Some(runtime) = request.runtime else {
        return Answer::Refused(format!("the process has no JVM, which {} needs", command.remedy));
    };
    // `attach` is only known if the JVM was read.
    let facts: Option<Jvm> = runtime.details("jvm").filter(|_| runtime.read);
    let Some((facts, accepts_requests)) = facts.and_then(|facts| facts.attach.map(|attach| (facts, attach)))
    else {
        return refused(
            "the JVM was not read (see the caveats of explain): whether it accepts requests is not known",
        );
    };
    if !accepts_requests {
        return refused(
            "the JVM was started with -XX:+DisableAttachMechanism or -Xrs and accepts no requests: collect from inside the \
             program, or start it without that option",
        );
    }
    if request.is_dry_run {
        return Answer::Possible;
    }
    let process = Process::open(request.pid).map_err(|error| error.to_string());
    let range = counted_range(&facts);
    process.and_then(|process| attach::apply(&process, command, range, request.watch)).into()
}
