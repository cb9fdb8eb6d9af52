//! Runtimes that are recognised but not read yet. One that gets a reader moves to its own folder.

use std::io::Read;

use strandline_claims::reader::{
    About, Clue, Evidence, FileName, HeapKind, leading_version, version_in_file_name,
};
use strandline_process::namespaces::open_in_root;

use FileName::{Has, Is, Versioned};

/// Defaults for a runtime whose version, if known, is in its file names.
const NAMED: About = About { evidence: Evidence { version: of_file_name, ..Evidence::NONE }, ..About::NONE };
const EVIDENCE: Evidence = NAMED.evidence;

/// The version in the name of a file.
pub fn of_file_name(clue: &Clue<'_>) -> Option<String> {
    version_in_file_name(clue.file)
}

/// Ruby.
pub static RUBY: About = About {
    name: "ruby",
    title: "Ruby",
    evidence: Evidence {
        files: &[Has("libruby", ".so")],
        executables: &[Versioned("ruby")],
        symbols: &["ruby_version"],
        version: |clue| ruby_version(clue).or_else(|| of_file_name(clue)),
        ..EVIDENCE
    },
    heap: HeapKind::Own,
    ..NAMED
};

/// Node.js. Its symbol is node::Start(int, char**).
pub static NODE: About = About {
    name: "node",
    title: "Node.js",
    evidence: Evidence {
        files: &[Has("libnode", ".so")],
        executables: &[Versioned("node"), Versioned("nodejs")],
        symbols: &["_ZN4node5StartEiPPc"],
        version: |clue| node_version(clue).or_else(|| of_file_name(clue)),
        ..EVIDENCE
    },
    heap: HeapKind::Alone("v8"),
    ..NAMED
};

/// V8 without Node.js. Its symbol is v8::V8::GetVersion().
pub static V8: About = About {
    name: "v8",
    title: "V8",
    evidence: Evidence { symbols: &["_ZN2v82V810GetVersionEv"], ..EVIDENCE },
    heap: HeapKind::Alone("v8"),
    part_of: Some("node"),
    ..NAMED
};

/// PHP.
pub static PHP: About = About {
    name: "php",
    title: "PHP",
    evidence: Evidence {
        files: &[Has("libphp", ".so")],
        executables: &[Versioned("php"), Versioned("php-fpm")],
        symbols: &["zend_startup"],
        ..EVIDENCE
    },
    heap: HeapKind::Own,
    ..NAMED
};

/// The runtime of D.
pub static D: About = About {
    name: "d",
    title: "D",
    evidence: Evidence {
        files: &[
            Has("libphobos2", ".so"),
            Has("libdruntime", ".so"),
            Has("libgphobos", ".so"),
            Has("libgdruntime", ".so"),
        ],
        symbols: &["_d_run_main"],
        ..EVIDENCE
    },
    ..NAMED
};

/// LuaJIT.
pub static LUAJIT: About = About {
    name: "luajit",
    title: "LuaJIT",
    evidence: Evidence { files: &[Has("libluajit", ".so")], symbols: &["luaJIT_setmode"], ..EVIDENCE },
    heap: HeapKind::Alone("luajit"),
    ..NAMED
};

/// Lua.
pub static LUA: About = About {
    name: "lua",
    title: "Lua",
    evidence: Evidence { files: &[Has("liblua", ".so")], symbols: &["lua_newstate"], ..EVIDENCE },
    part_of: Some("luajit"),
    ..NAMED
};

/// Mono.
pub static MONO: About = About {
    name: "mono",
    title: "Mono",
    evidence: Evidence {
        files: &[Has("libmonosgen", ".so")],
        executables: &[Is("mono"), Is("mono-sgen")],
        symbols: &["mono_jit_init"],
        strings: &[('M', "ono JIT compiler version")],
        ..EVIDENCE
    },
    heap: HeapKind::Alone("mono"),
    ..NAMED
};

/// .NET. The symbols are those of single-file programs and of programs compiled ahead of time.
pub static DOTNET: About = About {
    name: "dotnet",
    title: ".NET",
    evidence: Evidence {
        files: &[Has("libcoreclr", ".so")],
        executables: &[Is("dotnet")],
        symbols: &["DotNetRuntimeInfo", "DotNetRuntimeDebugHeader"],
        ..EVIDENCE
    },
    heap: HeapKind::Alone("dotnet"),
    ..NAMED
};

/// Racket CS: Chez Scheme with additions.
pub static RACKET: About = About {
    name: "racket",
    title: "Racket",
    evidence: Evidence { symbols: &["racket_boot"], ..EVIDENCE },
    heap: HeapKind::Alone("chez"),
    ..NAMED
};

/// Chez Scheme.
pub static CHEZ: About = About {
    name: "chez",
    title: "Chez Scheme",
    evidence: Evidence { symbols: &["Sscheme_init"], ..EVIDENCE },
    heap: HeapKind::Alone("chez"),
    part_of: Some("racket"),
    ..NAMED
};

/// Erlang.
pub static ERLANG: About = About {
    name: "erlang",
    title: "Erlang",
    evidence: Evidence { executables: &[Has("beam", ".smp")], symbols: &["erl_create_process"], ..EVIDENCE },
    heap: HeapKind::Alone("erlang"),
    ..NAMED
};

/// OCaml. From 5.0 on it maps its heap itself; older versions use malloc.
pub static OCAML: About = About {
    name: "ocaml",
    title: "OCaml",
    evidence: Evidence {
        files: &[Has("libcamlrun", ".so")],
        symbols: &["caml_startup", "caml_main"],
        // An environment variable that every OCaml program reads.
        strings: &[('O', "CAMLRUNPARAM")],
        ..EVIDENCE
    },
    heap: HeapKind::Own,
    ..NAMED
};

/// Programs compiled by the Glasgow Haskell Compiler.
pub static GHC: About = About {
    name: "ghc",
    title: "GHC's Haskell",
    evidence: Evidence {
        files: &[Has("libHSrts", ".so")],
        symbols: &["hs_init_ghc"],
        // An environment variable that every such program reads.
        strings: &[('G', "HCRTS")],
        ..EVIDENCE
    },
    heap: HeapKind::Alone("ghc"),
    ..NAMED
};

/// Guile.
pub static GUILE: About = About {
    name: "guile",
    title: "Guile",
    evidence: Evidence { files: &[Has("libguile", ".so")], symbols: &["scm_boot_guile"], ..EVIDENCE },
    ..NAMED
};

/// R.
pub static R: About =
    About { name: "r", title: "R", evidence: Evidence { files: &[Has("libR", ".so")], ..EVIDENCE }, ..NAMED };

/// The JavaScript engine of Firefox.
pub static SPIDERMONKEY: About = About {
    name: "spidermonkey",
    title: "SpiderMonkey",
    evidence: Evidence { files: &[Has("libmozjs", ".so")], ..EVIDENCE },
    heap: HeapKind::Alone("spidermonkey"),
    ..NAMED
};

/// Julia.
pub static JULIA: About = About {
    name: "julia",
    title: "Julia",
    evidence: Evidence { files: &[Has("libjulia-internal", ".so")], ..EVIDENCE },
    heap: HeapKind::Alone("julia"),
    ..NAMED
};

/// Embeddable Common Lisp.
pub static ECL: About = About {
    name: "ecl",
    title: "ECL",
    evidence: Evidence { files: &[Has("libecl", ".so")], ..EVIDENCE },
    ..NAMED
};

/// GNU CLISP.
pub static CLISP: About = About {
    name: "clisp",
    title: "CLISP",
    evidence: Evidence { executables: &[Is("lisp.run")], ..EVIDENCE },
    heap: HeapKind::Alone("clisp"),
    ..NAMED
};

/// The version in CPython's `Py_Version`, or else in the file name.
pub(crate) fn cpython_version(clue: &Clue<'_>) -> Option<String> {
    python_version(clue).or_else(|| of_file_name(clue))
}

/// `Py_Version` of CPython 3.11 and later: PY_VERSION_HEX, 0xMMmmpprs.
fn python_version(clue: &Clue<'_>) -> Option<String> {
    let image = clue.image()?;
    let of_library = || image.exported(&["Py_Version"]).first().map(|symbol| symbol.address);
    let address = clue.symbol("Py_Version").or_else(of_library)?;
    let hex = u32::from_le_bytes(image.bytes_at(address, 4)?.try_into().ok()?);
    let (major, minor, micro) = (hex >> 24, hex >> 16 & 0xff, hex >> 8 & 0xff);
    (major == 3).then(|| format!("{major}.{minor}.{micro}"))
}

/// The version in a URL compiled into node (`…/download/release/v20.11.0/…`).
fn node_version(clue: &Clue<'_>) -> Option<String> {
    const NEEDLE: &str = "/download/release/v";
    let image = clue.image().filter(|_| clue.is_executable())?;
    let text = image.strings(&[NEEDLE]).pop()??;
    leading_version(text.strip_prefix(NEEDLE)?)
}

/// The version string at the symbol `ruby_version` of the executable.
fn ruby_version(clue: &Clue<'_>) -> Option<String> {
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
pub fn java_version(clue: &Clue<'_>) -> Option<String> {
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
