//! /proc/PID/task/TID/syscall: the system call in which a thread is blocked.

/// The state of a thread in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadActivity {
    /// It is running or runnable.
    Running,
    /// It is blocked outside a system call (a page fault).
    Blocked,
    /// It is blocked in a system call.
    Call(BlockedCall),
}

/// A system call in which a thread is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedCall {
    /// The number of the system call.
    pub number: i64,
    /// Its arguments: rdi, rsi, rdx, r10, r8, r9.
    pub arguments: [u64; 6],
    /// The thread's stack pointer.
    pub stack_pointer: u64,
    /// Address of the instruction after the call.
    pub instruction: u64,
}

impl ThreadActivity {
    /// Parses the line; `None` if it does not have the format of proc(5).
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut words = text.split_ascii_whitespace();
        match words.next()? {
            "running" => Some(Self::Running),
            "-1" => Some(Self::Blocked),
            number => {
                let number = number.parse().ok()?;
                let mut next_word = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
                let mut arguments = [0; 6];
                for argument in &mut arguments {
                    *argument = next_word()?;
                }
                Some(Self::Call(BlockedCall {
                    number,
                    arguments,
                    stack_pointer: next_word()?,
                    instruction: next_word()?,
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
        assert_eq!(ThreadActivity::parse(b"-1 0x7ffd 0x7f00\n"), Some(ThreadActivity::Blocked));
        let arguments = [0x55aa, 0x80, 0, 0, 0, 0];
        let call = BlockedCall { number: 202, arguments, stack_pointer: 0x7ffd, instruction: 2 };
        assert_eq!(
            ThreadActivity::parse(b"202 0x55aa 0x80 0 0 0 0 0x7ffd 0x2\n"),
            Some(ThreadActivity::Call(call))
        );
        assert_eq!(ThreadActivity::parse(b"202 0x55aa 0x80"), None);
        assert_eq!(ThreadActivity::parse(b""), None);
        assert_eq!(ThreadActivity::parse(b"202 \xff"), None);
    }
}
