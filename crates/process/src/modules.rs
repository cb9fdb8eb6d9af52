//! The programs and libraries that a process has mapped, with their static data.

use crate::map::Mapping;

/// Consecutive mappings of one file, with the anonymous mapping (bss) that follows without a gap.
pub fn groups(mappings: &[Mapping]) -> Vec<Vec<&Mapping>> {
    let mut groups: Vec<Vec<&Mapping>> = Vec::new();
    for mapping in mappings {
        let last = groups.last_mut();
        if mapping.has_file() && !mapping.permissions.shared {
            match last {
                Some(group)
                    if group[0].inode == mapping.inode
                        && group[0].device == mapping.device
                        && mapping.offset != 0 =>
                {
                    group.push(mapping);
                }
                _ => groups.push(vec![mapping]),
            }
        } else if let Some(group) = last
            && mapping.is_private_anonymous()
            && mapping.permissions.write
            && !mapping.name.starts_with("[stack")
            && group.last().is_some_and(|before| before.end == mapping.start && before.has_file())
        {
            group.push(mapping);
        }
    }
    groups
}
