//! /proc/PID/auxv: what the kernel told a program at its start (getauxval(3)).

/// What of it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartFacts {
    /// Whether a dynamic loader started it, which reads LD_PRELOAD; a static program has none.
    pub has_loader: bool,
    /// Whether it runs with rights of its own (setuid, setgid, capabilities): then the loader heeds no LD_PRELOAD with a
    /// path, and libc no settings of its own from the environment (ld.so(8), "secure-execution mode").
    pub is_secure: bool,
}

/// elf.h: AT_BASE, the loader's address (0: none), and AT_SECURE.
const AT_BASE: u64 = 7;
const AT_SECURE: u64 = 23;

impl StartFacts {
    /// From the pairs of words of a 64-bit process; `None` where there are none.
    pub fn parse(auxv: &[u8]) -> Option<Self> {
        let words: Vec<u64> = auxv
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
            .collect();
        let value = |wanted| {
            let pair = words.chunks_exact(2).find(|pair| pair.first() == Some(&wanted))?;
            pair.get(1).copied()
        };
        (!words.is_empty()).then(|| Self {
            has_loader: value(AT_BASE).is_some_and(|base| base != 0),
            is_secure: value(AT_SECURE).is_some_and(|secure| secure != 0),
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
    fn loaders_and_rights_are_told() {
        let of = |pairs: &[(u64, u64)]| StartFacts::parse(&auxv(pairs)).unwrap();
        assert_eq!(of(&[(7, 0x7000), (23, 0), (0, 0)]), StartFacts { has_loader: true, is_secure: false });
        assert_eq!(of(&[(7, 0), (23, 1), (0, 0)]), StartFacts { has_loader: false, is_secure: true });
        assert_eq!(of(&[(0, 0)]), StartFacts { has_loader: false, is_secure: false });
        assert_eq!(StartFacts::parse(b""), None);
        assert_eq!(StartFacts::parse(&[0; 7]), None);
    }

    #[test]
    fn this_test_has_a_loader() {
        let found = StartFacts::parse(&std::fs::read("/proc/self/auxv").unwrap());
        assert_eq!(found, Some(StartFacts { has_loader: true, is_secure: false }));
    }
}
