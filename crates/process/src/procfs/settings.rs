//! The memory-related settings in a target's environment, and nothing else from it.
//!
//! An environment contains passwords and tokens. Only the variables named here are kept. From free
//! text for a runtime (`JAVA_TOOL_OPTIONS`, `NODE_OPTIONS`, …) only words that set memory are kept.
//! Every value is truncated and restricted to printable characters. /proc/PID/environ is the
//! environment at the start of the program: later changes by `setenv` are not visible.

use std::collections::BTreeMap;

/// Maximum length of a name, with the equals sign; those that are kept are shorter.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of characters kept of a value.
const MAX_VALUE_CHARACTERS: usize = 512;
/// Maximum number of settings kept of a process: a target may start with a million.
const MAX_SETTINGS: usize = 128;

/// Variables kept unchanged.
const NAMES: &[&str] = &[
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "MALLOC_CONF",
    "_RJEM_MALLOC_CONF",
    "PYTHONMALLOC",
    "PYTHONMALLOCSTATS",
    "GOGC",
    "GOMEMLIMIT",
    "GODEBUG",
    "GOMAXPROCS",
    "PERL_DESTRUCT_LEVEL",
    "PERL_HASH_SEED",
    "PERL_PERTURB_KEYS",
    "SCUDO_OPTIONS",
    "USE_ZEND_ALLOC",
    "USE_ZEND_ALLOC_HUGE_PAGES",
    "UV_THREADPOOL_SIZE",
];

/// Prefixes of the names of variables kept unchanged.
const FAMILIES: &[&str] =
    &["MALLOC_", "TCMALLOC_", "MIMALLOC_", "RUBY_GC_", "DOTNET_GC", "DOTNET_gc", "COMPlus_GC", "COMPlus_gc"];

/// Variables that contain a command line for a runtime: only words that set memory are kept.
const COMMAND_LINES: &[&str] = &["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "NODE_OPTIONS"];

/// Prefixes of words that set memory: the JVM's heap and stack sizes, V8's spaces.
const MEMORY_WORDS: &[&str] = &[
    "-Xmx",
    "-Xms",
    "-Xmn",
    "-Xss",
    "--max-old-space-size=",
    "--max_old_space_size=",
    "--max-semi-space-size=",
    "--max_semi_space_size=",
    "--min-semi-space-size=",
    "--initial-old-space-size=",
    "--max-heap-size=",
    "--stack-size=",
    "--stack_size=",
    "--expose-gc",
    "--expose_gc",
    "--optimize-for-size",
    "--optimize_for_size",
    "--gc-interval=",
    "--gc_interval=",
];

/// Parts of `-XX:` option names that mark the option as about memory. Others may contain paths and
/// commands (`-XX:OnOutOfMemoryError=…`) and are dropped.
const MEMORY_OPTIONS: &[&str] =
    &["Heap", "Size", "GC", "Metaspace", "RAM", "Ratio", "LargePages", "HugePages", "PreTouch", "Periodic"];

/// The settings in the text of /proc/PID/environ, by name.
pub fn parse(text: &[u8]) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for variable in text.split(|&byte| byte == 0) {
        if settings.len() >= MAX_SETTINGS {
            break;
        }
        if let Some((name, value)) = kept_setting(variable) {
            // getenv finds the first of two variables with the same name.
            settings.entry(name).or_insert(value);
        }
    }
    settings
}

/// The name and the kept part of the value of a variable; `None` if it is not kept.
fn kept_setting(variable: &[u8]) -> Option<(String, String)> {
    let equals = variable.iter().take(MAX_NAME_BYTES).position(|&byte| byte == b'=')?;
    let name = std::str::from_utf8(&variable[..equals]).ok()?;
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return None;
    }
    let value = printable(&variable[equals + 1..]);
    if COMMAND_LINES.contains(&name) {
        let words: Vec<&str> = value.split_whitespace().filter(|word| sets_memory(word)).collect();
        return (!words.is_empty()).then(|| (name.to_owned(), words.join(" ")));
    }
    let is_kept = NAMES.contains(&name) || FAMILIES.iter().any(|family| name.starts_with(family));
    is_kept.then(|| (name.to_owned(), value))
}

/// The first characters of a value, with `?` for those that are not printable ASCII.
fn printable(value: &[u8]) -> String {
    value
        .iter()
        .take(MAX_VALUE_CHARACTERS)
        .map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' })
        .collect()
}

/// `name=value` to paste into a shell, with `value` appended to the `old_value`. One that
/// was truncated, or contains characters special to a shell, is left out.
pub fn joined(name: &str, old_value: Option<&str>, value: &str, separator: char) -> String {
    let is_plain = |value: &&str| {
        !value.is_empty()
            && value.len() < MAX_VALUE_CHARACTERS
            && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:,=-".contains(&byte))
    };
    match old_value.filter(is_plain) {
        Some(old_value) => format!("{name}={old_value}{separator}{value}"),
        None => format!("{name}={value}"),
    }
}

/// Whether a word of a runtime's command line sets memory and has a plain value.
fn sets_memory(word: &str) -> bool {
    if !word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_+:=.%".contains(&byte)) {
        return false;
    }
    if MEMORY_WORDS.iter().any(|start| word.starts_with(start)) {
        return true;
    }
    let Some(option) = word.strip_prefix("-XX:") else { return false };
    let (name, value) = option.split_once('=').unwrap_or((option, "0"));
    let is_plain = value.starts_with(|c: char| c.is_ascii_digit())
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    is_plain && MEMORY_OPTIONS.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_is_appended_to_a_valid_old_one() {
        let appended_to = |old| joined("MALLOC_CONF", old, "muzzy_decay_ms:0", ',');
        assert_eq!(appended_to(Some("narenas:2")), "MALLOC_CONF=narenas:2,muzzy_decay_ms:0");
        for old in
            [None, Some(""), Some("$(id)"), Some("a b"), Some("x".repeat(MAX_VALUE_CHARACTERS).as_str())]
        {
            assert_eq!(appended_to(old), "MALLOC_CONF=muzzy_decay_ms:0", "{old:?}");
        }
    }

    #[test]
    fn only_memory_settings_are_kept() {
        let text = b"HOME=/root\0AWS_SECRET_ACCESS_KEY=abc\0MALLOC_ARENA_MAX=2\0GLIBC_TUNABLES=glibc.malloc.hugetlb=1\0\
            MALLOC_ARENA_MAX=3\0LD_PRELOAD=/usr/lib/libjemalloc.so.2\0GOGC=50\0RUBY_GC_HEAP_GROWTH_FACTOR=1.1\0\
            MALLOC=no\0MALLOCX=no\0PASSWORD_MALLOC_=x\0=\0\0GOPROXY=https://user:secret@host";
        let settings = parse(text);
        let names: Vec<&str> = settings.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["GLIBC_TUNABLES", "GOGC", "LD_PRELOAD", "MALLOC_ARENA_MAX", "RUBY_GC_HEAP_GROWTH_FACTOR"]
        );
        assert_eq!(settings["MALLOC_ARENA_MAX"], "2", "getenv finds the first");
    }

    #[test]
    fn command_lines_keep_only_memory_options() {
        let text = b"JAVA_TOOL_OPTIONS=-Xmx2g -Dpassword=secret -XX:MaxRAMPercentage=75.0 -XX:+UseG1GC \
            -XX:OnOutOfMemoryError=kill -XX:HeapDumpPath=/secret/place -javaagent:/x\0\
            NODE_OPTIONS=--max-old-space-size=512 --require /home/me/token.js\0_JAVA_OPTIONS=-Dtoken=1\0";
        let settings = parse(text);
        assert_eq!(settings["JAVA_TOOL_OPTIONS"], "-Xmx2g -XX:MaxRAMPercentage=75.0 -XX:+UseG1GC");
        assert_eq!(settings["NODE_OPTIONS"], "--max-old-space-size=512");
        assert!(!settings.contains_key("_JAVA_OPTIONS"));
    }

    #[test]
    fn values_are_cut_and_printable() {
        let long = [b"MALLOC_CONF=".as_slice(), &[0x1b; 5000]].concat();
        let value = parse(&long).remove("MALLOC_CONF").unwrap();
        assert_eq!(value.len(), MAX_VALUE_CHARACTERS);
        assert!(value.bytes().all(|byte| byte == b'?'));
        let many: Vec<u8> = (0..1000).flat_map(|n| format!("MALLOC_X{n}=1\0").into_bytes()).collect();
        assert_eq!(parse(&many).len(), MAX_SETTINGS);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..2000)) {
            parse(&text);
        }

        #[test]
        fn other_names_never_pass(name in "[A-Z]{1,4}_[A-Z]{1,9}", value in "[ -~]{0,40}") {
            let known = NAMES.contains(&name.as_str())
                || COMMAND_LINES.contains(&name.as_str())
                || FAMILIES.iter().any(|family| name.starts_with(family));
            let settings = parse(format!("{name}={value}\0").as_bytes());
            prop_assert!(known || settings.is_empty());
        }
    }
}
