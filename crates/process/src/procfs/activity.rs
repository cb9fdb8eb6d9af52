//! /proc/PID/task/TID/syscall: the system call in which a thread is blocked.

/// The state of a thread in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadActivity {
    /// It is running or runnable, or did not stay blocked while the kernel looked.
    Running,
    /// It is off its processor outside a system call: in a fault, stopped, or ended.
    OutsideCall,
    /// It is blocked in a system call, or has finished one and not yet returned (stopped for a
    /// signal or a tracer).
    InCall(BlockedCall),
}

/// A system call in which a thread is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedCall {
    /// The number of the system call.
    pub number: i64,
    /// Its arguments (x86-64): rdi, rsi, rdx, r10, r8, r9.
    pub arguments: [u64; 6],
    /// The thread's stack pointer.
    pub stack_pointer: u64,
    /// Address of the next instruction in user mode: the one after the call.
    pub instruction_pointer: u64,
}

impl ThreadActivity {
    /// Parses the line, as proc(5) describes it; `None` if a word is missing or not a number.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut words = text.split_ascii_whitespace();
        match words.next()? {
            "running" => Some(Self::Running),
            "-1" => Some(Self::OutsideCall),
            number => {
                let number = number.parse().ok()?;
                let mut next_word = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
                let mut arguments = [0; 6];
                for argument in &mut arguments {
                    *argument = next_word()?;
                }
                Some(Self::InCall(BlockedCall {
                    number,
                    arguments,
                    stack_pointer: next_word()?,
                    instruction_pointer: next_word()?,
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_blocked_and_calling_threads_are_distinguished() {
        assert_eq!(ThreadActivity::parse(b"running\n"), Some(ThreadActivity::Running));
        assert_eq!(ThreadActivity::parse(b"-1 0x7ffd 0x7f00\n"), Some(ThreadActivity::OutsideCall));
        let arguments = [0x55aa, 0x80, 0, 0, 0, 0];
        let call = BlockedCall { number: 202, arguments, stack_pointer: 0x7ffd, instruction_pointer: 2 };
        assert_eq!(
            ThreadActivity::parse(b"202 0x55aa 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x2\n"),
            Some(ThreadActivity::InCall(call))
        );
        assert_eq!(ThreadActivity::parse(b"202 0x55aa 0x80"), None);
        assert_eq!(ThreadActivity::parse(b""), None);
        assert_eq!(ThreadActivity::parse(b"202 \xff"), None);
    }
}
