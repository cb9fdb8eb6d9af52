//! Finds malloc's code in a C library. A thread that is to call into malloc must not have it on its
//! stack already.
//!
//! Functions that are not exported (`_int_malloc`, `sysmalloc`) have no name in a stripped library,
//! and an exported one may jump to them without leaving a frame. But all of malloc is one object
//! file of the library, so its functions are adjacent: the range extends from the last other
//! exported function before it to the first one after it.

use std::ops::Range;

use strandline_process::elf::{Object, Symbol};

/// Maximum distance of malloc's functions from `malloc` (malloc's object file has 25 KiB).
const MAX_DISTANCE_BYTES: u64 = 64 << 10;
/// Parts of the names of malloc's functions.
const NAME_PARTS: [&[u8]; 6] = [b"malloc", b"calloc", b"memalign", b"valloc", b"mallinfo", b"mallopt"];
/// Names of malloc's functions without such a part.
const NAMES: [&[u8]; 8] = [
    b"free",
    b"cfree",
    b"realloc",
    b"aligned_alloc",
    b"__libc_free",
    b"__libc_realloc",
    b"__default_morecore",
    b"__free",
];

fn is_malloc(name: &[u8]) -> bool {
    NAMES.contains(&name)
        || NAME_PARTS.iter().any(|part| name.windows(part.len()).any(|window| window == *part))
}

/// Returns the ranges of malloc's code in `libc`; `None` if it exports no malloc.
pub fn ranges(libc: &Object) -> Option<Vec<Range<u64>>> {
    let mut symbols: Vec<CodeSymbol> = Vec::new();
    libc.each_symbol(&mut |name, symbol| {
        if symbol.is_global && libc.text_contains(symbol.address) {
            symbols.push(CodeSymbol { is_malloc: is_malloc(name), symbol });
        }
    });
    let malloc_symbol = libc.symbol("malloc")?;
    code_range(&symbols, malloc_symbol).map(|range| vec![range])
}

/// An exported function of the C library.
struct CodeSymbol {
    /// Whether it belongs to malloc, by its name.
    is_malloc: bool,
    symbol: Symbol,
}

/// Returns the range of malloc's code, given all exported functions and that of `malloc`.
fn code_range(symbols: &[CodeSymbol], malloc: Symbol) -> Option<Range<u64>> {
    let is_near = |symbol: &Symbol| symbol.address.abs_diff(malloc.address) < MAX_DISTANCE_BYTES;
    let end = |symbol: &Symbol| symbol.address.saturating_add(symbol.bytes);
    let (malloc_symbols, other_symbols): (Vec<&CodeSymbol>, Vec<&CodeSymbol>) =
        symbols.iter().partition(|code| code.is_malloc && is_near(&code.symbol));
    let first_start = malloc_symbols.iter().map(|code| code.symbol.address).min()?;
    let last_end = malloc_symbols.iter().map(|code| end(&code.symbol)).max()?;
    let ends = other_symbols.iter().map(|code| end(&code.symbol));
    let starts = other_symbols.iter().map(|code| code.symbol.address);
    let low = ends.filter(|&end| end <= first_start).max().unwrap_or(first_start);
    let high = starts.filter(|&start| start >= last_end).min().unwrap_or(last_end);
    // If the object file has no exported neighbours, the range must not cover the whole library.
    let min_start = first_start.saturating_sub(MAX_DISTANCE_BYTES);
    let max_end = last_end.saturating_add(MAX_DISTANCE_BYTES);
    Some(low.max(min_start)..high.min(max_end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(is_malloc: bool, address: u64, bytes: u64) -> CodeSymbol {
        CodeSymbol { is_malloc, symbol: Symbol { address, bytes, is_global: true } }
    }

    #[test]
    fn the_range_reaches_to_the_neighbours() {
        let symbols = [
            symbol(false, 0x1000, 0x100),
            symbol(true, 0x4000, 0x300),
            symbol(true, 0x5000, 0x40),
            symbol(false, 0x6000, 0x10),
            symbol(true, 0x90_0000, 0x10),
        ];
        assert_eq!(code_range(&symbols, symbols[1].symbol), Some(0x1100..0x6000));
    }

    #[test]
    fn a_symbol_of_any_size_is_no_overflow() {
        let malloc = symbol(true, 0x4000, u64::MAX);
        assert_eq!(code_range(&[malloc], symbol(true, 0x4000, 0).symbol), Some(0x4000..u64::MAX));
    }

    #[test]
    fn exact_names_are_distinguished() {
        for name in [&b"malloc"[..], b"__libc_calloc", b"posix_memalign", b"free", b"malloc_trim"] {
            assert!(is_malloc(name));
        }
        for name in [&b"freeaddrinfo"[..], b"getpid", b"reallocarray"] {
            assert!(!is_malloc(name));
        }
    }
}
