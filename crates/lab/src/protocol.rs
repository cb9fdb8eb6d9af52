//! Protocol between strandline and its launcher: lines of JSON over a socket.

use std::io::{self, Read};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cell::{Figures, Subject};

/// Size of one read.
const READ_BYTES: usize = 16 << 10;

/// A request to the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Start(Box<Start>),
    /// End a job: SIGTERM, then SIGKILL to all of it if its first process still runs after
    /// `grace_ms`.
    Stop {
        job: u64,
        grace_ms: u64,
        /// Whether SIGTERM goes to its whole process group; otherwise to its first process only,
        /// which forwards it.
        is_whole_group: bool,
    },
}

/// A job to start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub job: u64,
    /// What is executed: its memory limit, timeout and measure are not the launcher's.
    pub subject: Subject,
    /// The `cgroup.procs` of the control group it joins.
    pub group: Option<PathBuf>,
    /// File for standard output, truncated first.
    pub stdout: PathBuf,
    /// File for standard error, truncated first.
    pub stderr: PathBuf,
    /// Whether to send [`Event::Started`].
    pub reports_start: bool,
}

/// An event sent by the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The launcher is ready; always the first event.
    Ready {
        /// Why instructions and cycles are not counted; `None` if they are.
        no_counters_reason: Option<String>,
    },
    /// The first process of a job runs.
    Started { job: u64, pid: i32 },
    NotStarted {
        job: u64,
        why: String,
        /// Whether the command is at fault (missing, not executable), rather than the launcher.
        is_command_fault: bool,
    },
    /// A job and everything it left have ended.
    Ended(Box<Ended>),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub job: u64,
    /// Status as reported by `wait`.
    pub status: i32,
    pub figures: Figures,
    /// Processes that it left running and that were ended.
    pub leftover_processes: u32,
    /// Processes that could not be ended because the kernel holds them.
    pub unended_processes: u32,
}

/// Splits a byte stream into lines of JSON.
#[derive(Debug, Default)]
pub struct LineBuffer {
    /// Bytes of lines that were not returned yet.
    unread: Vec<u8>,
}

impl LineBuffer {
    /// Reads what has arrived at `source`; false if it was closed. A read that a signal interrupts
    /// adds nothing.
    pub fn read_from(&mut self, mut source: impl Read) -> io::Result<bool> {
        let mut bytes = [0; READ_BYTES];
        match source.read(&mut bytes) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.unread.extend_from_slice(bytes.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The message of the next complete line; `None` if it has not arrived yet.
    pub fn next<T: for<'a> Deserialize<'a>>(&mut self) -> io::Result<Option<T>> {
        let Some(end) = memchr::memchr(b'\n', &self.unread) else { return Ok(None) };
        let message = serde_json::from_slice(self.unread.get(..end).unwrap_or_default());
        self.unread.drain(..=end);
        message.map(Some).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_lines::write_line;

    #[test]
    fn split_messages_are_reassembled() {
        let stop = Request::Stop { job: 7, grace_ms: 100, is_whole_group: true };
        let mut text = Vec::new();
        write_line(&mut text, &stop).unwrap();
        write_line(&mut text, &stop).unwrap();
        let mut lines = LineBuffer::default();
        let mut request_count = 0;
        for byte in text {
            assert!(lines.read_from(&[byte][..]).unwrap());
            while let Some(request) = lines.next::<Request>().unwrap() {
                assert_eq!(request, stop);
                request_count += 1;
            }
        }
        assert_eq!(request_count, 2);
        assert!(!lines.read_from(&[][..]).unwrap());
        assert!(lines.read_from(&b"{}\n"[..]).unwrap());
        assert!(lines.next::<Request>().is_err());
    }
}
