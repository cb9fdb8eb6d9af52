//! The release of a C library, according to its file.
//!
//! The file is read instead of the target's mapping, as reading that would bring pages into the
//! target.

use std::io::Read;

use strandline_claims::reader::leading_version;
use strandline_process::c_library::banner;
use strandline_process::map::AddressSpace;
use strandline_process::namespaces::open_mapped_file;
use strandline_process::procfs::Process;

/// Maximum bytes of a C library's file that are searched for its release.
const MAX_LIBRARY_BYTES: u64 = 16 << 20;

/// Returns the release of the glibc mapped at `address`: `2.36`.
pub fn release(process: &Process, space: &AddressSpace, address: u64) -> Option<String> {
    let mut bytes = Vec::new();
    let file = open_mapped_file(process, space.find(address)?).ok()?;
    file.take(MAX_LIBRARY_BYTES).read_to_end(&mut bytes).ok()?;
    let banner = banner(&bytes)?;
    let (_, release) = banner.split_once("release version ")?;
    leading_version(release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_program_has_a_libc_of_a_release() {
        let process = Process::open(std::process::id().cast_signed()).unwrap();
        let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
        let libc = space.mappings().iter().find(|mapping| mapping.name.contains("/libc.so")).unwrap();
        let release = release(&process, &space, libc.start).unwrap();
        assert!(release.starts_with("2.") && release[2..].parse::<u32>().is_ok(), "{release}");
    }
}
