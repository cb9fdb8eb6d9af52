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

use crate::arrays::{Clock, NONE, Refused, array, reserved};
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
    let mut semis = reserved(parents.len())?;
    semis.extend_from_slice(&parents);
    without_forward(numbers, &mut semis, &mut edges);
    let mut links = Links { of: reserved(parents.len())?, last: parents.len().saturating_sub(1) };
    let slice = parents.len().div_ceil(SLICES).max(1);
    for first in (0..parents.len()).step_by(slice).rev() {
        let referrers = Referrers::of(first..parents.len().min(first + slice), numbers, &mut edges)?;
        semidominators(&parents, referrers, (&mut semis, &mut links), clock)?;
    }
    drop(edges);
    nearest_common(&mut parents, &semis, &mut links, clock)?;
    Ok(parents)
}

/// Takes references to descendants away: `semis` has the least number of those that refer to each.
fn without_forward(numbers: &[u32], semis: &mut [u32], edges: &mut Edges) {
    let blocks = edges.references.blocks();
    let mut is_kept = |source: u32, target: u32| {
        let number = numbers[source as usize];
        if target == NONE || target < number {
            return target != NONE;
        }
        let semi = &mut semis[target as usize];
        *semi = number.min(*semi);
        false
    };
    for root in 0..edges.roots.len() {
        for target in edges.roots.of(root) {
            if !is_kept(blocks + root as u32, *target) {
                *target = NONE;
            }
        }
    }
    edges.references.retain(is_kept);
}

/// Who refers to each number of a slice, one list behind another.
struct Referrers {
    numbers: Range<usize>,
    /// Where each list ends.
    ends: Vec<u32>,
    of: Vec<u32>,
}

impl Referrers {
    /// Takes them out of the references.
    fn of(slice: Range<usize>, numbers: &[u32], edges: &mut Edges) -> Result<Self, Refused> {
        let mut ends = array(slice.len(), 0)?;
        let blocks = edges.references.blocks();
        let place = |target: u32| (target as usize).wrapping_sub(slice.start);
        let mut count = |target: u32| {
            if let Some(end) = ends.get_mut(place(target)) {
                *end += 1;
            }
        };
        edges.roots.blocks.iter().for_each(|&target| count(target));
        edges.references.each(|_, target| count(target));
        let mut sum = 0;
        for end in &mut ends {
            sum += std::mem::replace(end, sum);
        }
        let mut of = array(sum as usize, 0)?;
        // Whether a reference is left for another slice.
        let mut is_left = |source: u32, target: u32| {
            let Some(end) = ends.get_mut(place(target)) else { return true };
            of[*end as usize] = numbers[source as usize];
            *end += 1;
            false
        };
        for root in 0..edges.roots.len() {
            let targets = edges.roots.of(root).iter();
            targets.for_each(|&target| _ = is_left(blocks + root as u32, target));
        }
        edges.references.retain(is_left);
        Ok(Self { numbers: slice, ends, of })
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
    let Referrers { numbers, ends, of } = referrers;
    for (place, number) in numbers.enumerate().rev() {
        clock.step()?;
        let from = place.checked_sub(1).map_or(0, |before| ends[before]) as usize;
        let mut semi = semis[number];
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
