//! The names by which allocators and runtimes are told, as data.

/// Files whose names begin with `prefix` and go on as `rest` says belong to `name`.
pub(super) struct Rule {
    pub(super) prefix: &'static str,
    pub(super) rest: Rest,
    pub(super) name: &'static str,
}

/// How a file's name goes on.
pub(super) enum Rest {
    /// With something that contains this.
    Has(&'static str),
    /// With a version, or with nothing (`python3.11`, not `python-helper`).
    Version,
    /// With nothing.
    Nothing,
}

const fn rule(prefix: &'static str, part: &'static str, name: &'static str) -> Rule {
    Rule { prefix, rest: Rest::Has(part), name }
}

const fn versioned(prefix: &'static str, name: &'static str) -> Rule {
    Rule { prefix, rest: Rest::Version, name }
}

const fn exact(file: &'static str, name: &'static str) -> Rule {
    Rule { prefix: file, rest: Rest::Nothing, name }
}

/// Whether a file's name is one of the rule's.
pub(super) fn matches(rule: &Rule, file: &str) -> bool {
    file.strip_prefix(rule.prefix).is_some_and(|rest| match rule.rest {
        Rest::Has(part) => rest.contains(part),
        Rest::Version => rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'),
        Rest::Nothing => rest.is_empty(),
    })
}

/// Shared objects of allocators.
pub(super) const ALLOCATOR_FILES: &[Rule] = &[
    rule("libjemalloc", ".so", "jemalloc"),
    rule("libtcmalloc", ".so", "tcmalloc"),
    rule("libmimalloc", ".so", "mimalloc"),
    rule("ld-musl-", ".so", "musl"),
    rule("libc.musl-", ".so", "musl"),
    // Debian's; glibc's own file is libc.so.6.
    exact("libc.so", "musl"),
    // Boehm's collector; libgcc_s.so is another matter.
    versioned("libgc.so.", "bdwgc"),
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
    rule("libjulia-internal", ".so", "julia"),
    rule("libecl", ".so", "ecl"),
    rule("libcamlrun", ".so", "ocaml"),
    rule("libHSrts", ".so", "ghc"),
    rule("sbcl", ".core", "sbcl"),
];

/// Executables, for those that define no telling symbol.
pub(super) const EXECUTABLES: &[Rule] = &[
    versioned("python", "cpython"),
    versioned("perl", "perl"),
    versioned("ruby", "ruby"),
    versioned("node", "node"),
    versioned("nodejs", "node"),
    versioned("php", "php"),
    versioned("php-fpm", "php"),
    versioned("sbcl", "sbcl"),
    rule("beam", ".smp", "erlang"),
    exact("mono", "mono"),
    exact("mono-sgen", "mono"),
    exact("dotnet", "dotnet"),
    exact("lisp.run", "clisp"),
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
    ("GC_malloc_kind", "bdwgc"),
    // GCC's collector, in its compilers proper, which define it for plugins: ggc_collect(enum ggc_collect) from GCC 12
    // on, ggc_collect() before.
    ("_Z11ggc_collect11ggc_collect", "ggc"),
    ("_Z11ggc_collectv", "ggc"),
    // Chromium's, which is malloc for all of it.
    ("ChromeMain", "partition_alloc"),
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
    ("luaJIT_setmode", "luajit"),
    ("lua_newstate", "lua"),
    ("mono_jit_init", "mono"),
    // Programs in one file, and those compiled ahead of time.
    ("DotNetRuntimeInfo", "dotnet"),
    ("DotNetRuntimeDebugHeader", "dotnet"),
    // Racket CS is a Chez Scheme with more around it.
    ("racket_boot", "racket"),
    ("Sscheme_init", "chez"),
    ("erl_create_process", "erlang"),
    ("caml_startup", "ocaml"),
    ("caml_main", "ocaml"),
    ("hs_init_ghc", "ghc"),
    ("scm_boot_guile", "guile"),
];

/// Of two runtimes that are found together, the one that the other is a part of.
pub(super) const PARTS: &[(&str, &str)] = &[("v8", "node"), ("lua", "luajit"), ("chez", "racket")];

/// All symbols of the tables, and the one that holds CPython's version.
pub(super) fn symbols() -> Vec<&'static str> {
    let known = ALLOCATOR_SYMBOLS.iter().chain(RUNTIME_SYMBOLS).map(|(symbol, _)| *symbol);
    known.chain(["Py_Version"]).collect()
}

/// How the messages begin that an allocator linked in and stripped leaves in the read-only data, and
/// the allocator. The first letter stands apart: a program that has this table must not be taken
/// for one that has the allocators.
pub(super) const ALLOCATOR_STRINGS: &[(char, &str, &str)] = &[
    ('<', "jemalloc>: Error in ", "jemalloc"),
    ('t', "cmalloc: large alloc ", "tcmalloc"),
    ('m', "imalloc: error: ", "mimalloc"),
    ('m', "imalloc: warning: ", "mimalloc"),
];

/// The same for runtimes: names of their settings in the environment, which every program with them asks for.
pub(super) const RUNTIME_STRINGS: &[(char, &str, &str)] =
    &[('O', "CAMLRUNPARAM", "ocaml"), ('G', "HCRTS", "ghc"), ('M', "ono JIT compiler version", "mono")];

/// Runtimes that map memory for their objects, beside malloc's or instead of it. Where nothing else of theirs goes
/// through malloc, their heap has a name among allocators.
pub(super) const OWN_HEAPS: &[(&str, Option<&str>)] = &[
    ("go", Some("go")),
    ("jvm", Some("jvm")),
    ("node", Some("v8")),
    ("v8", Some("v8")),
    ("sbcl", Some("sbcl")),
    ("dotnet", Some("dotnet")),
    ("mono", Some("mono")),
    ("erlang", Some("erlang")),
    ("racket", Some("chez")),
    ("chez", Some("chez")),
    ("luajit", Some("luajit")),
    ("ghc", Some("ghc")),
    ("julia", Some("julia")),
    ("clisp", Some("clisp")),
    ("spidermonkey", Some("spidermonkey")),
    ("cpython", None),
    ("ruby", None),
    ("php", None),
    // From 5.0 on; before, its heap was malloc's.
    ("ocaml", None),
];

/// Whether a runtime keeps objects in memory of its own.
pub(crate) fn has_own_heap(runtime: &str) -> bool {
    OWN_HEAPS.iter().any(|(name, _)| *name == runtime)
}

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
        assert!(matches(&versioned("python", "cpython"), "python3.11"));
        assert!(!matches(&versioned("python", "cpython"), "python-helper"));
        assert!(matches(&rule("libtcmalloc", ".so", "tcmalloc"), "libtcmalloc_minimal.so.4"));
    }

    #[test]
    fn files_of_like_names_are_told_apart() {
        let allocator = |file| ALLOCATOR_FILES.iter().find(|rule| matches(rule, file)).map(|rule| rule.name);
        assert_eq!(allocator("libc.so"), Some("musl"));
        assert_eq!(allocator("libc.so.6"), None);
        assert_eq!(allocator("libgc.so.1.5.1"), Some("bdwgc"));
        assert_eq!(allocator("libgcc_s.so.1"), None);
    }

    #[test]
    fn who_is_a_part_of_another_is_known_itself() {
        for name in PARTS.iter().flat_map(|(part, whole)| [part, whole]) {
            assert!(RUNTIME_SYMBOLS.iter().any(|(_, known)| known == name), "{name}");
        }
    }
}
