//! Marks: programs report named instants through a socket and wait for an answer, so that the
//! program is measured at that instant.
//!
//! The whole process tree shares one socket. The kernel passes the id of each writer (SO_PASSCRED),
//! so that lines of several processes do not mix. An answer is one byte, which any waiting process
//! may read; it is sent once everything reported so far has been measured.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixCredentials, recvmsg, send,
    setsockopt, socketpair, sockopt,
};
use strandline_process::procfs::printable;

/// Environment variable with the descriptor number of the programs' end.
pub const VARIABLE: &str = "STRANDLINE_MARK_FD";
/// Descriptor numbers for the programs' end, best first: shells can only redirect to single digits,
/// the lowest ones are used by service managers, and scripts often use 9 for locks.
const DESCRIPTOR_NUMBERS: [i32; 7] = [7, 6, 8, 5, 4, 3, 9];
/// Maximum length of a name; longer names are cut.
pub const MAX_NAME_CHARS: usize = 200;
/// Maximum length of the line with a name, in UTF-8.
const MAX_LINE_BYTES: usize = 4 * MAX_NAME_CHARS;
/// Maximum number of processes whose incomplete lines are remembered; those of others are dropped.
const MAX_WRITERS: usize = 4096;
/// Maximum number of reads per call: a program that floods the socket must not delay the sampler.
const MAX_READS: usize = 64;
/// No read follows in a call that has this many marks, for the same reason.
const MAX_MARKS_PER_CALL: usize = 256;
/// Bytes read from the socket at once.
const READ_BYTES: usize = 4096;

/// A mark that a program reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedMark {
    /// Process id of the program; `None` if it is in a pid namespace that this process does not
    /// see, or sent descriptors with the name.
    pub pid: Option<i32>,
    /// The name, with control characters replaced; empty for an empty line.
    pub name: String,
    /// Whether the name was cut.
    pub is_cut: bool,
}

/// The recorder's end of the socket.
#[derive(Debug)]
pub struct Marks {
    /// `None` once no process has the other end.
    socket: Option<UnixStream>,
    lines: Lines,
    /// Has an event when an answer was read (one EPOLLOUT each time bytes leave the socket,
    /// unix(7)).
    answer_events: Epoll,
    /// Whether the last answer is known to have been read.
    is_answer_read: bool,
}

/// The command's end: a descriptor that already has its final number.
#[derive(Debug)]
pub struct CommandEnd {
    /// The descriptor to inherit.
    pub descriptor: OwnedFd,
    /// Its number.
    pub number: i32,
}

impl Marks {
    /// Creates both ends of a new socket.
    ///
    /// # Errors
    /// If the kernel has no descriptors left.
    pub fn new() -> io::Result<(Self, CommandEnd)> {
        let (recorder_socket, command_socket) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        setsockopt(&recorder_socket, sockopt::PassCred, &true)?;
        let descriptor = strandline_sys::spawn::dup_to_one_of(command_socket, &DESCRIPTOR_NUMBERS)?;
        let number = descriptor.as_raw_fd();
        let answer_events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        answer_events
            .add(&recorder_socket, EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLET, 0))?;
        let marks = Self {
            socket: Some(UnixStream::from(recorder_socket)),
            lines: Lines::default(),
            answer_events,
            is_answer_read: true,
        };
        Ok((marks, CommandEnd { descriptor, number }))
    }

    /// The descriptor to wait on for marks; `None` once no process has the other end.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Reads the marks that were reported since the last call.
    pub fn read_reported(&mut self) -> Vec<ReportedMark> {
        let mut marks_read = Vec::new();
        for _ in 0..MAX_READS {
            let Some(socket) = self.socket.as_ref().filter(|_| marks_read.len() < MAX_MARKS_PER_CALL) else {
                break;
            };
            let mut buffer = [0; READ_BYTES];
            match receive(socket.as_raw_fd(), &mut buffer) {
                Ok(Received { length: 0, .. }) => self.socket = None,
                Ok(Received { length, writer }) => {
                    self.lines.add(writer, &buffer[..length], &mut marks_read);
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                // The last process with the other end was killed before it read an answer.
                Err(_) => self.socket = None,
            }
        }
        marks_read
    }

    /// Readable when an answer was read that [`Marks::is_answer_read`] has not noticed yet.
    pub fn answer_read_descriptor(&self) -> BorrowedFd<'_> {
        self.answer_events.0.as_fd()
    }

    /// Whether the last answer was read. If another one were sent before that, the same program
    /// could read it at its next mark.
    pub fn is_answer_read(&mut self) -> bool {
        let mut ready = [EpollEvent::empty()];
        self.is_answer_read |= self.answer_events.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0) > 0;
        self.is_answer_read
    }

    /// Sends an answer, which lets one program continue.
    pub fn answer(&mut self) {
        self.is_answer_read = false;
        if let Some(socket) = &self.socket {
            // A process that is gone needs no answer. A full socket is full of unread answers, so
            // every waiting process finds one, and the recorder must not wait for a program that
            // reports marks and reads no answers.
            let _ = send(socket.as_raw_fd(), b"\n", MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
        }
    }
}

/// What one process wrote.
struct Received {
    /// Number of bytes; 0 if no process has the other end.
    length: usize,
    /// See [`ReportedMark::pid`].
    writer: Option<i32>,
}

/// Reads what one process wrote. The kernel never merges the data of two processes.
fn receive(socket: i32, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut control = nix::cmsg_space!(UnixCredentials);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket, &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
    // `cmsgs` fails if the program also sent descriptors, for which `control` has no room.
    let writer = message.cmsgs().ok().and_then(|mut messages| {
        messages.find_map(|control| match control {
            ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.pid()),
            _ => None,
        })
    });
    // The kernel gives 0 for a process of another pid namespace.
    Ok(Received { length: message.bytes, writer: writer.filter(|&pid| pid > 0) })
}

/// Incomplete lines, by writer.
#[derive(Debug, Default)]
struct Lines {
    incomplete: HashMap<Option<i32>, IncompleteLine>,
}

/// The beginning of a line whose end was not read yet.
#[derive(Debug, Default)]
struct IncompleteLine {
    bytes: Vec<u8>,
    /// Whether bytes of it were left out.
    is_cut: bool,
}

impl Lines {
    /// Adds what a process wrote; lines that are complete become marks.
    fn add(&mut self, writer: Option<i32>, bytes: &[u8], marks_read: &mut Vec<ReportedMark>) {
        let mut line = self.incomplete.remove(&writer).unwrap_or_default();
        for &byte in bytes {
            if byte == b'\n' {
                let name = String::from_utf8_lossy(&line.bytes).into_owned();
                let is_cut = line.is_cut || name.chars().count() > MAX_NAME_CHARS;
                let name = printable(&name, MAX_NAME_CHARS);
                marks_read.push(ReportedMark { pid: writer, name, is_cut });
                line = IncompleteLine::default();
            } else if line.bytes.len() < MAX_LINE_BYTES {
                line.bytes.push(byte);
            } else {
                line.is_cut = true;
            }
        }
        if !line.bytes.is_empty() && self.incomplete.len() < MAX_WRITERS {
            self.incomplete.insert(writer, line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn lines_of_several_processes_do_not_mix() {
        let (mut lines, mut marks_read) = (Lines::default(), Vec::new());
        lines.add(Some(1), b"gro", &mut marks_read);
        lines.add(Some(2), b"other\nsec", &mut marks_read);
        lines.add(Some(1), b"wn\n", &mut marks_read);
        lines.add(Some(2), b"ond\n\n", &mut marks_read);
        let names: Vec<_> = marks_read.iter().map(|mark| (mark.pid, mark.name.as_str())).collect();
        assert_eq!(names, [(Some(2), "other"), (Some(1), "grown"), (Some(2), "second"), (Some(2), "")]);
        assert!(lines.incomplete.is_empty());
    }

    #[test]
    fn hostile_names_are_cut_and_cleaned() {
        let (mut lines, mut marks_read) = (Lines::default(), Vec::new());
        for _ in 0..256 {
            lines.add(Some(1), &[b'x'; 4096], &mut marks_read);
        }
        lines.add(Some(1), b"\na\x1b[2Jb\n\xff\n", &mut marks_read);
        assert_eq!(marks_read[0].name.len(), MAX_NAME_CHARS);
        assert!(marks_read[0].is_cut && !marks_read[1].is_cut);
        assert_eq!(marks_read[1].name, "a?[2Jb");
        assert_eq!(marks_read[2].name, "\u{fffd}");
    }

    #[test]
    fn the_writer_is_known_and_answered() {
        let (mut marks, end) = Marks::new().unwrap();
        let mut program = UnixStream::from(end.descriptor);
        assert!(marks.read_reported().is_empty());
        program.write_all(b"grown\n").unwrap();
        let marks_read = marks.read_reported();
        let own_pid = std::process::id().cast_signed();
        assert_eq!((marks_read[0].pid, marks_read[0].name.as_str()), (Some(own_pid), "grown"));
        marks.answer();
        program.read_exact(&mut [0]).unwrap();
        // Closing it would not be enough: a child that another test just forked has it open until
        // its exec.
        program.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(marks.read_reported().is_empty() && marks.descriptor().is_none());
        marks.answer();
    }

    #[test]
    fn descriptors_sent_with_a_mark_are_ignored() {
        use nix::sys::socket::{ControlMessage, sendmsg};
        let (mut marks, end) = Marks::new().unwrap();
        let (name, sent) = ([io::IoSlice::new(b"grown\n")], [end.descriptor.as_raw_fd(); 3]);
        let control = [ControlMessage::ScmRights(&sent)];
        sendmsg::<()>(end.number, &name, &control, MsgFlags::empty(), None).unwrap();
        let names: Vec<String> = marks.read_reported().into_iter().map(|mark| mark.name).collect();
        assert!(names == ["grown"] && marks.descriptor().is_some(), "{names:?}");
    }

    #[test]
    fn an_answer_is_known_to_be_read() {
        let (mut marks, end) = Marks::new().unwrap();
        let mut program = UnixStream::from(end.descriptor);
        for _ in 0..3 {
            assert!(marks.is_answer_read());
            marks.answer();
            program.write_all(b"sent meanwhile\n").unwrap();
            assert!(!marks.is_answer_read() && !marks.read_reported().is_empty());
            program.read_exact(&mut [0]).unwrap();
        }
    }

    #[test]
    fn a_program_that_reads_no_answers_stops_no_other() {
        let (mut marks, end) = Marks::new().unwrap();
        let mut program = UnixStream::from(end.descriptor);
        let mut marks_read = 0;
        for _ in 0..2000 {
            program.write_all(b"a\nb\n").unwrap();
            let reported = marks.read_reported();
            marks_read += reported.len();
            reported.iter().for_each(|_| marks.answer());
        }
        assert_eq!(marks_read, 4000);
        program.read_exact(&mut [0; 100]).unwrap();
    }
}
