//! /proc/PID/task/TID/syscall: what a thread is doing in the kernel.

/// What a thread is doing in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It runs, or could.
    Running,
    /// It is blocked, not in a system call (a page fault).
    Blocked,
    /// It is blocked in this system call, whose first argument is this.
    Call(i64, u64),
}

impl Doing {
    /// Parses the line; `None` where it is not of the form of proc(5).
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut words = text.split_ascii_whitespace();
        match words.next()? {
            "running" => Some(Self::Running),
            "-1" => Some(Self::Blocked),
            number => {
                let argument = words.next()?.trim_start_matches("0x");
                Some(Self::Call(number.parse().ok()?, u64::from_str_radix(argument, 16).ok()?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_blocked_and_calling_threads_are_told_apart() {
        assert_eq!(Doing::parse(b"running\n"), Some(Doing::Running));
        assert_eq!(Doing::parse(b"-1 0x7ffd 0x7f00\n"), Some(Doing::Blocked));
        assert_eq!(Doing::parse(b"202 0x55aa 0x80 0 0 0 0 0x1 0x2"), Some(Doing::Call(202, 0x55aa)));
        assert_eq!(Doing::parse(b""), None);
        assert_eq!(Doing::parse(b"202 \xff"), None);
    }
}
