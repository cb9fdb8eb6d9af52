//! Fabricated memory for tests of readers: which pages are resident, and how it is damaged.

use std::sync::Mutex;

use proptest::prelude::*;
use strandline_claims::allocator::RangeClaim;
use strandline_claims::runtime::{Context, Reading};
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_synth::{Image, Rng, clipped, is_absent};

/// The memory of an image.
struct Target(Image);

impl Memory for Target {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.0.read_some(address, buffer)
    }
}

/// Reads `image` by `read`, which gets the context and the resident runs. A page is not resident if
/// `absent` has the bit of its number modulo 64.
pub fn read_image(
    image: &Image,
    maps: &str,
    absent: u64,
    read: impl Fn(&Context<'_>, &[AddressRange]) -> Reading,
) -> Reading {
    let (space, invalid_lines) = AddressSpace::parse(maps.as_bytes());
    assert_eq!(invalid_lines, 0);
    let runs = image.pages_without(|page| is_absent(absent, page));
    let process = Process::open(std::process::id() as i32).unwrap();
    let is_shared =
        |&(start, _): &(u64, u64)| space.find(start).is_some_and(|mapping| mapping.permissions.shared);
    let (shared, private): (Vec<_>, Vec<_>) = runs.iter().copied().partition(is_shared);
    let target = Target(image.within(&runs));
    let resident = |range: AddressRange| address_ranges(&clipped(&private, range.start, range.end));
    let context = Context {
        shared: &|range: AddressRange| address_ranges(&clipped(&shared, range.start, range.end)),
        workers: 2,
        ..Context::of_image(&target, &process, &space, &resident)
    };
    read(&context, &address_ranges(&runs))
}

/// Memory that cannot be read.
pub struct Unreadable;

impl Memory for Unreadable {
    fn read_some(&self, _: u64, _: &mut [u8]) -> usize {
        0
    }
}

/// Memory in which each word is its own address.
pub struct OwnAddresses;

impl Memory for OwnAddresses {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let addresses = (address..).step_by(8);
        for (word, address) in buffer.chunks_mut(8).zip(addresses) {
            word.copy_from_slice(&address.to_le_bytes()[..word.len()]);
        }
        buffer.len()
    }
}

/// Memory in which all words are equal; it remembers the reads.
pub struct EqualWords {
    word: u64,
    read_lengths: Mutex<Vec<usize>>,
}

impl EqualWords {
    /// Memory of this word.
    pub fn new(word: u64) -> Self {
        Self { word, read_lengths: Mutex::default() }
    }

    /// Returns the lengths of all reads, in bytes.
    pub fn read_lengths(&self) -> Vec<usize> {
        self.read_lengths.lock().unwrap().clone()
    }
}

impl Memory for EqualWords {
    fn read_some(&self, _: u64, buffer: &mut [u8]) -> usize {
        self.read_lengths.lock().unwrap().push(buffer.len());
        for bytes in buffer.chunks_mut(8) {
            bytes.copy_from_slice(&self.word.to_le_bytes()[..bytes.len()]);
        }
        buffer.len()
    }
}

/// Converts the runs of an image.
fn address_ranges(runs: &[(u64, u64)]) -> Vec<AddressRange> {
    runs.iter().map(|&run| run.into()).collect()
}

/// A word to overwrite.
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    /// Offset in the range that is damaged, modulo its length.
    offset: u64,
    /// Random bits for the new value.
    bits: u64,
    damage: Damage,
}

/// What replaces a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// Any value.
    Random,
    /// The old value with one bit inverted.
    InvertedBit,
    /// The old value plus less than 4096.
    Increased,
    /// An address in the image.
    Pointer,
    /// A value with all low bits set.
    Large,
}

static DAMAGES: [Damage; 5] =
    [Damage::Random, Damage::InvertedBit, Damage::Increased, Damage::Pointer, Damage::Large];
/// Bytes at the start of each range that are damaged: structures are there.
const DAMAGED_BYTES: u64 = 0x2_0000;

/// Pages that are not resident, and words to overwrite.
pub fn damage() -> impl Strategy<Value = (u64, Vec<Patch>)> {
    let absent = prop_oneof![Just(0), any::<u64>().prop_map(|bits| bits & bits >> 7 & bits << 3)];
    let patch = (any::<u64>(), any::<u64>(), prop::sample::select(&DAMAGES[..]))
        .prop_map(|(offset, bits, damage)| Patch { offset, bits, damage });
    (absent, prop::collection::vec(patch, 0..60))
}

/// Overwrites words of random ranges of the image: near the start, or with large values anywhere.
pub fn patch(image: &mut Image, seed: u64, patches: &[Patch]) {
    let mut dice = Rng::new(seed);
    let range = |(start, bytes): (u64, &[u8])| AddressRange::sized(start, bytes.len() as u64);
    let ranges: Vec<AddressRange> = image.ranges().map(range).collect();
    for &Patch { offset, bits, damage } in patches {
        let range = dice.one_of(&ranges);
        let damaged_bytes =
            if damage == Damage::Large { range.len() } else { range.len().min(DAMAGED_BYTES) };
        let at = range.start + offset % damaged_bytes / 8 * 8;
        let old = image.word(at).unwrap_or(0);
        let target = dice.one_of(&ranges);
        let new = match damage {
            Damage::Random => bits,
            Damage::InvertedBit => old ^ 1 << (bits % 64),
            Damage::Increased => old.wrapping_add(bits % 4096),
            Damage::Pointer => target.start + bits % target.len(),
            Damage::Large => u64::MAX >> (bits % 64),
        };
        image.put_word(at, new);
    }
}

/// Asserts that a reading is plausible: no byte is claimed twice, and names contain no control
/// characters.
pub fn assert_sound(reading: &Reading) {
    let claims = reading.claims.iter().chain(&reading.shared_claims);
    let mut claims: Vec<AddressRange> = claims.map(RangeClaim::range).collect();
    claims.sort_unstable();
    assert!(claims.windows(2).all(|pair| pair[0].end <= pair[1].start), "claims overlap");
    assert!(reading.facts.types.iter().all(|facts| !facts.name.chars().any(char::is_control)));
}

/// Calls `read` with copies of the image, each with one pointer that is the largest value: at most
/// 100 copies, or 300 in `make test-full`.
pub fn with_pointers_maximized(image: &Image, mut read: impl FnMut(Image)) {
    let max_images = strandline_synth::scaled(100, 300);
    let range = |(at, bytes): (u64, &[u8])| AddressRange::sized(at, bytes.len() as u64);
    let ranges: Vec<AddressRange> = image.ranges().map(range).collect();
    let is_pointer = |at: &u64| {
        let word = image.word(*at).unwrap_or(0);
        ranges.iter().any(|range| range.contains(word))
    };
    let places: Vec<u64> =
        ranges.iter().flat_map(|range| (range.start..range.end).step_by(8)).filter(is_pointer).collect();
    assert!(places.len() > 50, "{}", places.len());
    for at in places.iter().step_by(places.len().div_ceil(max_images)) {
        let mut damaged = image.clone();
        damaged.put_word(*at, u64::MAX);
        read(damaged);
    }
}
