//! The settings that a build of mimalloc supports, judged by its file: options were renamed between
//! releases, and unknown names are silently ignored.

use strandline_process::image::ElfFile;

/// An option for how long free pages are kept.
struct DelayOption {
    /// Its name in the file (`src/options.c`, `mi_options`).
    name: &'static str,
    /// The setting with which free pages are not kept: the variable is `MIMALLOC_` and the name in
    /// capitals.
    setting: &'static str,
}

/// The option from 1.8.2 and 2.1.2 on, and that of 2.0 to 2.1.1; each release ignores the other
/// name. Older releases have no option with that effect.
const DELAYS: [DelayOption; 2] = [
    DelayOption { name: "purge_delay", setting: "MIMALLOC_PURGE_DELAY=0" },
    DelayOption { name: "decommit_delay", setting: "MIMALLOC_DECOMMIT_DELAY=0" },
];

/// Returns the setting that makes mimalloc release free pages at once; `None` if this build has
/// none.
pub fn purge_setting(image: &ElfFile) -> Option<&'static str> {
    let has_option = |option: &&DelayOption| {
        let strings = image.strings_ending(option.name);
        // In 2.0 to 2.1.1 the linker merges it with the end of `segment_decommit_delay`.
        strings.iter().any(|string| string.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
    };
    DELAYS.iter().find(has_option).map(|option| option.setting)
}
