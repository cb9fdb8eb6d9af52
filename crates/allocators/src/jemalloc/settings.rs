//! The settings that a build of jemalloc supports, judged by its file; other settings have no
//! effect.

use std::collections::BTreeSet;

use strandline_process::image::ElfFile;

/// End of the name of the variable that a build reads its settings from (`obtain_malloc_conf` in
/// `src/jemalloc.c`, from 5.3.1 on in `src/conf.c`; the prefix given to `configure
/// --with-jemalloc-prefix`, in capitals, precedes it): `MALLOC_CONF`, Rust's `_RJEM_MALLOC_CONF`.
const VARIABLE: &str = "MALLOC_CONF";
/// A message that only builds without background threads contain; with the setting
/// `background_thread` they do not start (`src/background_thread.c`, `background_thread_boot0`: the
/// condition is constant, so other builds omit the message).
const NO_THREADS_MESSAGE: &str = "option background_thread currently supports pthread only";

/// A setting for the next start.
pub struct Setting {
    /// Environment variable that this build reads.
    pub variable: String,
    /// Value to append to the variable.
    pub value: &'static str,
    /// Its cost.
    pub cost: &'static str,
}

/// Returns the setting that makes jemalloc release free pages by itself; `None` if the variable of
/// this build is unknown.
pub fn decay_setting(image: &ElfFile) -> Option<Setting> {
    let strings = image.strings_ending(VARIABLE);
    let variable = variable_name(&strings)?.to_owned();
    let has_threads = image.strings(&[NO_THREADS_MESSAGE]).iter().all(Option::is_none);
    Some(if has_threads {
        Setting {
            variable,
            value: "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0",
            cost: "releases free pages after a second, also when idle: costs one thread, and page faults at reuse",
        }
    } else {
        Setting {
            variable,
            value: "dirty_decay_ms:0,muzzy_decay_ms:0",
            cost: "releases free pages at once: costs a system call for each run of pages, and page faults at reuse",
        }
    })
}

/// Returns the variable, given the strings of the file with its ending. `None` if there are two:
/// the file contains two builds, or names a variable that it does not read.
fn variable_name(strings: &BTreeSet<String>) -> Option<&str> {
    let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let mut names = strings.iter().filter(|string| string.bytes().all(is_name));
    match (names.next(), names.next()) {
        (Some(name), None) => Some(name),
        (Some(_), Some(_)) => None,
        // The linker merged it with the end of a message of the same build.
        (None, _) => strings.iter().any(|string| string.ends_with(" MALLOC_CONF")).then_some(VARIABLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_that_of_the_build() {
        let name_among = |strings: &[&str]| {
            let strings = strings.iter().map(|&string| string.to_owned()).collect();
            variable_name(&strings).map(str::to_owned)
        };
        let message = "value of the environment variable MALLOC_CONF";
        assert_eq!(name_among(&["MALLOC_CONF", message]).as_deref(), Some("MALLOC_CONF"));
        assert_eq!(name_among(&["_RJEM_MALLOC_CONF", message]).as_deref(), Some("_RJEM_MALLOC_CONF"));
        assert_eq!(name_among(&["JE_MALLOC_CONF"]).as_deref(), Some("JE_MALLOC_CONF"));
        assert_eq!(name_among(&[message]).as_deref(), Some("MALLOC_CONF"));
        assert_eq!(name_among(&["MALLOC_CONF", "_RJEM_MALLOC_CONF"]), None);
        assert_eq!(name_among(&["xMALLOC_CONF"]), None);
        assert_eq!(name_among(&[]), None);
    }
}
