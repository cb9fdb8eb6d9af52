//! The rights of this strandline, and the one piece of advice if they do not suffice.
//!
//! Decided by the capabilities that it has and can have, never by the user id: root in a container
//! lacks what the container was not given, and it already runs as root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use strandline_sys::capabilities::{
    self, CHECKPOINT_RESTORE, Capability, DAC_OVERRIDE, DAC_READ_SEARCH, NET_ADMIN, SYS_NICE, SYS_PTRACE,
};
use strandline_sys::host;

use crate::map::DELETED_SUFFIX;
use crate::procfs::Status;
use crate::shell::shell_word;

/// All capabilities that strandline can use, in the order in which they are advised.
const USEFUL: [Capability; 5] = [SYS_PTRACE, DAC_READ_SEARCH, NET_ADMIN, SYS_NICE, CHECKPOINT_RESTORE];

/// A capability that reading processes does not need.
#[derive(Clone, Copy, Debug)]
pub struct FurtherCapability {
    /// The capability.
    pub capability: Capability,
    /// What it adds, as a phrase.
    pub adds: &'static str,
}

/// All of [`USEFUL`] beyond SYS_PTRACE and DAC_READ_SEARCH.
const FURTHER_CAPABILITIES: [FurtherCapability; 3] = [
    FurtherCapability { capability: NET_ADMIN, adds: "forks and exits for run and record before Linux 6.6" },
    FurtherCapability { capability: SYS_NICE, adds: "the safe way of zero_pages, through swap" },
    FurtherCapability { capability: CHECKPOINT_RESTORE, adds: "mapped files that were deleted" },
];

/// Where the Debian package has the program, and the list of its files (dpkg(1)).
const PACKAGED_PROGRAM: &str = "/usr/bin/strandline";
const PACKAGE_FILES: &str = "/var/lib/dpkg/info/strandline.list";

/// The rights of a user.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// The effective user.
    pub user: u32,
    /// Its capabilities, as bits.
    pub held_bits: u64,
    /// The capability bounding set: the most that a program started from here can have.
    pub bounding_bits: u64,
}

impl Rights {
    /// The rights of this process.
    pub fn own() -> Self {
        Self {
            user: host::effective_user(),
            held_bits: capabilities::held_bits(),
            bounding_bits: capabilities::bounding_bits(),
        }
    }

    /// Whether it has `capability`. DAC_OVERRIDE includes DAC_READ_SEARCH.
    pub fn has(&self, capability: Capability) -> bool {
        let bits = if capability == DAC_READ_SEARCH {
            capability.bit() | DAC_OVERRIDE.bit()
        } else {
            capability.bit()
        };
        self.held_bits & bits != 0
    }

    /// The capabilities missing to inspect any process of its own user; with `of_all_users`, of any
    /// user: only that user may open /proc/PID/mem and pagemap.
    pub fn missing(&self, of_all_users: bool) -> Vec<Capability> {
        let needed = if of_all_users { &[SYS_PTRACE, DAC_READ_SEARCH][..] } else { &[SYS_PTRACE] };
        needed.iter().copied().filter(|capability| !self.has(*capability)).collect()
    }

    /// The `capabilities` that no program started from here can have. For root DAC_OVERRIDE
    /// suffices.
    fn outside_bounding_set(&self, capabilities: &[Capability]) -> Vec<Capability> {
        let with_all_bounds = Self { held_bits: self.bounding_bits, ..*self };
        capabilities.iter().copied().filter(|capability| !with_all_bounds.has(*capability)).collect()
    }

    /// A phrase that names the user and the missing capabilities.
    pub fn describe_missing(&self, missing: &[Capability]) -> String {
        let unavailable = self.outside_bounding_set(missing);
        match self.user {
            0 if !unavailable.is_empty() => format!("this container's root lacks {}", joined_names(missing)),
            0 => format!("root was started here without {}", joined_names(missing)),
            user if !unavailable.is_empty() => {
                format!(
                    "user {user} lacks {}, and this container has no {}",
                    joined_names(missing),
                    joined_names(&unavailable)
                )
            }
            user => format!("user {user} lacks {}", joined_names(missing)),
        }
    }

    /// Whether the cause is more than that this user is not root.
    pub fn is_more_than_not_root(&self, missing: &[Capability]) -> bool {
        !missing.is_empty() && (self.user == 0 || !self.outside_bounding_set(missing).is_empty())
    }

    /// Advice that provides `missing`; `alternative` completes "run as root" (` or as that user`).
    pub fn advice(&self, missing: &[Capability], alternative: &str) -> String {
        const KUBERNETES: &str = "(Kubernetes: securityContext.capabilities.add)";
        let cap_add_options = |capabilities: &[Capability]| {
            let options: Vec<String> =
                capabilities.iter().map(|capability| format!("--cap-add {}", capability.name)).collect();
            options.join(" ")
        };
        let unavailable = self.outside_bounding_set(missing);
        let can_be_marked = missing.iter().all(|capability| self.bounding_bits & capability.bit() != 0);
        match self.user {
            _ if missing.is_empty() => Confinement::own().advice().to_owned(),
            0 if !unavailable.is_empty() => {
                format!("start it with {} {KUBERNETES}", cap_add_options(missing))
            }
            0 => "run it as a root that has all its capabilities (not under setpriv or capsh)".to_owned(),
            _ if !unavailable.is_empty() => {
                format!("start the container as root with {} {KUBERNETES}", cap_add_options(&unavailable))
            }
            // A file with capabilities outside the bounding set could not be started.
            _ if !can_be_marked => format!("run as root{alternative}"),
            _ => {
                let access = FileAccess::own();
                let command = self.permitting_command(missing, access);
                match access {
                    FileAccess::OneGroup => format!(
                        "run as root{alternative}, or give strandline's file the capabilities, which an upgrade \
                         removes: `{command}`"
                    ),
                    FileAccess::Packaged | FileAccess::All => format!(
                        "run as root{alternative}, or permit it to one group, as root: `{command}` (setcap \
                         alone permits it to every user)"
                    ),
                }
            }
        }
    }

    /// The command for root that adds capabilities to strandline's file, for the users of one
    /// group. setcap(8) removes the capabilities that it does not name, so the command names the
    /// held ones too; chgrp removes all, so it comes first.
    fn permitting_command(&self, added_capabilities: &[Capability], access: FileAccess) -> String {
        let capabilities = USEFUL.iter().filter(|capability| {
            added_capabilities.contains(capability) || self.held_bits & capability.bit() != 0
        });
        let words: Vec<String> = capabilities.map(|capability| file_name(*capability)).collect();
        let program = program();
        let setcap = format!("setcap {}+ep {program}", words.join(","));
        match access {
            FileAccess::OneGroup => setcap,
            // An upgrade keeps the group and the mode.
            FileAccess::Packaged => {
                format!("dpkg-statoverride --update --add root GROUP 750 {program} && {setcap}")
            }
            FileAccess::All => format!("chgrp GROUP {program} && chmod 750 {program} && {setcap}"),
        }
    }

    /// The capabilities beyond those for reading that are missing and available here: a file with
    /// others could not be started.
    pub fn missing_further(&self) -> Vec<FurtherCapability> {
        let is_available = |further: &FurtherCapability| {
            let bit = further.capability.bit();
            self.held_bits & bit == 0 && self.bounding_bits & bit != 0
        };
        FURTHER_CAPABILITIES.into_iter().filter(is_available).collect()
    }
}

/// Who may start strandline's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileAccess {
    /// The users of its group only.
    OneGroup,
    /// Every user; the file belongs to a Debian package.
    Packaged,
    /// Every user.
    All,
}

impl FileAccess {
    /// That of this program's file; one of unknown mode counts as every user's.
    fn own() -> Self {
        const OTHERS_EXECUTE: u32 = 0o001;
        let mode = fs::metadata("/proc/self/exe").ok().map(|file| file.permissions().mode());
        if mode.is_some_and(|mode| mode & OTHERS_EXECUTE == 0) {
            Self::OneGroup
        } else if program() == PACKAGED_PROGRAM && Path::new(PACKAGE_FILES).exists() {
            Self::Packaged
        } else {
            Self::All
        }
    }
}

/// A capability's name in setcap(8).
pub fn file_name(capability: Capability) -> String {
    format!("cap_{}", capability.name.to_ascii_lowercase())
}

/// What is known to keep a user who lacks no capability from a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// Its capabilities hold only in a user namespace other than the machine's.
    UserNamespace,
    /// A seccomp filter on strandline.
    Filter,
    /// Nothing is known.
    Unknown,
}

impl Confinement {
    /// That of this process.
    pub fn own() -> Self {
        // If neither file can be read, nothing is known.
        let status = fs::read("/proc/self/status").unwrap_or_default();
        let is_inner = fs::read_link("/proc/self/ns/user")
            .is_ok_and(|namespace| namespace.as_os_str() != host::FIRST_USER_NAMESPACE);
        if is_inner {
            Self::UserNamespace
        } else if Status::parse(&status).is_under_seccomp() {
            Self::Filter
        } else {
            Self::Unknown
        }
    }

    /// The cause, as a clause.
    pub const fn cause(self) -> &'static str {
        match self {
            Self::UserNamespace => "strandline runs in a user namespace, outside which it has no rights",
            Self::Filter => "strandline runs under a seccomp filter, which may forbid it",
            Self::Unknown => "a security module may forbid it",
        }
    }

    /// What to do, for root and all others.
    const fn advice(self) -> &'static str {
        match self {
            Self::UserNamespace => "run as root outside that namespace (of a container or sandbox)",
            Self::Filter => "start strandline outside the container or sandbox that has the filter",
            Self::Unknown => {
                "see what the security module reports (dmesg, the audit log); root may be refused too"
            }
        }
    }
}

/// The path of this program, as a word for a shell.
pub fn program() -> String {
    let path = fs::read_link("/proc/self/exe").ok();
    let Some(path) = path.as_deref().and_then(Path::to_str) else {
        return "\"$(command -v strandline)\"".to_owned();
    };
    // The kernel marks a file that was replaced since this program was started.
    shell_word(path.strip_suffix(DELETED_SUFFIX).unwrap_or(path))
}

/// The names of capabilities, as a phrase.
fn joined_names(capabilities: &[Capability]) -> String {
    let words: Vec<String> =
        capabilities.iter().map(|capability| format!("CAP_{}", capability.name)).collect();
    words.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = (1 << 41) - 1;

    fn rights_of(user: u32, held: &[Capability], bounding_bits: u64) -> Rights {
        Rights { user, held_bits: held.iter().map(|capability| capability.bit()).sum(), bounding_bits }
    }

    #[test]
    fn missing_rights_depend_on_capabilities_and_not_on_the_user() {
        assert_eq!(rights_of(7, &[], ALL).missing(true), [SYS_PTRACE, DAC_READ_SEARCH]);
        assert_eq!(rights_of(0, &[], ALL).missing(false), [SYS_PTRACE]);
        assert_eq!(rights_of(0, &[DAC_OVERRIDE], ALL).missing(true), [SYS_PTRACE]);
        assert_eq!(rights_of(7, &[SYS_PTRACE, DAC_OVERRIDE], ALL).missing(true), []);
    }

    #[test]
    fn each_case_has_one_thing_to_do() {
        let bounded = ALL & !SYS_PTRACE.bit();
        let root = rights_of(0, &[DAC_OVERRIDE], bounded);
        let missing = root.missing(true);
        assert_eq!(root.describe_missing(&missing), "this container's root lacks CAP_SYS_PTRACE");
        assert_eq!(
            root.advice(&missing, ""),
            "start it with --cap-add SYS_PTRACE (Kubernetes: securityContext.capabilities.add)"
        );
        let bare = rights_of(0, &[], 0);
        let missing = bare.missing(true);
        assert_eq!(
            bare.describe_missing(&missing),
            "this container's root lacks CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
        );
        assert!(bare.advice(&missing, "").contains("--cap-add SYS_PTRACE --cap-add DAC_READ_SEARCH"));
        assert!(
            rights_of(7, &[], bounded)
                .advice(&[SYS_PTRACE], "")
                .starts_with("start the container as root with")
        );
        assert!(!rights_of(0, &[], ALL).advice(&[SYS_PTRACE], "").contains("container"));
        let program = program();
        assert_eq!(
            rights_of(7, &[], ALL).advice(&[SYS_PTRACE], " or as that user"),
            format!(
                "run as root or as that user, or permit it to one group, as root: `chgrp GROUP {program} && chmod 750 \
                 {program} && setcap cap_sys_ptrace+ep {program}` (setcap alone permits it to every user)"
            )
        );
    }

    #[test]
    fn a_line_of_setcap_keeps_what_the_one_before_gave() {
        let rights = rights_of(7, &[NET_ADMIN, SYS_PTRACE], ALL);
        let missing = rights.missing(true);
        let command = |access| rights.permitting_command(&missing, access);
        assert!(command(FileAccess::OneGroup).starts_with("setcap "));
        assert!(
            command(FileAccess::Packaged).starts_with("dpkg-statoverride --update --add root GROUP 750 ")
        );
        let command = command(FileAccess::All);
        let setcap = format!(" && setcap cap_sys_ptrace,cap_dac_read_search,cap_net_admin+ep {}", program());
        assert!(command.ends_with(&setcap), "{command}");
    }

    #[test]
    fn further_capabilities_are_those_that_can_be_had() {
        let further_names = |rights: Rights| {
            let further = rights.missing_further().into_iter();
            further.map(|further| file_name(further.capability)).collect::<Vec<_>>()
        };
        assert_eq!(
            further_names(rights_of(7, &[SYS_PTRACE], ALL)),
            ["cap_net_admin", "cap_sys_nice", "cap_checkpoint_restore"]
        );
        assert_eq!(
            further_names(rights_of(7, &[NET_ADMIN], ALL & !SYS_NICE.bit())),
            ["cap_checkpoint_restore"]
        );
    }

    #[test]
    fn the_program_has_a_path() {
        assert!(program().contains('/'), "{}", program());
    }

    #[test]
    fn root_is_not_advised_to_become_root() {
        for confinement in [Confinement::Filter, Confinement::Unknown] {
            assert!(!confinement.advice().contains("as root"), "{confinement:?}");
        }
        assert!(Confinement::UserNamespace.advice().contains("outside that namespace"));
        assert!(
            !rights_of(0, &[SYS_PTRACE], ALL).advice(&[], "").contains("run as root outside the container")
        );
    }
}
