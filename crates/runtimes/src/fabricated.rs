//! Fabricated memory for tests of readers: which pages are resident, and how it is damaged.

use proptest::prelude::*;
use strandline_claims::allocator::RangeClaim;
use strandline_claims::runtime::{Context, Reading};
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_synth::{Image, Rng, clipped, is_absent};

struct Target(Image);

impl Memory for Target {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.0.read_some(address, buffer)
    }
}

/// Reads `image`. A page is not resident if `absent` has the bit of its number modulo 64.
pub fn read_image(
    image: &Image,
    maps: &str,
    absent: u64,
    read: impl Fn(&Context<'_>, &[AddressRange]) -> Reading,
) -> Reading {
    let (space, bad) = AddressSpace::parse(maps.as_bytes());
    assert_eq!(bad, 0);
    let runs = image.pages_without(|page| is_absent(absent, page));
    let process = Process::open(std::process::id() as i32).unwrap();
    let is_shared = |run: &(u64, u64)| space.find(run.0).is_some_and(|mapping| mapping.permissions.shared);
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

/// Runs of an image.
fn address_ranges(runs: &[(u64, u64)]) -> Vec<AddressRange> {
    runs.iter().map(|&run| run.into()).collect()
}

/// An overwritten word: place, new value, and kind of damage.
pub type Patch = (u64, u64, u8);

/// Pages that are not resident, and words to overwrite.
pub fn damage() -> impl Strategy<Value = (u64, Vec<Patch>)> {
    let absent = prop_oneof![Just(0), any::<u64>().prop_map(|bits| bits & bits >> 7 & bits << 3)];
    (absent, prop::collection::vec((any::<u64>(), any::<u64>(), 0..5_u8), 0..60))
}

/// Overwrites words, mostly near the start of each range, where structures are.
pub fn patch(image: &mut Image, seed: u64, patches: &[Patch]) {
    let mut dice = Rng::new(seed);
    let range = |(start, bytes): (u64, &[u8])| AddressRange::sized(start, bytes.len() as u64);
    let ranges: Vec<AddressRange> = image.ranges().map(range).collect();
    for &(place, word, how) in patches {
        let range = dice.one_of(&ranges);
        let within = if how == 4 { range.len() } else { range.len().min(0x2_0000) };
        let at = range.start + place % within / 8 * 8;
        let before = image.word(at).unwrap_or(0);
        let other = dice.one_of(&ranges);
        let now = match how {
            0 => word,
            1 => before ^ 1 << (word % 64),
            2 => before.wrapping_add(word % 4096),
            3 => other.start + word % other.len(),
            _ => u64::MAX >> (word % 64),
        };
        image.put_word(at, now);
    }
}

/// Asserts that a reading is plausible: no byte is claimed twice, and names contain no control
/// characters.
pub fn assert_sound(reading: &Reading) {
    let claims = reading.claims.iter().chain(&reading.shared);
    let mut claims: Vec<AddressRange> = claims.map(RangeClaim::range).collect();
    claims.sort_unstable();
    assert!(claims.windows(2).all(|pair| pair[0].end <= pair[1].start), "claims overlap");
    assert!(reading.facts.types.iter().all(|of| !of.name.chars().any(char::is_control)));
}

/// Calls `look` with copies of the image, each with one pointer that is the largest value: at most
/// 100 copies, or 300 in `make test-full`.
pub fn with_pointers_maximized(image: &Image, mut look: impl FnMut(Image)) {
    let max_images = strandline_synth::scaled(100, 300);
    let range = |(at, bytes): (u64, &[u8])| AddressRange::sized(at, bytes.len() as u64);
    let ranges: Vec<AddressRange> = image.ranges().map(range).collect();
    let leads = |at: &u64| {
        let word = image.word(*at).unwrap_or(0);
        ranges.iter().any(|range| range.contains(word))
    };
    let places: Vec<u64> =
        ranges.iter().flat_map(|range| (range.start..range.end).step_by(8)).filter(leads).collect();
    assert!(places.len() > 50, "{}", places.len());
    for at in places.iter().step_by(places.len().div_ceil(max_images)) {
        let mut damaged = image.clone();
        damaged.put_word(*at, u64::MAX);
        look(damaged);
    }
}
