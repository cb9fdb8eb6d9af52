//! The settings that a build of jemalloc heeds, by what its file holds: what another build heeds has no effect on it.

use std::collections::BTreeSet;

use strandline_process::image::Image;

/// How the variable ends that a build reads its settings from (`src/jemalloc.c`, `obtain_malloc_conf`: the prefix given to
/// `configure --with-jemalloc-prefix`, in capitals, stands before it): `MALLOC_CONF`, Rust's `_RJEM_MALLOC_CONF`.
const VARIABLE: &str = "MALLOC_CONF";
/// A build without background threads has this message, and starts with them no more (`src/background_thread.c`,
/// `background_thread_boot0`: the condition is constant, so that others do not have it).
const NO_THREADS: &str = "option background_thread currently supports pthread only";

/// A setting for the next start.
pub struct Setting {
    /// The variable that this build reads.
    pub variable: String,
    /// What to put there, behind what stands there.
    pub value: &'static str,
    /// What it costs.
    pub cost: &'static str,
}

/// The setting by which free pages go back by themselves; `None` where the variable of this build is not known.
pub fn decay(image: &Image) -> Option<Setting> {
    let strings = image.strings_ending(VARIABLE);
    let variable = variable(&strings)?.to_owned();
    let has_threads = image.strings(&[NO_THREADS]).iter().all(Option::is_none);
    Some(if has_threads {
        Setting {
            variable,
            value: "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0",
            cost: "free pages go back a second after they were freed, idle or not: a thread for it, and faults where they are \
                   wanted again",
        }
    } else {
        Setting {
            variable,
            value: "dirty_decay_ms:0,muzzy_decay_ms:0",
            cost: "free pages go back at once: a call of the kernel for each run of them, and faults where they are wanted again",
        }
    })
}

/// The variable, by the strings of the file that end as it does. A file with two of them holds two builds, or names a variable
/// that its own does not read: then it is not known.
fn variable(strings: &BTreeSet<String>) -> Option<&str> {
    let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let mut names = strings.iter().filter(|string| string.bytes().all(is_name));
    match (names.next(), names.next()) {
        (Some(name), None) => Some(name),
        (Some(_), Some(_)) => None,
        // The linker let it stand for the end of a message of the same build.
        (None, _) => strings.iter().any(|string| string.ends_with(" MALLOC_CONF")).then_some(VARIABLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_that_of_the_build() {
        let of = |strings: &[&str]| {
            let strings = strings.iter().map(|&string| string.to_owned()).collect();
            variable(&strings).map(str::to_owned)
        };
        let message = "value of the environment variable MALLOC_CONF";
        assert_eq!(of(&["MALLOC_CONF", message]).as_deref(), Some("MALLOC_CONF"));
        assert_eq!(of(&["_RJEM_MALLOC_CONF", message]).as_deref(), Some("_RJEM_MALLOC_CONF"));
        assert_eq!(of(&["JE_MALLOC_CONF"]).as_deref(), Some("JE_MALLOC_CONF"));
        assert_eq!(of(&[message]).as_deref(), Some("MALLOC_CONF"));
        assert_eq!(of(&["MALLOC_CONF", "_RJEM_MALLOC_CONF"]), None);
        assert_eq!(of(&["xMALLOC_CONF"]), None);
        assert_eq!(of(&[]), None);
    }
}
