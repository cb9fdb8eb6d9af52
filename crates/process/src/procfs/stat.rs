//! /proc/PID/stat: one line whose second field, the command name, may contain blanks and brackets.
//!
//! The name extends from the first `(` to the **last** `)`: a program may call itself `a) R 1 (b`.
//! Field numbers are those of proc(5).

use super::{MAX_NAME_CHARACTERS, printable};

/// `PF_EXITING` of the kernel's `include/linux/sched.h`: the task is exiting, but not yet in state
/// Z.
const PF_EXITING: u64 = 0x4;
/// `PF_KTHREAD` of the kernel's `include/linux/sched.h`: the task is a kernel thread.
const PF_KTHREAD: u64 = 0x0020_0000;
/// `PF_POSTCOREDUMP` of the same file (Linux 5.16): the task is exiting, and a core dump needs it
/// no more.
const PF_POSTCOREDUMP: u64 = 0x8;

/// Number of the first field behind the name.
const FIRST_FIELD: usize = 3;
/// Maximum number of fields parsed: there are 52 in all, or more in newer kernels.
const MAX_FIELDS: usize = 64;

/// The fields of /proc/PID/stat that strandline uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Field 1: the process or thread id.
    pub pid: i32,
    /// Field 2: the command's name.
    pub name: String,
    /// Field 3: the state, as in [`super::Status::state`].
    pub state: Option<char>,
    /// Field 4: the parent.
    pub parent: Option<i32>,
    /// Field 9: the kernel's `PF_*` flags.
    pub flags: u64,
    /// Field 10: minor faults since the start.
    pub minor_faults: u64,
    /// Field 12: major faults since the start.
    pub major_faults: u64,
    /// Field 14: user time in clock ticks.
    pub user_ticks: u64,
    /// Field 15: system time in clock ticks.
    pub system_ticks: u64,
    /// Field 22: start, in clock ticks since boot. Together with the id it identifies a process
    /// uniquely.
    pub start_ticks: u64,
    /// Field 38: the signal sent to its parent at its end; 0 for none. `None` on kernels before 2.2
    /// or if not shown.
    pub exit_signal: Option<i32>,
    /// Field 47: start address of the brk heap; `None` on kernels before 3.3 or if not shown.
    pub start_brk: Option<u64>,
}

impl Stat {
    /// Parses the line; `None` if it does not have the form of proc(5).
    pub fn parse(text: &[u8]) -> Option<Self> {
        let name_start = text.iter().position(|&byte| byte == b'(')?;
        let name_end = text.iter().rposition(|&byte| byte == b')')?;
        let pid = std::str::from_utf8(text.get(..name_start)?).ok()?.trim().parse().ok()?;
        let name =
            printable(&String::from_utf8_lossy(text.get(name_start + 1..name_end)?), MAX_NAME_CHARACTERS);
        let text_after_name = std::str::from_utf8(text.get(name_end + 1..)?).ok()?;
        let fields: Vec<&str> = text_after_name.split_ascii_whitespace().take(MAX_FIELDS).collect();
        let field = |number: usize| fields.get(number - FIRST_FIELD).copied();
        let unsigned = |number: usize| field(number)?.parse::<u64>().ok();
        Some(Self {
            pid,
            name,
            state: field(3)?.chars().next(),
            parent: field(4)?.parse().ok(),
            flags: unsigned(9)?,
            minor_faults: unsigned(10)?,
            major_faults: unsigned(12)?,
            user_ticks: unsigned(14)?,
            system_ticks: unsigned(15)?,
            start_ticks: unsigned(22)?,
            exit_signal: field(38).and_then(|word| word.parse().ok()),
            start_brk: unsigned(47).filter(|&address| address != 0),
        })
    }

    /// Whether it is a kernel thread (`PF_KTHREAD`).
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Whether it is exiting, or has dumped core and exits next. In a process that ends, only such
    /// a thread may sleep without a pending SIGKILL: it waits for its io_uring requests.
    pub fn is_ending(&self) -> bool {
        self.flags & (PF_EXITING | PF_POSTCOREDUMP) != 0
    }

    /// Whether it has neither ended nor begun to.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, Some('Z' | 'X')) && !self.is_ending()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(name: &str, flags: u64, faults: u64, start: u64, brk: u64) -> String {
        let tail: Vec<String> = (16..=52)
            .map(|field| match field {
                22 => start.to_string(),
                47 => brk.to_string(),
                20 => "-1".to_owned(),
                _ => field.to_string(),
            })
            .collect();
        format!("17 ({name}) S 1 17 17 0 -1 {flags} {faults} 3 4 5 6 7 {}\n", tail.join(" "))
    }

    #[test]
    fn a_name_with_brackets_does_not_move_the_fields() {
        let stat = Stat::parse(line("a) R 9 (b", 0x0020_0040, 12, 22, 94_000).as_bytes()).unwrap();
        assert_eq!((stat.pid, stat.name.as_str()), (17, "a) R 9 (b"));
        assert_eq!((stat.state, stat.parent), (Some('S'), Some(1)));
        assert_eq!((stat.minor_faults, stat.major_faults), (12, 4));
        assert_eq!((stat.user_ticks, stat.system_ticks), (6, 7));
        assert_eq!((stat.start_ticks, stat.start_brk), (22, Some(94_000)));
        assert!(stat.is_kernel_thread());
    }

    #[test]
    fn own_line_is_read() {
        let stat = Stat::parse(&std::fs::read("/proc/self/stat").unwrap()).unwrap();
        assert_eq!(u32::try_from(stat.pid), Ok(std::process::id()));
        assert!(!stat.is_kernel_thread());
        assert_eq!(stat.exit_signal, Some(17), "SIGCHLD");
        assert!(stat.start_brk.is_some());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Stat::parse(&text);
        }

        #[test]
        fn generated_lines_read_back(name in "[ -~]{0,15}", flags: u64, faults: u64, start: u64, brk: u64) {
            let stat = Stat::parse(line(&name, flags, faults, start, brk).as_bytes());
            let stat = stat.ok_or_else(|| TestCaseError::fail("not parsed"))?;
            prop_assert_eq!(stat.name, name);
            prop_assert_eq!((stat.flags, stat.minor_faults, stat.start_ticks), (flags, faults, start));
            prop_assert_eq!(stat.start_brk, (brk != 0).then_some(brk));
        }
    }
}
