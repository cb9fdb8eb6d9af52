//! Dominators: for each vertex the nearest vertex that all paths to it pass through.
//!
//! Computed from semidominators, on depth-first numbers (Lengauer and Tarjan 1979; Georgiadis,
//! Tarjan and Werneck 2006, "Finding dominators in practice", SNCA). The second step of SNCA walks
//! up the dominator tree anew for each vertex. For a long list whose end refers to an array of
//! objects that are also referenced from elsewhere, that would take years. So here each vertex also
//! has a jump pointer (Myers 1983, "An applicative random-access stack"), and a walk takes
//! logarithmic time. The walk of the first step needs no stack: it reverses the path that it has
//! walked.
//!
//! A reference to a higher number leads to a descendant. Of those to one target only the least
//! source matters, so one pass replaces them by it. All other references are needed by target,
//! once, in descending order of targets. So they are transposed in slices: each slice is built,
//! used and freed before the next, while the array of links grows.

use std::ops::Range;

use strandline_sys::own_memory::prefetch;

use crate::arrays::{DeadlineCheck, NONE, PREFETCH_DISTANCE, Refused, array, reserved};
use crate::reach::Edges;

/// Number of slices for transposing references: more slices take less memory, but one pass over the
/// remaining references each.
const SLICES: usize = 8;

/// Returns the dominator of each number; that of 0 is 0. `numbers` holds the number of each vertex,
/// `parents` the number from which each number was found.
pub fn dominators(
    numbers: &[u32],
    mut parents: Vec<u32>,
    mut edges: Edges,
    deadline_check: &mut DeadlineCheck,
) -> Result<Vec<u32>, Refused> {
    let count = parents.len();
    let mut semis = reserved(count)?;
    semis.extend_from_slice(&parents);
    let slice_len = count.div_ceil(SLICES).max(1);
    let slice_at = |start: usize| start..count.min(start + slice_len);
    let mut slices = (0..count).step_by(slice_len).rev().map(slice_at).peekable();
    let mut counts = Slice::new(slices.peek().cloned())?;
    remove_forward(numbers, &mut semis, &mut edges, &mut counts);
    let mut links = Links { links: reserved(count)?, last_number: count.saturating_sub(1) };
    while slices.next().is_some() {
        let mut next = Slice::new(slices.peek().cloned())?;
        let referrers = Referrers::take(counts, numbers, &mut edges, &mut next)?;
        semidominators(&parents, referrers, &mut semis, &mut links, deadline_check)?;
        counts = next;
    }
    drop(edges);
    dominators_from_semis(&mut parents, &semis, &mut links, deadline_check)?;
    Ok(parents)
}

/// Consecutive numbers, with a value each: at first the count of references that lead to it, then
/// the index where its list of referrers begins, and at last where that ends.
struct Slice {
    /// The lowest number.
    first_number: usize,
    values: Vec<u32>,
}

impl Slice {
    fn new(numbers: Option<Range<usize>>) -> Result<Self, Refused> {
        let numbers = numbers.unwrap_or_default();
        Ok(Self { first_number: numbers.start, values: array(numbers.len(), 0)? })
    }

    #[inline]
    fn value_mut(&mut self, number: u32) -> Option<&mut u32> {
        self.values.get_mut((number as usize).wrapping_sub(self.first_number))
    }

    /// Counts a reference to a number, if that is in the slice.
    #[inline]
    fn count_reference(&mut self, number: u32) {
        if let Some(count) = self.value_mut(number) {
            *count += 1;
        }
    }
}

/// Removes references to descendants, and lowers `semis` to the least number that refers to each
/// target. Counts the remaining references into the first slice.
fn remove_forward(numbers: &[u32], semis: &mut [u32], edges: &mut Edges, counts: &mut Slice) {
    edges.retain(|source, target| {
        let number = numbers[source as usize];
        if target < number {
            counts.count_reference(target);
            return true;
        }
        if let Some(semi) = semis.get_mut(target as usize) {
            *semi = number.min(*semi);
        }
        false
    });
}

/// The sources of references to each number of a slice, one list after another.
struct Referrers {
    /// The number of the first list.
    first_number: usize,
    /// Index in `sources` of the end of each list.
    ends: Vec<u32>,
    sources: Vec<u32>,
}

impl Referrers {
    /// Moves the references into the slice out of `edges`, and counts the references into the next
    /// one.
    fn take(mut slice: Slice, numbers: &[u32], edges: &mut Edges, next: &mut Slice) -> Result<Self, Refused> {
        let mut sum = 0;
        for end in &mut slice.values {
            sum += std::mem::replace(end, sum);
        }
        let mut sources = array(sum as usize, 0)?;
        edges.retain(|source, target| {
            let Some(end) = slice.value_mut(target) else {
                next.count_reference(target);
                return true;
            };
            sources[*end as usize] = numbers[source as usize];
            *end += 1;
            false
        });
        Ok(Self { first_number: slice.first_number, ends: slice.values, sources })
    }
}

/// Where a walk continues from a number, and what is known of the way there.
#[derive(Clone, Copy)]
struct Link {
    /// The next number on the way up; in the second step, the jump pointer.
    up: u32,
    /// The least semidominator on that way; in the second step, the depth in the dominator tree.
    value: u32,
}

/// The links of numbers, in descending order, so that memory grows as they are added.
struct Links {
    links: Vec<Link>,
    /// The highest number, whose link is the first.
    last_number: usize,
}

impl Links {
    #[inline]
    fn link(&mut self, number: u32) -> &mut Link {
        &mut self.links[self.last_number - number as usize]
    }
}

/// Lowers the semidominator of each number in a slice, and adds its link: the next number on the
/// way up, and the least semidominator on that way.
fn semidominators(
    parents: &[u32],
    referrers: Referrers,
    semis: &mut [u32],
    links: &mut Links,
    deadline_check: &mut DeadlineCheck,
) -> Result<(), Refused> {
    let Referrers { first_number, ends, sources } = referrers;
    for index in (0..ends.len()).rev() {
        deadline_check.step()?;
        let number = first_number + index;
        let list = index.checked_sub(1).map_or(0, |previous| ends[previous] as usize)..ends[index] as usize;
        let mut semi = semis[number];
        // Links are accessed in random order.
        let ahead = list.start.saturating_sub(PREFETCH_DISTANCE)..list.end.saturating_sub(PREFETCH_DISTANCE);
        for &referrer in sources.get(ahead).unwrap_or_default() {
            if (referrer as usize) > number {
                prefetch(&links.links, links.last_number - referrer as usize);
            }
        }
        for &referrer in sources.get(list).unwrap_or_default() {
            semi = semi.min(compress_and_find_least(links, referrer, number as u32));
        }
        semis[number] = semi;
        links.links.push(Link { up: parents[number], value: semi });
    }
    Ok(())
}

/// The least semidominator on the way up from the number `start`, of numbers above `bound`.
/// Compresses the path: its links then lead past all of them.
#[inline]
fn compress_and_find_least(links: &mut Links, start: u32, bound: u32) -> u32 {
    // On the way up each link is reversed, and on the way back it is set.
    let (mut number, mut previous) = (start, NONE);
    loop {
        let link = links.link(number);
        let up = link.up;
        if up <= bound {
            break;
        }
        link.up = previous;
        previous = number;
        number = up;
    }
    let Link { up: above, value: mut least } = *links.link(number);
    while previous != NONE {
        let link = links.link(previous);
        let below = link.up;
        least = least.min(link.value);
        *link = Link { up: above, value: least };
        previous = below;
    }
    least
}

/// Turns parents into dominators: each is the first on the way up the dominator tree from the
/// parent whose number is at most the semidominator. Links become jump pointers and depths.
fn dominators_from_semis(
    parents: &mut [u32],
    semis: &[u32],
    links: &mut Links,
    deadline_check: &mut DeadlineCheck,
) -> Result<(), Refused> {
    for number in 1..parents.len() {
        let semi = semis[number];
        let mut holder = parents[number];
        while holder > semi {
            deadline_check.step()?;
            let jump = links.link(holder).up;
            holder = if jump >= semi { jump } else { parents[holder as usize] };
        }
        parents[number] = holder;
        // If the last two jumps are of equal length, this one is over both.
        let Link { up: jump, value: depth } = *links.link(holder);
        let Link { up: second_jump, value: jump_depth } = *links.link(jump);
        let are_equal = depth - jump_depth == jump_depth - links.link(second_jump).value;
        let up = if are_equal { second_jump } else { holder };
        *links.link(number as u32) = Link { up, value: depth + 1 };
    }
    Ok(())
}
