//! The C library that a subject is built with: the system's, or one that `scripts/fetch-glibcs`
//! unpacked to the folder named by STRANDLINE_GLIBCS.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The suites `scripts/fetch-glibcs` fetches.
const SUITES: [&str; 3] = ["bullseye", "trixie", "sid"];

/// A C library, and how subjects are linked with it.
#[derive(Clone, Debug)]
pub struct Libc {
    /// `system`, or the name of a Debian suite.
    pub name: String,
    /// Folder in which it is unpacked; `None` for the system's.
    pub root: Option<PathBuf>,
    /// Linked into the program and stripped, rather than mapped as a library.
    pub is_static: bool,
    /// Linked in, but not stripped.
    pub keeps_symbols: bool,
}

impl Libc {
    /// The system's, dynamically linked.
    pub fn system() -> Self {
        Self { name: "system".into(), root: None, is_static: false, keeps_symbols: false }
    }

    /// The system's, linked in and stripped.
    pub fn system_static() -> Self {
        Self { is_static: true, ..Self::system() }
    }

    /// All foreign C libraries found, dynamic and static; reports missing ones.
    pub fn foreign() -> Vec<Self> {
        let folder = std::env::var_os("STRANDLINE_GLIBCS").map(PathBuf::from);
        let mut found = Vec::new();
        for suite in SUITES {
            let reason = match &folder {
                _ if !super::full() => "STRANDLINE_FULL=1 is not set (make test-full)".to_owned(),
                None => "STRANDLINE_GLIBCS does not name a folder of scripts/fetch-glibcs".to_owned(),
                Some(folder) => {
                    let root = folder.join(suite).join("root");
                    if root.join("usr/lib/x86_64-linux-gnu/libc.a").exists() {
                        for is_static in [false, true] {
                            let root = Some(root.clone());
                            found.push(Self { name: suite.into(), root, is_static, keeps_symbols: false });
                        }
                        continue;
                    }
                    format!("no glibc in {}", root.display())
                }
            };
            super::skipped(&format!("glibc of {suite}"), &reason);
        }
        found
    }

    /// A name for files and messages.
    pub fn label(&self) -> String {
        let kind = match (self.is_static, self.keeps_symbols) {
            (false, _) => "",
            (true, false) => "-static",
            (true, true) => "-static-symbols",
        };
        format!("{}{kind}", self.name)
    }

    /// Adds the compiler options that select this library.
    pub fn link(&self, cc: &mut Command) {
        if self.is_static {
            cc.arg("-static");
            if !self.keeps_symbols {
                cc.arg("-s");
            }
        }
        let Some(root) = &self.root else { return };
        // The compiler's own search path comes before --sysroot's libraries, so name them first.
        cc.arg(format!("--sysroot={}", root.display())).arg(prefixed(
            "-B",
            root,
            "usr/lib/x86_64-linux-gnu/",
        ));
        for folder in ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"] {
            cc.arg(prefixed("-L", root, folder));
        }
        // The kernel's headers are not part of libc's packages.
        cc.args(["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"]);
        if !self.is_static {
            cc.arg(prefixed("-Wl,--dynamic-linker=", root, "lib64/ld-linux-x86-64.so.2"));
            cc.arg(prefixed("-Wl,-rpath,", root, "lib/x86_64-linux-gnu")).arg("-Wl,--disable-new-dtags");
        }
    }
}

fn prefixed(option: &str, root: &Path, below: &str) -> String {
    format!("{option}{}", root.join(below).display())
}
