//! Recognises two threads of a runtime by their frames: a helper that waits for work, and a thread
//! that sleeps in its event loop. Both hold no lock.

use std::ops::Range;

use strandline_claims::remedy::Notification;
use strandline_process::c_library::CLibrary;
use strandline_process::elf::Object;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::procfs::Process;

/// Maximum number of frames between a wait in the kernel and the function of the loop: its poll.
const MAX_POLL_FRAMES: usize = 1;

/// Functions of a runtime in which its threads wait, and the files that hold them.
#[derive(Clone, Debug, Default)]
pub struct RuntimeCode {
    /// Functions in which a helper thread waits for work.
    pub waits: Vec<Range<u64>>,
    /// Functions that run an event loop.
    pub loops: Vec<Range<u64>>,
    /// Files with these functions, the runtime's own first.
    files: Vec<String>,
}

impl RuntimeCode {
    /// Finds the functions in the runtime's own object and in the files that may hold them.
    pub fn find(process: &Process, space: &AddressSpace, plan: &Notification, own: &Object) -> Self {
        let mut code = Self::default();
        if let Some(mapping) = space.find(plan.object) {
            code.add(own, plan, &mapping.name);
        }
        let may_hold = |mapping: &&Mapping| {
            let is_named = |start: &&str| mapping.file_name().starts_with(*start);
            mapping.has_file() && mapping.permissions.execute && plan.files.iter().any(is_named)
        };
        for mapping in space.mappings().iter().filter(may_hold) {
            // Threads in a file that cannot be read are not recognised, and no call is made there.
            if let Ok(object) = Object::open(process, space, mapping) {
                code.add(&object, plan, &mapping.name);
            }
        }
        code
    }

    /// Adds the functions of an object.
    fn add(&mut self, object: &Object, plan: &Notification, file: &str) {
        self.files.push(file.to_owned());
        object.each_symbol(&mut |name, symbol| {
            let is_in = |names: &[&str]| names.iter().any(|wanted| wanted.as_bytes() == name);
            let range = symbol.address..symbol.address.saturating_add(symbol.bytes);
            let functions = match name {
                _ if !object.text_contains(symbol.address) => return,
                _ if is_in(plan.idle_in) => &mut self.waits,
                _ if is_in(plan.loops_in) => &mut self.loops,
                _ => return,
            };
            functions.push(range);
        });
    }

    /// Whether a thread with these frames, the innermost first, is a helper that waits for work.
    /// These are: the C library's wait for a condition variable; a function of `waits`, which
    /// called it; the thread's own loop, in the runtime's code; the C library's start of a thread.
    /// In such a wait a thread has released the one lock that it takes in its loop.
    pub fn is_idle_helper(&self, space: &AddressSpace, frames: &[u64]) -> bool {
        let Some(wait) = frames.iter().position(|&frame| is_in(&self.waits, frame)) else { return false };
        let (inner, outer) = frames.split_at(wait);
        let [_, own_loop, thread_start @ ..] = outer else { return false };
        let are_libc =
            |frames: &[u64]| !frames.is_empty() && frames.iter().all(|&frame| is_libc(space, frame));
        are_libc(inner) && self.is_own(space, *own_loop) && are_libc(thread_start)
    }

    /// Whether a thread with these frames, the innermost first, sleeps in its event loop: the C
    /// library's wait; the loop's poll; a function of `loops`; the runtime's own code, which called
    /// it.
    pub fn is_in_event_loop(&self, space: &AddressSpace, frames: &[u64]) -> bool {
        let inner = frames.iter().take_while(|&&frame| is_libc(space, frame)).count();
        let Some(position) = frames.iter().position(|&frame| is_in(&self.loops, frame)) else { return false };
        let Some(poll) = frames.get(inner..position) else { return false };
        let caller = frames.get(position + 1).and_then(|&frame| mapping_of(space, frame));
        inner > 0
            && poll.len() <= MAX_POLL_FRAMES
            && poll.iter().all(|&frame| self.is_own(space, frame))
            && caller.is_some_and(|mapping| self.files.first() == Some(&mapping.name))
    }

    /// Whether a frame is in one of the runtime's files.
    fn is_own(&self, space: &AddressSpace, frame: u64) -> bool {
        mapping_of(space, frame).is_some_and(|mapping| self.files.contains(&mapping.name))
    }
}

/// The call that a frame is in: the instruction after it may belong to the next function.
fn called_from(frame: u64) -> u64 {
    frame.saturating_sub(1)
}

/// Whether a frame is in one of the functions.
fn is_in(functions: &[Range<u64>], frame: u64) -> bool {
    functions.iter().any(|range| range.contains(&called_from(frame)))
}

/// The mapped file that a frame is in.
fn mapping_of(space: &AddressSpace, frame: u64) -> Option<&Mapping> {
    space.find(called_from(frame)).filter(|mapping| mapping.has_file())
}

/// Whether a frame is in the C library.
fn is_libc(space: &AddressSpace, frame: u64) -> bool {
    mapping_of(space, frame).is_some_and(is_c_library)
}

/// Whether a mapping is of the C library, or of the thread library of glibc before 2.34.
pub(super) fn is_c_library(mapping: &Mapping) -> bool {
    CLibrary::of_file(&mapping.name).is_some() || mapping.file_name().starts_with("libpthread")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: u64 = 0x40_1000;
    const LOOP: u64 = 0x40_2000;
    const NODE: u64 = 0x40_5000;
    const LIBC: u64 = 0x7f00_0000_1000;
    const ADDON: u64 = 0x7f00_1000_1000;

    fn space() -> AddressSpace {
        let maps = b"00400000-00500000 r-xp 00000000 08:01 1 /usr/bin/node\n\
                    7f0000000000-7f0000100000 r-xp 00000000 08:01 2 /lib/libc.so.6\n\
                    7f0010000000-7f0010100000 r-xp 00000000 08:01 3 /srv/addon.node\n";
        AddressSpace::parse(maps).0
    }

    fn code() -> RuntimeCode {
        let function = |start: u64| std::iter::once(start..start + 0x100).collect();
        RuntimeCode { waits: function(WAIT), loops: function(LOOP), files: vec!["/usr/bin/node".to_owned()] }
    }

    #[test]
    fn helpers_wait_in_the_runtime_s_own_loop() {
        let cases: [(&[u64], bool); 7] = [
            (&[LIBC, WAIT + 8, NODE, LIBC], true),
            (&[LIBC, LIBC + 64, WAIT + 8, NODE, LIBC, LIBC + 128], true),
            // A thread of an addon; a wait deeper in the program; no wait; no start; at its entry.
            (&[LIBC, WAIT + 8, ADDON, LIBC], false),
            (&[LIBC, WAIT + 8, NODE, NODE + 64, LIBC], false),
            (&[LIBC, NODE, NODE, LIBC], false),
            (&[LIBC, WAIT + 8, NODE], false),
            (&[WAIT + 8, NODE, LIBC], false),
        ];
        for (frames, is_idle) in cases {
            assert_eq!(code().is_idle_helper(&space(), frames), is_idle, "{frames:x?}");
        }
    }

    #[test]
    fn event_loops_wait_below_their_own_poll() {
        let cases: [(&[u64], bool); 9] = [
            (&[LIBC, LOOP + 8, NODE], true),
            (&[LIBC, NODE, LOOP + 8, NODE, LIBC], true),
            // A callback of the loop that waits; an addon's poll; an addon's loop; its caller is
            // not known; no loop; not in a wait.
            (&[LIBC, NODE, NODE + 64, LOOP + 8, NODE], false),
            (&[LIBC, ADDON, LOOP + 8, NODE], false),
            (&[LIBC, NODE, LOOP + 8, ADDON], false),
            (&[LIBC, NODE, LOOP + 8], false),
            (&[LIBC, NODE, NODE + 64], false),
            (&[NODE, LOOP + 8, NODE], false),
            (&[], false),
        ];
        for (frames, is_asleep) in cases {
            assert_eq!(code().is_in_event_loop(&space(), frames), is_asleep, "{frames:x?}");
        }
    }
}
