//! The checks of `doctor` on what this user may do: Yama's restriction, capabilities, and which
//! processes can be read with them.

use std::fs;

use strandline_process::rights::{Rights, file_name};
use strandline_report::checks::{Check, Status};
use strandline_sys::capabilities::{Capability, SYS_PTRACE};
use strandline_sys::host::{FIRST_PID_NAMESPACE, FIRST_USER_NAMESPACE};

use super::{check, read};

/// The kinds of namespaces that limit which processes can be read, and the first one of each.
const FIRST_NAMESPACES: [(&str, &str); 2] = [("user", FIRST_USER_NAMESPACE), ("pid", FIRST_PID_NAMESPACE)];

/// Advice where Yama lets no process trace.
pub(super) const SCOPE_3_ADVICE: &str =
    "scope 3 cannot be lowered again: set kernel.yama.ptrace_scope and reboot";

/// The setting of Yama; `None` where the kernel has no Yama.
pub(super) fn ptrace_scope_setting() -> Option<String> {
    read("/proc/sys/kernel/yama/ptrace_scope")
}

/// Advice to get the capabilities missing for other users' processes.
pub(super) fn more_rights(rights: &Rights) -> String {
    rights.advice(&rights.missing(true), "")
}

/// Advice to get a capability that reading does not need.
pub(super) fn further_right(rights: &Rights, capability: Capability) -> String {
    let missing = if rights.has(capability) { &[][..] } else { &[capability] };
    if missing.is_empty() || rights.user == 0 || rights.is_more_than_not_root(missing) {
        return rights.advice(missing, "");
    }
    // Not a command of its own: a second setcap removes what the first one gave.
    format!("run as root, or add {} to strandline's setcap (GUIDE.md)", file_name(capability))
}

/// Checks Yama's restriction of ptrace (Documentation/admin-guide/LSM/Yama.rst).
pub(super) fn ptrace_scope() -> Check {
    let (scope, rights) = (ptrace_scope_setting(), Rights::own());
    let (status, finding) = scope_status(scope.as_deref(), rights.has(SYS_PTRACE));
    let impact = "only descendants of strandline, or no processes at all, can be read";
    let fix = match scope.as_deref() {
        Some("3") => SCOPE_3_ADVICE.to_owned(),
        _ if rights.user == 0 => more_rights(&rights),
        _ => more_rights(&rights) + ", or `sysctl kernel.yama.ptrace_scope=0`",
    };
    check("ptrace_scope", status, finding, impact, Some(&fix))
}

fn scope_status(scope: Option<&str>, has_ptrace_capability: bool) -> (Status, String) {
    match (scope, has_ptrace_capability) {
        (None, _) => (Status::Ok, "no Yama: the usual rules hold".to_owned()),
        (Some("0"), _) => (Status::Ok, "0: this user's processes".to_owned()),
        (Some("3"), _) => (Status::Missing, "3: no process may trace".to_owned()),
        (Some(scope), true) => (Status::Ok, format!("{scope}, but this user has CAP_SYS_PTRACE")),
        (Some("1"), false) => (Status::Limited, "1: only descendants of the tracer".to_owned()),
        (Some(scope), false) => (Status::Missing, format!("{scope}: only with CAP_SYS_PTRACE")),
    }
}

/// Checks the capabilities for processes of other users.
pub(super) fn capabilities() -> Check {
    let rights = Rights::own();
    let (status, finding) = capability_status(&rights);
    let impact = "processes of other users, and those that changed their user, cannot be read";
    check("capabilities", status, finding, impact, Some(&capability_advice(&rights)))
}

/// The two capabilities for reading, and what each further one adds in the same setcap.
fn capability_advice(rights: &Rights) -> String {
    let advice = more_rights(rights);
    let further = rights.missing_further().into_iter();
    let further: Vec<String> =
        further.map(|right| format!("{} ({})", file_name(right.capability), right.adds)).collect();
    if !advice.contains("setcap ") || further.is_empty() {
        return advice;
    }
    format!("{advice}. Not needed to read: {}", further.join(", "))
}

/// Processes of other users need two capabilities: one to trace them, and one to open /proc/PID/mem
/// and pagemap, which only their user may read.
fn capability_status(rights: &Rights) -> (Status, String) {
    let missing = rights.missing(true);
    if missing.is_empty() {
        return (Status::Ok, format!("user {} has CAP_SYS_PTRACE", rights.user));
    }
    let present = if rights.has(SYS_PTRACE) { "CAP_SYS_PTRACE is present; " } else { "" };
    (Status::Limited, present.to_owned() + &rights.describe_missing(&missing))
}

/// Checks which processes this user may inspect.
pub(super) fn rights() -> Check {
    let rights = Rights::own();
    // A kernel without namespaces has no such links.
    let is_initial = FIRST_NAMESPACES.iter().all(|(kind, first)| {
        fs::read_link(format!("/proc/self/ns/{kind}")).map_or(true, |name| name.as_os_str() == *first)
    });
    let (status, finding) = rights_status(ptrace_scope_setting().as_deref(), &rights, is_initial);
    let impact = "the processes that explain, holders and reclaim can read; run and record sample all";
    let table = "GUIDE.md, \"Which permission do I need?\", lists what each permission allows";
    let missing = rights.missing(true);
    let fix =
        if rights.is_more_than_not_root(&missing) { rights.advice(&missing, "") } else { table.to_owned() };
    check("rights", status, finding, impact, Some(&fix))
}

/// Which processes can be read with these rights; `is_initial` if strandline is in the initial
/// namespaces.
fn rights_status(scope: Option<&str>, rights: &Rights, is_initial: bool) -> (Status, String) {
    let user = rights.user;
    let missing = rights.missing(true);
    // Tracing a process of the same user needs all its capabilities: root's processes often have
    // more.
    let exception = if user == 0 { ", but for those with more capabilities" } else { "" };
    let lack = if rights.is_more_than_not_root(&missing) {
        format!(": {}", rights.describe_missing(&missing))
    } else {
        String::new()
    };
    match (scope.unwrap_or("0"), rights.has(SYS_PTRACE)) {
        ("3", _) => (Status::Missing, "no processes".to_owned()),
        (_, true) if missing.is_empty() && is_initial => {
            (Status::Ok, "the processes of all users".to_owned())
        }
        (_, true) if missing.is_empty() => {
            (Status::Limited, "the processes of all users in these namespaces".to_owned())
        }
        (_, true) => (Status::Limited, format!("the processes of user {user}{lack}")),
        ("0", _) => (Status::Limited, format!("the processes of user {user}{exception}{lack}")),
        ("1", _) => (Status::Limited, format!("only what strandline itself starts (run, demo){lack}")),
        _ => (Status::Missing, format!("no process{lack}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_sys::capabilities::{DAC_OVERRIDE, DAC_READ_SEARCH, NET_ADMIN};

    #[test]
    fn scopes_match_yamas_rules() {
        assert_eq!(scope_status(None, false).0, Status::Ok);
        assert_eq!(scope_status(Some("0"), false).0, Status::Ok);
        assert_eq!(scope_status(Some("1"), false).0, Status::Limited);
        assert_eq!(scope_status(Some("1"), true).0, Status::Ok);
        assert_eq!(scope_status(Some("2"), false).0, Status::Missing);
        assert_eq!(scope_status(Some("3"), true).0, Status::Missing);
    }

    fn rights_with(user: u32, held: &[Capability]) -> Rights {
        let held_bits = held.iter().map(|capability| capability.bit()).sum();
        Rights { user, held_bits, bounding_bits: u64::MAX }
    }

    #[test]
    fn other_users_processes_want_two_capabilities() {
        let status = |held: &[Capability]| capability_status(&rights_with(1000, held));
        assert_eq!(
            status(&[]),
            (Status::Limited, "user 1000 lacks CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH".to_owned())
        );
        assert_eq!(status(&[SYS_PTRACE]).1, "CAP_SYS_PTRACE is present; user 1000 lacks CAP_DAC_READ_SEARCH");
        assert_eq!(status(&[SYS_PTRACE, DAC_READ_SEARCH]).0, Status::Ok);
        assert_eq!(status(&[SYS_PTRACE, DAC_OVERRIDE]).0, Status::Ok);
    }

    #[test]
    fn rights_are_those_of_scope_and_capabilities() {
        let both = [SYS_PTRACE, DAC_READ_SEARCH];
        let status = |scope, held: &[Capability]| rights_status(scope, &rights_with(7, held), true);
        assert_eq!(status(None, &[]), (Status::Limited, "the processes of user 7".to_owned()));
        assert_eq!(status(Some("1"), &[]).1, "only what strandline itself starts (run, demo)");
        assert_eq!(status(Some("1"), &[SYS_PTRACE]).1, "the processes of user 7");
        assert_eq!(status(Some("2"), &[]).0, Status::Missing);
        assert_eq!(status(Some("2"), &both).0, Status::Ok);
        assert_eq!(status(Some("3"), &both).0, Status::Missing);
        assert_eq!(rights_status(None, &rights_with(0, &both), false).0, Status::Limited);
    }

    #[test]
    fn root_with_few_capabilities_is_advised_to_add_them() {
        let root = Rights { bounding_bits: !SYS_PTRACE.bit(), ..rights_with(0, &[DAC_OVERRIDE]) };
        let (status, finding) = rights_status(None, &root, true);
        assert_eq!(status, Status::Limited);
        assert!(
            finding.ends_with("with more capabilities: this container's root lacks CAP_SYS_PTRACE"),
            "{finding}"
        );
        assert!(more_rights(&root).starts_with("start it with --cap-add SYS_PTRACE (Kubernetes"));
    }

    #[test]
    fn two_capabilities_are_advised_and_the_others_named() {
        let advice = capability_advice(&rights_with(7, &[]));
        assert!(advice.contains("setcap cap_sys_ptrace,cap_dac_read_search+ep "), "{advice}");
        for name in ["cap_net_admin", "cap_sys_nice", "cap_checkpoint_restore"] {
            assert_eq!(advice.matches(name).count(), 1, "{advice}");
        }
        assert!(!capability_advice(&rights_with(7, &[NET_ADMIN])).contains("cap_net_admin ("));
        let further = further_right(&rights_with(7, &[]), NET_ADMIN);
        assert!(further.contains("add cap_net_admin to") && !further.contains('`'), "{further}");
    }
}
