//! STUB, may be replaced: the machine that a result was measured on. Reads a few small files of /proc
//! and /sys, and never fails: what cannot be read is `None`.

use serde::{Deserialize, Serialize};

/// The machine that a result was measured on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The kernel's release: `6.18.0`.
    pub kernel: Option<String>,
    /// The processor's architecture: `x86_64`.
    pub machine: String,
    /// Processors this process may use.
    pub cpus: Option<u64>,
    /// The machine's memory.
    pub memory_bytes: Option<u64>,
    /// The page size.
    pub page_bytes: u64,
    /// The mode of transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// The C library that strandline itself runs on.
    pub libc: Option<String>,
    /// When the look was made, RFC 3339, in UTC.
    pub time_utc: String,
}

impl Environment {
    /// Reads the machine's facts.
    pub fn read() -> Self {
        let line = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let memory = line("/proc/meminfo").and_then(|text| {
            let kib: u64 = text.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok()?;
            kib.checked_mul(1024)
        });
        let thp = line("/sys/kernel/mm/transparent_hugepage/enabled").and_then(|text| {
            let (_, rest) = text.split_once('[')?;
            Some(rest.split_once(']')?.0.to_owned())
        });
        Self {
            kernel: line("/proc/sys/kernel/osrelease"),
            machine: std::env::consts::ARCH.to_owned(),
            cpus: std::thread::available_parallelism().ok().map(|n| n.get() as u64),
            memory_bytes: memory,
            page_bytes: strandline_sys::host::page_bytes(),
            thp,
            libc: None,
            time_utc: rfc3339(
                std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |elapsed| elapsed.as_secs()),
            ),
        }
    }
}

/// `seconds` since 1970 as `2026-11-21T08:00:00Z`. The calendar is Howard Hinnant's `civil_from_days`.
fn rfc3339(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_calendar_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_795_251_599), "2026-11-21T08:59:59Z");
    }

    #[test]
    fn the_machine_is_read() {
        let environment = Environment::read();
        assert_eq!(environment.machine, "x86_64");
        assert_eq!(environment.page_bytes, 4096);
        assert!(environment.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }
}
