//! C libraries, recognised by the names of their files.

use crate::image::printable;
use crate::map::file_name;

/// A C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CLibrary {
    /// GNU libc: `libc.so.6`, `libc-2.31.so`.
    Glibc,
    /// musl, whose loader is the C library: `ld-musl-x86_64.so.1`, `libc.musl-x86_64.so.1`,
    /// `libc.so`.
    Musl,
}

impl CLibrary {
    /// Returns the C library that a mapped file, or the loader that a program names, belongs to.
    pub fn of_file(path: &str) -> Option<Self> {
        let file = file_name(path);
        if file.starts_with("libc.so.6") || (file.starts_with("libc-2.") && file.ends_with(".so")) {
            Some(Self::Glibc)
        } else if file == "libc.so" || file.starts_with("ld-musl-") || file.starts_with("libc.musl-") {
            Some(Self::Musl)
        } else {
            None
        }
    }
}

/// Finds glibc's banner in the bytes of its file: `GNU C Library (…) stable release version 2.36.`
pub fn banner(bytes: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"GNU C Library (";
    const MAX_BANNER_BYTES: usize = 200;
    let start = memchr::memmem::find(bytes, BANNER)?;
    Some(printable(&bytes[start..], MAX_BANNER_BYTES).trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_recognised_by_their_files() {
        let cases = [
            ("/lib/x86_64-linux-gnu/libc.so.6", Some(CLibrary::Glibc)),
            ("/lib/libc-2.31.so (deleted)", Some(CLibrary::Glibc)),
            ("/lib/ld-musl-x86_64.so.1", Some(CLibrary::Musl)),
            ("/usr/lib/musl/lib/libc.so", Some(CLibrary::Musl)),
            ("/lib64/ld-linux-x86-64.so.2", None),
            ("/lib/libcap.so.2", None),
            ("", None),
        ];
        for (path, library) in cases {
            assert_eq!(CLibrary::of_file(path), library, "{path}");
        }
    }
}
