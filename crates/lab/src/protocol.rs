//! What strandline and its launcher say to each other: lines of JSON over a socket.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What the launcher is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Start a job.
    Start(Box<Start>),
    /// End a job: SIGTERM, and when its first process has not ended after `grace_ms`, SIGKILL to all.
    Stop {
        /// Which job.
        job: u64,
        /// How long it may take.
        grace_ms: u64,
        /// Whether SIGTERM goes to its whole process group; only to its first process, which passes it on, otherwise.
        whole: bool,
    },
}

/// A job to start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// What it is called in answers.
    pub job: u64,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables to set, or to remove.
    pub environment: Vec<(String, Option<String>)>,
    /// Where it runs.
    pub directory: Option<PathBuf>,
    /// `RLIMIT_AS`, in bytes.
    pub address_space_bytes: Option<u64>,
    /// `RLIMIT_DATA`, in bytes.
    pub data_bytes: Option<u64>,
    /// The `cgroup.procs` of the control group it joins.
    pub group: Option<PathBuf>,
    /// Whether it gets no transparent huge pages.
    pub no_huge_pages: bool,
    /// The file its standard input is read from; nothing where none is given.
    pub stdin: Option<PathBuf>,
    /// The file its standard output goes to, cut to nothing before.
    pub stdout: PathBuf,
    /// The same for standard error.
    pub stderr: PathBuf,
    /// Whether its start is told.
    pub tells_start: bool,
}

/// What the launcher tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It is ready. The first thing it tells.
    Ready {
        /// Why instructions and cycles are not counted; `None` where they are.
        no_counters: Option<String>,
    },
    /// A job's first process runs.
    Started {
        /// Which job.
        job: u64,
        /// Its process id.
        pid: i32,
    },
    /// A job could not be started.
    NotStarted {
        /// Which job.
        job: u64,
        /// Why, in one line.
        why: String,
        /// Whether the program is missing or cannot be run (rather than that the launcher failed).
        by_command: bool,
    },
    /// A job ended, with all it left behind.
    Ended(Box<Ended>),
}

/// How a job ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Which job.
    pub job: u64,
    /// As `wait` reports it.
    pub status: i32,
    /// From before its start to its end, in seconds.
    pub wall_seconds: f64,
    /// Processor time in user mode, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
    /// The largest resident set of one process.
    pub high_water_bytes: u64,
    /// Page faults that needed no device.
    pub minor_faults: u64,
    /// Page faults that did.
    pub major_faults: u64,
    /// Instructions in user mode, where they are counted.
    pub instructions: Option<u64>,
    /// Processor cycles in user mode, where they are counted.
    pub cycles: Option<u64>,
    /// Processes it left running, and that were ended.
    pub left_behind: u32,
    /// Processes that could not be ended (the kernel holds them).
    pub not_ended: u32,
}

/// Lines of JSON, taken from a stream as they come.
#[derive(Debug, Default)]
pub struct Lines {
    waiting: Vec<u8>,
}

impl Lines {
    /// Takes what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    /// The next whole line's message.
    ///
    /// # Errors
    /// Where a line is no message.
    pub fn next<T: for<'a> Deserialize<'a>>(&mut self) -> io::Result<Option<T>> {
        let Some(end) = memchr::memchr(b'\n', &self.waiting) else { return Ok(None) };
        let message = serde_json::from_slice(self.waiting.get(..end).unwrap_or_default());
        self.waiting.drain(..=end);
        message.map(Some).map_err(io::Error::other)
    }
}

/// A message as its line.
///
/// # Errors
/// Where it cannot be written as JSON.
pub fn line<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let stop = Request::Stop { job: 7, grace_ms: 100, whole: true };
        let text = [line(&stop).unwrap(), line(&stop).unwrap()].concat();
        let mut lines = Lines::default();
        let mut taken = 0;
        for byte in text {
            lines.push(&[byte]);
            while let Some(request) = lines.next::<Request>().unwrap() {
                assert_eq!(request, stop);
                taken += 1;
            }
        }
        assert_eq!(taken, 2);
        lines.push(b"{}\n");
        assert!(lines.next::<Request>().is_err());
    }
}
