//! The settings that a build of mimalloc supports, judged by its file: options were renamed between
//! releases, and unknown names are silently ignored.

use strandline_process::image::ElfFile;

/// An option for how long free pages are kept.
struct DelayOption {
    /// Name of an option by which the file shows that it has this one (`src/options.c`, `options`,
    /// in 3.x `mi_options`).
    marker: &'static str,
    /// The setting with which free pages are not kept.
    setting: &'static str,
}

/// The option from 1.8.2 and 2.1.2 on, that of 2.0.4 to 2.1.1, and that of 2.0 to 2.0.3: the first
/// one whose marker is in the file. Older releases have no option with that effect.
const DELAYS: [DelayOption; 3] = [
    DelayOption { marker: "purge_delay", setting: "MIMALLOC_PURGE_DELAY=0" },
    DelayOption { marker: "decommit_extend_delay", setting: "MIMALLOC_DECOMMIT_DELAY=0" },
    DelayOption { marker: "segment_decommit_delay", setting: "MIMALLOC_RESET_DELAY=0" },
];

/// Returns the setting that makes mimalloc release free pages at once; `None` if this build has
/// none.
pub fn purge_setting(image: &ElfFile) -> Option<&'static str> {
    let has_option = |option: &&DelayOption| {
        let strings = image.strings_ending(option.marker);
        // Only names consist of such letters; the linker may merge one with the end of another.
        strings.iter().any(|string| string.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
    };
    DELAYS.iter().find(has_option).map(|option| option.setting)
}
