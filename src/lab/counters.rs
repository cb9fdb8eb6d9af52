//! Instructions and cycles, where the machine has counters and this user may read them.
//!
//! The launcher's counters are inherited by what it starts, begin to count when that starts its program, and
//! are added up when it ends: a job's count is the difference between two reads.

use nix::errno::Errno;
use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter, ReadFormat};

/// Counters of all that this thread starts.
#[derive(Debug)]
pub struct Counters {
    instructions: Counter,
    cycles: Counter,
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions in user mode; `None` where the counter did not run all the time.
    pub instructions: Option<u64>,
    /// The same for cycles.
    pub cycles: Option<u64>,
}

impl Counters {
    /// Counters for this thread's children.
    ///
    /// # Errors
    /// One line that says why there are none.
    pub fn open() -> Result<Self, String> {
        let open = |event| counter(event).map_err(|error| why_not(&error));
        Ok(Self { instructions: open(Hardware::INSTRUCTIONS)?, cycles: open(Hardware::CPU_CYCLES)? })
    }

    /// What was counted so far.
    pub fn read(&mut self) -> Counts {
        Counts { instructions: read(&mut self.instructions), cycles: read(&mut self.cycles) }
    }
}

impl Counts {
    /// What came since `before`.
    pub fn since(self, before: Self) -> Self {
        let since = |now: Option<u64>, before: Option<u64>| now?.checked_sub(before?).filter(|&n| n > 0);
        Self {
            instructions: since(self.instructions, before.instructions),
            cycles: since(self.cycles, before.cycles),
        }
    }
}

/// A counter that is inherited, and starts with a program.
fn counter<E: Event>(event: E) -> std::io::Result<Counter> {
    let mut builder = Builder::new(event);
    builder.observe_self().inherit(true).enabled(false).enable_on_exec(true).exclude_kernel(true);
    builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
    builder.build()
}

fn read(counter: &mut Counter) -> Option<u64> {
    let data = counter.read_full().ok()?;
    // Where counters are shared among too many, the kernel counts a part of the time only: no exact count.
    (data.time_enabled() == data.time_running()).then(|| data.count())
}

/// Why the kernel gives no counters, by perf_event_open(2).
fn why_not(error: &std::io::Error) -> String {
    let reason = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM) => {
            "this user may not read them; lower kernel.perf_event_paranoid to 2 or less"
        }
        Some(Errno::ENOENT | Errno::EOPNOTSUPP | Errno::ENODEV) => {
            "this machine has none that the kernel can use (as in most virtual machines)"
        }
        Some(Errno::ENOSYS) => "this kernel is built without them",
        _ => return format!("no hardware counters: {error}"),
    };
    format!("no hardware counters: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;

    #[test]
    fn what_a_child_does_is_counted_from_its_program_on() {
        // Machines without hardware counters have the kernel's own, which take the same way.
        let Ok(mut counter) = counter(Software::PAGE_FAULTS) else {
            eprintln!("skipped: counters: perf_event_open is not allowed here");
            return;
        };
        let count = |times: usize, counter: &mut Counter| {
            let before = read(counter).unwrap();
            (0..times).for_each(|_| assert!(std::process::Command::new("true").status().unwrap().success()));
            read(counter).unwrap() - before
        };
        let (one, three) = (count(1, &mut counter), count(3, &mut counter));
        assert!(one > 20 && three > 2 * one && three < 4 * one, "{one} and {three}");
    }

    #[test]
    fn a_count_that_did_not_run_is_unknown() {
        let counts = |n| Counts { instructions: Some(n), cycles: None };
        assert_eq!(counts(9).since(counts(4)), counts(5));
        assert_eq!(counts(4).since(counts(4)).instructions, None);
        assert_eq!(counts(4).since(Counts::default()).instructions, None);
    }
}
