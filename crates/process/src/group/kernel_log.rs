//! Processes that the kernel killed for lack of memory, as its log has them.
//!
//! Since Linux 5.0 (mm/oom_kill.c, `dump_oom_summary` and `__oom_kill_process`) a kill has two
//! lines: `oom-kill:constraint=…,oom_memcg=PATH,task_memcg=PATH,task=NAME,pid=N,uid=N`, without
//! `oom_memcg` if the whole machine was out of memory, and `… Killed process N (NAME) total-vm:NkB,
//! anon-rss:NkB, file-rss:NkB, shmem-rss:NkB, …`. /dev/kmsg returns one record a read:
//! `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT` (Documentation/ABI/testing/dev-kmsg).

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Size of the buffer for a record, the kernel's own maximum (include/linux/printk.h,
/// `CONSOLE_EXT_LOG_MAX`; from Linux 6.3 on kernel/printk/internal.h, `PRINTK_MESSAGE_MAX`: 2048).
const MAX_RECORD_BYTES: usize = 8192;
/// Maximum number of kills that are kept, the last ones.
const MAX_KILLS: usize = 64;
/// `O_NONBLOCK` of x86-64: a read behind the last record fails.
const O_NONBLOCK: i32 = 0o4000;
/// The facility of a record, in the upper bits of its priority (syslog(2)).
const FACILITY_SHIFT: u32 = 3;
const KERNEL_FACILITY: u32 = 0;
/// Error of a read whose record the kernel has overwritten; the next read continues.
const EPIPE: i32 = 32;

/// A process that the kernel killed. Sizes are `None` if the log lacks its second line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomKill {
    /// When, since the machine started.
    pub since_boot: Duration,
    /// Its process id in the first pid namespace.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// The control group it was in.
    pub group: String,
    /// The control group whose limit was met; `None` if the whole machine was out of memory.
    pub limit_group: Option<String>,
    /// Its resident anonymous memory.
    pub anonymous_bytes: Option<u64>,
    /// Its resident pages of files.
    pub file_bytes: Option<u64>,
    /// Its resident shared memory.
    pub shmem_bytes: Option<u64>,
}

/// The kills that the kernel's log still has, the last one last; `None` if the log cannot be read
/// to its end within `max_time`. Reading it takes the permission of the file, and with
/// `kernel.dmesg_restrict` also CAP_SYSLOG. If a kill ends all processes of a group
/// (`memory.oom.group`), the first one represents all.
pub fn kills(max_time: Duration) -> Option<Vec<OomKill>> {
    let log = File::options().read(true).custom_flags(O_NONBLOCK).open("/dev/kmsg").ok()?;
    read_kills(log, Instant::now() + max_time)
}

/// Reads a log to its end; `None` if that fails or takes too long.
fn read_kills(mut log: impl Read, deadline: Instant) -> Option<Vec<OomKill>> {
    let (mut kills, mut record) = (Vec::new(), vec![0; MAX_RECORD_BYTES]);
    while Instant::now() < deadline {
        match log.read(&mut record) {
            Ok(0) => return Some(kills),
            Ok(bytes) => add_record(record.get(..bytes).unwrap_or_default(), &mut kills),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(EPIPE) => {}
            // There is no further record.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(kills),
            Err(_) => return None,
        }
    }
    None
}

/// Adds the kill of one record to `kills`.
fn add_record(record: &[u8], kills: &mut Vec<OomKill>) {
    // Lines after the first describe the device.
    let line = record.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = unescaped(line);
    let Some((head, text)) = line.split_once(';') else { return };
    // Programs may write to this log too.
    let priority = head.split(',').next().and_then(|word| word.parse::<u32>().ok());
    if priority.is_none_or(|priority| priority >> FACILITY_SHIFT != KERNEL_FACILITY) {
        return;
    }
    if let Some(summary) = text.strip_prefix("oom-kill:constraint=") {
        let microseconds = head.split(',').nth(2).and_then(|microseconds| microseconds.parse().ok());
        if let Some(kill) =
            microseconds.and_then(|microseconds| parse_summary(summary, Duration::from_micros(microseconds)))
        {
            if kills.len() >= MAX_KILLS {
                kills.remove(0);
            }
            kills.push(kill);
        }
    } else if let Some((_, killed)) = text.split_once("Killed process ") {
        let pid = killed.split(' ').next().and_then(|pid| pid.parse().ok());
        if let Some(kill) = kills.last_mut().filter(|kill| Some(kill.pid) == pid) {
            let size = |key: &str| {
                let digits = killed.rsplit_once(key)?.1.split_once("kB")?.0;
                digits.parse::<u64>().ok()?.checked_mul(1024)
            };
            kill.anonymous_bytes = size(" anon-rss:");
            kill.file_bytes = size(" file-rss:");
            kill.shmem_bytes = size(" shmem-rss:");
        }
    }
}

/// Undoes the escapes of /dev/kmsg: `\x5c` for a backslash, and so on for all bytes that are not
/// printable ASCII.
fn unescaped(line: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(line.len());
    let mut unread = line;
    while let Some((&first_byte, following)) = unread.split_first() {
        let code = following.strip_prefix(b"x").and_then(|code| code.get(..2));
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match code.filter(|_| first_byte == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                unread = unread.get(4..).unwrap_or_default();
            }
            None => {
                bytes.push(first_byte);
                unread = following;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses the summary of a kill. Paths and names may contain commas; one that contains a key of the
/// summary makes it ambiguous.
fn parse_summary(summary: &str, since_boot: Duration) -> Option<OomKill> {
    const KEYS: [&str; 3] = [",task_memcg=", ",task=", ",pid="];
    if KEYS.iter().any(|key| summary.matches(key).count() != 1) {
        return None;
    }
    let (before, pid) = summary.rsplit_once(",pid=")?;
    let (before, name) = before.rsplit_once(",task=")?;
    let (before, group) = before.split_once(",task_memcg=")?;
    Some(OomKill {
        since_boot,
        pid: pid.split(',').next()?.parse().ok()?,
        name: name.to_owned(),
        group: group.to_owned(),
        limit_group: before.split_once(",oom_memcg=").map(|(_, path)| path.to_owned()),
        ..OomKill::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one record a read, as the kernel does.
    struct Log(Vec<Result<Vec<u8>, i32>>);

    impl Read for Log {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                return Err(std::io::Error::from_raw_os_error(11));
            }
            let record = self.0.remove(0).map_err(std::io::Error::from_raw_os_error)?;
            buffer[..record.len()].copy_from_slice(&record);
            Ok(record.len())
        }
    }

    fn kills_in(records: &[&str]) -> Vec<OomKill> {
        let records = records.iter().map(|record| Ok(record.as_bytes().to_vec())).collect();
        read_kills(Log(records), far()).unwrap()
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    const SUMMARY: &str = "6,901,13490030128,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,c,task=my task,pid=9238,uid=0\n";
    const KILLED: &str = "3,902,13490030145,-;Memory cgroup out of memory: Killed process 9238 (my task) total-vm:265668kB, anon-rss:48896kB, file-rss:1152kB, shmem-rss:0kB, UID:0 pgtables:144kB oom_score_adj:0\n SUBSYSTEM=x\n";

    #[test]
    fn a_kill_in_a_group_is_read() {
        let kill = OomKill {
            since_boot: Duration::from_micros(13_490_030_128),
            pid: 9238,
            name: "my task".to_owned(),
            group: "/a/b,c".to_owned(),
            limit_group: Some("/a".to_owned()),
            anonymous_bytes: Some(48_896 << 10),
            file_bytes: Some(1152 << 10),
            shmem_bytes: Some(0),
        };
        assert_eq!(kills_in(&["6,1,5,-;other", SUMMARY, "6,2,6,-;in between", KILLED]), [kill]);
    }

    #[test]
    fn a_kill_of_the_whole_machine_has_no_limit() {
        let summary = "6,1,7,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/x,task=sh,pid=7,uid=0";
        let kills = kills_in(&[summary, "3,2,8,-;Out of memory: Killed process 8 (other) anon-rss:4kB, "]);
        assert_eq!((kills.len(), kills[0].limit_group.as_deref()), (1, None));
        assert_eq!((kills[0].group.as_str(), kills[0].anonymous_bytes), ("/x", None));
    }

    #[test]
    fn damaged_records_are_left_out_and_the_last_kills_kept() {
        let broken =
            ["", ";", "6,1;oom-kill:constraint=", "6,1,x,-;oom-kill:constraint=,task_memcg=,task=,pid=1"];
        assert_eq!(kills_in(&broken), []);
        assert_eq!(kills_in(&["6,1,1,-;oom-kill:constraint=,task=,pid=1,task_memcg="]), []);
        let many: Vec<String> =
            (0..MAX_KILLS + 10).map(|pid| SUMMARY.replace("9238", &pid.to_string())).collect();
        let kills = kills_in(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((kills.len(), kills[0].pid), (MAX_KILLS, 10));
    }

    #[test]
    fn escapes_are_undone_and_ambiguous_or_foreign_lines_left_out() {
        let kills = kills_in(&[&SUMMARY.replace("/a/b,c", "/system-a\\x5cx2db.slice/\\xc3\\xa9")]);
        assert_eq!(kills[0].group, "/system-a\\x2db.slice/é");
        assert_eq!(kills_in(&[&SUMMARY.replace("oom_memcg=/a", "oom_memcg=/a,task_memcg=/web")]), []);
        assert_eq!(kills_in(&[&SUMMARY.replace("my task", "a,task=b")]), []);
        assert_eq!(kills_in(&[&SUMMARY.replace("6,901", "14,901")]), []);
    }

    #[test]
    fn overwritten_records_are_passed_over() {
        let records = vec![Err(EPIPE), Ok(SUMMARY.as_bytes().to_vec())];
        assert_eq!(read_kills(Log(records), far()).map(|kills| kills.len()), Some(1));
    }

    #[test]
    fn the_kills_of_a_log_that_cannot_be_read_are_unknown() {
        const EPERM: i32 = 1;
        let records = || vec![Ok(SUMMARY.as_bytes().to_vec()), Err(EPERM)];
        assert_eq!(read_kills(Log(records()), far()), None);
        assert_eq!(read_kills(Log(records()), Instant::now()), None);
    }
}
