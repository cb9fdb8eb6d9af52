//! Structures of an allocator or runtime that were inconsistent or not read, and the consequences:
//! no call, figures left out, caveats.

use crate::allocator::{CallHazard, HazardCause};
use crate::caveat::Caveat;
use crate::reader::ReaderInfo;
use crate::units::thousands;

/// Inconsistent structures, and the point at which time ran out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadProblems {
    /// Number of inconsistent structures.
    pub damages: u64,
    /// The bytes affected, as far as known.
    damaged_bytes: u64,
    /// Address of the first one.
    first_damage: Option<u64>,
    /// The first address that a swapped-out structure describes.
    first_swapped: Option<u64>,
    /// The resident bytes that swapped-out structures describe.
    swapped_bytes: u64,
    /// The first place that was not read because time ran out.
    timed_out_at: Option<u64>,
}

impl ReadProblems {
    /// Notes an inconsistent structure at `at`, or one that describes that address; its `bytes` are
    /// claimed as unread.
    pub fn note_damage(&mut self, at: u64, bytes: u64) {
        self.damages += 1;
        self.damaged_bytes = self.damaged_bytes.saturating_add(bytes);
        self.first_damage.get_or_insert(at);
    }

    /// Notes a swapped-out structure that describes memory from `at` on, `bytes` of it resident.
    pub fn note_swapped(&mut self, at: u64, bytes: u64) {
        self.swapped_bytes = self.swapped_bytes.saturating_add(bytes);
        self.first_swapped.get_or_insert(at);
    }

    /// Notes that time ran out at `at`.
    pub fn note_timeout(&mut self, at: u64) {
        self.timed_out_at.get_or_insert(at);
    }

    /// Whether time ran out.
    pub fn timed_out(&self) -> bool {
        self.timed_out_at.is_some()
    }

    /// Whether all was read and consistent.
    pub fn is_empty(&self) -> bool {
        self.damages == 0 && self.first_swapped.is_none() && self.timed_out_at.is_none()
    }

    /// Adds the problems of another part.
    pub fn add(&mut self, other: &Self) {
        crate::add_fields!(saturating self, other: damages, damaged_bytes, swapped_bytes);
        self.first_damage = self.first_damage.or(other.first_damage);
        self.first_swapped = self.first_swapped.or(other.first_swapped);
        self.timed_out_at = self.timed_out_at.or(other.timed_out_at);
    }

    /// Why a call into the allocator would not be safe.
    pub fn call_hazard(&self) -> Option<CallHazard> {
        let hazard = |at: Option<u64>, cause| at.map(|at| CallHazard { at, cause });
        hazard(self.first_damage, HazardCause::Broken)
            .or(hazard(self.first_swapped, HazardCause::Swapped))
            .or(hazard(self.timed_out_at, HazardCause::TooSlow))
    }

    /// Appends `NAME_too_slow`, about the program or library `place`, if time ran out,
    /// `heap_swapped` if a structure is swapped out, and `NAME_damaged` if one was inconsistent;
    /// NAME is that of the reader. `structures` is what they are called, in the plural: `spans`.
    pub fn add_caveats(&self, caveats: &mut Vec<Caveat>, about: &ReaderInfo, structures: &str, place: &str) {
        let (name, title) = (about.name, about.title);
        if self.timed_out() {
            let text =
                format!("not all {structures} of {title} were read in the time that a target may be stopped");
            caveats.push(Caveat::new(&format!("{name}_too_slow"), place, None, text));
        }
        if let Some(at) = self.first_swapped {
            let text = format!(
                "parts of the page map of {title} are swapped out, and reading them would load them: {structures} there are unknown"
            );
            let bytes = (self.swapped_bytes > 0).then_some(self.swapped_bytes);
            caveats.push(Caveat::new("heap_swapped", format!("{at:#x}"), bytes, text));
        }
        if let Some(at) = self.first_damage {
            let (are, their) = if self.damages == 1 { ("is", "its") } else { ("are", "their") };
            let text = format!(
                "{} of the {structures} of {title} {are} inconsistent (damaged, or read during a change): {their} contents are unknown",
                thousands(self.damages)
            );
            let bytes = (self.damaged_bytes > 0).then_some(self.damaged_bytes);
            caveats.push(Caveat::new(&format!("{name}_damaged"), format!("{at:#x}"), bytes, text));
        }
    }
}
