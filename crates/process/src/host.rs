//! The machine that processes run on.

/// CLOCK_MONOTONIC in milliseconds, which programs use for deadlines; the same for all processes
/// outside time namespaces.
pub fn monotonic_milliseconds() -> u64 {
    u64::try_from(strandline_sys::host::monotonic_time().as_millis()).unwrap_or(u64::MAX)
}

/// Whether transparent huge pages are enabled at all. A kernel without them lacks the file.
pub fn has_huge_pages() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|modes| !modes.contains("[never]"))
}
