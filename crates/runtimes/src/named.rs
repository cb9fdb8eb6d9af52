//! Runtimes that are recognised but not read yet. One that gets a reader moves to its own folder.

use std::io::Read;

use strandline_claims::reader::{
    Evidence, FileName, HeapKind, Match, ReaderInfo, StopHandlers, leading_version, version_in_file_name,
};
use strandline_process::namespaces::open_in_root;

use FileName::{Contains, Exact, Versioned};

/// Defaults for a runtime whose version, if known, is in its file names.
const VERSION_IN_FILE_NAME: ReaderInfo =
    ReaderInfo { evidence: Evidence { version: version_of_file_name, ..Evidence::NONE }, ..ReaderInfo::NONE };
const EVIDENCE: Evidence = VERSION_IN_FILE_NAME.evidence;

/// The version in the name of a file.
pub fn version_of_file_name(clue: &Match<'_>) -> Option<String> {
    version_in_file_name(clue.file)
}

/// Ruby.
pub static RUBY: ReaderInfo = ReaderInfo {
    name: "ruby",
    title: "Ruby",
    evidence: Evidence {
        files: &[Contains("libruby", ".so")],
        executables: &[Versioned("ruby")],
        symbols: &["ruby_version"],
        version: |clue| ruby_version(clue).or_else(|| version_of_file_name(clue)),
        ..EVIDENCE
    },
    heap: HeapKind::Own,
    ..VERSION_IN_FILE_NAME
};

/// Node.js. Its symbol is node::Start(int, char**).
pub static NODE: ReaderInfo = ReaderInfo {
    name: "node",
    title: "Node.js",
    evidence: Evidence {
        files: &[Contains("libnode", ".so")],
        executables: &[Versioned("node"), Versioned("nodejs")],
        symbols: &["_ZN4node5StartEiPPc"],
        version: |clue| node_version(clue).or_else(|| version_of_file_name(clue)),
        ..EVIDENCE
    },
    heap: HeapKind::OwnOnly("v8"),
    ..VERSION_IN_FILE_NAME
};

/// Bun, which has WebKit's JavaScriptCore. Its programs in one file have the section, too.
pub static BUN: ReaderInfo = ReaderInfo {
    name: "bun",
    title: "Bun (JavaScriptCore)",
    evidence: Evidence {
        executables: &[Exact("bun")],
        section: Some(".bun"),
        version: |clue| version_after(clue, "Bun/"),
        ..EVIDENCE
    },
    not_read: "JavaScriptCore",
    heap: HeapKind::Own,
    ..VERSION_IN_FILE_NAME
};

/// Deno, which has V8 without symbols; its programs in one file are named otherwise.
pub static DENO: ReaderInfo = ReaderInfo {
    name: "deno",
    title: "Deno",
    evidence: Evidence { executables: &[Exact("deno"), Exact("denort")], ..EVIDENCE },
    not_read: "V8, whose pointers are compressed here",
    heap: HeapKind::OwnOnly("v8"),
    ..VERSION_IN_FILE_NAME
};

/// Chromium, and programs made of it with Electron.
pub static CHROMIUM: ReaderInfo = ReaderInfo {
    name: "chromium",
    title: "Chromium, Electron",
    evidence: Evidence {
        executables: &[Exact("chrome"), Exact("chromium"), Exact("electron")],
        strings: &[('c', "hrome_crashpad_handler")],
        ..EVIDENCE
    },
    not_read: "V8, whose pointers are compressed here; Blink's Oilpan",
    heap: HeapKind::Own,
    ..VERSION_IN_FILE_NAME
};

/// PHP.
pub static PHP: ReaderInfo = ReaderInfo {
    name: "php",
    title: "PHP",
    evidence: Evidence {
        files: &[Contains("libphp", ".so")],
        executables: &[Versioned("php"), Versioned("php-fpm")],
        symbols: &["zend_startup"],
        ..EVIDENCE
    },
    heap: HeapKind::Own,
    ..VERSION_IN_FILE_NAME
};

/// The runtime of D.
pub static D: ReaderInfo = ReaderInfo {
    name: "d",
    title: "D",
    evidence: Evidence {
        files: &[
            Contains("libphobos2", ".so"),
            Contains("libdruntime", ".so"),
            Contains("libgphobos", ".so"),
            Contains("libgdruntime", ".so"),
        ],
        symbols: &["_d_run_main"],
        ..EVIDENCE
    },
    // druntime 2.100, core/thread/osthread.d.
    stop_handlers: StopHandlers {
        files: &[
            Contains("libphobos2", ".so"),
            Contains("libdruntime", ".so"),
            Contains("libgphobos", ".so"),
            Contains("libgdruntime", ".so"),
        ],
        symbols: &["thread_suspendHandler", "thread_resumeHandler"],
    },
    ..VERSION_IN_FILE_NAME
};

/// LuaJIT.
pub static LUAJIT: ReaderInfo = ReaderInfo {
    name: "luajit",
    title: "LuaJIT",
    evidence: Evidence { files: &[Contains("libluajit", ".so")], symbols: &["luaJIT_setmode"], ..EVIDENCE },
    heap: HeapKind::OwnOnly("luajit"),
    ..VERSION_IN_FILE_NAME
};

/// Lua.
pub static LUA: ReaderInfo = ReaderInfo {
    name: "lua",
    title: "Lua",
    evidence: Evidence { files: &[Contains("liblua", ".so")], symbols: &["lua_newstate"], ..EVIDENCE },
    part_of: Some("luajit"),
    ..VERSION_IN_FILE_NAME
};

/// Mono.
pub static MONO: ReaderInfo = ReaderInfo {
    name: "mono",
    title: "Mono",
    evidence: Evidence {
        files: &[Contains("libmonosgen", ".so")],
        executables: &[Exact("mono"), Exact("mono-sgen")],
        symbols: &["mono_jit_init"],
        strings: &[('M', "ono JIT compiler version")],
        ..EVIDENCE
    },
    heap: HeapKind::OwnOnly("mono"),
    // Mono 6.8, mono/utils/mono-threads-posix-signals.c; the functions have no global names.
    stop_handlers: StopHandlers {
        files: &[Contains("libmonosgen", ".so"), Exact("mono"), Exact("mono-sgen")],
        symbols: &["suspend_signal_handler", "restart_signal_handler"],
    },
    ..VERSION_IN_FILE_NAME
};

/// .NET. The symbols are those of single-file programs and of programs compiled ahead of time.
pub static DOTNET: ReaderInfo = ReaderInfo {
    name: "dotnet",
    title: ".NET",
    evidence: Evidence {
        files: &[Contains("libcoreclr", ".so")],
        executables: &[Exact("dotnet")],
        symbols: &["DotNetRuntimeInfo", "DotNetRuntimeDebugHeader"],
        ..EVIDENCE
    },
    heap: HeapKind::OwnOnly("dotnet"),
    ..VERSION_IN_FILE_NAME
};

/// Racket CS: Chez Scheme with additions.
pub static RACKET: ReaderInfo = ReaderInfo {
    name: "racket",
    title: "Racket",
    evidence: Evidence { symbols: &["racket_boot"], ..EVIDENCE },
    heap: HeapKind::OwnOnly("chez"),
    ..VERSION_IN_FILE_NAME
};

/// Chez Scheme.
pub static CHEZ: ReaderInfo = ReaderInfo {
    name: "chez",
    title: "Chez Scheme",
    evidence: Evidence { symbols: &["Sscheme_init"], ..EVIDENCE },
    heap: HeapKind::OwnOnly("chez"),
    part_of: Some("racket"),
    ..VERSION_IN_FILE_NAME
};

/// Erlang.
pub static ERLANG: ReaderInfo = ReaderInfo {
    name: "erlang",
    title: "Erlang",
    evidence: Evidence {
        executables: &[Contains("beam", ".smp")],
        symbols: &["erl_create_process"],
        ..EVIDENCE
    },
    heap: HeapKind::OwnOnly("erlang"),
    ..VERSION_IN_FILE_NAME
};

/// OCaml. From 5.0 on it maps its heap itself; older versions use malloc.
pub static OCAML: ReaderInfo = ReaderInfo {
    name: "ocaml",
    title: "OCaml",
    evidence: Evidence {
        files: &[Contains("libcamlrun", ".so")],
        symbols: &["caml_startup", "caml_main"],
        // An environment variable that every OCaml program reads.
        strings: &[('O', "CAMLRUNPARAM")],
        ..EVIDENCE
    },
    heap: HeapKind::Own,
    ..VERSION_IN_FILE_NAME
};

/// Programs compiled by the Glasgow Haskell Compiler.
pub static GHC: ReaderInfo = ReaderInfo {
    name: "ghc",
    title: "GHC's Haskell",
    evidence: Evidence {
        files: &[Contains("libHSrts", ".so")],
        symbols: &["hs_init_ghc"],
        // An environment variable that every such program reads.
        strings: &[('G', "HCRTS")],
        ..EVIDENCE
    },
    heap: HeapKind::OwnOnly("ghc"),
    ..VERSION_IN_FILE_NAME
};

/// Guile.
pub static GUILE: ReaderInfo = ReaderInfo {
    name: "guile",
    title: "Guile",
    evidence: Evidence { files: &[Contains("libguile", ".so")], symbols: &["scm_boot_guile"], ..EVIDENCE },
    ..VERSION_IN_FILE_NAME
};

/// R.
pub static R: ReaderInfo = ReaderInfo {
    name: "r",
    title: "R",
    evidence: Evidence { files: &[Contains("libR", ".so")], ..EVIDENCE },
    ..VERSION_IN_FILE_NAME
};

/// The JavaScript engine of Firefox.
pub static SPIDERMONKEY: ReaderInfo = ReaderInfo {
    name: "spidermonkey",
    title: "SpiderMonkey",
    evidence: Evidence { files: &[Contains("libmozjs", ".so")], ..EVIDENCE },
    heap: HeapKind::OwnOnly("spidermonkey"),
    ..VERSION_IN_FILE_NAME
};

/// Julia.
pub static JULIA: ReaderInfo = ReaderInfo {
    name: "julia",
    title: "Julia",
    evidence: Evidence { files: &[Contains("libjulia-internal", ".so")], ..EVIDENCE },
    heap: HeapKind::OwnOnly("julia"),
    ..VERSION_IN_FILE_NAME
};

/// Embeddable Common Lisp.
pub static ECL: ReaderInfo = ReaderInfo {
    name: "ecl",
    title: "ECL",
    evidence: Evidence { files: &[Contains("libecl", ".so")], ..EVIDENCE },
    ..VERSION_IN_FILE_NAME
};

/// GNU CLISP.
pub static CLISP: ReaderInfo = ReaderInfo {
    name: "clisp",
    title: "CLISP",
    evidence: Evidence { executables: &[Exact("lisp.run")], ..EVIDENCE },
    heap: HeapKind::OwnOnly("clisp"),
    ..VERSION_IN_FILE_NAME
};

/// The version in CPython's `Py_Version`, or else in the file name.
pub(crate) fn cpython_version(clue: &Match<'_>) -> Option<String> {
    python_version(clue).or_else(|| version_of_file_name(clue))
}

/// `Py_Version` of CPython 3.11 and later: PY_VERSION_HEX, 0xMMmmpprs.
fn python_version(clue: &Match<'_>) -> Option<String> {
    let image = clue.image()?;
    let of_library = || image.exported(&["Py_Version"]).first().map(|symbol| symbol.address);
    let address = clue.symbol("Py_Version").or_else(of_library)?;
    let hex = u32::from_le_bytes(image.bytes_at(address, 4)?.try_into().ok()?);
    let (major, minor, micro) = (hex >> 24, hex >> 16 & 0xff, hex >> 8 & 0xff);
    (major == 3).then(|| format!("{major}.{minor}.{micro}"))
}

/// The version in a URL compiled into node (`…/download/release/v20.11.0/…`).
fn node_version(clue: &Match<'_>) -> Option<String> {
    version_after(clue, "/download/release/v")
}

/// The version after a string in the read-only data of the executable.
fn version_after(clue: &Match<'_>, needle: &str) -> Option<String> {
    let image = clue.image().filter(|_| clue.is_executable())?;
    let text = image.strings(&[needle]).pop()??;
    leading_version(text.strip_prefix(needle)?)
}

/// The version string at the symbol `ruby_version` of the executable.
fn ruby_version(clue: &Match<'_>) -> Option<String> {
    let bytes = clue.image()?.bytes_at(clue.symbol("ruby_version")?, 16)?;
    leading_version(std::str::from_utf8(bytes.split(|&byte| byte == 0).next()?).ok()?)
}

/// The version in Go's build information, as `debug/buildinfo` reads it: 14 bytes of magic, pointer
/// size, flags. With flag 2 (Go 1.18 and later) the version is at 33, after its length in the byte
/// at 32.
pub(crate) fn go_version(bytes: &[u8]) -> Option<String> {
    if !bytes.starts_with(b"\xff Go buildinf:") || bytes.get(15)? & 2 == 0 {
        return None;
    }
    let length = usize::from(*bytes.get(32)?);
    // A first byte with the top bit set starts a longer varint: a version of 128 characters or
    // more, which is refused.
    let text = std::str::from_utf8(bytes.get(33..33 + length).filter(|_| length < 128)?).ok()?;
    leading_version(text.strip_prefix("go")?)
}

/// JAVA_VERSION of the `release` file, two folders above `lib/server/libjvm.so`.
pub fn java_version(clue: &Match<'_>) -> Option<String> {
    let library = &clue.mapping?.name;
    let library = library.strip_suffix(" (deleted)").unwrap_or(library);
    let home = library.strip_suffix("/server/libjvm.so").and_then(|lib| lib.rsplit_once('/'))?.0;
    let mut text = Vec::new();
    open_in_root(clue.process, &format!("{home}/release")).ok()?.take(8192).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    leading_version(line.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_are_read_with_care() {
        let mut bytes = b"\xff Go buildinf:\x08\x02".to_vec();
        bytes.resize(32, 0);
        bytes.extend_from_slice(b"\x08go1.22.3");
        assert_eq!(go_version(&bytes).as_deref(), Some("1.22.3"));
        bytes[32] = 200;
        assert_eq!(go_version(&bytes), None);
        assert_eq!(go_version(b"\xff Go buildinf:"), None);
    }
}
