//! Figures that come in pairs.

/// A number of things, and the bytes that they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many there are.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    /// Counts one more.
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
    /// Bytes of all of it.
    pub committed_bytes: u64,
}

impl Usage {
    /// `used_bytes` of `committed_bytes`.
    pub const fn of(used_bytes: u64, committed_bytes: u64) -> Self {
        Self { used_bytes, committed_bytes }
    }
}
