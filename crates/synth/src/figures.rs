//! Pairs of figures: a count and its bytes, used and committed bytes.

/// A number of objects, and the bytes that they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of objects.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    /// Counts one more object of `bytes`.
    pub fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// How much of some memory is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes of all of it, used or not.
    pub committed_bytes: u64,
}

impl Usage {
    /// `used_bytes` of `committed_bytes`.
    pub const fn of(used_bytes: u64, committed_bytes: u64) -> Self {
        Self { used_bytes, committed_bytes }
    }
}
