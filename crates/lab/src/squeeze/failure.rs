//! How a run under a limit failed, in figures and in words.
//!
//! The standard error of the command belongs to the user and may be shown: its last lines, without
//! terminal control sequences, and at most what [`last_lines`] reads.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde::Serialize;

use super::LimitKind;
use crate::cell::{End, Outcome};
use crate::tail::last_lines;
use strandline_report::text::clean;
use strandline_report::units::seconds;

/// Number of lines kept of the standard error.
const TAIL_LINES: usize = 8;

const SIGKILL: i32 = Signal::SIGKILL as i32;
const SIGSEGV: i32 = Signal::SIGSEGV as i32;

/// Lower-case fragments of the messages that programs print when they get no memory.
const OUT_OF_MEMORY_MESSAGES: [&str; 14] = [
    "cannot allocate",
    "can't allocate",
    "could not allocate",
    "failed to allocate",
    "allocation failed",
    "out of memory",
    "outofmemory",
    "memoryerror",
    "bad_alloc",
    "memory exhausted",
    "heap exhausted",
    "failed to map segment",
    "cannot map zero-fill pages",
    "not enough memory",
];

/// How a run failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Failure {
    /// Its exit status, if it exited.
    pub status: Option<u8>,
    /// The signal that ended it, if any.
    pub signal: Option<i32>,
    /// Whether it was ended at its timeout.
    pub timed_out: bool,
    /// Processes that the kernel killed at the limit, if the limit counts them.
    pub out_of_memory_kills: Option<u64>,
    /// Exit status of the `--success` command, if that rejected the run.
    pub refused_by_status: Option<u8>,
    /// How it failed, in words without run-specific figures: equal for runs that failed in the same
    /// way.
    pub words: String,
    /// The last lines of its standard error.
    pub stderr_tail: String,
}

/// Decides whether a run succeeded.
#[derive(Clone, Debug)]
pub struct SuccessCriteria {
    /// The kind of limit; `None` without a limit.
    pub kind: Option<LimitKind>,
    /// The timeout of the run, if it had one.
    pub timeout: Option<Duration>,
    /// How the `--success` command ended, if there is one; status 0 accepts the run.
    pub verdict: Option<End>,
}

impl SuccessCriteria {
    /// How a run failed; `None` if it succeeded.
    pub fn failure(&self, outcome: &Outcome) -> Option<Failure> {
        let is_success = match &self.verdict {
            // A timeout is a failure, whatever the command decides.
            Some(end) => end.is_success() && outcome.end != End::TimedOut,
            // A parent that ignores its killed children may still exit with 0; that is not a
            // success. Where the kernel counts no kills (before Linux 4.13), the status decides.
            None => outcome.end.is_success() && outcome.out_of_memory_kills.unwrap_or(0) == 0,
        };
        if is_success {
            return None;
        }
        let stderr_tail =
            outcome.stderr.as_deref().map(|path| last_lines(path, TAIL_LINES).join("\n")).unwrap_or_default();
        let (status, signal) = match outcome.end {
            End::Exited(status) => (Some(status), None),
            End::Signalled(signal) => (None, Some(signal)),
            End::TimedOut | End::NotStarted(_) => (None, None),
        };
        Some(Failure {
            status,
            signal,
            timed_out: outcome.end == End::TimedOut,
            out_of_memory_kills: outcome.out_of_memory_kills,
            refused_by_status: match self.verdict {
                Some(End::Exited(status @ 1..)) => Some(status),
                _ => None,
            },
            words: self.words(outcome, &stderr_tail),
            stderr_tail,
        })
    }

    /// How a run failed, in words, as [`Failure::words`].
    fn words(&self, outcome: &Outcome, stderr_tail: &str) -> String {
        let kills = outcome.out_of_memory_kills.unwrap_or(0);
        let killed = if kills > 0 { "the kernel killed a process of it at the limit: " } else { "" };
        let ending = match &outcome.end {
            End::Exited(0) if self.verdict.is_some() => {
                "it exited with status 0, and the --success command did not accept it".to_owned()
            }
            End::Exited(status) if mentions_memory(stderr_tail) => {
                format!("it reported no memory and exited with status {status}")
            }
            End::Exited(status) => format!("it exited with status {status}"),
            End::Signalled(SIGKILL) if kills > 0 => return "killed by the kernel at the limit".to_owned(),
            End::Signalled(signal) if mentions_memory(stderr_tail) => {
                format!("it reported no memory and was ended by {}", signal_name(*signal))
            }
            End::Signalled(signal @ (SIGKILL | SIGSEGV)) if self.is_per_process() => {
                let name = signal_name(*signal);
                format!("ended by {name}, as is a program that cannot be loaded within the limit")
            }
            End::Signalled(signal) => format!("ended by {}", signal_name(*signal)),
            End::TimedOut => self.timeout.map_or_else(
                || "hung".to_owned(),
                |timeout| format!("hung: did not end within {}", seconds(timeout.as_secs_f64())),
            ),
            End::NotStarted(why) => format!("could not be started: {}", clean(why)),
        };
        format!("{killed}{ending}")
    }

    /// Whether the kernel applies the limit while it loads a program.
    fn is_per_process(&self) -> bool {
        matches!(self.kind, Some(LimitKind::AddressSpace | LimitKind::Data))
    }
}

/// The name of a signal, or its number if it has no name.
pub fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |name| name.as_str().to_owned())
}

fn mentions_memory(text: &str) -> bool {
    let text = text.to_lowercase();
    OUT_OF_MEMORY_MESSAGES.iter().any(|part| text.contains(part))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn outcome(end: End, stderr: &str) -> (Outcome, tempfile::NamedTempFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(stderr.as_bytes()).unwrap();
        let mut outcome = Outcome::not_started(String::new());
        (outcome.end, outcome.stderr) = (end, Some(file.path().to_owned()));
        (outcome, file)
    }

    fn words(criteria: SuccessCriteria, end: End, stderr: &str, kills: Option<u64>) -> String {
        let (mut outcome, _file) = outcome(end, stderr);
        outcome.out_of_memory_kills = kills;
        criteria.failure(&outcome).unwrap().words
    }

    const SPACE: SuccessCriteria = SuccessCriteria {
        kind: Some(LimitKind::AddressSpace),
        timeout: Some(Duration::from_secs(12)),
        verdict: None,
    };
    const GROUP: SuccessCriteria = SuccessCriteria {
        kind: Some(LimitKind::Cgroup),
        timeout: Some(Duration::from_secs(12)),
        verdict: None,
    };

    #[test]
    fn every_end_is_described() {
        let exit = |status| End::Exited(status);
        assert_eq!(words(SPACE, exit(3), "", None), "it exited with status 3");
        let python = words(SPACE, exit(1), "Traceback …\nMemoryError\n", None);
        assert_eq!(python, "it reported no memory and exited with status 1");
        let cxx = "terminate called after throwing an instance of 'std::bad_alloc'\n";
        let cxx = words(SPACE, End::Signalled(Signal::SIGABRT as i32), cxx, None);
        assert_eq!(cxx, "it reported no memory and was ended by SIGABRT");
        assert!(words(SPACE, End::Signalled(SIGSEGV), "", None).starts_with("ended by SIGSEGV, as"));
        assert_eq!(words(GROUP, End::Signalled(SIGSEGV), "", Some(0)), "ended by SIGSEGV");
        assert_eq!(words(GROUP, End::Signalled(9), "", Some(1)), "killed by the kernel at the limit");
        let worker = words(GROUP, exit(5), "", Some(1));
        assert_eq!(worker, "the kernel killed a process of it at the limit: it exited with status 5");
        let careless = words(GROUP, exit(0), "", Some(2));
        assert_eq!(careless, "the kernel killed a process of it at the limit: it exited with status 0");
        assert_eq!(words(SPACE, End::TimedOut, "", None), "hung: did not end within 12 s");
        let not_started = words(SPACE, End::NotStarted("x\u{1b}: cannot be run".to_owned()), "", None);
        assert_eq!(not_started, "could not be started: x\\u{1b}: cannot be run");
        assert_eq!(words(SPACE, End::Signalled(64), "", None), "ended by signal 64");
    }

    #[test]
    fn a_success_command_decides() {
        let judge = |verdict| SuccessCriteria { verdict, ..SPACE };
        let (done, _file) = outcome(End::Exited(0), "");
        assert_eq!(judge(None).failure(&done), None);
        assert_eq!(judge(Some(End::Exited(0))).failure(&done), None);
        let refused = judge(Some(End::Exited(1))).failure(&done).unwrap();
        assert_eq!((refused.status, refused.refused_by_status), (Some(0), Some(1)));
        assert!(refused.words.contains("--success"), "{}", refused.words);
        let (failed, _file) = outcome(End::Exited(7), "");
        assert_eq!(
            judge(Some(End::Exited(0))).failure(&failed),
            None,
            "its own status is the command's to judge"
        );
        let (late, _file) = outcome(End::TimedOut, "");
        assert!(judge(Some(End::Exited(0))).failure(&late).is_some_and(|failure| failure.timed_out));
        assert!(judge(Some(End::Signalled(SIGKILL))).failure(&done).is_some());
    }

    #[test]
    fn the_tail_of_standard_error_is_bounded_and_clean() {
        let text: String = (0..9_999).map(|n| format!("line {n}\n\n")).collect();
        let (failed, _file) = outcome(End::Exited(1), &(text + "\x1b[2Jend\t!\n"));
        let tail = SPACE.failure(&failed).unwrap().stderr_tail;
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("line 9998\n\\u{1b}[2Jend    !"), "{tail}");
        let (failed, _file) = outcome(End::Exited(1), &"x".repeat(1 << 20));
        let tail = SPACE.failure(&failed).unwrap().stderr_tail;
        assert!(tail.chars().count() <= crate::tail::MAX_COLUMNS, "{}", tail.len());
        let mut without_stderr = failed;
        without_stderr.stderr = Some("/nonexistent/file".into());
        assert_eq!(SPACE.failure(&without_stderr).unwrap().stderr_tail, "");
    }
}
