//! What cannot be read, or not in time, is reported and not taken for free.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn unknown_free_entries_are_reported() {
    let mut fabric = Fabric::new();
    let first = INTERPRETER + fabric.release.body_roots;
    let free_entries = |fabric: &Fabric, code: &str| {
        let (reading, _) = fabric.read();
        assert_eq!(reading.caveats.iter().any(|caveat| caveat.code == code), !code.is_empty());
        let entries = reading.facts.bodies.iter().find(|bodies| bodies.name == "HE");
        entries.and_then(|entries| entries.free)
    };
    assert_eq!(free_entries(&fabric, ""), Some(0));
    fabric.put(first, &[HEAP]);
    assert_eq!(free_entries(&fabric, "perl_keys_damaged"), None, "the list leads out of the arenas");
}

/// Pages of a table without buckets in use may never have been written; the number of keys shows
/// whether any of the other pages is missing.
#[test]
fn tables_of_keys_may_have_pages_that_are_not_resident() {
    for (keys, caveats) in [(1, [].as_slice()), (2, ["perl_keys_damaged"].as_slice())] {
        let mut fabric = Fabric::new();
        let strtab = fabric.read_word(INTERPRETER + fabric.release.strtab).unwrap();
        let table = HEAP + 0x10_0040;
        let entry = fabric.chunk(44);
        fabric.put(entry, &[0, entry + 24, 1, 4 << 32]);
        fabric.put(table + 8, &[0]);
        fabric.put(table + 3 * PAGE_BYTES, &[entry]);
        let any = fabric.read_word(strtab).unwrap();
        fabric.put(any, &[0, 0, keys, 2047]);
        fabric.put(strtab + 16, &[table]);
        let (reading, _) = fabric.read();
        assert!(reading.facts.read);
        assert_eq!(reading.facts.containers.shared_keys, 1);
        assert_eq!(codes(&reading), caveats);
    }
}

/// A table without any memory ends the search early.
#[test]
fn missing_tables_are_not_walked() {
    let mut fabric = Fabric::new();
    let strtab = fabric.read_word(INTERPRETER + fabric.release.strtab).unwrap();
    let any = fabric.read_word(strtab).unwrap();
    fabric.put(any, &[0, 0, 0, (1 << 39) - 1]);
    fabric.put(strtab + 16, &[HEAP + (1 << 30)]);
    let (reading, _) = fabric.read();
    assert_eq!(codes(&reading), ["perl_keys_damaged"]);
}

/// Memory whose reads end after the deadline.
struct LateMemory<'a> {
    fabric: &'a Fabric,
    deadline: Instant,
}

impl Memory for LateMemory<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        while Instant::now() <= self.deadline {
            std::thread::yield_now();
        }
        self.fabric.read_some(address, buffer)
    }
}

#[test]
fn subs_that_are_not_read_in_time_are_not_damaged() {
    let (mut fabric, _) = with_sub(0);
    let sub = fabric.sub("late", &[0], &[&[0]], 0);
    let deadline = Instant::now() + Duration::from_millis(100);
    let context = roots::PadContext {
        memory: &LateMemory { fabric: &fabric, deadline },
        release: fabric.release,
        main_cv: 0,
        deadline,
        workers: 1,
        resident_bytes: 1 << 20,
    };
    let pads = roots::read_pads(&context, &[sub]);
    assert_eq!((pads.subs.damaged, pads.is_complete), (0, false));
}

/// Lists of pads that exceed what is resident are refused, and so are lists that exceed it
/// together.
#[test]
fn endless_pads_are_refused() {
    let (mut fabric, _) = with_sub(0);
    let resident = PAGE_BYTES * fabric.pages.len() as u64;
    let list = fabric.chunk(8);
    let padlist = fabric.chunk(24);
    fabric.put(padlist, &[resident / 8, list]);
    let any = fabric.body(PVCV, 0);
    fabric.put(any + 56, &[0, 0, padlist, 0, 0, 0]);
    fabric.head(any, PVCV, 1, 0);
    let (reading, _) = fabric.read();
    assert_eq!(reading.facts.subs.damaged, 1);
    assert_eq!(codes(&reading), ["perl_subs_damaged"]);
    assert_eq!(reading.facts.retained.lexicals.bytes, 14000, "the other sub's pads are read");
}

#[test]
fn globs_with_unreadable_contents_are_reported() {
    let mut fabric = Fabric::new();
    fabric.string("", 6000, 0);
    let glob = fabric.glob("main", "buffer");
    assert_eq!(codes(&fabric.read().0), [""; 0]);
    fabric.put(glob + 16, &[HEAP + (1 << 30)]);
    assert_eq!(codes(&fabric.read().0), ["perl_values_unread"]);
}

#[test]
fn bodies_of_unread_values_are_not_free() {
    let mut fabric = Fabric::new();
    fabric.string("", 100, flags::POK);
    let arena_bytes = fabric.bodies[&u64::from(PV)].1 * (4080 / fabric.bodies[&u64::from(PV)].1);
    let strings = |fabric: &Fabric| {
        let (reading, refinements) = fabric.read();
        assert!(reading.facts.read, "{:?}", reading.caveats);
        let free_of = |name| {
            reading.facts.bodies.iter().find(|bodies| bodies.name == name).and_then(|bodies| bodies.free)
        };
        assert_eq!(free_of("HE"), Some(0), "the list of free entries has them");
        let claim = claimed(&refinements, BODIES, arena_bytes).unwrap();
        (free_of("PV"), claim.free.is_some())
    };
    let (free, has_claimed_free_bodies) = strings(&fabric);
    assert!(free.is_some_and(|free| free > 0) && has_claimed_free_bodies);
    // A second arena of heads, whose second page is not resident.
    let second = page_of(HEADS) + 8 * PAGE_BYTES + PAGE_BYTES / 2;
    fabric.put(HEADS, &[second]);
    fabric.put(second, &[0, SLOTS, 0]);
    for slot in 1..PAGE_BYTES / 2 / HEAD_BYTES {
        fabric.put(second + slot * HEAD_BYTES, &[0, 0xff << 32, 0]);
    }
    assert_eq!(strings(&fabric), (None, false));
}
