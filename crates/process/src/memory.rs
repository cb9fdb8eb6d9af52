//! Access to memory contents: one trait for a live process, a copy of it and a synthetic heap.

/// Two adjacent words of memory, in address order.
pub type WordPair = (u64, u64);
/// Bytes of a [`WordPair`].
pub const PAIR_BYTES: usize = 16;

/// A source of target memory. Reading does not change it and accepts any address.
pub trait Memory: Sync {
    /// Reads into `buffer` from `address` on and returns the number of bytes read: fewer than
    /// requested if the range leaves readable memory, 0 if `address` is not readable.
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize;

    /// Reads the whole of `buffer`.
    ///
    /// # Errors
    /// [`Unreadable`] if not all bytes can be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Unreadable> {
        let read_bytes = self.read_some(address, buffer);
        let wanted_bytes = buffer.len();
        let error = Unreadable { address, wanted_bytes, read_bytes };
        if read_bytes == wanted_bytes { Ok(()) } else { Err(error) }
    }

    /// Reads two words; `None` if they cannot be read.
    fn read_pair(&self, address: u64) -> Option<WordPair> {
        let mut bytes = [0; PAIR_BYTES];
        self.read(address, &mut bytes).ok()?;
        pair_at(&bytes, 0)
    }

    /// Reads two words at each of `addresses`; `None` for those that cannot be read.
    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        addresses.iter().map(|&address| self.read_pair(address)).collect()
    }

    /// Reads a little-endian 64-bit word.
    ///
    /// # Errors
    /// [`Unreadable`] if not all bytes can be read.
    fn read_word(&self, address: u64) -> Result<u64, Unreadable> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Some bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read {read_bytes} of {wanted_bytes} bytes at {address:#x}")]
pub struct Unreadable {
    /// The first requested address.
    pub address: u64,
    /// Number of bytes requested.
    pub wanted_bytes: usize,
    /// Number of bytes read.
    pub read_bytes: usize,
}

/// The first `bytes` bytes of `buffer`, or all of it if it is shorter.
pub(crate) fn first_bytes(buffer: &mut [u8], bytes: u64) -> &mut [u8] {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX).min(buffer.len());
    &mut buffer[..length]
}

/// The little-endian word at `offset` of `bytes`; `None` past the end.
pub fn word_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let end = offset.checked_add(8)?;
    Some(u64::from_le_bytes(bytes.get(offset..end)?.try_into().ok()?))
}

/// The two little-endian words at `offset` of `bytes`; `None` past the end.
pub fn pair_at(bytes: &[u8], offset: usize) -> Option<WordPair> {
    word_at(bytes, offset).zip(word_at(bytes, offset.checked_add(8)?))
}

/// The little-endian words that `bytes` consist of, without an incomplete last one.
pub fn words_in(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// The little-endian 32-bit word at `offset` of `bytes`; `None` past the end.
pub fn half_word_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let end = offset.checked_add(4)?;
    Some(u32::from_le_bytes(bytes.get(offset..end)?.try_into().ok()?))
}
