//! /proc/PID/status (and that of a thread): the lines that strandline needs, each optional.
//!
//! The only text chosen by the target is `Name`, which the kernel escapes. A missing or malformed
//! line is `None`; nothing is guessed.

use super::{MAX_NAME_CHARACTERS, kib, number, printable};

/// The fields of /proc/PID/status. `None`: the kernel did not print it (a kernel thread, an old
/// kernel).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The command's name: at most 15 bytes, of a kernel thread 63.
    pub name: Option<String>,
    /// `R`, `S`, `D`, `T` (stopped), `t` (traced), `Z`, `X`, `I`.
    pub state: Option<char>,
    /// The process of a thread.
    pub tgid: Option<i32>,
    /// The parent process.
    pub parent: Option<i32>,
    /// The thread that traces it; `Some(0)` if none does.
    pub tracer: Option<i32>,
    /// Uid: its user ids.
    pub user_ids: Option<UserIds>,
    /// Number of threads of the process.
    pub threads: Option<u64>,
    /// Whether it is a kernel thread (Linux 6.4; before it, [`super::Stat::is_kernel_thread`]).
    pub is_kernel_thread: Option<bool>,
    /// VmRSS, which kernels before 6.16 approximate.
    pub rss_bytes: Option<u64>,
    /// RssAnon: its anonymous pages (Linux 4.5).
    pub anonymous_bytes: Option<u64>,
    /// VmHWM: peak RSS.
    pub peak_rss_bytes: Option<u64>,
    /// VmPTE: its page tables.
    pub page_tables_bytes: Option<u64>,
    /// VmSwap: anonymous memory swapped out.
    pub swap_bytes: Option<u64>,
    /// VmPin: pages pinned for devices.
    pub pinned_bytes: Option<u64>,
    /// VmLck: mlocked memory.
    pub locked_bytes: Option<u64>,
    /// HugetlbPages: hugetlb memory, which RSS leaves out.
    pub hugetlb_bytes: Option<u64>,
    /// SigPnd: signals pending for the thread, bit n-1 for signal n.
    pub thread_pending_signals: Option<u64>,
    /// ShdPnd: signals pending for the process.
    pub process_pending_signals: Option<u64>,
    /// SigBlk: signals the thread blocks.
    pub blocked_signals: Option<u64>,
    /// SigIgn: signals the process ignores.
    pub ignored_signals: Option<u64>,
    /// SigCgt: signals the process has handlers for.
    pub caught_signals: Option<u64>,
    /// NSpid: its id in each pid namespace, the reader's first and its own last.
    pub namespace_pids: Vec<i32>,
    /// Seccomp: 0 off, 1 strict, 2 filter.
    pub seccomp_mode: Option<u64>,
    /// voluntary_ctxt_switches: how often the thread yielded its processor to wait.
    pub voluntary_switches: Option<u64>,
    /// nonvoluntary_ctxt_switches: how often the thread was preempted.
    pub involuntary_switches: Option<u64>,
    /// x86_Thread_features: `shstk`, `wrss`; empty where the kernel prints none.
    pub thread_features: Vec<String>,
}

/// Pid namespaces nest at most 32 deep (`MAX_PID_NS_LEVEL`); ids are listed from the reader's
/// namespace on.
const MAX_NAMESPACES: usize = 33;
/// Maximum number of thread features kept; the kernel knows two.
const MAX_FEATURES: usize = 16;
/// Maximum number of characters kept of a thread feature.
const MAX_FEATURE_CHARACTERS: usize = 32;

impl Status {
    /// Parses the text. Unknown and malformed lines are ignored.
    pub fn parse(text: &[u8]) -> Self {
        let mut status = Self::default();
        for line in text.split(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            if let Some((key, value)) = line.split_once(':') {
                status.set(key, value.trim());
            }
        }
        status
    }

    /// Sets the field of a line `key: value`.
    fn set(&mut self, key: &str, value: &str) {
        let signal_set = || u64::from_str_radix(value, 16).ok();
        match key {
            "Name" => self.name = Some(printable(value, MAX_NAME_CHARACTERS)),
            "State" => self.state = value.chars().next(),
            "Tgid" => self.tgid = value.parse().ok(),
            "PPid" => self.parent = value.parse().ok(),
            "TracerPid" => self.tracer = value.parse().ok(),
            "Uid" => self.user_ids = UserIds::parse(value),
            "Threads" => self.threads = number(value),
            "Kthread" => self.is_kernel_thread = number(value).map(|n| n != 0),
            "VmRSS" => self.rss_bytes = kib(value),
            "RssAnon" => self.anonymous_bytes = kib(value),
            "VmHWM" => self.peak_rss_bytes = kib(value),
            "VmPTE" => self.page_tables_bytes = kib(value),
            "VmSwap" => self.swap_bytes = kib(value),
            "VmPin" => self.pinned_bytes = kib(value),
            "VmLck" => self.locked_bytes = kib(value),
            "HugetlbPages" => self.hugetlb_bytes = kib(value),
            "SigPnd" => self.thread_pending_signals = signal_set(),
            "ShdPnd" => self.process_pending_signals = signal_set(),
            "SigBlk" => self.blocked_signals = signal_set(),
            "SigIgn" => self.ignored_signals = signal_set(),
            "SigCgt" => self.caught_signals = signal_set(),
            "Seccomp" => self.seccomp_mode = number(value),
            "NSpid" => {
                // A malformed list counts as missing, as on kernels before 4.1.
                let pids = value.split_whitespace().take(MAX_NAMESPACES).map(|pid| pid.parse().ok());
                self.namespace_pids = pids.collect::<Option<_>>().unwrap_or_default();
            }
            "voluntary_ctxt_switches" => self.voluntary_switches = number(value),
            "nonvoluntary_ctxt_switches" => self.involuntary_switches = number(value),
            "x86_Thread_features" => {
                self.thread_features = value
                    .split_whitespace()
                    .take(MAX_FEATURES)
                    .map(|word| printable(word, MAX_FEATURE_CHARACTERS))
                    .collect();
            }
            _ => {}
        }
    }

    /// Whether it has ended and waits to be reaped.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, Some('Z' | 'X'))
    }

    /// Whether its system calls are filtered. A kernel that prints no such line has no seccomp.
    pub fn is_under_seccomp(&self) -> bool {
        self.seccomp_mode.unwrap_or(0) != 0
    }

    /// Whether it has a shadow stack, which must contain every return address too.
    pub fn has_shadow_stack(&self) -> bool {
        self.thread_features.iter().any(|feature| feature == "shstk")
    }

    /// Whether the process runs in a pid namespace below the reader's.
    pub fn is_in_inner_pid_namespace(&self) -> bool {
        self.namespace_pids.len() > 1
    }

    /// Pending signals that the thread does not block, bit n-1 for signal n; `None` if the kernel
    /// did not print the masks.
    pub fn deliverable_signals(&self) -> Option<u64> {
        Some((self.thread_pending_signals? | self.process_pending_signals?) & !self.blocked_signals?)
    }
}

/// The user ids of a process (credentials(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserIds {
    /// The user who started it.
    pub real: u32,
    /// The user whose rights it has.
    pub effective: u32,
    /// The user whose rights it can take again.
    pub saved: u32,
    /// The user whose rights it has on files.
    pub file_system: u32,
}

impl UserIds {
    /// Parses the value of a line `Uid`.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let mut next_id = || words.next()?.parse::<u32>().ok();
        Some(Self { real: next_id()?, effective: next_id()?, saved: next_id()?, file_system: next_id()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"Name:\ta: b\nState:\tt (tracing stop)\nTgid:\t17\nPid:\t18\nPPid:\t1\nTracerPid:\t99\n\
        Uid:\t0\t1\t2\t3\nKthread:\t0\nVmLck:\t       4 kB\nVmPin:\t       0 kB\nVmHWM:\t    1616 kB\n\
        VmRSS:\t    1612 kB\nVmPTE:\t      48 kB\nVmSwap:\t       8 kB\nHugetlbPages:\t    2048 kB\nThreads:\t2\n\
        SigPnd:\t0000000000000001\nShdPnd:\t0000000000000200\nSigBlk:\t0000000000000001\nSigCgt:\t0000000000000004\nNSpid:\t17\t3\n\
        Seccomp:\t2\nx86_Thread_features:\tshstk wrss \n";

    #[test]
    fn every_line_is_read() {
        let status = Status::parse(TEXT);
        assert_eq!(status.name.as_deref(), Some("a: b"));
        assert_eq!(status.state, Some('t'));
        assert_eq!((status.tgid, status.parent, status.tracer), (Some(17), Some(1), Some(99)));
        assert_eq!(status.user_ids, Some(UserIds { real: 0, effective: 1, saved: 2, file_system: 3 }));
        assert_eq!(status.rss_bytes, Some(1612 * 1024));
        assert_eq!(status.peak_rss_bytes, Some(1616 * 1024));
        assert_eq!(status.page_tables_bytes, Some(48 * 1024));
        assert_eq!(status.hugetlb_bytes, Some(2048 * 1024));
        assert_eq!((status.swap_bytes, status.locked_bytes), (Some(8192), Some(4096)));
        assert_eq!(status.pinned_bytes, Some(0));
        assert_eq!((status.threads, status.is_kernel_thread), (Some(2), Some(false)));
        assert_eq!(status.deliverable_signals(), Some(0x200), "signal 1 is blocked, signal 10 is not");
        assert!(status.is_in_inner_pid_namespace());
        assert_eq!((status.seccomp_mode, status.caught_signals), (Some(2), Some(4)));
        assert!(status.is_under_seccomp() && status.has_shadow_stack());
        assert_eq!(status.thread_features, ["shstk", "wrss"]);
    }

    #[test]
    fn missing_fields_are_unknown_and_not_zero() {
        let status = Status::parse(b"Name:\tkthreadd\nVmRSS:\t99999999999999999999 kB\nUid:\t0\t0\n");
        assert_eq!((status.rss_bytes, status.user_ids, status.deliverable_signals()), (None, None, None));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..2000)) {
            Status::parse(&text);
        }

        #[test]
        fn random_values_behind_known_keys_never_panic(
            key in "(Name|State|Uid|VmRSS|SigPnd|NSpid|Threads|Tgid)", value in "\\PC*",
        ) {
            Status::parse(format!("{key}:{value}\n").as_bytes());
        }

        #[test]
        fn generated_text_reads_back(tgid: i32, rss in 0u64..1 << 50, pending: u64, blocked: u64) {
            let text = format!(
                "Tgid:\t{tgid}\nVmRSS:\t{rss:>8} kB\nSigPnd:\t{pending:016x}\nShdPnd:\t0\nSigBlk:\t{blocked:016x}\n"
            );
            let status = Status::parse(text.as_bytes());
            prop_assert_eq!(status.tgid, Some(tgid));
            prop_assert_eq!(status.rss_bytes, Some(rss * 1024));
            prop_assert_eq!(status.deliverable_signals(), Some(pending & !blocked));
        }
    }
}
