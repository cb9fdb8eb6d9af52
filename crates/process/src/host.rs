//! The machine that processes run on.

/// Milliseconds of the clock that only goes on, by which programs keep deadlines: one for all processes but those in a time
/// namespace of their own.
pub fn monotonic_milliseconds() -> u64 {
    u64::try_from(strandline_sys::host::monotonic_time().as_millis()).unwrap_or(u64::MAX)
}

/// Whether the kernel gives transparent huge pages to anybody.
pub fn has_huge_pages() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|modes| !modes.contains("[never]"))
}
