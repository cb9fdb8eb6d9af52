//! Estimates from a sample which part of a file's cached pages is charged to a group.
//!
//! A page is charged to the group whose process first used it, and stays so: libraries that every
//! container maps are charged to one of them. /proc/kpagecgroup, a file of root's, has the group of
//! a page by its frame number, which pagemap shows with CAP_SYS_ADMIN only. The sampled pages are
//! mapped, never accessed.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use strandline_sys::files::FileWindow;
use strandline_sys::pagemap::entry;

use crate::pages::{PAGE_BYTES, page_of};

/// Bytes of a file whose pages are looked up at once.
const WINDOW_BYTES: u64 = 64 << 20;
/// Maximum number of windows of a file, spread over it.
const MAX_WINDOWS: u64 = 16;
/// Sampled pages in a window: one in this many, within the bounds below.
const PAGES_PER_SAMPLE: usize = 256;
const MIN_SAMPLED_PAGES: usize = 4;
const MAX_SAMPLED_PAGES: usize = 64;

/// Finds which pages are charged to a set of groups.
#[derive(Debug)]
pub struct ChargeSampler {
    /// The inodes of the groups.
    groups: BTreeSet<u64>,
    /// This program's pagemap.
    page_map: File,
    /// /proc/kpagecgroup.
    page_groups: File,
}

/// The pages that a sample represents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The cached pages of the windows in which pages were sampled.
    pub cached_pages: u64,
    /// Of those, the pages that are charged to the groups, by the sampled pages of each window.
    pub charged_pages: u64,
}

impl Sample {
    /// Adds a window, in which `charged_samples` of `samples` pages are charged to the groups.
    fn add_window(&mut self, cached_pages: u64, samples: u64, charged_samples: u64) {
        if let Some(charged_pages) = (cached_pages * charged_samples).checked_div(samples) {
            self.cached_pages += cached_pages;
            self.charged_pages += charged_pages;
        }
    }

    /// The part of `bytes` that the sample represents; `None` for an empty one.
    pub fn share_of(self, bytes: u64) -> Option<u64> {
        let share = (u128::from(bytes) * u128::from(self.charged_pages))
            .checked_div(u128::from(self.cached_pages))?;
        let share = u64::try_from(share).ok()?;
        Some(share.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes).min(bytes))
    }
}

impl ChargeSampler {
    /// A sampler for the groups with these inodes; `None` without the permission, or if the kernel
    /// does not report the groups of pages.
    pub fn new(groups: BTreeSet<u64>) -> Option<Self> {
        let page_map = File::open("/proc/self/pagemap").ok()?;
        let page_groups = File::open("/proc/kpagecgroup").ok()?;
        Some(Self { groups, page_map, page_groups })
    }

    /// Samples the cached pages of `file`, which has `size_bytes`. Parts that cannot be mapped or
    /// queried are not in the sample; `None` if no cached page is.
    pub fn sample(&self, file: &File, size_bytes: u64) -> Option<Sample> {
        let window_count = size_bytes.div_ceil(WINDOW_BYTES).clamp(1, MAX_WINDOWS);
        let window_bytes = size_bytes.div_ceil(window_count).min(WINDOW_BYTES);
        let mut sample = Sample::default();
        for number in 0..window_count {
            let start = u128::from(size_bytes) * u128::from(number) / u128::from(window_count);
            let start = page_of(u64::try_from(start).ok()?);
            let bytes = size_bytes.saturating_sub(start).min(window_bytes).next_multiple_of(PAGE_BYTES);
            let Ok(window) = FileWindow::new(file, start, usize::try_from(bytes).ok()?) else { continue };
            let Ok(resident) = window.resident_pages() else { continue };
            let pages: Vec<usize> = resident
                .iter()
                .enumerate()
                .filter(|(_, is_resident)| **is_resident)
                .map(|(page, _)| page)
                .collect();
            let wanted_samples = (pages.len() / PAGES_PER_SAMPLE).clamp(MIN_SAMPLED_PAGES, MAX_SAMPLED_PAGES);
            let step = pages.len().div_ceil(wanted_samples).max(1);
            let (mut samples, mut charged_samples) = (0, 0);
            for &page in pages.iter().step_by(step) {
                let Some(group) = self.group_of(&window, page) else { continue };
                samples += 1;
                charged_samples += u64::from(self.groups.contains(&group));
            }
            sample.add_window(pages.len() as u64, samples, charged_samples);
        }
        (sample.cached_pages > 0).then_some(sample)
    }

    /// The inode of the group that a page of the window is charged to, as the kernel has it: 0 for
    /// no group. `None` if it cannot be read.
    fn group_of(&self, window: &FileWindow, page: usize) -> Option<u64> {
        window.populate(page).ok()?;
        let page_number = window.address() / PAGE_BYTES + page as u64;
        let value = word_at(&self.page_map, page_number)?;
        let frame = value & entry::FRAME;
        // The frame is 0 without the permission.
        if value & entry::PRESENT == 0 || frame == 0 {
            return None;
        }
        word_at(&self.page_groups, frame)
    }
}

/// The word at `index` of a file of words.
fn word_at(file: &File, index: u64) -> Option<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, index.checked_mul(8)?).ok()?;
    Some(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_groups::memberships;
    use std::io::Write;

    #[test]
    fn a_share_is_complete_pages_and_at_most_the_file() {
        let share =
            |charged_pages, cached_pages| Sample { cached_pages, charged_pages }.share_of(10 * PAGE_BYTES);
        assert_eq!(share(1, 2), Some(5 * PAGE_BYTES));
        assert_eq!(share(0, 7), Some(0));
        assert_eq!(share(7, 7), Some(10 * PAGE_BYTES));
        assert_eq!(share(1, 3), Some(4 * PAGE_BYTES));
        assert_eq!(share(0, 0), None);
        assert_eq!(Sample { cached_pages: 3, charged_pages: 3 }.share_of(u64::MAX - 5), Some(u64::MAX - 5));
    }

    #[test]
    fn windows_count_by_their_cached_pages() {
        let mut sample = Sample::default();
        (0..15).for_each(|_| sample.add_window(4, 4, 0));
        sample.add_window(940, 4, 4);
        sample.add_window(100, 0, 0);
        assert_eq!(sample, Sample { cached_pages: 1000, charged_pages: 940 });
    }

    #[test]
    fn pages_of_a_written_file_are_charged_to_the_writers_group() {
        let hierarchy = super::super::Hierarchy::of_this_machine().ok();
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let group = memberships(&text)
            .filter(|membership| membership.is_version_2() || membership.has_controller("memory"))
            .find_map(|membership| hierarchy.as_ref()?.open(membership.path).ok());
        let skipped =
            |why| eprintln!("skipped: pages_of_a_written_file_are_charged_to_the_writers_group: {why}");
        let Some(inode) = group.and_then(|group| group.inode()) else {
            return skipped("no control group counts the memory of this process");
        };
        let Some(sampler) = ChargeSampler::new(BTreeSet::from([inode])) else {
            return skipped("/proc/kpagecgroup cannot be read");
        };
        // In memory: it stays when the page cache is dropped.
        let file = rustix::fs::memfd_create("charged", rustix::fs::MemfdFlags::empty());
        let mut file = file.map(File::from).unwrap();
        file.write_all(&[1; 100 * PAGE_BYTES as usize]).unwrap();
        let Some(sample) = sampler.sample(&file, 100 * PAGE_BYTES) else {
            return skipped("no frame numbers without CAP_SYS_ADMIN");
        };
        assert!(sample.cached_pages >= 3 && sample.charged_pages == sample.cached_pages, "{sample:?}");
        let other_sampler = ChargeSampler::new(BTreeSet::from([u64::MAX])).unwrap();
        assert_eq!(other_sampler.sample(&file, 100 * PAGE_BYTES).map(|sample| sample.charged_pages), Some(0));
        assert_eq!(sampler.sample(&tempfile::tempfile().unwrap(), 0), None);
    }
}
