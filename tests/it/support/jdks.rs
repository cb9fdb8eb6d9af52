//! The Java virtual machines of this machine: those in /usr/lib/jvm, and JDKs that
//! `scripts/fetch-jdks` unpacked to the folder named by STRANDLINE_JDKS.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A Java virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jdk {
    /// Major version, such as 17.
    pub major: u32,
    /// Its launcher.
    pub java: PathBuf,
}

impl Jdk {
    /// The JDK in `home`, by its `release` file.
    fn in_home(home: &Path) -> Option<Self> {
        let java = home.join("bin/java");
        let release = std::fs::read_to_string(home.join("release")).ok()?;
        let version = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION=\""))?;
        let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
        java.is_file().then_some(Self { major: digits.parse().ok()?, java })
    }

    /// Whether it starts with these options: not every build has every collector.
    pub fn takes(&self, options: &[&str]) -> bool {
        let mut command = Command::new(&self.java);
        command
            .args(options)
            .arg("-version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// The folder in which it is unpacked.
    pub fn home(&self) -> Option<&Path> {
        self.java.parent()?.parent()
    }
}

/// All JDKs, one of each version, the machine's own before fetched ones; reports missing ones, as
/// skipped by `test`.
pub fn all(test: &str) -> Vec<Jdk> {
    let of_machine = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let mut homes: Vec<PathBuf> = of_machine.map(|entry| entry.path()).collect();
    homes.sort();
    match std::env::var_os("STRANDLINE_JDKS") {
        Some(folder) => {
            let fetched = std::fs::read_dir(folder).into_iter().flatten().flatten();
            homes.extend(fetched.map(|entry| entry.path()));
        }
        None => super::skipped(
            &format!("{test} with other JDKs"),
            "STRANDLINE_JDKS does not name a folder of scripts/fetch-jdks",
        ),
    }
    let mut found: Vec<Jdk> = homes.iter().filter_map(|home| Jdk::in_home(home)).collect();
    // The sort is stable: the first of each version stays.
    found.sort_by_key(|jdk| jdk.major);
    found.dedup_by_key(|jdk| jdk.major);
    if found.is_empty() {
        super::skipped(test, "no Java in /usr/lib/jvm (apt-get install default-jdk-headless)");
    }
    found
}
