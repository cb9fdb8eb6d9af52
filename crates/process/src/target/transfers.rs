//! System calls that a stop cuts short: they return the amount moved so far, and a program that
//! does not continue from there loses the rest (signal(7): the kernel cannot restart them).
//!
//! A thread that sleeps in such a call is left asleep if possible; this module knows the calls, and
//! detects afterwards that one returned less than requested. That may have other causes: a full
//! disk, a closed peer, a signal.

use strandline_sys::ptrace::Registers;

use crate::memory::{Memory, word_at};
use crate::procfs::BlockedCall;

/// The amount requested from a call.
#[derive(Clone, Copy)]
enum Requested {
    /// The value of the argument register with this index, counted from rdi.
    Argument(usize),
    /// The sum of the vectors at rsi, whose number is in rdx.
    Vectors,
    /// The sum of the vectors of the message at rsi.
    Message,
    /// The same as `amount`, if the flags in this argument contain MSG_WAITALL.
    IfWaitingForAll { flags_argument: usize, amount: &'static Requested },
    /// The number of messages in rdx, unless the flags in r10 let the call return with fewer
    /// (net/socket.c, `do_recvmmsg`).
    Messages,
}

/// A call that moves an amount of data or messages.
struct Transfer {
    /// Its number on x86-64.
    number: i64,
    name: &'static str,
    requested: Requested,
}

/// Receives up to `amount`, or all of it if the flags in `flags_argument` say so.
const fn receives(flags_argument: usize, amount: &'static Requested) -> Requested {
    Requested::IfWaitingForAll { flags_argument, amount }
}

const fn transfer(number: i64, name: &'static str, requested: Requested) -> Transfer {
    Transfer { number, name, requested }
}

const TRANSFERS: [Transfer; 19] = [
    transfer(1, "write", Requested::Argument(2)),
    transfer(18, "pwrite64", Requested::Argument(2)),
    transfer(20, "writev", Requested::Vectors),
    transfer(296, "pwritev", Requested::Vectors),
    transfer(328, "pwritev2", Requested::Vectors),
    transfer(44, "sendto", Requested::Argument(2)),
    transfer(46, "sendmsg", Requested::Message),
    transfer(307, "sendmmsg", Requested::Argument(2)),
    transfer(45, "recvfrom", receives(3, &Requested::Argument(2))),
    transfer(47, "recvmsg", receives(2, &Requested::Message)),
    transfer(299, "recvmmsg", Requested::Messages),
    transfer(40, "sendfile", Requested::Argument(3)),
    transfer(275, "splice", Requested::Argument(4)),
    transfer(276, "tee", Requested::Argument(2)),
    transfer(278, "vmsplice", Requested::Vectors),
    transfer(326, "copy_file_range", Requested::Argument(4)),
    // The minimum number of events (fs/aio.c, `read_events`).
    transfer(208, "io_getevents", Requested::Argument(1)),
    transfer(333, "io_pgetevents", Requested::Argument(1)),
    // It checks for signals after each page (drivers/char/random.c, `get_random_bytes_user`).
    transfer(318, "getrandom", Requested::Argument(1)),
];

/// `MSG_WAITALL` of recv(2).
const WAIT_FOR_ALL: u64 = 0x100;
/// `MSG_DONTWAIT` and `MSG_WAITFORONE`: a call for several messages does not wait for the second.
const WAIT_FOR_ONE: u64 = 0x40 | 0x10000;
/// The argument of recvmmsg(2) with its flags.
const MESSAGES_FLAGS: usize = 3;
/// Maximum number of vectors of one call (`UIO_MAXIOV`).
const MAX_VECTORS: u64 = 1024;
/// Maximum bytes that a call moves (`MAX_RW_COUNT` of `include/linux/fs.h`), whatever it requests.
const MAX_MOVED_BYTES: u64 = 0x7fff_f000;
/// Size of struct iovec.
const VECTOR_BYTES: usize = 16;

/// Whether a stop cuts short the call in which a thread waits.
pub fn is_transfer(call: &BlockedCall) -> bool {
    let transfer = TRANSFERS.iter().find(|transfer| transfer.number == call.number);
    transfer.is_some_and(|transfer| match transfer.requested {
        Requested::IfWaitingForAll { flags_argument, .. } => {
            call.arguments.get(flags_argument).is_some_and(|flags| flags & WAIT_FOR_ALL != 0)
        }
        Requested::Messages => {
            call.arguments.get(MESSAGES_FLAGS).is_none_or(|flags| flags & WAIT_FOR_ONE == 0)
        }
        Requested::Argument(_) | Requested::Vectors | Requested::Message => true,
    })
}

/// The name of the call, if a thread that just stopped returns less than requested from it.
pub fn short_call(registers: &Registers, memory: &dyn Memory) -> Option<&'static str> {
    let transfer = TRANSFERS.iter().find(|transfer| transfer.number == registers.orig_rax as i64)?;
    let moved_amount = registers.rax as i64;
    let requested_amount = requested_amount(transfer.requested, registers, memory)?.min(MAX_MOVED_BYTES);
    (moved_amount > 0 && (moved_amount as u64) < requested_amount).then_some(transfer.name)
}

/// The amount that a call requests; `None` if unknown, or if the call may return less.
fn requested_amount(requested: Requested, registers: &Registers, memory: &dyn Memory) -> Option<u64> {
    let r = registers;
    let argument = |number: usize| [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9].get(number).copied();
    match requested {
        Requested::Argument(number) => argument(number),
        Requested::Vectors => vector_bytes(r.rsi, r.rdx, memory),
        // struct msghdr: msg_name, msg_namelen, then msg_iov at 16, msg_iovlen at 24.
        Requested::Message => {
            let mut header = [0; 32];
            memory.read(r.rsi, &mut header).ok()?;
            vector_bytes(word_at(&header, 16)?, word_at(&header, 24)?, memory)
        }
        Requested::IfWaitingForAll { flags_argument, amount }
            if argument(flags_argument)? & WAIT_FOR_ALL != 0 =>
        {
            requested_amount(*amount, registers, memory)
        }
        Requested::Messages if argument(MESSAGES_FLAGS)? & WAIT_FOR_ONE == 0 => argument(2),
        Requested::IfWaitingForAll { .. } | Requested::Messages => None,
    }
}

/// Total length of the `count` vectors (struct iovec: address and length) at `address`.
fn vector_bytes(address: u64, count: u64, memory: &dyn Memory) -> Option<u64> {
    let mut bytes = vec![0; usize::try_from(count.min(MAX_VECTORS)).ok()? * VECTOR_BYTES];
    memory.read(address, &mut bytes).ok()?;
    let lengths = bytes.chunks_exact(VECTOR_BYTES).filter_map(|vector| word_at(vector, 8));
    Some(lengths.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Vector;

    impl Memory for Vector {
        fn read_some(&self, _address: u64, buffer: &mut [u8]) -> usize {
            buffer.fill(0);
            buffer.chunks_exact_mut(VECTOR_BYTES).for_each(|vector| vector[8] = 100);
            buffer.len()
        }
    }

    fn returned_from(number: i64, moved: i64, arguments: [u64; 5]) -> Registers {
        let mut registers = strandline_sys::registers::zeroed();
        registers.orig_rax = number as u64;
        registers.rax = moved as u64;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8] = arguments;
        registers
    }

    #[test]
    fn only_a_call_that_waits_for_several_messages_is_a_transfer() {
        let is_transfer = |flags: u64| {
            let arguments = [3, 0x1000, 10, flags, 0, 0];
            is_transfer(&BlockedCall { number: 299, arguments, stack_pointer: 0, instruction_pointer: 0 })
        };
        assert!(is_transfer(0) && !is_transfer(0x10000) && !is_transfer(0x40));
    }

    #[test]
    fn a_transfer_below_the_requested_size_is_short() {
        let short = |registers: Registers| short_call(&registers, &Vector);
        let write = |moved| short(returned_from(1, moved, [1, 0x1000, 1 << 20, 0, 0]));
        assert_eq!(write(65536), Some("write"));
        assert_eq!((write(1 << 20), write(-4), write(0)), (None, None, None));
        let large_write = returned_from(1, 0x7fff_f000, [1, 0x1000, 3 << 30, 0, 0]);
        assert_eq!(short(large_write), None, "the kernel moves no more at once");
        let receive = |flags| short(returned_from(45, 50, [3, 0x1000, 100, flags, 0]));
        assert_eq!((receive(0x100), receive(0)), (Some("recvfrom"), None));
        let vectors = |moved| short(returned_from(20, moved, [1, 0x1000, 3, 0, 0]));
        assert_eq!((vectors(299), vectors(300)), (Some("writev"), None));
        assert_eq!(short(returned_from(275, 10, [0, 0, 1, 0, 100])), Some("splice"));
        let messages = |flags| short(returned_from(299, 2, [3, 0x1000, 10, flags, 0]));
        assert_eq!((messages(0), messages(0x40), messages(0x10000)), (Some("recvmmsg"), None, None));
        assert_eq!(short(returned_from(333, 1, [7, 4, 8, 0x1000, 0])), Some("io_pgetevents"));
        assert_eq!(
            short(returned_from(333, 4, [7, 4, 8, 0x1000, 0])),
            None,
            "as many events as it waits for"
        );
        assert_eq!(short(returned_from(318, 4096, [0x1000, 1 << 20, 0, 0, 0])), Some("getrandom"));
        assert_eq!(short(returned_from(0, 10, [0, 0, 100, 0, 0])), None, "read returns what there is");
    }
}
