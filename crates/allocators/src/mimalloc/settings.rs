//! The settings that a build of mimalloc supports, judged by its file: options were renamed between
//! releases, and unknown names are silently ignored.

use strandline_process::image::ElfFile;

/// The option for how long free pages are kept, by release (`src/options.c`, `mi_options`: the
/// variable is `MIMALLOC_` and the name in capitals): from 1.8.2 and 2.1.2 on, and of 2.0 to 2.1.1.
/// Each ignores the other's name. Older releases have no option with that effect.
const DELAYS: [(&str, &str); 2] =
    [("purge_delay", "MIMALLOC_PURGE_DELAY=0"), ("decommit_delay", "MIMALLOC_DECOMMIT_DELAY=0")];

/// Returns the setting that makes mimalloc release free pages at once; `None` if this build has
/// none.
pub fn purge_setting(image: &ElfFile) -> Option<&'static str> {
    let has_option = |option: &str| {
        let strings = image.strings_ending(option);
        // In 2.0 to 2.1.1 the linker merges it with the end of `segment_decommit_delay`.
        strings.iter().any(|string| string.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
    };
    DELAYS.iter().find(|(option, _)| has_option(option)).map(|(_, setting)| *setting)
}
