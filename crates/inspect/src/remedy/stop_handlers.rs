//! Finds the handlers by which runtimes stop and restart threads of a process.

use std::ops::Range;

use strandline_process::call::handlers;
use strandline_process::elf::Object;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::procfs::Process;

use crate::readers;

/// Returns the code in which handlers that stop or restart threads begin: all of a runtime's own
/// files, and functions by name in the program. Empty where no thread can be stopped by such a
/// signal.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Range<u64>> {
    // A process without a status has ended.
    if !process.status().is_ok_and(|status| handlers::may_stop_threads(&status)) {
        return Vec::new();
    }
    let is_runtime_file = |mapping: &&Mapping| {
        let file = mapping.file_name();
        readers::all().flat_map(|entry| entry.stop_handlers.files).any(|name| name.matches(file))
    };
    let code = space.mappings().iter().filter(|mapping| mapping.permissions.execute && mapping.has_file());
    let mut handler_code: Vec<Range<u64>> =
        code.filter(is_runtime_file).map(|mapping| mapping.start..mapping.end).collect();
    let executable = process.executable().unwrap_or_default();
    let program = space.mappings().iter().find(|mapping| mapping.name == executable);
    // Handlers in a program that cannot be read wait for the end of the call, like others.
    if let Some(object) = program.and_then(|program| Object::open(process, space, program).ok()) {
        let names: Vec<&str> =
            readers::all().flat_map(|entry| entry.stop_handlers.symbols).copied().collect();
        object.each_symbol(&mut |name, symbol| {
            if names.iter().any(|wanted| wanted.as_bytes() == name) {
                handler_code.push(symbol.address..symbol.address.saturating_add(1));
            }
        });
    }
    handler_code
}
