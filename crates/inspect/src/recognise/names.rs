//! The names by which allocators and runtimes are told, as data.

/// Files whose names begin with `prefix` and contain `part` belong to `name`.
pub(super) struct Rule {
    pub(super) prefix: &'static str,
    pub(super) part: &'static str,
    pub(super) name: &'static str,
}

const fn rule(prefix: &'static str, part: &'static str, name: &'static str) -> Rule {
    Rule { prefix, part, name }
}

/// Whether a file's name is one of the rule's. A rule without a part asks that after its prefix only
/// a version follows (`python3.11`, not `python-helper`).
pub(super) fn matches(rule: &Rule, file: &str) -> bool {
    file.strip_prefix(rule.prefix).is_some_and(|rest| match rule.part {
        "" => rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'),
        part => rest.contains(part),
    })
}

/// Shared objects of allocators.
pub(super) const ALLOCATOR_FILES: &[Rule] = &[
    rule("libjemalloc", ".so", "jemalloc"),
    rule("libtcmalloc", ".so", "tcmalloc"),
    rule("libmimalloc", ".so", "mimalloc"),
    rule("ld-musl-", ".so", "musl"),
    rule("libc.musl-", ".so", "musl"),
    rule("libsnmalloc", ".so", "snmalloc"),
    rule("librpmalloc", ".so", "rpmalloc"),
    rule("libhoard", ".so", "hoard"),
    rule("libscudo", ".so", "scudo"),
    rule("libclang_rt.scudo", ".so", "scudo"),
    rule("libhardened_malloc", ".so", "hardened_malloc"),
    rule("libasan", ".so", "asan"),
    rule("libclang_rt.asan", ".so", "asan"),
];

/// Shared objects of runtimes.
pub(super) const RUNTIME_FILES: &[Rule] = &[
    rule("libpython", ".so", "cpython"),
    rule("libperl", ".so", "perl"),
    rule("libruby", ".so", "ruby"),
    rule("libphp", ".so", "php"),
    rule("libjvm", ".so", "jvm"),
    rule("libnode", ".so", "node"),
    rule("libcoreclr", ".so", "dotnet"),
    rule("libmonosgen", ".so", "mono"),
    rule("libluajit", ".so", "luajit"),
    rule("liblua", ".so", "lua"),
    rule("libguile", ".so", "guile"),
    rule("libphobos2", ".so", "d"),
    rule("libdruntime", ".so", "d"),
    rule("libgphobos", ".so", "d"),
    rule("libgdruntime", ".so", "d"),
    rule("libR", ".so", "r"),
    rule("libmozjs", ".so", "spidermonkey"),
    rule("sbcl", ".core", "sbcl"),
];

/// Executables, for those that define no telling symbol.
pub(super) const EXECUTABLES: &[Rule] = &[
    rule("python", "", "cpython"),
    rule("perl", "", "perl"),
    rule("ruby", "", "ruby"),
    rule("node", "", "node"),
    rule("nodejs", "", "node"),
    rule("php", "", "php"),
    rule("php-fpm", "", "php"),
    rule("sbcl", "", "sbcl"),
    rule("beam", ".smp", "erlang"),
];

/// Symbols that only a file with the allocator inside defines.
pub(super) const ALLOCATOR_SYMBOLS: &[(&str, &str)] = &[
    ("mallctl", "jemalloc"),
    ("je_mallctl", "jemalloc"),
    ("je_malloc_usable_size", "jemalloc"),
    ("_rjem_mallctl", "jemalloc"),
    ("_rjem_malloc", "jemalloc"),
    ("tc_malloc", "tcmalloc"),
    ("TCMallocInternalMalloc", "tcmalloc"),
    ("mi_malloc", "mimalloc"),
    ("mi_heap_malloc", "mimalloc"),
    ("sn_malloc", "snmalloc"),
    ("__asan_init", "asan"),
];

/// Symbols that only a file with the runtime inside defines.
pub(super) const RUNTIME_SYMBOLS: &[(&str, &str)] = &[
    ("_PyRuntime", "cpython"),
    ("PL_thr_key", "perl"),
    ("perl_alloc", "perl"),
    ("ruby_version", "ruby"),
    // v8::V8::GetVersion() and node::Start(int, char**).
    ("_ZN4node5StartEiPPc", "node"),
    ("_ZN2v82V810GetVersionEv", "v8"),
    ("zend_startup", "php"),
    ("gc_and_save", "sbcl"),
    ("JNI_CreateJavaVM", "jvm"),
    ("_d_run_main", "d"),
    ("lua_newstate", "lua"),
];

/// All of the above, and what holds CPython's version.
pub(super) const SYMBOLS: &[&str] = &[
    "mallctl",
    "je_mallctl",
    "je_malloc_usable_size",
    "_rjem_mallctl",
    "_rjem_malloc",
    "tc_malloc",
    "TCMallocInternalMalloc",
    "mi_malloc",
    "mi_heap_malloc",
    "sn_malloc",
    "__asan_init",
    "_PyRuntime",
    "PL_thr_key",
    "perl_alloc",
    "ruby_version",
    "_ZN4node5StartEiPPc",
    "_ZN2v82V810GetVersionEv",
    "zend_startup",
    "gc_and_save",
    "JNI_CreateJavaVM",
    "_d_run_main",
    "lua_newstate",
    "Py_Version",
];

/// How the messages begin that an allocator linked in and stripped leaves in the read-only data, and
/// the allocator. The first letter stands apart: a program that has this table must not be taken
/// for one that has the allocators.
pub(super) const ALLOCATOR_STRINGS: &[(char, &str, &str)] = &[
    ('<', "jemalloc>: Error in ", "jemalloc"),
    ('t', "cmalloc: large alloc ", "tcmalloc"),
    ('m', "imalloc: error: ", "mimalloc"),
    ('m', "imalloc: warning: ", "mimalloc"),
];

/// Runtimes that allocate for themselves, with the name their heap goes by among allocators.
pub(super) const OWN_HEAPS: &[(&str, &str)] =
    &[("go", "go"), ("jvm", "jvm"), ("node", "v8"), ("v8", "v8"), ("sbcl", "sbcl"), ("dotnet", "dotnet")];

/// The version that `text` opens with (`3.11.2`), at most 24 characters; `None` where there is none.
pub(super) fn leading_version(text: &str) -> Option<String> {
    let version: String = text.chars().take(24).take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let version = version.trim_end_matches('.');
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

/// The version in the name of a library or an executable: `libpython3.11.so.1.0` is 3.11,
/// `libperl.so.5.36` is 5.36, `python3` is 3; `None` where there is none.
pub(super) fn version_in_file_name(file: &str) -> Option<String> {
    let (stem, tail) = file.split_once(".so").unwrap_or((file, ""));
    let digit = stem.find(|c: char| c.is_ascii_digit());
    let in_stem = digit.and_then(|digit| leading_version(&stem[digit..]));
    in_stem.filter(|version| version.contains('.') || tail.is_empty()).or_else(|| {
        let version = leading_version(tail.strip_prefix('.')?)?;
        // A lone number is the library's interface version, not its release.
        version.contains('.').then_some(version)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_versions_or_not() {
        assert_eq!(version_in_file_name("libpython3.11.so.1.0").as_deref(), Some("3.11"));
        assert_eq!(version_in_file_name("libperl.so.5.36.0").as_deref(), Some("5.36.0"));
        assert_eq!(version_in_file_name("libruby-3.1.so.3.1.2").as_deref(), Some("3.1"));
        assert_eq!(version_in_file_name("python3").as_deref(), Some("3"));
        assert_eq!(version_in_file_name("libjemalloc.so.2"), None);
        assert_eq!(version_in_file_name("libmimalloc.so.2.0").as_deref(), Some("2.0"));
        assert_eq!(version_in_file_name("node"), None);
    }

    #[test]
    fn a_prefix_alone_is_no_match() {
        assert!(matches(&rule("python", "", "cpython"), "python3.11"));
        assert!(!matches(&rule("python", "", "cpython"), "python-helper"));
        assert!(matches(&rule("libtcmalloc", ".so", "tcmalloc"), "libtcmalloc_minimal.so.4"));
    }

    #[test]
    fn every_symbol_of_the_tables_is_asked_for() {
        for (symbol, _) in ALLOCATOR_SYMBOLS.iter().chain(RUNTIME_SYMBOLS) {
            assert!(SYMBOLS.contains(symbol), "{symbol}");
        }
    }
}
