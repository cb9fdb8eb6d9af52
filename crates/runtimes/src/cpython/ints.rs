//! Addresses in ints, as ctypes and cffi return pointers.

use super::layout::{INT_DIGIT_BITS, INT_DIGITS, INT_TAG_SHIFT, Release, SIZE};
use strandline_process::memory::word_at;

/// Returns the address that an int may hold: the value of a positive one of up to two digits;
/// `None` for other ints. `head` begins with the object's header.
pub fn address_in_int(release: &Release, head: &[u8]) -> Option<u64> {
    // All flags are 0 in a positive int that is not a small one.
    let unit = if release.has_int_tags { 1 << INT_TAG_SHIFT } else { 1 };
    let digits = word_at(head, INT_DIGITS as usize)?;
    let low_digit = digits & u64::from(u32::MAX);
    match word_at(head, SIZE)? {
        // A program at a fixed address has its heap below 2^30, where many numbers are: malloc's
        // addresses are multiples of 16.
        size if size == unit => Some(low_digit).filter(|address| address.is_multiple_of(16)),
        size if size == 2 * unit => Some(digits >> 32 << INT_DIGIT_BITS | low_digit),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpython::layout::RELEASES;

    #[test]
    fn an_int_of_up_to_two_digits_may_hold_an_address() {
        let address = 0x7f12_3456_7890_u64;
        let digits = address >> 30 << 32 | address & 0x3fff_ffff;
        let held = |minor: u8, size: u64| {
            let words = [1, 0, size, digits];
            let release = RELEASES.iter().find(|release| release.minor == minor).unwrap();
            address_in_int(release, &words.map(u64::to_le_bytes).concat())
        };
        assert_eq!((held(11, 2), held(11, 3), held(11, 2_u64.wrapping_neg())), (Some(address), None, None));
        assert_eq!((held(12, 16), held(12, 24), held(12, 18)), (Some(address), None, None), "tags");
        let low = address & 0x3fff_ffff;
        assert!(low.is_multiple_of(16));
        assert_eq!((held(11, 1), held(12, 8), held(12, 10)), (Some(low), Some(low), None), "one digit");
    }
}
