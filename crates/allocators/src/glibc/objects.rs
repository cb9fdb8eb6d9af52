//! The mapped objects that may contain a glibc: libc itself, once per namespace, or the executable
//! if it is static.

use strandline_claims::allocator::Context;
use strandline_process::c_library::CLibrary;
use strandline_process::map::Mapping;
use strandline_process::modules;
use strandline_process::range::{AddressRange, overlapping};

/// The writable, resident data of an object.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// Its first address.
    pub address: u64,
    /// Its path, as the kernel names it.
    pub name: String,
    /// Whether it is a libc by name; otherwise it is a program that may contain one.
    pub is_libc: bool,
    /// Resident runs of its writable data and bss.
    pub data: Vec<AddressRange>,
}

/// Maximum bytes searched in all objects: in all known programs libc's data is at the start, but
/// the arrays of a static program may have any size.
const MAX_DATA_BYTES: u64 = 256 << 20;

/// Maximum data of a libc, bss included, that is read completely: it is some tens of KiB.
const MAX_LIBC_DATA_BYTES: u64 = 1 << 20;

/// Returns the candidates: every mapped libc; without one, every object with writable data, as
/// a static program contains its malloc.
pub fn find(context: &Context<'_>) -> Vec<Object> {
    let groups = modules::file_groups(context.space);
    let mut chosen_groups: Vec<_> =
        groups.iter().filter(|group| CLibrary::of_file(&group[0].name) == Some(CLibrary::Glibc)).collect();
    if chosen_groups.is_empty() {
        chosen_groups = groups.iter().collect();
        // Files without code contain no malloc, and may take all of the bytes that are searched.
        chosen_groups.sort_by_key(|group| !group.iter().any(|mapping| mapping.permissions.execute));
    }
    let mut remaining_bytes = MAX_DATA_BYTES;
    let objects = chosen_groups.into_iter().map(|group| object(context, group, &mut remaining_bytes));
    objects.filter(|object| !object.data.is_empty()).collect()
}

/// Returns the object of these mappings, with at most `remaining_bytes` of data, which it
/// decrements.
fn object(context: &Context<'_>, group: &[&Mapping], remaining_bytes: &mut u64) -> Object {
    let mut object = Object {
        address: group[0].start,
        name: group[0].name.clone(),
        is_libc: CLibrary::of_file(&group[0].name) == Some(CLibrary::Glibc),
        ..Object::default()
    };
    for mapping in group.iter().filter(|mapping| mapping.permissions.write) {
        // A libc's few pages of data are read even if they are swapped out: without them there is
        // no heap. The data of a static program can have any size.
        let is_read_whole = object.is_libc && mapping.bytes() <= MAX_LIBC_DATA_BYTES;
        let is_swapped = !overlapping(context.swapped_mappings, mapping.range()).is_empty();
        let runs = if is_read_whole && is_swapped {
            vec![mapping.range()]
        } else {
            context.resident_runs(mapping.range())
        };
        for run in runs {
            let run = AddressRange::sized(run.start, run.len().min(*remaining_bytes));
            *remaining_bytes -= run.len();
            match object.data.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ if run.is_empty() => {}
                _ => object.data.push(run),
            }
        }
    }
    object
}
