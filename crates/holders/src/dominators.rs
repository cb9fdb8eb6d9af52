//! The dominators: for each vertex the nearest that every way to it leads through.
//!
//! By semidominators, in numbers of the search (Lengauer and Tarjan 1979; Georgiadis, Tarjan and Werneck 2006, "Finding dominators in
//! practice", SNCA). The second step of SNCA walks up the tree of dominators, for each vertex from anew: a long list whose end leads
//! to an array of objects that others know too would take it years. So here each vertex has a second way up, a jump (Myers 1983,
//! "An applicative random-access stack"), and a walk is a logarithm's. The first walks without a stack: it turns the way round
//! behind it.
//!
//! Numbers tell what a reference is. One that leads to a higher number leads to a descendant: of those of a vertex only the least is
//! of use, from the start. Of all others each is needed from its target, once, and in falling order of these: a slice of them is turned
//! round, gone through and given back before the next, while links come to be.

use std::ops::Range;

use strandline_sys::host::prefetch;

use crate::arrays::{AHEAD, Clock, NONE, Refused, array, reserved};
use crate::reach::Edges;

/// Slices in which references are turned round: more take less memory, and a look at all that is left each.
const SLICES: usize = 8;

/// The dominator of each number; of 0 it is 0. `numbers` has those of vertices, `parents` from which each number was found.
pub fn dominators(
    numbers: &[u32],
    mut parents: Vec<u32>,
    mut edges: Edges,
    clock: &mut Clock,
) -> Result<Vec<u32>, Refused> {
    let count = parents.len();
    let mut semis = reserved(count)?;
    semis.extend_from_slice(&parents);
    let part = count.div_ceil(SLICES).max(1);
    let mut slices = (0..count).step_by(part).rev().map(|first| first..count.min(first + part)).peekable();
    let mut counts = Slice::new(slices.peek().cloned())?;
    without_forward(numbers, &mut semis, &mut edges, &mut counts);
    let mut links = Links { of: reserved(count)?, last: count.saturating_sub(1) };
    while slices.next().is_some() {
        let mut next = Slice::new(slices.peek().cloned())?;
        let referrers = Referrers::of(counts, numbers, &mut edges, &mut next)?;
        semidominators(&parents, referrers, (&mut semis, &mut links), clock)?;
        counts = next;
    }
    drop(edges);
    nearest_common(&mut parents, &semis, &mut links, clock)?;
    Ok(parents)
}

/// How many references lead to each number of a slice; then where the list of those begins, or ends.
struct Slice {
    first: usize,
    of: Vec<u32>,
}

impl Slice {
    fn new(numbers: Option<Range<usize>>) -> Result<Self, Refused> {
        let numbers = numbers.unwrap_or_default();
        Ok(Self { first: numbers.start, of: array(numbers.len(), 0)? })
    }

    #[inline]
    fn get(&mut self, number: u32) -> Option<&mut u32> {
        self.of.get_mut((number as usize).wrapping_sub(self.first))
    }

    #[inline]
    fn count(&mut self, number: u32) {
        if let Some(count) = self.get(number) {
            *count += 1;
        }
    }
}

/// Takes references to descendants away: `semis` has the least number of those that refer to each. Of others it counts those that lead to
/// the first slice.
fn without_forward(numbers: &[u32], semis: &mut [u32], edges: &mut Edges, counts: &mut Slice) {
    edges.retain(|source, target| {
        let number = numbers[source as usize];
        if target < number {
            counts.count(target);
            return true;
        }
        if let Some(semi) = semis.get_mut(target as usize) {
            *semi = number.min(*semi);
        }
        false
    });
}

/// Who refers to each number of a slice, one list behind another.
struct Referrers {
    first: usize,
    /// Where each list ends.
    ends: Vec<u32>,
    of: Vec<u32>,
}

impl Referrers {
    /// Takes them out of the references, of which those are counted that lead to the next slice.
    fn of(mut slice: Slice, numbers: &[u32], edges: &mut Edges, next: &mut Slice) -> Result<Self, Refused> {
        let mut sum = 0;
        for end in &mut slice.of {
            sum += std::mem::replace(end, sum);
        }
        let mut of = array(sum as usize, 0)?;
        edges.retain(|source, target| {
            let Some(end) = slice.get(target) else {
                next.count(target);
                return true;
            };
            of[*end as usize] = numbers[source as usize];
            *end += 1;
            false
        });
        Ok(Self { first: slice.first, ends: slice.of, of })
    }
}

/// For each number two others, in falling order, so that memory is taken as they come to be.
struct Links {
    of: Vec<[u32; 2]>,
    last: usize,
}

impl Links {
    #[inline]
    fn of(&mut self, number: u32) -> &mut [u32; 2] {
        &mut self.of[self.last - number as usize]
    }
}

/// Lowers the semidominator of each number of a slice, by what it links to: where the way up leads on, and the least on it.
fn semidominators(
    parents: &[u32],
    referrers: Referrers,
    (semis, links): (&mut [u32], &mut Links),
    clock: &mut Clock,
) -> Result<(), Refused> {
    let Referrers { first, ends, of } = referrers;
    for place in (0..ends.len()).rev() {
        clock.step()?;
        let number = first + place;
        let from = place.checked_sub(1).map_or(0, |before| ends[before]) as usize;
        let mut semi = semis[number];
        // Links are looked at in no order.
        for &soon in of
            .get(from.saturating_sub(AHEAD)..(ends[place] as usize).saturating_sub(AHEAD))
            .unwrap_or_default()
        {
            if (soon as usize) > number {
                prefetch(&links.of, links.last - soon as usize);
            }
        }
        for &referrer in of.get(from..ends[place] as usize).unwrap_or_default() {
            semi = semi.min(least(links, referrer, number as u32));
        }
        semis[number] = semi;
        links.of.push([parents[number], semi]);
    }
    Ok(())
}

/// The least semidominator on the way up from `from`, of those numbered above `last`; their links then lead past all of them.
#[inline]
fn least(links: &mut Links, from: u32, last: u32) -> u32 {
    let (mut at, mut behind) = (from, NONE);
    loop {
        let link = links.of(at);
        let up = link[0];
        if up <= last {
            break;
        }
        link[0] = behind;
        behind = at;
        at = up;
    }
    let [above, mut least] = *links.of(at);
    while behind != NONE {
        let link = links.of(behind);
        let [next, own] = *link;
        least = least.min(own);
        *link = [above, least];
        behind = next;
    }
    least
}

/// Makes parents dominators: of each the nearest of its parent's that is not below its semidominator. Links become jumps and depths.
fn nearest_common(
    parents: &mut [u32],
    semis: &[u32],
    links: &mut Links,
    clock: &mut Clock,
) -> Result<(), Refused> {
    for number in 1..parents.len() {
        let semi = semis[number];
        let mut holder = parents[number];
        while holder > semi {
            clock.step()?;
            let [jump, _] = *links.of(holder);
            holder = if jump >= semi { jump } else { parents[holder as usize] };
        }
        parents[number] = holder;
        let [jump, depth] = *links.of(holder);
        let [second, middle] = *links.of(jump);
        let is_even = depth - middle == middle - links.of(second)[1];
        *links.of(number as u32) = [if is_even { second } else { holder }, depth + 1];
    }
    Ok(())
}
