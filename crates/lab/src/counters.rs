//! Hardware counters for instructions and cycles, where available and permitted.
//!
//! The counters of a job are opened on its first process while that waits to exec; they start
//! counting at the exec and are inherited by its children. They cannot be opened once for all jobs
//! on the process that starts the jobs: the kernel may swap the counters of two related processes
//! at a context switch (kernel/events/core.c, `perf_event_context_sched_out`), and then the
//! counters of the starting process are the ones enabled.

use nix::errno::Errno;
use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter, ReadFormat};

use super::cell::Figures;

/// Counters of a process and its descendants.
#[derive(Debug)]
pub struct Counters {
    instructions: Counter,
    cycles: Counter,
}

impl Counters {
    /// Opens counters of the process `pid` that start at its next exec.
    ///
    /// # Errors
    /// One line with the reason why there are no counters.
    pub fn open(pid: i32) -> Result<Self, String> {
        let open = |event| counter(event, pid).map_err(|error| explain_error(&error));
        Ok(Self { instructions: open(Hardware::INSTRUCTIONS)?, cycles: open(Hardware::CPU_CYCLES)? })
    }

    /// The instructions and cycles in user mode; `None` if a counter was not running all the time.
    pub fn read(&mut self) -> Figures {
        let (instructions, cycles) = (read(&mut self.instructions), read(&mut self.cycles));
        Figures { instructions, cycles, ..Figures::default() }
    }
}

/// Why instructions and cycles cannot be counted on this machine; `None` if they can.
pub fn unavailability() -> Option<String> {
    Counters::open(std::process::id().cast_signed()).err()
}

/// Opens an inherited counter that starts at the next exec.
fn counter<E: Event>(event: E, pid: i32) -> std::io::Result<Counter> {
    let mut builder = Builder::new(event);
    builder.observe_pid(pid).any_cpu();
    builder.inherit(true).enabled(false).enable_on_exec(true).exclude_kernel(true);
    builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
    builder.build()
}

fn read(counter: &mut Counter) -> Option<u64> {
    let reading = counter.read_full().ok()?;
    // A multiplexed counter runs only part of the time, so its value is not exact; 0 is the count
    // of a counter that some virtual machines expose and never advance.
    (reading.time_enabled() == reading.time_running() && reading.count() > 0).then(|| reading.count())
}

/// Explains an error of perf_event_open(2).
fn explain_error(error: &std::io::Error) -> String {
    let reason = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM) => {
            "this user may not read them; lower kernel.perf_event_paranoid to 2 or less"
        }
        Some(Errno::ENOENT | Errno::EOPNOTSUPP | Errno::ENODEV) => {
            "this machine exposes none to the kernel (as in most virtual machines)"
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
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    /// Page faults of a shell that starts `children` programs, counted from its exec on.
    fn faults(children: usize) -> Option<u64> {
        let script = format!("read go; exec sh -c '{}exit 0'", "/bin/true; ".repeat(children));
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo here; {script}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        shell.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        let counter = counter(Software::PAGE_FAULTS, shell.id().cast_signed());
        shell.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        shell.wait().unwrap();
        read(&mut counter.ok()?)
    }

    #[test]
    fn what_a_process_starts_is_counted_with_it() {
        // Uses a software counter: it takes the same path and works without hardware counters.
        let (Some(alone), Some(with)) = (faults(0), faults(10)) else {
            eprintln!("skipped: counters: perf_event_open is not allowed here");
            return;
        };
        assert!(with > alone + 10 * 20, "{alone} alone, {with} with ten children");
    }
}
