//! V8's own figures, by the names of `v8.getHeapSpaceStatistics()`, summed over all isolates.

use super::claims::Claimed;
use super::facts::{Amount, Counted, SpaceFigures, V8};
use super::heap::Heaps;
use super::layout::Layout;
use super::objects::Census;
use super::stores::Stores;
use super::tally::Totals;
use super::trace::Live;
use strandline_claims::facts::Runtime;

/// Maximum types that are listed of reachable objects, and of uncertain ones.
const MAX_TYPES: usize = 200;

/// Fills in the figures common to all runtimes, and those of each space.
pub fn fill_in_facts(heaps: &Heaps, layout: &Layout, facts: &mut Runtime) {
    let spaces: Vec<SpaceFigures> = layout.spaces.iter().map(|name| space_figures(heaps, name)).collect();
    let committed: u64 = spaces.iter().map(|space| space.space_size).sum();
    let used: Option<u64> = spaces.iter().map(|space| space.space_used_size).sum();
    facts.used_bytes = used;
    facts.committed_bytes = Some(committed);
    facts.free_bytes = used.map(|used| committed.saturating_sub(used));
    // Names and numbers always have a JSON form.
    if let Ok(spaces) = serde_json::to_value(&spaces) {
        facts.own.insert("spaces".to_owned(), spaces);
    }
}

/// Sums a space over all isolates. V8 counts nothing for the read-only space, which they share.
fn space_figures(heaps: &Heaps, name: &str) -> SpaceFigures {
    let mut figures = SpaceFigures { space_name: name.to_owned(), space_size: 0, space_used_size: Some(0) };
    for space in heaps.spaces.iter().filter(|space| space.name == name) {
        figures.space_size = figures.space_size.saturating_add(space.committed_bytes);
        figures.space_used_size =
            figures.space_used_size.zip(space.used_bytes).map(|(sum, used)| sum.saturating_add(used));
    }
    figures
}

/// Returns the details of V8, without those of its objects.
pub fn details(heaps: &Heaps, claimed: &Claimed, stores: &Stores) -> V8 {
    let idle = claimed.total_idle_bytes();
    V8 {
        isolates: heaps.isolates.len() as u64,
        pool_resident_bytes: idle.pool_bytes,
        young_idle_resident_bytes: idle.young_bytes,
        read_only_resident_bytes: claimed.read_only_bytes,
        buffers: stores.buffers.map(|buffers| buffers.in_blocks),
        mapped_buffers: stores.buffers.map(|buffers| buffers.mapped),
        shared_buffers: stores.buffers.map(|buffers| buffers.shared),
        external_strings: stores.strings,
        ..V8::default()
    }
}

/// Returns counts of objects; only the types with most bytes.
pub fn counted(totals: &Totals) -> Counted {
    let types = totals.types.iter().take(MAX_TYPES).cloned().collect();
    Counted { objects: totals.instances, bytes: totals.bytes, types }
}

/// Returns the objects to which nothing leads.
pub fn garbage(census: &Census, live: &Live) -> Amount {
    let [all, reachable, uncertain] = [&census.totals, &live.reachable, &live.uncertain];
    Amount {
        count: all.instances.saturating_sub(reachable.instances).saturating_sub(uncertain.instances),
        bytes: all.bytes.saturating_sub(reachable.bytes).saturating_sub(uncertain.bytes),
    }
}
