//! Runs reclaim against real processes: some to which it can be applied, some that it must refuse,
//! and some that get a signal in the middle.

use std::io::Write;
use std::time::{Duration, Instant};

use strandline_inspect::Error;
use strandline_inspect::remedy::Refusal;
use strandline_inspect::remedy::zero_pages::{self, ZeroRequest};
use strandline_process::call::code::CallSites;
use strandline_process::call::inject::{self, Call, CallError};
use strandline_process::map::Mapping;
use strandline_process::target::hold::on_own_thread;
use strandline_process::target::tracee::Tracee;
use strandline_sys::signal;

use crate::subject::{PATIENCE, Subject, until};

const SIGUSR1: i32 = 10;
const SIGUSR2: i32 = 12;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

#[test]
fn a_single_thread_in_a_tight_malloc_loop_is_reclaimed() {
    let subject = Subject::start("reclaim_target", &["loop", "1"]);
    for _ in 0..20 {
        let applied = subject.trim(PATIENCE.as_secs(), None).unwrap();
        assert!(applied.resident_before_bytes > 0);
    }
    signal::send(subject.pid(), SIGTERM).unwrap();
    let (_, status) = subject.finish();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn eight_threads_in_a_tight_malloc_loop_are_reclaimed_within_the_wait() {
    let subject = Subject::start("reclaim_target", &["loop", "8"]);
    assert!(subject.locks.len() > 1);
    for _ in 0..3 {
        subject.trim(PATIENCE.as_secs(), None).unwrap();
        subject.assert_untouched();
    }
    signal::send(subject.pid(), SIGTERM).unwrap();
    let (_, status) = subject.finish();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_stopped_process_is_refused_and_stays_stopped() {
    let subject = Subject::start("reclaim_target", &["wait", "pause"]);
    let pid = subject.pid();
    signal::send(pid, SIGSTOP).unwrap();
    subject.assert_state(pid, 'T');
    assert!(matches!(subject.trim(1, None), Err(Refusal::Stopped { .. })));
    subject.assert_state(pid, 'T');
    assert_eq!(subject.status_field(pid, "TracerPid:"), "0");
    signal::send(pid, SIGCONT).unwrap();
    subject.settle(pid);
}

#[test]
fn a_stop_that_arrives_between_looking_and_seizing_is_kept() {
    let subject = Subject::start("reclaim_target", &["wait", "pause"]);
    let pid = subject.pid();
    signal::send(pid, SIGSTOP).unwrap();
    subject.assert_state(pid, 'T');
    let process = subject.process();
    let stopped = on_own_thread(Duration::from_secs(600), || Tracee::stop(&process, pid, PATIENCE).is_err());
    assert_eq!(stopped, Some(true), "a group stop is no stop of ours");
    // When released, it returns to the group stop by itself, which takes the kernel a moment.
    subject.assert_state(pid, 'T');
    signal::send(pid, SIGCONT).unwrap();
    subject.settle(pid);
}

/// Returns a subject whose first thread waits, uninterruptibly, for its vfork child; and the id of
/// that child.
fn in_vfork() -> (Subject, i32) {
    let subject = Subject::start("reclaim_target", &["tiny"]);
    let parent = subject.pid();
    let mut child: Option<i32> = None;
    // It prints that it is ready before it calls vfork.
    until("a child of vfork", || {
        let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        child = text.split_whitespace().next().map(|child| child.parse().unwrap());
        child.is_some()
    });
    subject.assert_state(parent, 'D');
    (subject, child.unwrap())
}

#[test]
fn processes_without_a_provably_safe_call_are_refused() {
    let refused = |subject: &Subject| {
        let refusal = subject.trim(1, None).unwrap_err();
        assert!(!refusal.has_begun(), "{refusal}");
        subject.assert_untouched();
        refusal.to_string()
    };
    let refusal = |what: &str| refused(&Subject::start("reclaim_target", &[what]));
    assert!(refusal("seccomp").contains("a seccomp filter that may not let madvise through"));
    let tiny = refused(&in_vfork().0);
    assert!(tiny.contains("1 in an uninterruptible sleep"), "{tiny}");
    assert!(tiny.contains("1 with too little stack left"), "{tiny}");
    for with in ["limited", "locked", "guarded", "blocked"] {
        let subject = Subject::start("reclaim_target", &["deep", with]);
        let text = refused(&subject);
        assert!(text.contains("1 with too little stack left"), "{with}: {text}");
        assert_eq!(subject.finish().0.trim(), "0", "{with}: bytes changed");
    }
    assert!(refusal("coroutine").contains("on a stack that is not the thread's own"));
    assert!(refusal("alternate").contains("on a stack that is not the thread's own"));
}

#[test]
fn a_main_thread_whose_stack_can_still_grow_makes_the_call() {
    let subject = Subject::start("reclaim_target", &["deep"]);
    subject.settle(subject.pid());
    subject.trim(1, None).unwrap();
    subject.settle(subject.pid());
    assert_eq!(subject.finish().1.code(), Some(0));
}

#[test]
fn a_child_of_vfork_is_refused_because_its_memory_is_its_parents() {
    let (_parent, child) = in_vfork();
    let request = ZeroRequest {
        ranges: Vec::new(),
        allow_risk: true,
        wait: Duration::from_secs(1),
        watch: Duration::ZERO,
    };
    let refusal = zero_pages::apply(child, &request).unwrap_err().to_string();
    assert!(refusal.contains("shares its memory"), "{refusal}");
}

#[test]
fn a_damaged_heap_aborts_the_process_and_the_abort_is_reported() {
    let subject = Subject::start("reclaim_target", &["abort"]);
    subject.settle(subject.pid());
    let refusal = subject.trim(PATIENCE.as_secs(), None).unwrap_err();
    assert!(matches!(refusal, Refusal::Died { .. }), "{refusal}");
    assert!(refusal.has_begun());
}

#[test]
fn own_missing_and_zombie_processes_are_refused() {
    let request = ZeroRequest {
        ranges: Vec::new(),
        allow_risk: true,
        wait: Duration::from_secs(1),
        watch: Duration::ZERO,
    };
    let apply = |pid| zero_pages::apply(pid, &request).unwrap_err();
    assert!(matches!(apply(std::process::id() as i32), Refusal::Process(Error::Myself { .. })));
    assert!(matches!(apply(i32::MAX), Refusal::Process(Error::NoSuchProcess { .. })));
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(apply(child.id() as i32), Refusal::Process(Error::Zombie { .. })));
    child.wait().unwrap();
}

/// Returns a call of libc's getpid in a subject that has come to rest.
fn getpid_call(subject: &Subject) -> Call<'static> {
    subject.settle(subject.pid());
    let sites = CallSites::find(&subject.process(), &subject.space()).unwrap();
    let function = subject.libc().symbol_address("getpid").unwrap();
    sites.function_call(function, [0; 3], &[])
}

/// Has the first thread of a subject call getpid, and runs `meanwhile` during the call.
fn call_getpid(subject: &Subject, meanwhile: impl FnOnce() + Send) {
    make_call(subject, &getpid_call(subject), meanwhile);
}

fn make_call(subject: &Subject, call: &Call<'_>, meanwhile: impl FnOnce() + Send) {
    let (pid, process) = (subject.pid(), subject.process());
    on_own_thread(Duration::from_secs(600), || {
        let stopped = Tracee::stop(&process, pid, PATIENCE).unwrap();
        let mut injected = inject::begin(stopped, call).unwrap();
        meanwhile();
        injected.run(Instant::now() + PATIENCE).unwrap();
        injected.finish(PATIENCE).unwrap();
    })
    .unwrap();
}

/// malloc_trim makes a system call for each hole. The restart state of nanosleep survives it.
#[test]
fn a_thread_in_nanosleep_is_not_stopped_at_each_system_call() {
    const HOLES: u64 = 2000;
    let count = HOLES.to_string();
    let arguments = ["holes", count.as_str()];
    for start in [Subject::start, Subject::start_contained] {
        let subject = start("reclaim_target", &arguments);
        let pid = subject.pid();
        subject.settle(pid);
        let switches = || -> u64 {
            let fields = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
            fields.iter().map(|field| subject.status_field(pid, field).parse::<u64>().unwrap()).sum()
        };
        let before = switches();
        let applied = subject.trim(PATIENCE.as_secs(), None).unwrap();
        assert!(applied.actual_bytes.is_some_and(|bytes| bytes >= HOLES * 4096), "{applied:?}");
        assert!(switches() - before < HOLES / 2, "{} switches", switches() - before);
        subject.settle(pid);
        signal::send(pid, SIGUSR1).unwrap();
        let (output, status) = subject.finish();
        assert_eq!((output.trim(), status.code()), ("EINTR", Some(0)));
    }
}

#[test]
fn a_signal_during_the_call_ends_the_interrupted_system_call_as_ever() {
    for call in ["read", "pause", "nanosleep", "poll", "epoll", "epoll_pwait", "sigsuspend"] {
        let subject = Subject::start("reclaim_target", &["wait", call]);
        let pid = subject.pid();
        call_getpid(&subject, || signal::send(pid, SIGUSR1).unwrap());
        // Its input is still open, so only the handler can end the call.
        let mut subject = subject;
        until(&format!("{call} ends, not restarted over a handler"), || {
            subject.child.try_wait().unwrap().is_some()
        });
        let (output, status) = subject.finish();
        assert_eq!((output.trim(), status.code()), ("EINTR", Some(0)), "{call}");
    }
}

/// The kind of the signal handler in a subject.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Handler {
    /// The program's own.
    Plain,
    /// It looks like a runtime's, but is not known to be one.
    Likely,
    /// A runtime's.
    Known,
}

/// Another thread of the program wakes the thread by a signal: its system call ends as it would
/// without the call. Only a runtime's handler runs in the call.
#[test]
fn a_thread_that_another_wakes_during_the_call_is_woken() {
    let calls = ["read", "pause", "nanosleep", "poll", "epoll", "epoll_pwait", "sigsuspend"];
    let handlers = [Handler::Plain, Handler::Likely, Handler::Known];
    for (call, handler) in calls.into_iter().flat_map(|call| handlers.map(|handler| (call, handler))) {
        let kind = if handler == Handler::Plain { "plain" } else { "collector" };
        let subject = Subject::start("reclaim_target", &["wait", call, kind]);
        let (pid, process, space) = (subject.pid(), subject.process(), subject.space());
        let program = process.executable().unwrap();
        let is_code = |m: &&Mapping| m.permissions.execute && m.name == program;
        let code: Vec<_> = space.mappings().iter().filter(is_code).map(|m| m.start..m.end).collect();
        let known = if handler == Handler::Known { code.as_slice() } else { &[] };
        let injected = Call { stop_handlers: known, ..getpid_call(&subject) };
        make_call(&subject, &injected, || {
            signal::send(pid, SIGUSR2).unwrap();
            let usr1 = format!("{:016x}", 1 << (SIGUSR1 - 1));
            until("the signal is pending", || subject.status_field(pid, "SigPnd:") == usr1);
        });
        let restarts = call == "read" && handler != Handler::Plain;
        let mut subject = subject;
        until(&format!("{call}, {handler:?}: the handler runs"), || {
            subject.child.try_wait().unwrap().is_some() || restarts && subject.rests(pid)
        });
        let (output, status) = subject.finish();
        let ended = if restarts { "done" } else { "EINTR" };
        let within = if handler == Handler::Known { " within" } else { "" };
        assert_eq!(output.trim(), format!("{ended}{within}"), "{call}, {handler:?}");
        assert_eq!(status.code(), Some(0));
    }
}

/// A thread that sets the action of the announcing signal drops it.
#[test]
fn the_end_of_a_call_is_noticed_without_its_announcement() {
    let subject = Subject::start("reclaim_target", &["wait", "read", "flush"]);
    let (pid, process) = (subject.pid(), subject.process());
    let mut call = getpid_call(&subject);
    // It ends when a byte comes.
    call.function = subject.libc().symbol_address("getchar").unwrap();
    on_own_thread(Duration::from_secs(600), || {
        let stopped = Tracee::stop(&process, pid, PATIENCE).unwrap();
        let mut injected = inject::begin(stopped, &call).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let none = "0".repeat(16);
                until("it is announced", || subject.status_field(pid, "SigPnd:") != none);
                until("it waits for the byte", || subject.status_field(pid, "State:").starts_with('S'));
                let sleeps = || subject.status_field(pid, "voluntary_ctxt_switches:");
                let before = sleeps();
                signal::send(pid, SIGUSR2).unwrap();
                until("it is dropped", || subject.status_field(pid, "SigPnd:") == none);
                until("the tracer notices and stops it", || sleeps() != before);
                subject.child.stdin.as_ref().unwrap().write_all(b"x").unwrap();
            });
            injected.run(Instant::now() + PATIENCE).unwrap();
        });
        injected.finish(PATIENCE).unwrap();
    })
    .unwrap();
    subject.settle(pid);
    assert_eq!(subject.status_field(pid, "SigBlk:"), format!("{:016x}", 1 << (SIGUSR2 - 1)));
    assert_eq!(subject.finish().0.trim(), "done");
}

#[test]
fn a_stop_signal_during_the_call_stops_the_process_after_it() {
    for call in ["read", "nanosleep", "poll"] {
        let subject = Subject::start("reclaim_target", &["wait", call]);
        let pid = subject.pid();
        call_getpid(&subject, || signal::send(pid, SIGSTOP).unwrap());
        subject.assert_state(pid, 'T');
        assert_eq!(subject.status_field(pid, "TracerPid:"), "0");
        signal::send(pid, SIGCONT).unwrap();
        let mut subject = subject;
        // Back in its call; if that returned end of file, the subject has ended too.
        subject.settle(pid);
        assert!(subject.child.try_wait().unwrap().is_none(), "{call} saw an end");
    }
}

#[test]
fn a_call_in_a_process_that_is_killed_meanwhile_ends_with_a_reason() {
    let subject = Subject::start("reclaim_target", &["wait", "read"]);
    let pid = subject.pid();
    let call = getpid_call(&subject);
    let process = subject.process();
    let error = on_own_thread(Duration::from_secs(600), || {
        let stopped = Tracee::stop(&process, pid, PATIENCE).unwrap();
        let mut injected = inject::begin(stopped, &call).unwrap();
        signal::send(pid, SIGKILL).unwrap();
        injected.run(Instant::now() + PATIENCE).unwrap_err()
    });
    assert!(matches!(error, Some(CallError::Died(_) | CallError::Failed(_))), "{error:?}");
}

#[test]
fn an_interrupted_system_call_resumes_without_a_signal() {
    for call in ["read", "read-restart", "poll", "epoll", "epoll_pwait"] {
        let mut subject = Subject::start("reclaim_target", &["wait", call]);
        let pid = subject.pid();
        for _ in 0..5 {
            call_getpid(&subject, || {});
        }
        if call == "read-restart" {
            call_getpid(&subject, || signal::send(pid, SIGUSR1).unwrap());
        }
        subject.settle(pid);
        assert!(subject.child.try_wait().unwrap().is_none(), "{call} saw an end");
        subject.child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let (output, status) = subject.finish();
        assert_eq!((output.trim(), status.code()), ("done", Some(0)), "{call}");
    }
}

#[test]
fn the_kernel_reports_the_address_of_a_restartable_sequence() {
    // glibc 2.35 and later register one for every thread. If this were unknown, a thread in the
    // middle of a sequence would pass for one outside.
    let subject = Subject::start("reclaim_target", &["wait", "pause"]);
    let pid = subject.pid();
    subject.settle(pid);
    let process = subject.process();
    let area = on_own_thread(Duration::from_secs(600), || {
        let _stopped = Tracee::stop(&process, pid, PATIENCE).unwrap();
        strandline_sys::rseq::area(pid)
    });
    let area = area.unwrap().unwrap().expect("registered");
    let mut words = [0; 16];
    assert_eq!(strandline_sys::memory::read(pid, area, &mut words).unwrap(), 16);
    assert_eq!(words[8..], [0; 8], "no sequence is under way in a sleeping thread");
}

#[test]
fn zero_pages_are_given_back_without_losing_a_write() {
    let subject = Subject::start("reclaim_target", &["zero", "64"]);
    let mut request = ZeroRequest {
        ranges: subject.range.clone().into_iter().collect(),
        allow_risk: false,
        wait: PATIENCE,
        watch: Duration::ZERO,
    };
    let has_swap = std::fs::read_to_string("/proc/swaps").unwrap().lines().count() > 1;
    if !has_swap {
        let refusal = zero_pages::apply(subject.pid(), &request).unwrap_err().to_string();
        assert!(refusal.contains("--allow-lost-write-risk"), "{refusal}");
    }
    request.allow_risk = true;
    for round in 0..3 {
        let applied = zero_pages::apply(subject.pid(), &request).unwrap().applied;
        let actual_bytes = applied.actual_bytes.unwrap();
        assert!(actual_bytes <= applied.resident_before_bytes);
        if round == 0 && !has_swap {
            // Threads write into some pages meanwhile; most are zero.
            assert!(actual_bytes > 0, "{applied:?}");
            assert!(applied.stops > 0);
        }
        subject.assert_untouched();
    }
    let (_, status) = subject.finish();
    assert_eq!(status.code(), Some(0), "a word was lost");
}

#[test]
fn ranges_that_are_not_plain_private_memory_are_refused() {
    let subject = Subject::start("reclaim_target", &["wait", "pause"]);
    let libc = subject.libc().text()[0].clone();
    let request = ZeroRequest {
        ranges: vec![libc],
        allow_risk: true,
        wait: Duration::from_secs(1),
        watch: Duration::ZERO,
    };
    let refusal = zero_pages::apply(subject.pid(), &request).unwrap_err().to_string();
    assert!(refusal.contains("not private anonymous memory"), "{refusal}");
}
