//! /proc/PID/status, stat, cmdline and environ: no panic, and only the permitted settings are kept.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strandline_process::procfs::{Stat, Status, settings, split_command};

fuzz_target!(|text: &[u8]| {
    let status = Status::parse(text);
    let _ = (status.is_zombie(), status.deliverable_signals(), status.is_in_inner_pid_namespace());
    if let Some(stat) = Stat::parse(text) {
        let _ = stat.is_kernel_thread();
        assert!(stat.name.chars().count() <= 64);
    }
    assert!(split_command(text).last().is_none_or(|word| !word.is_empty()));
    for (name, value) in settings::parse(text) {
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
        assert!(value.len() <= 512 && value.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    }
});
