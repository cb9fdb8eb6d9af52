//! Runtimes that are recognised but not read yet: one that gets a reader moves to its own folder.
//! How the versions of CPython, Go and Java are read from their files is here, too.

use std::io::Read;

use strandline_claims::reader::{
    FileName, HeapKind, Match, ReaderInfo, StopHandlers, leading_version, version_in_file_name,
};
use strandline_process::namespaces::open_in_root;

use FileName::{Contains, Exact, Versioned};

/// The version in the name of a file; `None` if it contains none.
pub fn version_of_file_name(clue: &Match<'_>) -> Option<String> {
    version_in_file_name(clue.file)
}

/// A runtime whose version is taken from its file names, where they contain one.
const fn named(name: &'static str, title: &'static str, heap: HeapKind) -> ReaderInfo {
    ReaderInfo::named(name, title).heap(heap).version(version_of_file_name)
}

/// Ruby.
pub static RUBY: ReaderInfo = named("ruby", "Ruby", HeapKind::Own)
    .files(&[Contains("libruby", ".so")])
    .executables(&[Versioned("ruby")])
    .symbols(&["ruby_version"])
    .version(|clue| ruby_version(clue).or_else(|| version_of_file_name(clue)));

/// Node.js. Its symbol is node::Start(int, char**).
pub static NODE: ReaderInfo = named("node", "Node.js", HeapKind::OwnOnly("v8"))
    .files(&[Contains("libnode", ".so")])
    .executables(&[Versioned("node"), Versioned("nodejs")])
    .symbols(&["_ZN4node5StartEiPPc"])
    .version(|clue| node_version(clue).or_else(|| version_of_file_name(clue)));

/// Bun, which contains WebKit's JavaScriptCore. Programs that it compiles to one file have a
/// section `.bun`.
pub static BUN: ReaderInfo = named("bun", "Bun (JavaScriptCore)", HeapKind::Own)
    .executables(&[Exact("bun")])
    .section(Some(".bun"))
    .version(|clue| version_after(clue, "Bun/"))
    .not_read("JavaScriptCore");

/// Deno, which contains V8 without symbols. A program that it compiles to one file is recognised
/// only if it keeps the name of its runtime (`denort`).
pub static DENO: ReaderInfo = named("deno", "Deno", HeapKind::OwnOnly("v8"))
    .executables(&[Exact("deno"), Exact("denort")])
    .not_read("V8, whose pointers are compressed here");

/// Chromium, and programs made of it with Electron.
pub static CHROMIUM: ReaderInfo = named("chromium", "Chromium, Electron", HeapKind::Own)
    .executables(&[Exact("chrome"), Exact("chromium"), Exact("electron")])
    .strings(&[('c', "hrome_crashpad_handler")])
    .not_read("V8, whose pointers are compressed here; Blink's Oilpan");

/// PHP.
pub static PHP: ReaderInfo = named("php", "PHP", HeapKind::Own)
    .files(&[Contains("libphp", ".so")])
    .executables(&[Versioned("php"), Versioned("php-fpm")])
    .symbols(&["zend_startup"]);

const D_FILES: &[FileName] = &[
    Contains("libphobos2", ".so"),
    Contains("libdruntime", ".so"),
    Contains("libgphobos", ".so"),
    Contains("libgdruntime", ".so"),
];

/// The runtime of D.
pub static D: ReaderInfo = named("d", "D", HeapKind::Malloc)
    .files(D_FILES)
    .symbols(&["_d_run_main"])
    // druntime 2.100, core/thread/osthread.d.
    .stop_handlers(StopHandlers {
        files: D_FILES,
        symbols: &["thread_suspendHandler", "thread_resumeHandler"],
    });

/// LuaJIT.
pub static LUAJIT: ReaderInfo = named("luajit", "LuaJIT", HeapKind::OwnOnly("luajit"))
    .files(&[Contains("libluajit", ".so")])
    .symbols(&["luaJIT_setmode"]);

/// Lua.
pub static LUA: ReaderInfo = named("lua", "Lua", HeapKind::Malloc)
    .files(&[Contains("liblua", ".so")])
    .symbols(&["lua_newstate"])
    .part_of(Some("luajit"));

/// Mono.
pub static MONO: ReaderInfo = named("mono", "Mono", HeapKind::OwnOnly("mono"))
    .files(&[Contains("libmonosgen", ".so")])
    .executables(&[Exact("mono"), Exact("mono-sgen")])
    .symbols(&["mono_jit_init"])
    .strings(&[('M', "ono JIT compiler version")])
    // Mono 6.8, mono/utils/mono-threads-posix-signals.c; the functions have no global names.
    .stop_handlers(StopHandlers {
        files: &[Contains("libmonosgen", ".so"), Exact("mono"), Exact("mono-sgen")],
        symbols: &["suspend_signal_handler", "restart_signal_handler"],
    });

/// .NET. The symbols are those of single-file programs and of programs compiled ahead of time.
pub static DOTNET: ReaderInfo = named("dotnet", ".NET", HeapKind::OwnOnly("dotnet"))
    .files(&[Contains("libcoreclr", ".so")])
    .executables(&[Exact("dotnet")])
    .symbols(&["DotNetRuntimeInfo", "DotNetRuntimeDebugHeader"]);

/// Racket CS: Chez Scheme with additions.
pub static RACKET: ReaderInfo =
    named("racket", "Racket", HeapKind::OwnOnly("chez")).symbols(&["racket_boot"]);

/// Chez Scheme.
pub static CHEZ: ReaderInfo = named("chez", "Chez Scheme", HeapKind::OwnOnly("chez"))
    .symbols(&["Sscheme_init"])
    .part_of(Some("racket"));

/// Erlang.
pub static ERLANG: ReaderInfo = named("erlang", "Erlang", HeapKind::OwnOnly("erlang"))
    .executables(&[Contains("beam", ".smp")])
    .symbols(&["erl_create_process"]);

/// OCaml. From 5.0 on it maps its heap itself; older versions use malloc.
pub static OCAML: ReaderInfo = named("ocaml", "OCaml", HeapKind::Own)
    .files(&[Contains("libcamlrun", ".so")])
    .symbols(&["caml_startup", "caml_main"])
    // An environment variable that every OCaml program reads.
    .strings(&[('O', "CAMLRUNPARAM")]);

/// Programs compiled by the Glasgow Haskell Compiler.
pub static GHC: ReaderInfo = named("ghc", "GHC's Haskell", HeapKind::OwnOnly("ghc"))
    .files(&[Contains("libHSrts", ".so")])
    .symbols(&["hs_init_ghc"])
    // An environment variable that every such program reads.
    .strings(&[('G', "HCRTS")]);

/// Guile.
pub static GUILE: ReaderInfo = named("guile", "Guile", HeapKind::Malloc)
    .files(&[Contains("libguile", ".so")])
    .symbols(&["scm_boot_guile"]);

/// R.
pub static R: ReaderInfo = named("r", "R", HeapKind::Malloc).files(&[Contains("libR", ".so")]);

/// The JavaScript engine of Firefox.
pub static SPIDERMONKEY: ReaderInfo =
    named("spidermonkey", "SpiderMonkey", HeapKind::OwnOnly("spidermonkey"))
        .files(&[Contains("libmozjs", ".so")]);

/// Julia.
pub static JULIA: ReaderInfo =
    named("julia", "Julia", HeapKind::OwnOnly("julia")).files(&[Contains("libjulia-internal", ".so")]);

/// Embeddable Common Lisp.
pub static ECL: ReaderInfo = named("ecl", "ECL", HeapKind::Malloc).files(&[Contains("libecl", ".so")]);

/// GNU CLISP.
pub static CLISP: ReaderInfo =
    named("clisp", "CLISP", HeapKind::OwnOnly("clisp")).executables(&[Exact("lisp.run")]);

/// The version in CPython's `Py_Version`, or else in the file name.
pub(crate) fn cpython_version(clue: &Match<'_>) -> Option<String> {
    python_version(clue).or_else(|| version_of_file_name(clue))
}

/// `Py_Version` of CPython 3.11 and later: `PY_VERSION_HEX`, a byte each for major, minor, micro
/// and level.
fn python_version(clue: &Match<'_>) -> Option<String> {
    let image = clue.image()?;
    let exported = || image.exported(&["Py_Version"]).first().map(|symbol| symbol.address);
    let address = clue.symbol("Py_Version").or_else(exported)?;
    let version = u32::from_le_bytes(image.bytes_at(address, 4)?.try_into().ok()?);
    let (major, minor, micro) = (version >> 24, version >> 16 & 0xff, version >> 8 & 0xff);
    (major == 3).then(|| format!("{major}.{minor}.{micro}"))
}

/// The version in a URL compiled into node (`…/download/release/v20.11.0/…`).
fn node_version(clue: &Match<'_>) -> Option<String> {
    version_after(clue, "/download/release/v")
}

/// The version after `needle` in the read-only data of the executable.
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

/// Maximum bytes read of a `release` file.
const MAX_RELEASE_BYTES: u64 = 8192;

/// `JAVA_VERSION` of the file `release`, in the folder that contains `lib/server/libjvm.so`; `None`
/// if it cannot be read.
pub fn java_version(clue: &Match<'_>) -> Option<String> {
    let library = &clue.mapping?.name;
    let library = library.strip_suffix(" (deleted)").unwrap_or(library);
    let home = library.strip_suffix("/server/libjvm.so").and_then(|lib| lib.rsplit_once('/'))?.0;
    let mut text = Vec::new();
    open_in_root(clue.process, &format!("{home}/release"))
        .ok()?
        .take(MAX_RELEASE_BYTES)
        .read_to_end(&mut text)
        .ok()?;
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
