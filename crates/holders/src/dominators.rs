//! The dominators: for each vertex the nearest that every way to it leads through.
//!
//! By semidominators, in numbers of the search (Lengauer and Tarjan 1979; Georgiadis, Tarjan and Werneck 2006, "Finding dominators in
//! practice", SNCA). The second step of SNCA walks up the tree of dominators, for each vertex from anew: a long list whose end leads
//! to an array of objects that others know too would take it years. So here each vertex has a second way up, a jump (Myers 1983,
//! "An applicative random-access stack"), and a walk is a logarithm's. The first walks without a stack: it turns the way round
//! behind it.
//!
//! Each reference is needed from its target now: all are turned round but those of the tree. While vertices are gone through from the
//! last on, the ends of the lists of those that refer to them give way to their semidominators.

use crate::arrays::{Clock, NONE, Refused, array};
use crate::reach::Edges;

/// What the search left.
pub struct Order<'a> {
    /// Numbers of vertices.
    pub numbers: &'a [u32],
    /// From which each number was found.
    pub parents: Vec<u32>,
    /// Whether edges are among the references that lead from parents.
    pub has_tree: bool,
}

/// The dominator of each number; of 0 it is 0.
pub fn dominators(order: Order<'_>, edges: Edges, clock: &mut Clock) -> Result<Vec<u32>, Refused> {
    let mut ends = array(order.parents.len(), 0)?;
    let referrers = turned_round(&order, &mut ends, edges)?;
    let mut parents = order.parents;
    let mut links = array(parents.len(), [0; 2])?;
    semidominators(&parents, (&referrers, &mut ends), &mut links, clock)?;
    drop(referrers);
    nearest_common(&mut parents, &ends, &mut links, clock)?;
    Ok(parents)
}

/// Who refers to each number but its parent, one list behind another; `ends` becomes where each list ends.
fn turned_round(order: &Order<'_>, ends: &mut [u32], mut edges: Edges) -> Result<Vec<u32>, Refused> {
    let Order { numbers, parents, has_tree } = order;
    let blocks = edges.references.blocks();
    let mut count = |source: u32, targets: &mut [u32]| {
        let source = numbers[source as usize];
        for target in targets.iter_mut().filter(|target| **target != NONE) {
            if *has_tree && parents[*target as usize] == source {
                *target = NONE;
            } else {
                ends[*target as usize] += 1;
            }
        }
    };
    for root in 0..edges.roots.len() {
        count(blocks + root as u32, edges.roots.of(root));
    }
    for block in 0..blocks {
        count(block, edges.references.of_mut(block));
    }
    let mut sum = 0;
    for end in ends.iter_mut() {
        sum += std::mem::replace(end, sum);
    }
    let mut referrers = array(sum as usize, 0)?;
    let mut put = |source: u32, targets: &[u32]| {
        for target in targets.iter().filter(|target| **target != NONE) {
            let end = &mut ends[*target as usize];
            referrers[*end as usize] = numbers[source as usize];
            *end += 1;
        }
    };
    for root in 0..edges.roots.len() {
        put(blocks + root as u32, edges.roots.of(root));
    }
    for block in 0..blocks {
        put(block, edges.references.of(block));
    }
    Ok(referrers)
}

/// Puts the semidominator of each number in place of where its list ends.
fn semidominators(
    parents: &[u32],
    (referrers, ends): (&[u32], &mut [u32]),
    links: &mut [[u32; 2]],
    clock: &mut Clock,
) -> Result<(), Refused> {
    for number in (1..parents.len()).rev() {
        clock.step()?;
        let (from, to) = (ends[number - 1] as usize, ends[number] as usize);
        let at = number as u32;
        let mut semi = parents[number];
        for &referrer in referrers.get(from..to).unwrap_or_default() {
            let least = if referrer <= at { referrer } else { least(links, referrer, at) };
            semi = semi.min(least);
        }
        ends[number] = semi;
        links[number] = [parents[number], semi];
    }
    Ok(())
}

/// The least semidominator on the way up from `from`, of those numbered above `last`; their links then lead past all of them.
#[inline]
fn least(links: &mut [[u32; 2]], from: u32, last: u32) -> u32 {
    let (mut at, mut behind) = (from, NONE);
    loop {
        let up = links[at as usize][0];
        if up <= last {
            break;
        }
        links[at as usize][0] = behind;
        behind = at;
        at = up;
    }
    let [above, mut least] = links[at as usize];
    while behind != NONE {
        let [next, own] = links[behind as usize];
        least = least.min(own);
        links[behind as usize] = [above, least];
        behind = next;
    }
    least
}

/// Makes parents dominators: of each the nearest of its parent's that is not below its semidominator. Links become jumps and depths.
fn nearest_common(
    parents: &mut [u32],
    semis: &[u32],
    links: &mut [[u32; 2]],
    clock: &mut Clock,
) -> Result<(), Refused> {
    let Some(first) = links.first_mut() else { return Ok(()) };
    *first = [0, 0];
    for number in 1..parents.len() {
        let semi = semis[number];
        let mut holder = parents[number];
        while holder > semi {
            clock.step()?;
            let jump = links[holder as usize][0];
            holder = if jump >= semi { jump } else { parents[holder as usize] };
        }
        parents[number] = holder;
        let [jump, depth] = links[holder as usize];
        let [second, middle] = links[jump as usize];
        let is_even = depth - middle == middle - links[second as usize][1];
        links[number] = [if is_even { second } else { holder }, depth + 1];
    }
    Ok(())
}
