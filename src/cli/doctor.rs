//! `doctor`: tries what explain, reclaim and run need, and reports each result with its consequence
//! and how to get what is missing. Tries things only on strandline itself, on its own children and
//! on a control group that it creates and removes.

mod rights;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::procfs;
use strandline_process::rights::Rights;
use strandline_sys::capabilities::{CHECKPOINT_RESTORE, NET_ADMIN, SYS_PTRACE, with_dac_capabilities};
use strandline_sys::{connector, host, memory, pagemap, ptrace};

use super::arguments::Doctor as Arguments;
use super::output::Output;
use super::{CommandResult, Result};
use rights::{SCOPE_3_ADVICE, further_right, more_rights, ptrace_scope_setting};
use strandline_inspect::readers::{ALLOCATORS, RUNTIMES};
use strandline_report::checks::{Check, Status, checks};
use strandline_report::readers::{self, ReaderView};

/// Schema of both documents of `doctor --json`.
pub const SCHEMA: &str = "strandline/doctor/1";
/// Maximum bytes read from a file of /proc or /sys.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// An entry of /proc/PID/pagemap or /proc/kpageflags (Documentation/admin-guide/mm/pagemap.rst).
const PAGE_ENTRY_BYTES: u64 = 8;
/// Bits 0 to 54 of a pagemap entry are the frame number, 0 for users who may not see it.
const FRAME_NUMBER_MASK: u64 = (1 << 55) - 1;

/// The document of `doctor --json`.
#[derive(Serialize)]
struct Findings {
    checks: Vec<Check>,
}

/// The document of `doctor --readers --json`.
#[derive(Serialize)]
struct Readers {
    readers: Vec<ReaderView>,
}

/// The readers of the table, allocators first.
fn all_readers() -> Vec<ReaderView> {
    let allocators = ALLOCATORS.iter().map(|entry| ReaderView::new(entry.about, "allocator"));
    allocators.chain(RUNTIMES.iter().map(|entry| ReaderView::new(entry.about, "runtime"))).collect()
}

/// Runs all checks, or lists the readers.
pub fn run(arguments: &Arguments, output: &mut Output) -> Result<CommandResult> {
    if arguments.readers {
        let readers = all_readers();
        if output.is_json {
            output.document(SCHEMA, None, &Readers { readers })?;
        } else {
            output.print(&readers::readers(&readers, output.surface))?;
        }
        return Ok(CommandResult::Done);
    }
    let mut results = vec![
        kernel(),
        page_scan(),
        page_frames(),
        tracing(),
        reading(),
        rights::ptrace_scope(),
        rights::capabilities(),
        rights::rights(),
        map_files(),
        rollup(),
        seccomp(),
        cgroup(),
        process_events(),
        memory_limit(),
        counters(),
        huge_pages(),
        swap(),
        same_page_merging(),
    ];
    let tools = [
        ("gdb", "examines what strandline only counts"),
        ("gcore", "writes a core of a running process"),
        ("perf", "finds the code that allocates and that faults"),
        ("valgrind", "compare --instructions counts with it; massif shows who allocated what is live"),
        ("heaptrack", "records every allocation from the start"),
    ];
    results.extend(tools.map(|(name, impact)| tool(name, impact)));
    if output.is_json {
        output.document(SCHEMA, None, &Findings { checks: results })?;
    } else {
        output.print(&checks(&results, output.surface))?;
    }
    Ok(CommandResult::Done)
}

/// A check; `impact` is the consequence of its failure, and `fix` is left out if it succeeded.
fn check(
    id: &'static str,
    status: Status,
    finding: impl Into<String>,
    impact: &str,
    fix: Option<&str>,
) -> Check {
    let fix = fix.filter(|_| status != Status::Ok).map(str::to_owned);
    Check { id, status, is_optional: false, finding: finding.into(), impact: impact.to_owned(), fix }
}

/// The text of a small file of /proc or /sys, trimmed; `None` if it cannot be read.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// Major and minor number of a kernel release like `6.18.0-rc3`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Checks the kernel's version.
fn kernel() -> Check {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "of an unknown release".to_owned());
    let status = match version(&release) {
        Some(version) if version >= (6, 7) => Status::Ok,
        Some(version) if version < (4, 14) => Status::Missing,
        _ => Status::Limited,
    };
    let impact = "before 6.7 pages are read one by one from pagemap, which is slower; before 4.14 there is \
                 no smaps_rollup to add up to";
    check("kernel", status, format!("Linux {release}"), impact, Some("run a kernel of 6.7 or later"))
}

/// strandline's own pagemap, which belongs to root if strandline has file capabilities.
fn own_pagemap() -> std::io::Result<fs::File> {
    with_dac_capabilities(|| fs::File::open("/proc/self/pagemap"))
}

/// Tries PAGEMAP_SCAN on strandline's own memory.
fn page_scan() -> Check {
    let mut regions = [pagemap::Region::default(); 8];
    // Covers all addresses of a process: the last page is never mapped, and is left out.
    let range = 0..USER_ADDRESS_END - host::page_bytes();
    let tried = own_pagemap().and_then(|file| pagemap::scan(&file, range, pagemap::PRESENT, &mut regions));
    let (status, finding) = match tried {
        Ok(progress) if progress.filled_regions > 0 => (Status::Ok, "PAGEMAP_SCAN works".to_owned()),
        Ok(_) => (Status::Limited, "PAGEMAP_SCAN lists no page".to_owned()),
        Err(error) => (Status::Limited, format!("PAGEMAP_SCAN: {error}")),
    };
    let impact = "pages are read one by one from pagemap: reading large processes takes longer";
    check("pagemap_scan", status, finding, impact, Some("run a kernel of 6.7 or later"))
}

/// Checks whether page frame numbers and their flags are visible.
fn page_frames() -> Check {
    use std::os::unix::fs::FileExt;
    let resident_byte = 0u8;
    let page = std::ptr::from_ref(&resident_byte).addr() as u64 / host::page_bytes();
    let mut entry = [0; PAGE_ENTRY_BYTES as usize];
    let frame_read = own_pagemap().and_then(|file| file.read_exact_at(&mut entry, page * PAGE_ENTRY_BYTES));
    let frame = u64::from_le_bytes(entry) & FRAME_NUMBER_MASK;
    let flags_read = fs::File::open("/proc/kpageflags")
        .and_then(|file| file.read_exact_at(&mut entry, frame.saturating_mul(PAGE_ENTRY_BYTES)));
    let (status, finding) = match (frame_read, frame, flags_read) {
        (Err(error), ..) => (Status::Missing, format!("/proc/self/pagemap: {error}")),
        (Ok(()), 0, _) => (Status::Limited, "page frame numbers are hidden from this user".to_owned()),
        (Ok(()), _, Err(error)) => (Status::Limited, format!("/proc/kpageflags: {error}")),
        (Ok(()), _, Ok(())) => (Status::Ok, "page frame numbers and flags are readable".to_owned()),
    };
    let impact = "LazyFree and merged pages are counted from smaps rather than page by page";
    let fix = if Rights::own().user == 0 { "run outside the container" } else { "run as root" };
    check("page_flags", status, finding, impact, Some(fix))
}

/// Checks whether the kernel reports forks, execs and exits.
fn process_events() -> Check {
    let connector = connector::Connector::open();
    let (status, finding) = match &connector {
        Ok(_) => (Status::Ok, "the kernel's process connector reports forks, execs and exits".to_owned()),
        Err(error) => (Status::Limited, format!("the kernel's process connector: {error}")),
    };
    // From Linux 6.6 on no capability is needed, and only namespaces or a kernel without the
    // connector make this fail.
    let lacks_right = connector.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
    let impact =
        "run and record search /proc for children every 10 ms, and do not see those that live shorter";
    let fix = match Rights::own() {
        rights if lacks_right && rights.user != 0 => {
            further_right(&rights, NET_ADMIN) + ", outside containers"
        }
        _ => "run outside containers, on a kernel with CONFIG_CONNECTOR and CONFIG_PROC_EVENTS".to_owned(),
    };
    check("process_events", status, finding, impact, Some(&fix))
}

/// Creates and removes a control group with a limit.
fn memory_limit() -> Check {
    const LIMIT_BYTES: u64 = 1 << 30;
    let (status, finding, fix) = match strandline_recorder::can_limit_memory(LIMIT_BYTES) {
        Ok(method) => (Status::Ok, format!("a limit was set by {method}"), ""),
        Err(refusal) => (Status::Limited, refusal.reasons, refusal.advice),
    };
    let impact = "run --limit-memory and squeeze --kind cgroup cannot be used; the limits on address space and data can";
    check("memory_limit", status, finding, impact, Some(fix))
}

/// Checks whether processors count instructions for this user.
fn counters() -> Check {
    let (status, finding) = match strandline_lab::why_no_counters() {
        None => (Status::Ok, "instructions and cycles are counted".to_owned()),
        Some(why) => (Status::Limited, why),
    };
    let impact =
        "compare and try report no instructions and cycles; compare --instructions counts in valgrind";
    let fix = "lower kernel.perf_event_paranoid to 2 or less; in a virtual machine, enable its counters";
    check("counters", status, finding, impact, Some(fix))
}

/// Seizes, stops and releases a child process of strandline.
fn tracing() -> Check {
    let (status, finding) = match try_tracing() {
        Ok(()) => (Status::Ok, "a child was seized, stopped and released".to_owned()),
        Err(error) => (Status::Missing, format!("a child could not be traced: {error}")),
    };
    let impact = "neither explain nor reclaim can stop a process";
    let rights = Rights::own();
    let fix = match ptrace_scope_setting().as_deref() {
        // Otherwise tracing a child needs no privilege.
        Some("2") if !rights.has(SYS_PTRACE) => more_rights(&rights),
        Some("3") => SCOPE_3_ADVICE.to_owned(),
        _ => "in a container, allow ptrace (a seccomp profile that permits it)".to_owned(),
    };
    check("ptrace", status, finding, impact, Some(&fix))
}

/// Traces a child process as `explain` traces its target.
fn try_tracing() -> std::io::Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .args(["demo-child", "--heap-mebibytes", "0", "--zero-mebibytes", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let tid = child.id().cast_signed();
    let result = ptrace::seize(tid, 0)
        .and_then(|()| ptrace::interrupt(tid))
        .and_then(|()| ptrace::wait(tid))
        .and_then(|_| ptrace::detach(tid, 0));
    let killed = child.kill();
    child.wait()?;
    killed?;
    result
}

/// Reads a word of strandline's own memory as a target's is read.
fn reading() -> Check {
    let word = 0x5f3c_u64;
    let mut copy = [0; 8];
    let address = std::ptr::from_ref(&word).addr() as u64;
    let (status, finding) = match memory::read(std::process::id().cast_signed(), address, &mut copy) {
        Ok(8) => (Status::Ok, "process_vm_readv works".to_owned()),
        Ok(short) => (Status::Missing, format!("process_vm_readv read {short} of 8 bytes")),
        Err(error) => (Status::Missing, format!("process_vm_readv: {error}")),
    };
    let fix = "in a container, allow process_vm_readv (`--cap-add SYS_PTRACE`, or a seccomp profile)";
    check("process_vm_readv", status, finding, "heaps cannot be read", Some(fix))
}

/// Checks whether mapped files can be opened through the process that maps them.
fn map_files() -> Check {
    let opened = with_dac_capabilities(|| {
        let mut folder = fs::read_dir("/proc/self/map_files")?;
        let entry = folder.next().unwrap_or(Err(std::io::ErrorKind::NotFound.into()))?;
        fs::File::open(entry.path())
    });
    let (status, finding) = match opened {
        Ok(_) => (Status::Ok, "mapped files can be opened".to_owned()),
        Err(error) => (Status::Limited, format!("/proc/PID/map_files: {error}")),
    };
    let impact = "files that were deleted or are in another mount namespace are known by name only";
    let fix = further_right(&Rights::own(), CHECKPOINT_RESTORE);
    check("map_files", status, finding, impact, Some(&fix))
}

/// Checks whether the kernel sums up the mappings of a process.
fn rollup() -> Check {
    let text = read("/proc/self/smaps_rollup").unwrap_or_default();
    let (status, finding) = if text.contains("Rss:") {
        let pss = if text.contains("Pss:") { "Rss and Pss" } else { "Rss only" };
        (Status::Ok, format!("smaps_rollup has {pss}"))
    } else {
        (Status::Missing, "no smaps_rollup".to_owned())
    };
    let impact = "there is no kernel figure for the rows to add up to";
    check("smaps_rollup", status, finding, impact, Some("run a kernel of 4.14 or later with /proc mounted"))
}

/// Checks whether a filter may refuse strandline's system calls.
fn seccomp() -> Check {
    let (status, finding) = seccomp_status(read("/proc/self/status").as_deref());
    let impact = "system calls may be refused; the checks above show which";
    check("seccomp", status, finding, impact, Some("start strandline outside the container or sandbox"))
}

/// Whether a filter applies, by the text of /proc/self/status; `None` if that cannot be read.
fn seccomp_status(text: Option<&str>) -> (Status, String) {
    let Some(text) = text else {
        return (Status::Limited, "/proc/self/status cannot be read".to_owned());
    };
    match procfs::Status::parse(text.as_bytes()).seccomp_mode {
        Some(0) => (Status::Ok, "no filter on strandline itself".to_owned()),
        None => (Status::Ok, "the kernel reports no filter".to_owned()),
        Some(mode) => (Status::Limited, format!("strandline runs under a seccomp filter (mode {mode})")),
    }
}

/// Checks which version of control groups counts memory.
fn cgroup() -> Check {
    let controllers = read("/sys/fs/cgroup/cgroup.controllers");
    let (status, finding) = match controllers {
        Some(names) if names.split(' ').any(|name| name == "memory") => {
            (Status::Ok, "version 2, with the memory controller".to_owned())
        }
        Some(_) => (Status::Limited, "version 2, without the memory controller".to_owned()),
        None if Path::new("/sys/fs/cgroup/memory").is_dir() => (Status::Ok, "version 1, memory".to_owned()),
        None => (Status::Limited, "no memory cgroup is mounted".to_owned()),
    };
    let impact = "limits of a process's group are not known";
    check("cgroup", status, finding, impact, Some(strandline_recorder::MOUNT_CONTROL_GROUPS))
}

/// Shows the mode of transparent huge pages.
fn huge_pages() -> Check {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let mode = read(path);
    let finding = mode.map_or_else(
        || format!("no transparent huge pages, or {path} cannot be read"),
        |mode| format!("modes {mode}"),
    );
    let impact = "for information: huge pages make sparse use more resident";
    check("huge_pages", Status::Ok, finding, impact, None)
}

/// Checks whether there is a swap area.
fn swap() -> Check {
    // The first line is a heading.
    let areas = read("/proc/swaps").map(|text| text.lines().count().saturating_sub(1));
    let (status, finding) = match areas {
        None => (Status::Limited, "/proc/swaps cannot be read".to_owned()),
        Some(0) => (Status::Limited, "no swap".to_owned()),
        Some(count) => (Status::Ok, format!("swap areas: {count}")),
    };
    let impact = "zero_pages cannot use its safest way, to move pages through swap";
    check("swap", status, finding, impact, Some("add a swap area, zram for example"))
}

/// Checks whether the kernel merges equal pages (KSM).
fn same_page_merging() -> Check {
    let setting = |name: &str| read(format!("/sys/kernel/mm/ksm/{name}"));
    let (status, finding) = match (setting("run").as_deref(), setting("use_zero_pages").as_deref()) {
        (Some("1"), Some("1")) => (Status::Ok, "runs, and merges zero pages"),
        (Some("1"), _) => (Status::Limited, "runs, but does not merge zero pages (optional)"),
        (Some(_), _) => (Status::Limited, "does not run (optional)"),
        (None, _) => (Status::Limited, "/sys/kernel/mm/ksm/run cannot be read (optional)"),
    };
    // strandline does not need this: merging is between the kernel and the program that requests
    // it.
    let impact = "pages of zeros are not released by themselves, even to programs that ask for it with \
                 prctl(PR_SET_MEMORY_MERGE)";
    let fix = "as root: echo 1 > /sys/kernel/mm/ksm/use_zero_pages; echo 1 > /sys/kernel/mm/ksm/run";
    Check { is_optional: true, ..check("ksm", status, finding, impact, Some(fix)) }
}

/// A tool that some people use in addition to strandline.
fn tool(name: &'static str, impact: &str) -> Check {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    let (status, finding) = match path {
        Some(path) => (Status::Ok, path.display().to_string()),
        None => (Status::Missing, "not on PATH (optional)".to_owned()),
    };
    Check {
        id: name,
        status,
        is_optional: true,
        finding,
        impact: impact.to_owned(),
        fix: (status == Status::Missing).then(|| format!("install the package that has {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_claims::remedy::Action;

    #[test]
    fn the_alert_rules_name_every_call() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/prometheus/strandline.rules.yml");
        let rules = std::fs::read_to_string(path).unwrap();
        let calls =
            strandline_inspect::readers::remedies().filter(|(_, spec)| matches!(spec.action, Action::Call));
        let calls: Vec<&str> = calls.map(|(_, spec)| spec.id).collect();
        let expected = format!("remedy=~\"{}\"", calls.join("|"));
        assert!(rules.contains(&expected), "{path} is to have {expected}");
    }

    #[test]
    fn readme_and_docs_have_the_table_of_readers() {
        let views = all_readers();
        let tables = [
            ("README.md", include_str!("../../README.md"), readers::markdown(&views)),
            ("docs/supported.md", include_str!("../../docs/supported.md"), readers::markdown_details(&views)),
        ];
        for (path, text, table) in tables {
            assert!(text.contains(&table), "{path} is to have:\n{table}");
        }
    }

    #[test]
    fn releases_have_versions() {
        assert_eq!(version("6.18.0-rc3"), Some((6, 18)));
        assert_eq!(version("5.10-generic"), Some((5, 10)));
        assert_eq!(version("rubbish"), None);
        assert_eq!(version(""), None);
        assert!(version("6.6.1") < Some((6, 7)));
    }

    #[test]
    fn filters_of_system_calls_are_known_or_not() {
        let status = |text| seccomp_status(text).0;
        assert_eq!(status(Some("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t1\n")), Status::Ok);
        assert_eq!(status(Some("Seccomp:\t2\n")), Status::Limited);
        assert_eq!(status(Some("Name:\tx\n")), Status::Ok, "a kernel without filters");
        assert_eq!(status(None), Status::Limited);
    }

    #[test]
    fn this_machine_can_be_checked() {
        let is_sandbox = seccomp().status != Status::Ok || kernel().status == Status::Missing;
        for Check { status, finding, .. } in [reading(), rollup(), page_frames()] {
            if status == Status::Missing && is_sandbox {
                eprintln!("skipped: this_machine_can_be_checked: {finding}, in a sandbox or an old kernel");
            } else {
                assert_ne!(status, Status::Missing, "{finding}");
            }
        }
    }
}
