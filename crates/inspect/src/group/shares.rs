//! Divides one kind of memory among its holders. The sum is exact; the parts may be estimates.

/// What is known of one holder's bytes, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Basis {
    /// Measured: the group of a file's pages was queried, or a process's share was read.
    Sampled,
    /// A process of the group uses the pages; they may be shared, or charged to another group.
    Used,
    /// The group's processes can see the file.
    Visible,
}

/// The bytes that a holder seems to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub basis: Basis,
    pub bytes: u64,
}

/// What was divided among holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// The bytes that each holder gets, in their order.
    pub shares: Vec<u64>,
    /// Bytes that no holder wants.
    pub unclaimed_bytes: u64,
}

/// Divides `total_bytes` among `wants`, the better known first. Those of one basis that want more
/// than there is get equal parts of what they want.
pub(super) fn share_out(total_bytes: u64, wants: &[Want]) -> Division {
    let mut shares = vec![0; wants.len()];
    let mut remaining = total_bytes;
    for basis in [Basis::Sampled, Basis::Used, Basis::Visible] {
        let chosen: Vec<usize> = (0..wants.len()).filter(|&index| wants[index].basis == basis).collect();
        let wanted: Vec<u64> = chosen.iter().map(|&index| wants[index].bytes).collect();
        for (index, share) in chosen.into_iter().zip(divide(remaining, &wanted)) {
            shares[index] = share;
        }
        remaining = total_bytes - shares.iter().sum::<u64>();
    }
    Division { shares, unclaimed_bytes: remaining }
}

/// What each gets of `total`: what it wants, or, if that is more than there is, its proportion.
fn divide(total: u64, wants: &[u64]) -> Vec<u64> {
    let sum: u128 = wants.iter().map(|&want| u128::from(want)).sum();
    if sum <= u128::from(total) {
        return wants.to_vec();
    }
    // Running sums are rounded, not the parts, so that the parts add up.
    let mut wanted_so_far = 0_u128;
    let mut given_before = 0_u64;
    wants
        .iter()
        .map(|&want| {
            wanted_so_far += u128::from(want);
            let given_so_far = mul_div(total, wanted_so_far, sum);
            let share = given_so_far - given_before;
            given_before = given_so_far;
            share
        })
        .collect()
}

/// `total * part / sum` for `part <= sum`, without overflow: sums may exceed 64 bits.
fn mul_div(total: u64, part: u128, sum: u128) -> u64 {
    let shift = (128 - sum.leading_zeros()).saturating_sub(64);
    let (part, sum) = (part >> shift, (sum >> shift).max(1));
    u64::try_from(u128::from(total) * part / sum).unwrap_or(total).min(total)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_better_known_come_first() {
        let want = |basis, bytes| Want { basis, bytes };
        let wants = [
            want(Basis::Visible, 50),
            want(Basis::Sampled, 30),
            want(Basis::Used, 40),
            want(Basis::Visible, 50),
        ];
        let division = |shares, unclaimed_bytes| Division { shares, unclaimed_bytes };
        assert_eq!(share_out(1000, &wants), division(vec![50, 30, 40, 50], 830));
        assert_eq!(share_out(80, &wants), division(vec![5, 30, 40, 5], 0));
        assert_eq!(share_out(10, &wants), division(vec![0, 10, 0, 0], 0));
        assert_eq!(share_out(7, &[]), division(vec![], 7));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_made(whole: u64, wants in proptest::collection::vec(any::<u64>(), 0..20)) {
            let shares = divide(whole, &wants);
            let sum: u128 = shares.iter().map(|&share| u128::from(share)).sum();
            let wanted: u128 = wants.iter().map(|&want| u128::from(want)).sum();
            prop_assert_eq!(sum, wanted.min(u128::from(whole)));
        }
    }
}
