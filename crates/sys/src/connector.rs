//! The kernel's process connector: a netlink socket that reports every fork, exec and exit of the
//! machine without tracing any process. Works in the first user, pid and network namespaces
//! only, and before Linux 6.6 needs CAP_NET_ADMIN there (drivers/connector/connector.c, cn_bind).
//!
//! Layouts: `include/uapi/linux/connector.h` (`struct cn_msg`) and `include/uapi/linux/cn_proc.h`
//! (`struct proc_event`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::host;

/// `CN_IDX_PROC` and `CN_VAL_PROC`: both the group and the address of the process connector.
const CN_IDX_PROC: u32 = 1;
/// The request for all events (`enum proc_cn_mcast_op`).
const PROC_CN_MCAST_LISTEN: u32 = 1;
/// `PROC_EVENT_FORK`: a process or thread was started.
const FORK: u32 = 0x0000_0001;
/// `PROC_EVENT_EXEC`: a process started another program.
const EXEC: u32 = 0x0000_0002;
/// `PROC_EVENT_EXIT`: a thread ended.
const EXIT: u32 = 0x8000_0000;
/// Bytes of `struct nlmsghdr`, with which a message begins.
const HEADER_BYTES: usize = 16;
/// Bytes of `struct cn_msg`, which follows, without its data.
const MESSAGE_BYTES: usize = 20;
/// Bytes of `struct proc_event`, the data of an event, up to its union.
const EVENT_BYTES: usize = 16;
/// Bytes of `enum proc_cn_mcast_op`, the data of a request.
const LISTEN_BYTES: usize = size_of::<u32>();
/// Requested size of the queue: room for thousands of events.
const QUEUE_BYTES: libc::c_int = 4 << 20;

/// A fork, exec or exit. Ids are those of the first pid namespace: [`Connector::open`] fails in
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new process (not a new thread).
    Fork {
        /// Its parent.
        parent: i32,
        /// Its id.
        child: i32,
    },
    /// A process started another program.
    Exec {
        /// Its id.
        pid: i32,
    },
    /// The main thread of a process ended; other threads may run on.
    Exit {
        /// Its id.
        pid: i32,
        /// The main thread's exit status, encoded as for `wait`, which returns another if other
        /// threads run on and end the process.
        wait_status: i32,
    },
}

/// The result of reading the socket once.
enum Received {
    /// No message is queued.
    Nothing,
    Event(Event),
    /// A message that is no [`Event`]: of a thread, or of another kind.
    OtherMessage,
}

/// A socket that receives the events of all processes.
#[derive(Debug)]
pub struct Connector {
    socket: OwnedFd,
}

/// The netlink address of these multicast groups.
fn address(groups: u32) -> libc::sockaddr_nl {
    // SAFETY: an all-zero sockaddr_nl is a valid value of that plain C struct.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = groups;
    address
}

const ADDRESS_BYTES: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

impl Connector {
    /// Starts to listen.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN before Linux 6.6, `EPROTONOSUPPORT` on a kernel without the
    /// connector, `ECONNREFUSED` in another network namespace than the first. Kind `Unsupported` in
    /// another pid namespace, and in another user namespace, where the kernel may accept the
    /// listener and send it nothing.
    pub fn open() -> io::Result<Self> {
        // The kernel ignores a request from another pid namespace, but while there are other
        // listeners it sends their events here too, with ids that are unknown in this namespace.
        let own_namespace = std::fs::read_link("/proc/self/ns/pid");
        if !own_namespace.is_ok_and(|link| link.as_os_str() == host::FIRST_PID_NAMESPACE) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "it has the process ids of the first pid namespace, not of this one",
            ));
        }
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket reads its integer arguments only.
        let descriptor = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_CONNECTOR) };
        let descriptor = crate::check(descriptor.into())? as i32;
        // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let own_address = address(CN_IDX_PROC);
        // SAFETY: `own_address` is a live sockaddr_nl of the size given.
        let result =
            unsafe { libc::bind(socket.as_raw_fd(), (&raw const own_address).cast(), ADDRESS_BYTES) };
        crate::check(result.into())?;
        // SO_RCVBUFFORCE needs CAP_NET_ADMIN; SO_RCVBUF is capped at net.core.rmem_max.
        for option in [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF] {
            let size = size_of::<libc::c_int>() as libc::socklen_t;
            let bytes = QUEUE_BYTES;
            let value = &raw const bytes;
            // SAFETY: `value` points to a live int of the size given. If the call fails, the
            // queue is shorter.
            let result =
                unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.cast(), size) };
            if result == 0 {
                break;
            }
        }
        let connector = Self { socket };
        connector.listen()?;
        if !connector.receives_events()? {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel reports no events in this namespace",
            ));
        }
        Ok(connector)
    }

    /// Requests the events of all processes.
    fn listen(&self) -> io::Result<()> {
        let length = HEADER_BYTES + MESSAGE_BYTES + LISTEN_BYTES;
        let mut request = Vec::with_capacity(length);
        // struct nlmsghdr: length, NLMSG_DONE, flags, sequence, sender (0: the kernel fills it in).
        request.extend((length as u32).to_ne_bytes());
        request.extend((libc::NLMSG_DONE as u16).to_ne_bytes());
        request.extend([0; 10]);
        // struct cn_msg: idx, val, seq, ack, len, flags.
        for word in [CN_IDX_PROC, CN_IDX_PROC, 0, 0] {
            request.extend(word.to_ne_bytes());
        }
        request.extend((LISTEN_BYTES as u16).to_ne_bytes());
        request.extend(0u16.to_ne_bytes());
        request.extend(PROC_CN_MCAST_LISTEN.to_ne_bytes());
        // SAFETY: `request` is live for the call, which reads `request.len()` bytes of it.
        let sent_bytes =
            unsafe { libc::send(self.socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        crate::check(sent_bytes as libc::c_long).map(drop)
    }

    /// Whether a message arrives: the kernel's acknowledgement, or the event of a thread started
    /// now.
    fn receives_events(&self) -> io::Result<bool> {
        let started = std::thread::Builder::new().spawn(|| {})?;
        // The kernel sends the event before the new thread runs.
        drop(started.join());
        Ok(!matches!(self.receive()?, Received::Nothing))
    }

    /// Returns the next event without waiting; `None` if none is queued.
    ///
    /// # Errors
    /// `ENOBUFS` if events were lost because the queue was full.
    pub fn next(&self) -> io::Result<Option<Event>> {
        loop {
            match self.receive()? {
                Received::Event(event) => return Ok(Some(event)),
                Received::OtherMessage => {}
                Received::Nothing => return Ok(None),
            }
        }
    }

    /// Receives the next message of the kernel without waiting.
    fn receive(&self) -> io::Result<Received> {
        let mut message = [0u8; 256];
        loop {
            let mut sender = address(0);
            let mut sender_bytes = ADDRESS_BYTES;
            // SAFETY: `message` and `sender` are live and writable, of the sizes given.
            let result = unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    message.as_mut_ptr().cast(),
                    message.len(),
                    0,
                    (&raw mut sender).cast(),
                    &raw mut sender_bytes,
                )
            };
            match crate::check(result as libc::c_long) {
                // Port 0 is the kernel; messages from other senders are ignored.
                Ok(received_bytes) if sender.nl_pid == 0 => {
                    let event = message.get(..received_bytes as usize).and_then(decode);
                    return Ok(event.map_or(Received::OtherMessage, Received::Event));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Decodes the event of a message; `None` for events of threads and for other kinds.
fn decode(message: &[u8]) -> Option<Event> {
    let event = message.get(HEADER_BYTES + MESSAGE_BYTES..)?;
    let word = |at: usize| Some(u32::from_ne_bytes(event.get(at..at + 4)?.try_into().ok()?));
    let id = |index: usize| Some(word(EVENT_BYTES + 4 * index)?.cast_signed());
    match word(0)? {
        // parent pid, parent tgid, child pid, child tgid
        FORK => {
            let (parent, child, group) = (id(1)?, id(2)?, id(3)?);
            (child == group).then_some(Event::Fork { parent, child })
        }
        EXEC => Some(Event::Exec { pid: id(1)? }),
        // pid, tgid, exit code, exit signal
        EXIT => {
            let (thread, pid) = (id(0)?, id(1)?);
            (thread == pid).then_some(Event::Exit { pid, wait_status: id(2)? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, words: &[i32]) -> Vec<u8> {
        let mut message = vec![0; HEADER_BYTES + MESSAGE_BYTES];
        message.extend(kind.to_ne_bytes());
        message.extend([0; 12]);
        for word in words {
            message.extend(word.to_ne_bytes());
        }
        message
    }

    #[test]
    fn messages_decode_as_in_cn_proc() {
        assert_eq!(decode(&message(FORK, &[8, 7, 9, 9])), Some(Event::Fork { parent: 7, child: 9 }));
        assert_eq!(decode(&message(FORK, &[7, 7, 9, 7])), None, "a thread");
        assert_eq!(decode(&message(EXEC, &[9, 9])), Some(Event::Exec { pid: 9 }));
        assert_eq!(
            decode(&message(EXIT, &[9, 9, 0x300, 17, 7, 7])),
            Some(Event::Exit { pid: 9, wait_status: 0x300 })
        );
        assert_eq!(decode(&message(EXIT, &[10, 9, 0, 17, 7, 7])), None, "a thread");
        assert_eq!(decode(&message(FORK, &[7])), None, "cut off");
        assert_eq!(decode(&[]), None);
    }

    #[test]
    fn events_of_a_child_arrive_where_permitted() {
        // Callers have a fallback.
        let connector = match Connector::open() {
            Ok(connector) => connector,
            Err(error) => {
                eprintln!("skipped: events_of_a_child_arrive_where_permitted: {error}");
                return;
            }
        };
        let own_pid = std::process::id() as i32;
        let mut child = std::process::Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let pid = child.id() as i32;
        let is_of_child = |event: &Event| match *event {
            Event::Fork { child, .. } => child == pid,
            Event::Exec { pid: event_pid } | Event::Exit { pid: event_pid, .. } => event_pid == pid,
        };
        let end = Event::Exit { pid, wait_status: 0x300 };
        let mut events = Vec::new();
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(600);
        // The kernel sends the exit event after a parent can wait for the child: only events count
        // here, not the wait.
        while !events.contains(&end) {
            assert!(std::time::Instant::now() < limit, "{events:?}");
            match connector.next().unwrap() {
                Some(event) => events.extend(Some(event).filter(is_of_child)),
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
        child.wait().unwrap();
        // The fork's parent is the process, whichever thread of it forked.
        assert_eq!(events, [Event::Fork { parent: own_pid, child: pid }, Event::Exec { pid }, end]);
    }
}
