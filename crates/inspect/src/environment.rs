//! Describes the machine that figures were measured on, for every report.
//!
//! Only this machine and this process are read, never the target.

use std::fs::File;
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use strandline_process::c_library::{CLibrary, banner};

/// Maximum bytes read of a file of one line.
const MAX_LINE_BYTES: u64 = 256;
/// Maximum bytes read of a list of fields: those that are used are at its beginning.
const MAX_FIELDS_BYTES: u64 = 16 << 10;
/// Maximum bytes read of the mappings.
const MAX_MAPS_BYTES: u64 = 1 << 20;

/// Kernel, processors, memory and C library of this machine. Unknown fields are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The kernel's release, as `uname -r`.
    pub kernel: Option<String>,
    /// The instruction set: `x86_64`.
    pub machine: String,
    /// The processor's model name.
    pub processor: Option<String>,
    /// Processors this process may run on.
    pub cpus: Option<u64>,
    /// The machine's memory (MemTotal), in bytes.
    pub memory_bytes: Option<u64>,
    /// The page size, in bytes.
    pub page_bytes: u64,
    /// The mode of transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// The C library that strandline itself runs on: `GNU C Library (Debian GLIBC 2.36-9) … version
    /// 2.36`.
    pub libc: Option<String>,
    /// The current time, as `2026-01-31T12:34:56Z`.
    pub time_utc: String,
}

impl Environment {
    /// Returns the same facts with the current time, without the cost of [`Environment::read`]: for
    /// /proc/cpuinfo the kernel measures the frequency of every processor, which can take 20 ms.
    pub fn with_current_time(&self) -> Self {
        Self { time_utc: now_utc(), ..self.clone() }
    }

    /// Reads the facts of this machine.
    pub fn read() -> Self {
        let cpuinfo = read_text("/proc/cpuinfo", MAX_FIELDS_BYTES);
        let meminfo = read_text("/proc/meminfo", MAX_FIELDS_BYTES);
        let field = |text: &Option<String>, key: &str| -> Option<String> {
            let line = text.as_ref()?.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Self {
            kernel: read_text("/proc/sys/kernel/osrelease", MAX_LINE_BYTES)
                .map(|line| line.trim().to_owned()),
            machine: std::env::consts::ARCH.to_owned(),
            processor: field(&cpuinfo, "model name"),
            cpus: std::thread::available_parallelism().ok().map(|count| count.get() as u64),
            memory_bytes: field(&meminfo, "MemTotal").and_then(|size| strandline_process::procfs::kib(&size)),
            page_bytes: strandline_sys::host::page_bytes(),
            thp: read_text("/sys/kernel/mm/transparent_hugepage/enabled", MAX_LINE_BYTES)
                .and_then(|line| bracketed(&line)),
            libc: own_libc(),
            time_utc: now_utc(),
        }
    }
}

/// The current time; the beginning of 1970 for a clock before that.
fn now_utc() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}

/// The text of a file, up to `max_bytes` of it.
fn read_text(path: &str, max_bytes: u64) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(max_bytes).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The chosen word of `always [madvise] never`.
fn bracketed(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// Maximum bytes of the C library's file to search.
const MAX_LIBC_BYTES: u64 = 16 << 20;

/// The version line inside the C library that this process has mapped.
fn own_libc() -> Option<String> {
    let maps = read_text("/proc/self/maps", MAX_MAPS_BYTES)?;
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    let (path, library) = paths.find_map(|path| Some((path, CLibrary::of_file(path)?)))?;
    if library == CLibrary::Musl {
        return Some("musl".to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_LIBC_BYTES).read_to_end(&mut bytes).ok()?;
    banner(&bytes)
}

/// Seconds since 1970 as `2026-01-31T12:34:56Z`, by the proleptic Gregorian calendar.
pub fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Years counted from 1 March 0000, so that the leap day is a year's last: 400 years are
    // 146,097 days and 1970-01-01 is day 719,468.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (second / 3600, second % 3600 / 60, second % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_fall_on_their_dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(utc(1_709_251_200), "2024-03-01T00:00:00Z");
        assert_eq!(utc(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn this_machine_is_described() {
        let here = Environment::read();
        assert!(here.memory_bytes.unwrap() > 1 << 20);
        assert!(here.cpus.unwrap() >= 1);
        assert_eq!(here.page_bytes, 4096);
        assert!(here.time_utc.starts_with("20") && here.time_utc.ends_with('Z'));
        assert!(!here.kernel.unwrap().contains('\n'));
        if cfg!(target_env = "gnu") {
            assert!(here.libc.unwrap().starts_with("GNU C Library ("));
        }
    }

    #[test]
    fn the_modes_chosen_word_is_bracketed() {
        assert_eq!(bracketed("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(bracketed("always"), None);
    }
}
