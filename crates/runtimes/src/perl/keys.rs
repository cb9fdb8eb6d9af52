//! Keys of hashes: the table that all hashes share (`PL_strtab`), hashes with their own keys,
//! and free entries.
//!
//! Chains are followed one level at a time for thousands of buckets at once, so that reads can be
//! batched. The hash's own count bounds the number of entries, so that cyclic chains end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::census;
use super::interpreter::Reader;
use super::spaces::{BodyArena, BodyType};
use crate::batch::{Batch, PageCache};
use crate::perl::layout::{ENTRY_BYTES, KEY_EXTRA_BYTES};
use crate::work;
use strandline_process::memory::{WordPair, words_in};
use strandline_process::pages::PAGE_BYTES;

/// Buckets that a worker follows at a time.
const BUCKETS_PER_JOB: u64 = 4096;
/// Entries between two checks of the deadline.
const ENTRIES_PER_DEADLINE_CHECK: u64 = 4096;
/// Keys by which a hash that is being changed may exceed its count, in addition to one in 64.
const MAX_COUNT_DIFFERENCE: u64 = 64;
/// Upper bound on jobs: tables of 2^30 buckets.
const MAX_JOBS: usize = 256 << 10;
/// Upper bound on table pages that may be missing. Perl writes to all of a table that it enlarges;
/// only a table of a few thousand buckets that was made at once has pages that were never written.
const MAX_MISSING_PAGES: u64 = 4096;
/// Keys of this length or more are not strings (`HEf_SVKEY` is -2, hv.h), and are not claimed.
const MAX_KEY_BYTES: u64 = 1 << 31;

/// Totals of the keys that were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyTotals {
    /// Number of keys.
    pub count: u64,
    /// Their bytes, as requested from malloc.
    pub bytes: u64,
    /// Whether all keys were found, and no more than expected.
    pub is_complete: bool,
}

/// Where keys are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStorage {
    /// In one chunk with their entry (`struct shared_he`).
    Shared,
    /// In their own chunks.
    Own,
}

/// The buckets and the number of keys of a hash.
#[derive(Clone, Copy, Debug)]
pub struct BucketTable {
    /// Address of the first bucket.
    pub address: u64,
    /// Number of the last bucket.
    pub last_bucket: u64,
    /// Number of keys, as the hash counts them.
    pub keys: u64,
}

/// A part of a table.
#[derive(Clone, Copy, Debug)]
struct Job {
    /// Address of its first bucket.
    address: u64,
    /// Number of buckets, at most [`BUCKETS_PER_JOB`].
    buckets: u64,
}

/// Follows the chains of `tables`, and claims the keys.
pub fn follow(reader: &Reader<'_>, tables: &[BucketTable], storage: KeyStorage) -> KeyTotals {
    let keys = tables.iter().fold(0, |sum: u64, table| sum.saturating_add(table.keys));
    let mut jobs: Vec<Job> = Vec::new();
    for &BucketTable { address, last_bucket, .. } in tables {
        let mut first = 0;
        // A table takes eight bytes per bucket of the target's memory, except for pages that were
        // never written (`MAX_MISSING_PAGES`).
        while first <= last_bucket && jobs.len() < MAX_JOBS {
            let buckets = (last_bucket - first + 1).min(BUCKETS_PER_JOB);
            jobs.push(Job { address: address.wrapping_add(8 * first), buckets });
            first += BUCKETS_PER_JOB;
        }
    }
    let entries_left = AtomicU64::new(keys.saturating_add(keys / 64 + MAX_COUNT_DIFFERENCE));
    let missing_pages_left = AtomicU64::new(MAX_MISSING_PAGES);
    let is_limited = jobs.len() >= MAX_JOBS;
    let follower = || Follower {
        reader,
        entries_left: &entries_left,
        missing_pages_left: &missing_pages_left,
        entries: 0,
        storage,
        batch: Batch::new(reader.memory),
        totals: KeyTotals { is_complete: true, ..KeyTotals::default() },
        buckets: Vec::new(),
        pairs: Vec::new(),
        lengths: Vec::new(),
    };
    let (followers, unfinished_jobs) = work::run_jobs(
        reader.context.workers,
        jobs.len(),
        reader.context.deadline,
        follower,
        |follower, job| {
            if let Some(job) = jobs.get(job) {
                follower.follow_buckets(job);
            }
        },
    );
    let mut totals = KeyTotals { is_complete: unfinished_jobs == 0 && !is_limited, ..KeyTotals::default() };
    let mut entries = 0;
    for follower in followers {
        totals.count += follower.totals.count;
        totals.bytes += follower.totals.bytes;
        totals.is_complete &= follower.totals.is_complete;
        entries += follower.entries;
    }
    // Perl gets tables from calloc, so that a page without used buckets may never have been
    // written. The number of keys shows whether a missing page was such a page or is in swap.
    totals.is_complete &= missing_pages_left.into_inner() == MAX_MISSING_PAGES || entries >= keys;
    totals
}

/// One worker, with its sums and with buffers that are reused.
struct Follower<'a> {
    reader: &'a Reader<'a>,
    /// Entries that may still be found, by all workers.
    entries_left: &'a AtomicU64,
    storage: KeyStorage,
    batch: Batch<'a>,
    totals: KeyTotals,
    /// Entries found, including those whose keys are not strings.
    entries: u64,
    /// Table pages that may still be missing, for all workers.
    missing_pages_left: &'a AtomicU64,
    buckets: Vec<u8>,
    /// The first two words of each entry: the next entry, and the key.
    pairs: Vec<Option<WordPair>>,
    /// The first two words of each key, which have its length.
    lengths: Vec<Option<WordPair>>,
}

impl Follower<'_> {
    /// Reads the buckets of a job; buckets on pages that cannot be read are zero. False if there
    /// are too many such pages.
    fn read_buckets(&mut self, &Job { address, buckets }: &Job) -> bool {
        if self.missing_pages_left.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.buckets.clear();
        self.buckets.resize(8 * buckets as usize, 0);
        let mut read_bytes = 0;
        while let Some(unread) = self.buckets.get_mut(read_bytes..).filter(|unread| !unread.is_empty()) {
            let at = address.wrapping_add(read_bytes as u64);
            read_bytes += self.reader.memory.read_some(at, unread);
            if read_bytes < self.buckets.len() {
                if !take(self.missing_pages_left, 1) {
                    return false;
                }
                let at = address.wrapping_add(read_bytes as u64);
                read_bytes += (PAGE_BYTES - at % PAGE_BYTES) as usize;
            }
        }
        true
    }

    /// Follows the chains of consecutive buckets.
    fn follow_buckets(&mut self, job: &Job) {
        if !self.read_buckets(job) {
            self.totals.is_complete = false;
            return;
        }
        let mut level: Vec<u64> = words_in(&self.buckets).filter(|&entry| entry != 0).collect();
        while !level.is_empty() {
            let is_late = Instant::now() > self.reader.context.deadline;
            if is_late || !take(self.entries_left, level.len() as u64) {
                self.totals.is_complete = false;
                return;
            }
            self.batch.pairs(&level, &mut self.pairs);
            let keys = level.iter().zip(&self.pairs);
            // Nothing is mapped at address 0: the length of a missing key cannot be read.
            let keys: Vec<u64> =
                keys.map(|(&entry, pair)| self.key_of_entry(entry, *pair).unwrap_or(0)).collect();
            self.batch.pairs(&keys, &mut self.lengths);
            for ((&entry, &key), length) in level.iter().zip(&keys).zip(&self.lengths) {
                let Some((first, _)) = length else {
                    self.totals.is_complete = false;
                    continue;
                };
                self.entries += 1;
                let length = first >> 32;
                if length >= MAX_KEY_BYTES {
                    continue;
                }
                let (pointer, entry_bytes) = match self.storage {
                    KeyStorage::Shared => (entry, ENTRY_BYTES),
                    KeyStorage::Own => (key, 0),
                };
                let bytes = entry_bytes + KEY_EXTRA_BYTES + length;
                self.totals.count += 1;
                self.totals.bytes += bytes;
                self.reader.refinements.claim(pointer, bytes, self.reader.slots.container);
            }
            level.clear();
            level.extend(self.pairs.iter().flatten().map(|pair| pair.0).filter(|&next| next != 0));
        }
    }

    /// The address of an entry's key; `None` if it is not where keys of this storage are.
    fn key_of_entry(&self, entry: u64, pair: Option<WordPair>) -> Option<u64> {
        let (_, key) = pair?;
        let is_with_entry = key == entry.wrapping_add(ENTRY_BYTES);
        (is_with_entry == (self.storage == KeyStorage::Shared)).then_some(key)
    }
}

/// Takes `count` from what is left for all workers; false, with nothing taken, if less is left.
pub fn take(left: &AtomicU64, count: u64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(count)).is_ok()
}

/// Free entries of hashes.
pub struct FreeEntries {
    /// Their number.
    pub count: u64,
    /// For each arena of bodies, their bytes on its first page, and behind it.
    pub bytes_on_pages: Vec<[u16; 2]>,
}

/// Counts the free entries in `arenas`. `None` if the list that begins at `first` is damaged or the
/// deadline passed.
pub fn free_entries(
    pages: &mut PageCache<'_>,
    first: u64,
    arenas: &[BodyArena],
    deadline: Instant,
) -> Option<FreeEntries> {
    let has_entries = |arena: &&BodyArena| arena.body_type == BodyType::Entry;
    let max_entries: u64 = arenas.iter().filter(has_entries).map(BodyArena::slots).sum();
    let mut bytes_on_pages = vec![[0u16; 2]; arenas.len()];
    let (mut at, mut count) = (first, 0);
    let mut index = 0;
    while at != 0 {
        let arena_at = |index: usize| arenas.get(index).filter(|arena| arena.has_slot_at(at, ENTRY_BYTES));
        if arena_at(index).is_none() {
            index = census::arena_before(arenas, at)?;
        }
        let arena = arena_at(index).filter(has_entries)?;
        let entry_bytes = arena.bytes_by_page(at - arena.address, ENTRY_BYTES);
        for (sum, bytes) in bytes_on_pages.get_mut(index)?.iter_mut().zip(entry_bytes) {
            *sum = sum.saturating_add(u16::try_from(bytes).unwrap_or(u16::MAX));
        }
        count += 1;
        if count > max_entries
            || (count.is_multiple_of(ENTRIES_PER_DEADLINE_CHECK) && Instant::now() > deadline)
        {
            return None;
        }
        at = pages.word(at)?;
    }
    Some(FreeEntries { count, bytes_on_pages })
}
