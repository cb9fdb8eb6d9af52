//! What this strandline may do, and the one thing to do where that is not enough.
//!
//! Decided by the capabilities that it has and can have, never by the user's number: root in a container lacks what the container
//! was not given, and running as root is what it does already.

use strandline_sys::capabilities::{
    self, CHECKPOINT_RESTORE, Capability, DAC_OVERRIDE, DAC_READ_SEARCH, NET_ADMIN, SYS_NICE, SYS_PTRACE,
};
use strandline_sys::host;

/// All that strandline has a use for, in the order in which it is advised.
pub const USEFUL: [Capability; 5] = [SYS_PTRACE, DAC_READ_SEARCH, NET_ADMIN, SYS_NICE, CHECKPOINT_RESTORE];

/// Whose rights, and which.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// The effective user.
    pub user: u32,
    /// Capabilities that it has, as bits.
    pub held: u64,
    /// Those that a program started from here can have at most.
    pub bounds: u64,
}

impl Rights {
    /// This process's own.
    pub fn own() -> Self {
        Self { user: host::effective_user(), held: capabilities::held(), bounds: capabilities::bounds() }
    }

    /// Whether it has `one`. Who may override the rights of files may read them.
    pub fn has(&self, one: Capability) -> bool {
        let bits = if one == DAC_READ_SEARCH { one.bit() | DAC_OVERRIDE.bit() } else { one.bit() };
        self.held & bits != 0
    }

    /// What is missing to look at any process of its own user; of all users with `others`, as /proc/PID/mem and pagemap
    /// may be opened by their user only.
    pub fn missing(&self, others: bool) -> Vec<Capability> {
        let needed = if others { &[SYS_PTRACE, DAC_READ_SEARCH][..] } else { &[SYS_PTRACE] };
        needed.iter().copied().filter(|one| !self.has(*one)).collect()
    }

    /// Of `these`, what nobody that is started from here can have. Root may do with DAC_OVERRIDE.
    fn out_of_bounds(&self, these: &[Capability]) -> Vec<Capability> {
        let root = Self { held: self.bounds, ..*self };
        these.iter().copied().filter(|one| !root.has(*one)).collect()
    }

    /// Who lacks what.
    pub fn lack(&self, missing: &[Capability]) -> String {
        let without = self.out_of_bounds(missing);
        match self.user {
            0 if !without.is_empty() => format!("this container's root lacks {}", names(missing)),
            0 => format!("root was started here without {}", names(missing)),
            user if !without.is_empty() => {
                format!("user {user} lacks {}, and this container has no {}", names(missing), names(&without))
            }
            user => format!("user {user} lacks {}", names(missing)),
        }
    }

    /// Whether `lack` says more than that this user is not root.
    pub fn is_unusual(&self, missing: &[Capability]) -> bool {
        !missing.is_empty() && (self.user == 0 || !self.out_of_bounds(missing).is_empty())
    }

    /// What would give it `missing`; `as_who` is another way than root to have the same (` or as that user`).
    pub fn advice(&self, missing: &[Capability], as_who: &str) -> String {
        const KUBERNETES: &str = "(Kubernetes: securityContext.capabilities.add)";
        let added = |these: &[Capability]| {
            let options: Vec<String> = these.iter().map(|one| format!("--cap-add {}", one.name)).collect();
            options.join(" ")
        };
        let without = self.out_of_bounds(missing);
        let can_be_marked = missing.iter().all(|one| self.bounds & one.bit() != 0);
        match self.user {
            _ if missing.is_empty() => "run as root outside the container".to_owned(),
            0 if !without.is_empty() => format!("start it with {} {KUBERNETES}", added(missing)),
            0 => "run it as a root that has all its capabilities (not under setpriv or capsh)".to_owned(),
            _ if !without.is_empty() => {
                format!("start the container as root with {} {KUBERNETES}", added(&without))
            }
            // A file that is marked with more than the bounds could not be started.
            _ if !can_be_marked => format!("run as root{as_who}"),
            _ => format!("run as root{as_who}, or `{}` on strandline", self.setcap(missing)),
        }
    }

    /// The command that gives strandline's file `more`. setcap(8) takes away what it does not name: so what is held stays named.
    pub fn setcap(&self, more: &[Capability]) -> String {
        let named = USEFUL.iter().filter(|one| more.contains(one) || self.held & one.bit() != 0);
        let names: Vec<String> = named.map(|one| format!("cap_{}", one.name.to_ascii_lowercase())).collect();
        format!("setcap {}+ep", names.join(","))
    }

    /// Of what strandline has a use for, what can be had here: a file marked with more could not be started.
    pub fn within_bounds(&self) -> Vec<Capability> {
        USEFUL.into_iter().filter(|one| self.bounds & one.bit() != 0).collect()
    }
}

fn names(these: &[Capability]) -> String {
    let names: Vec<String> = these.iter().map(|one| format!("CAP_{}", one.name)).collect();
    names.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = (1 << 41) - 1;

    fn of(user: u32, held: &[Capability], bounds: u64) -> Rights {
        Rights { user, held: held.iter().map(|one| one.bit()).sum(), bounds }
    }

    #[test]
    fn what_is_missing_is_told_by_capabilities_and_not_by_user() {
        assert_eq!(of(7, &[], ALL).missing(true), [SYS_PTRACE, DAC_READ_SEARCH]);
        assert_eq!(of(0, &[], ALL).missing(false), [SYS_PTRACE]);
        assert_eq!(of(0, &[DAC_OVERRIDE], ALL).missing(true), [SYS_PTRACE]);
        assert_eq!(of(7, &[SYS_PTRACE, DAC_OVERRIDE], ALL).missing(true), []);
    }

    #[test]
    fn each_case_has_one_thing_to_do() {
        let bounded = ALL & !SYS_PTRACE.bit();
        let root = of(0, &[DAC_OVERRIDE], bounded);
        let missing = root.missing(true);
        assert_eq!(root.lack(&missing), "this container's root lacks CAP_SYS_PTRACE");
        assert_eq!(
            root.advice(&missing, ""),
            "start it with --cap-add SYS_PTRACE (Kubernetes: securityContext.capabilities.add)"
        );
        let bare = of(0, &[], 0);
        let missing = bare.missing(true);
        assert_eq!(bare.lack(&missing), "this container's root lacks CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH");
        assert!(bare.advice(&missing, "").contains("--cap-add SYS_PTRACE --cap-add DAC_READ_SEARCH"));
        assert!(
            of(7, &[], bounded).advice(&[SYS_PTRACE], "").starts_with("start the container as root with")
        );
        assert!(!of(0, &[], ALL).advice(&[SYS_PTRACE], "").contains("container"));
        assert_eq!(
            of(7, &[], ALL).advice(&[SYS_PTRACE], " or as that user"),
            "run as root or as that user, or `setcap cap_sys_ptrace+ep` on strandline"
        );
    }

    #[test]
    fn a_line_of_setcap_keeps_what_the_one_before_gave() {
        let rights = of(7, &[NET_ADMIN, SYS_PTRACE], ALL);
        assert_eq!(
            rights.setcap(&rights.missing(true)),
            "setcap cap_sys_ptrace,cap_dac_read_search,cap_net_admin+ep"
        );
        assert_eq!(of(7, &[], ALL & !SYS_NICE.bit()).within_bounds().len(), 4);
    }
}
