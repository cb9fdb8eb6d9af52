//! Structures that readers could get lost in: cyclic chains, endless lists, impossible sizes.

use super::PerlVariables;
use super::layout::{ARENA_HEADS, HEAD_BYTES, body, flags, padname};
use crate::damage::KERNEL_START;
use crate::variants::variants;
use crate::{Image, PAGE};

variants! {
    /// A trap.
    pub enum Trap {
        ArenaCycle = "The last arena of heads points to the first.",
        ArenaOfItself = "An arena points to itself.",
        EndlessArena = "An arena's number of heads is 2^32 - 1.",
        OverlappingArenas = "An arena is reached twice, a few bytes apart.",
        AbsurdCount = "The interpreter counts 2^63 values.",
        OverwrittenHeads = "Every head of the first arena is overwritten with ones.",
        AbsurdLength = "Strings with LEN of almost 2^64.",
        AbsurdCur = "Strings whose CUR is more than their LEN.",
        BufferInArena = "Strings whose buffers are their own heads.",
        OneBuffer = "Strings that all have the same buffer, without sharing it.",
        AbsurdOffset = "Offset strings whose offset is larger than what is before them.",
        LonelySharing = "Shared strings whose count of other owners is wrong: there are none.",
        PadsOfThemselves = "Pads that are their own lists.",
        EndlessDepths = "A list of pads with 2^40 depths.",
        ThousandsOfDepths = "A list of pads that has the same pad for every depth.",
        EndlessNames = "Names of 1 GiB.",
        HostileNames = "Names that are not names: control characters, and no UTF-8.",
        EndlessNameList = "A list of 2^40 names.",
        SetOfItself = "A set of body arenas that points to itself.",
        BodyListCycle = "A list of free bodies that points to itself.",
        InterpreterOfTheKernel = "The interpreter is in the kernel's memory.",
        ChainToNowhere = "The arena chain leaves mapped memory.",
        KeyCycle = "The hash of shared keys has an entry that points to itself.",
        EndlessKeys = "The hash of shared keys has 2^40 buckets.",
    }
}

/// Addresses that traps are built at.
#[derive(Clone, Debug, Default)]
pub struct TrapAddresses {
    /// Arenas of heads; the last one is the first of the chain.
    pub arenas: Vec<u64>,
    /// Heads of strings that pads keep.
    pub kept_heads: Vec<u64>,
    /// Heads of strings.
    pub string_heads: Vec<u64>,
    /// `PADLIST`s.
    pub padlists: Vec<u64>,
    /// `PADNAME`s.
    pub padnames: Vec<u64>,
    /// `HEK`s.
    pub keys: Vec<u64>,
}

/// A number of entries that no reader could visit.
const ENDLESS_COUNT: u64 = 1 << 40;
/// Number of types with bodies (`PERL_ARENA_ROOTS_SIZE`).
const BODY_ROOTS: u64 = 17;
/// An address that nothing is mapped at.
const UNMAPPED_ADDRESS: u64 = 0x1234_5678_9000;

/// The word at `address`; 0 where nothing is mapped, which no structure of a fabricated perl needs.
fn word_at(image: &Image, address: u64) -> u64 {
    image.word(address).unwrap_or(0)
}

/// Builds a trap into the memory.
pub fn build(image: &mut Image, variables: &PerlVariables, addresses: &TrapAddresses, trap: Trap) {
    match trap {
        Trap::InterpreterOfTheKernel => image.put_word(variables.curinterp, KERNEL_START + PAGE),
        Trap::AbsurdCount => image.put_word(variables.sv_count, 1 << 63),
        Trap::ChainToNowhere => image.put_word(variables.sv_arenaroot, UNMAPPED_ADDRESS),
        Trap::SetOfItself => {
            let set = word_at(image, variables.body_arenas);
            image.put_word(set, set);
        }
        Trap::BodyListCycle => {
            for root in 0..BODY_ROOTS {
                let first = word_at(image, variables.body_roots + 8 * root);
                if first != 0 {
                    image.put_word(first, first);
                }
            }
        }
        Trap::KeyCycle | Trap::EndlessKeys => trap_in_keys(image, variables, trap),
        Trap::ArenaCycle
        | Trap::ArenaOfItself
        | Trap::EndlessArena
        | Trap::OverlappingArenas
        | Trap::OverwrittenHeads => trap_in_arenas(image, addresses, trap),
        Trap::PadsOfThemselves | Trap::EndlessDepths | Trap::ThousandsOfDepths => {
            trap_in_pads(image, addresses, trap)
        }
        Trap::EndlessNames | Trap::HostileNames | Trap::EndlessNameList => {
            trap_in_names(image, addresses, trap)
        }
        _ => trap_in_strings(image, addresses, trap),
    }
}

fn trap_in_arenas(image: &mut Image, addresses: &TrapAddresses, trap: Trap) {
    let (Some(&last), Some(&first)) = (addresses.arenas.first(), addresses.arenas.last()) else { return };
    match trap {
        Trap::ArenaCycle => image.put_word(last, first),
        Trap::ArenaOfItself => image.put_word(first, first),
        Trap::EndlessArena => image.put(first + 8, &u32::MAX.to_le_bytes()),
        Trap::OverlappingArenas => {
            // Makes a head of the first arena look like an arena's first head.
            let head = first + 2 * HEAD_BYTES;
            image.put_word(head, word_at(image, first));
            image.put_word(head + 8, ARENA_HEADS);
            image.put_word(first, head);
        }
        _ => image.put(first + HEAD_BYTES, &[0xff; (HEAD_BYTES * (ARENA_HEADS - 1)) as usize]),
    }
}

fn trap_in_strings(image: &mut Image, addresses: &TrapAddresses, trap: Trap) {
    let first_buffer = addresses.string_heads.first().map_or(0, |&head| word_at(image, head + 16));
    for (index, &head) in addresses.string_heads.iter().enumerate() {
        // `sv_any`, the address of the body.
        let any = word_at(image, head);
        let head_flags = word_at(image, head + 8);
        // The word has the reference count, and above it the flags.
        let mut add_flags = |flags: u32| image.put_word(head + 8, head_flags | u64::from(flags) << 32);
        match trap {
            Trap::AbsurdLength => image.put_word(any + body::LEN, u64::MAX - index as u64 * 8),
            Trap::AbsurdCur => {
                add_flags(flags::POK);
                image.put_word(any + body::CUR, u64::MAX - index as u64);
            }
            Trap::BufferInArena => {
                add_flags(flags::POK);
                image.put_word(head + 16, head & !15);
            }
            Trap::OneBuffer => image.put_word(head + 16, first_buffer),
            Trap::AbsurdOffset => {
                add_flags(flags::POK | flags::OOK);
                let buffer = word_at(image, head + 16);
                image.put(buffer - 1, &[0]);
                image.put_word(buffer - 9, u64::MAX - index as u64);
            }
            _ => {
                add_flags(flags::POK | flags::IS_COW);
                let (buffer, len) = (word_at(image, head + 16), word_at(image, any + body::LEN));
                image.put(buffer.wrapping_add(len).wrapping_sub(1), &[200]);
            }
        }
    }
}

fn trap_in_pads(image: &mut Image, addresses: &TrapAddresses, trap: Trap) {
    for &list in &addresses.padlists {
        let table = word_at(image, list + 8);
        match trap {
            Trap::PadsOfThemselves => {
                image.put_word(table + 8, list);
                image.put_word(list + 8, list);
            }
            Trap::EndlessDepths => image.put_word(list, ENDLESS_COUNT),
            _ => {
                // The table extends over everything that follows it.
                image.put_word(list, 5000);
                let pad = word_at(image, table + 8);
                image.put_row(table + 16, [pad; 6]);
            }
        }
    }
}

fn trap_in_names(image: &mut Image, addresses: &TrapAddresses, trap: Trap) {
    for &key in &addresses.keys {
        match trap {
            Trap::EndlessNames => image.put(key + 4, &(1_u32 << 30).to_le_bytes()),
            Trap::HostileNames => image.put(key + 8, b"\x1b[2"),
            _ => {}
        }
    }
    for &name in &addresses.padnames {
        let text = word_at(image, name + padname::TEXT);
        match trap {
            Trap::EndlessNames => image.put(name + padname::LENGTH, &[255]),
            Trap::HostileNames => image.put(text, b"\xff\x07\n"),
            _ => {}
        }
    }
    if trap == Trap::EndlessNameList {
        for &list in &addresses.padlists {
            let table = word_at(image, list + 8);
            let names = word_at(image, table);
            image.put_word(names, ENDLESS_COUNT);
        }
    }
}

fn trap_in_keys(image: &mut Image, variables: &PerlVariables, trap: Trap) {
    let head = word_at(image, variables.strtab);
    let (any, table) = (word_at(image, head), word_at(image, head + 16));
    if trap == Trap::EndlessKeys {
        image.put_word(any + body::MAX, ENDLESS_COUNT - 1);
        return;
    }
    let entry = word_at(image, table);
    image.put_word(entry, entry);
}
