//! System calls that a stop cuts short: they return the amount moved so far, and a program that
//! does not continue from there loses the rest (signal(7): the kernel cannot restart them).
//!
//! A thread that sleeps in such a call is left asleep if possible; this module knows the calls, and
//! detects afterwards that one returned less than requested. That may have other causes: a full
//! disk, a closed peer, a signal.

use strandline_sys::ptrace::Registers;

use crate::memory::{Memory, word_at};
use crate::procfs::BlockedElsewhere;

/// The amount requested from a call.
#[derive(Clone, Copy)]
enum Asked {
    /// The value of the argument register with this index, counted from rdi.
    Argument(usize),
    /// The sum of the vectors at rsi, whose number is in rdx.
    Vectors,
    /// The sum of the vectors of the message at rsi.
    Message,
    /// As the inner [`Asked::Argument`] or [`Asked::Message`], if the flags in this argument
    /// contain MSG_WAITALL.
    All(usize, &'static Asked),
}

/// A call, by its number on x86-64.
struct Transfer {
    number: i64,
    name: &'static str,
    asked: Asked,
}

const fn transfer(number: i64, name: &'static str, asked: Asked) -> Transfer {
    Transfer { number, name, asked }
}

const TRANSFERS: [Transfer; 17] = [
    transfer(1, "write", Asked::Argument(2)),
    transfer(18, "pwrite64", Asked::Argument(2)),
    transfer(20, "writev", Asked::Vectors),
    transfer(296, "pwritev", Asked::Vectors),
    transfer(328, "pwritev2", Asked::Vectors),
    transfer(44, "sendto", Asked::Argument(2)),
    transfer(46, "sendmsg", Asked::Message),
    transfer(307, "sendmmsg", Asked::Argument(2)),
    transfer(45, "recvfrom", Asked::All(3, &Asked::Argument(2))),
    transfer(47, "recvmsg", Asked::All(2, &Asked::Message)),
    transfer(299, "recvmmsg", Asked::Argument(2)),
    transfer(40, "sendfile", Asked::Argument(3)),
    transfer(275, "splice", Asked::Argument(4)),
    transfer(276, "tee", Asked::Argument(2)),
    transfer(278, "vmsplice", Asked::Vectors),
    transfer(326, "copy_file_range", Asked::Argument(4)),
    transfer(208, "io_getevents", Asked::Argument(1)),
];

/// `MSG_WAITALL` of recv(2).
const WAIT_FOR_ALL: u64 = 0x100;
/// The most vectors of one call (`UIO_MAXIOV`).
const MAX_VECTORS: u64 = 1024;

/// Whether a stop cuts short the call in which a thread waits.
pub fn is_transfer(call: &BlockedElsewhere) -> bool {
    let known = TRANSFERS.iter().find(|known| known.number == call.number);
    known.is_some_and(|known| match known.asked {
        Asked::All(flags, _) => call.arguments.get(flags).is_some_and(|flags| flags & WAIT_FOR_ALL != 0),
        Asked::Argument(_) | Asked::Vectors | Asked::Message => true,
    })
}

/// The call from which a thread just stopped returns less than requested; `None` if absent.
pub fn short(registers: &Registers, memory: &dyn Memory) -> Option<&'static str> {
    let known = TRANSFERS.iter().find(|known| known.number == registers.orig_rax as i64)?;
    let moved = registers.rax as i64;
    (moved > 0 && (moved as u64) < asked(known.asked, registers, memory)?).then_some(known.name)
}

fn asked(what: Asked, registers: &Registers, memory: &dyn Memory) -> Option<u64> {
    let r = registers;
    let argument = |number: usize| [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9].get(number).copied();
    match what {
        Asked::Argument(number) => argument(number),
        Asked::Vectors => vectors(r.rsi, r.rdx, memory),
        // struct msghdr: msg_name, msg_namelen, msg_iov, msg_iovlen.
        Asked::Message => {
            let mut header = [0; 32];
            memory.read(r.rsi, &mut header).ok()?;
            vectors(word_at(&header, 16)?, word_at(&header, 24)?, memory)
        }
        Asked::All(flags, what) if argument(flags)? & WAIT_FOR_ALL != 0 => asked(*what, registers, memory),
        Asked::All(..) => None,
    }
}

fn vectors(at: u64, count: u64, memory: &dyn Memory) -> Option<u64> {
    let mut bytes = vec![0; usize::try_from(count.min(MAX_VECTORS)).ok()? * 16];
    memory.read(at, &mut bytes).ok()?;
    let lengths = bytes.chunks_exact(16).filter_map(|vector| word_at(vector, 8));
    Some(lengths.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Vector;

    impl Memory for Vector {
        fn read_some(&self, _address: u64, buffer: &mut [u8]) -> usize {
            buffer.fill(0);
            buffer.chunks_exact_mut(16).for_each(|vector| vector[8] = 100);
            buffer.len()
        }
    }

    fn back(number: i64, moved: i64, arguments: [u64; 5]) -> Registers {
        let mut registers = strandline_sys::registers::zeroed();
        registers.orig_rax = number as u64;
        registers.rax = moved as u64;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8] = arguments;
        registers
    }

    #[test]
    fn less_than_was_asked_for_is_short() {
        let short = |registers: Registers| short(&registers, &Vector);
        let write = |moved| short(back(1, moved, [1, 0x1000, 1 << 20, 0, 0]));
        assert_eq!(write(65536), Some("write"));
        assert_eq!((write(1 << 20), write(-4), write(0)), (None, None, None));
        let receive = |flags| short(back(45, 50, [3, 0x1000, 100, flags, 0]));
        assert_eq!((receive(0x100), receive(0)), (Some("recvfrom"), None));
        let vectors = |moved| short(back(20, moved, [1, 0x1000, 3, 0, 0]));
        assert_eq!((vectors(299), vectors(300)), (Some("writev"), None));
        assert_eq!(short(back(275, 10, [0, 0, 1, 0, 100])), Some("splice"));
        assert_eq!(short(back(0, 10, [0, 0, 100, 0, 0])), None, "read returns what there is");
    }
}
