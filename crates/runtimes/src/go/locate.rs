//! Finds Go in mapped files: its version, where its heap's structure is, its static data.

use std::collections::HashSet;

use super::layout::{LAYOUTS, Layout};
use crate::named::go_version;
use strandline_process::elf::Object;
use strandline_process::image::Image;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::modules;
use strandline_process::namespaces::open_mapped_file;
use strandline_process::procfs::Process;

/// The most distinct mapped files that are looked into.
const MOST_FILES: usize = 1024;
/// Static data of a program beyond this is not searched.
const MOST_DATA_BYTES: u64 = 64 << 20;

/// A mapped file that holds a Go runtime.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its path, as the kernel named it.
    pub path: String,
    /// Its version, where it says.
    pub version: Option<String>,
    /// Where `runtime.mheap_`, `runtime.gcController` and `runtime.memstats` are; not in stripped files.
    pub symbols: [Option<u64>; 3],
    /// Its static data.
    pub data: (u64, u64),
    /// Whether nobody else's memory is in the process: no library is mapped, and so no other malloc.
    pub is_alone: bool,
}

impl Program {
    /// The layout of its version; `None` where none is known.
    pub fn layout(&self) -> Option<&'static Layout> {
        let mut parts = self.version.as_deref()?.split('.');
        let (Some("1"), Some(minor)) = (parts.next(), parts.next()) else { return None };
        let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
        let minor: u8 = digits.parse().ok()?;
        LAYOUTS.iter().find(|layout| (layout.minors.0..=layout.minors.1).contains(&minor))
    }
}

/// The mapped files that hold a Go runtime.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Program> {
    let mut seen = HashSet::new();
    let mut programs = Vec::new();
    let groups = modules::groups(space.mappings());
    // glibc's loader takes no memory for itself that lasts.
    let is_code = |group: &&Vec<&Mapping>| {
        let name = &group[0].name;
        let is_file = name.starts_with('/') && !name.contains("/ld-linux-x86-64.so");
        is_file && group.iter().any(|mapping| mapping.permissions.execute)
    };
    // Go takes nothing from brk; a C library that is linked in does.
    let has_break = space.mappings().iter().any(|mapping| mapping.name == "[heap]");
    let is_alone = !has_break && groups.iter().filter(is_code).count() == 1;
    for group in &groups {
        let code = group.iter().find(|mapping| mapping.permissions.execute);
        let Some(code) = code.filter(|code| seen.insert((code.device, code.inode))) else { continue };
        programs.extend(program(process, space, (group, code), is_alone));
        if seen.len() >= MOST_FILES {
            break;
        }
    }
    programs
}

fn program(
    process: &Process,
    space: &AddressSpace,
    (group, mapping): (&[&Mapping], &Mapping),
    is_alone: bool,
) -> Option<Program> {
    let image = open_mapped_file(process, mapping).ok().and_then(Image::open)?;
    let information = image.section_bytes(".go.buildinfo", 256)?;
    let mut written = group.iter().filter(|mapping| mapping.permissions.write);
    let (first, last) = (written.next()?, group.last()?);
    let end = last.end.min(first.start.saturating_add(MOST_DATA_BYTES));
    let object = Object::open(process, space, mapping).ok()?;
    let symbols = ["runtime.mheap_", "runtime.gcController", "runtime.memstats"]
        .map(|name| object.symbol_address(name));
    Some(Program {
        path: mapping.name.clone(),
        version: go_version(&information),
        symbols,
        data: (first.start, end),
        is_alone,
    })
}
