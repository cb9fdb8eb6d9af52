//! /proc/PID/auxv: the auxiliary vector that the kernel passed to a program at its start
//! (getauxval(3)).

/// The entries that strandline uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuxiliaryVector {
    /// Whether a dynamic loader started it, which reads LD_PRELOAD; a static program has no loader.
    pub has_loader: bool,
    /// Whether it runs with elevated rights (setuid, setgid, capabilities): then the loader ignores
    /// LD_PRELOAD entries with a path, and libc ignores its own settings in the environment
    /// (ld.so(8), "secure-execution mode").
    pub is_secure: bool,
    /// Whether it is a 64-bit program.
    pub is_64_bit: bool,
    /// Address of 16 random bytes from the kernel on the stack of this program; it differs after
    /// each exec.
    pub random_address: u64,
    /// Bytes that a signal stack must have at least (AT_MINSIGSTKSZ); `None` if the kernel does not
    /// say (before Linux 5.14).
    pub min_signal_stack_bytes: Option<u64>,
}

/// The address of the loader; 0 if there is none (elf.h).
const AT_BASE: u64 = 7;
/// Not 0 for a program with elevated rights.
const AT_SECURE: u64 = 23;
/// The address of the random bytes.
const AT_RANDOM: u64 = 25;
/// The minimum size of a signal stack (arch/x86/include/uapi/asm/auxvec.h).
const AT_MINSIGSTKSZ: u64 = 51;

impl AuxiliaryVector {
    /// Parses the pairs of words; `None` if there are none, or during an exec: the kernel writes
    /// AT_RANDOM after the other two (Linux ≥ 2.6.29, fs/binfmt_elf.c, create_elf_tables), and no
    /// address is 0.
    pub fn parse(auxv: &[u8]) -> Option<Self> {
        // Bytes 4 to 7 are the upper half of a key in a 64-bit process, the value of the first
        // entry in a 32-bit one.
        let word_bytes = if auxv.get(4..8) == Some(&[0; 4]) { 8 } else { 4 };
        let words: Vec<u64> = auxv
            .chunks_exact(word_bytes)
            .map(|word| word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
            .collect();
        let value_of = |key| {
            let pair = words.chunks_exact(2).find(|pair| pair.first() == Some(&key))?;
            pair.get(1).copied()
        };
        Some(Self {
            random_address: value_of(AT_RANDOM).filter(|address| *address != 0)?,
            is_64_bit: word_bytes == 8,
            has_loader: value_of(AT_BASE).is_some_and(|base| base != 0),
            is_secure: value_of(AT_SECURE).is_some_and(|secure| secure != 0),
            min_signal_stack_bytes: value_of(AT_MINSIGSTKSZ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auxv(pairs: &[(u64, u64)]) -> Vec<u8> {
        pairs.iter().flat_map(|(key, value)| [key.to_le_bytes(), value.to_le_bytes()].concat()).collect()
    }

    #[test]
    fn loader_and_rights_are_read() {
        let facts = |has_loader, is_secure| AuxiliaryVector {
            has_loader,
            is_secure,
            is_64_bit: true,
            random_address: 0x7ffe,
            min_signal_stack_bytes: None,
        };
        let pairs = |base, secure| [(33, 1 << 40), (7, base), (23, secure), (25, 0x7ffe), (0, 0)];
        assert_eq!(AuxiliaryVector::parse(&auxv(&pairs(0x7000, 0))), Some(facts(true, false)));
        assert_eq!(AuxiliaryVector::parse(&auxv(&pairs(0, 1))), Some(facts(false, true)));
        let small = pairs(0x7000, 1).map(|(key, value)| [key as u32, (value as u32).max(1)]);
        let small: Vec<u8> = small.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(
            AuxiliaryVector::parse(&small),
            Some(AuxiliaryVector { is_64_bit: false, ..facts(true, true) })
        );
    }

    #[test]
    fn during_an_exec_there_is_nothing() {
        let whole = auxv(&[(33, 1 << 40), (7, 0x7000), (23, 1), (25, 0x7ffe), (0, 0)]);
        for end in (0..56).step_by(8) {
            let part = [&whole[..end], &[0; 16]].concat();
            assert_eq!(AuxiliaryVector::parse(&part), None, "{end}");
        }
        assert_eq!(AuxiliaryVector::parse(b""), None);
        assert_eq!(AuxiliaryVector::parse(&[0; 7]), None);
    }

    #[test]
    fn this_test_has_a_loader() {
        let vector = AuxiliaryVector::parse(&std::fs::read("/proc/self/auxv").unwrap()).unwrap();
        assert!(vector.has_loader && !vector.is_secure);
    }
}
