//! What is known of a Perl in a process: the data in `runtimes[].perl` of `explain --json`.
//!
//! Sizes are in bytes; an unknown size is `None`, never 0. Strings are left out: only sizes,
//! counts, addresses and names of code are here. Terms are those of perlguts and sv.h: head, body,
//! arena, CUR, LEN, COW, pad.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strandline_claims::facts::{self, TypeFacts};

use super::layout::HEAD_BYTES;
use super::sums::add;

/// A Perl and its interpreters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Perl {
    /// Whether perl was built with an interpreter per thread (`useithreads`).
    pub ithreads: bool,
    /// Its interpreters; the one that `PL_curinterp` points to is first.
    pub interpreters: Vec<Interpreter>,
}

impl Perl {
    /// Fills in what all runtimes report. Objects are heads, bodies, string buffers and storage of
    /// arrays and hashes; types have the bytes of heads and bodies.
    pub(super) fn fill_common(&self, facts: &mut facts::Runtime) {
        let read: Vec<&Interpreter> =
            self.interpreters.iter().filter(|interpreter| interpreter.read).collect();
        if read.is_empty() {
            return;
        }
        let (mut used_bytes, mut committed_bytes, mut free_bytes) = (0, 0, Some(0));
        let mut types: BTreeMap<&str, TypeFacts> = BTreeMap::new();
        for interpreter in &read {
            let (heads, containers) = (&interpreter.heads, &interpreter.containers);
            for bytes in [
                interpreter.strings.capacity_bytes,
                containers.array_bytes,
                containers.table_bytes,
                containers.shared_key_bytes,
                containers.own_key_bytes,
            ] {
                add(&mut used_bytes, bytes);
                add(&mut committed_bytes, bytes);
            }
            add(&mut used_bytes, heads.live.saturating_mul(HEAD_BYTES));
            add(&mut committed_bytes, heads.arena_bytes);
            add(&mut committed_bytes, interpreter.retained.total.bytes);
            add_known(&mut free_bytes, Some(heads.free.saturating_mul(HEAD_BYTES)));
            for (name, &count) in &heads.by_type {
                let type_facts = types.entry(name).or_default();
                add(&mut type_facts.instances, count);
                add(&mut type_facts.bytes, count.saturating_mul(HEAD_BYTES));
            }
            for bodies in &interpreter.bodies {
                let bytes = bodies.used.saturating_mul(bodies.body_bytes);
                add(&mut used_bytes, bytes);
                add(&mut committed_bytes, bodies.arena_bytes);
                add_known(&mut free_bytes, bodies.free.map(|slots| slots.saturating_mul(bodies.body_bytes)));
                let type_facts = types.entry(&bodies.name).or_default();
                // Entries of hashes have no heads that were counted above.
                if !heads.by_type.contains_key(&bodies.name) {
                    add(&mut type_facts.instances, bodies.used);
                }
                add(&mut type_facts.bytes, bytes);
            }
        }
        (facts.used_bytes, facts.free_bytes, facts.committed_bytes) =
            (Some(used_bytes), free_bytes, Some(committed_bytes));
        let sv_count = read.iter().fold(0u64, |sum, interpreter| sum.saturating_add(interpreter.sv_count));
        facts.own.insert("PL_sv_count".to_owned(), sv_count.into());
        facts.types = types
            .into_iter()
            .map(|(name, type_facts)| TypeFacts { name: name.to_owned(), ..type_facts })
            .collect();
        facts.types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    }
}

/// Adds to a sum that is unknown once an addend is unknown.
fn add_known(sum: &mut Option<u64>, addend: Option<u64>) {
    *sum = sum.zip(addend).map(|(sum, addend)| sum.saturating_add(addend));
}

/// One interpreter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interpreter {
    /// Its address, as text; `globals` if the program's only interpreter is in static variables.
    pub id: String,
    /// Whether `PL_curinterp` points to it.
    pub main: bool,
    /// The thread that has it as its own, if any.
    pub thread: Option<i32>,
    /// Whether its structures agree with each other; if not, nothing of it is claimed.
    pub read: bool,
    /// The interpreter's own count of its values (`PL_sv_count`).
    pub sv_count: u64,
    /// Heads.
    pub heads: Heads,
    /// Bodies, by the type whose arenas they are in.
    pub bodies: Vec<Bodies>,
    /// Strings in use: values whose bytes may still be read. Retained buffers are not included.
    pub strings: Strings,
    /// Storage of arrays and hashes.
    pub containers: Containers,
    /// Subs, and what their pads hold.
    pub subs: Subs,
    /// Buffers that are retained although their contents are no longer needed.
    pub retained: RetainedBuffers,
}

/// Heads (`SV`, 24 bytes each) in their arenas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heads {
    /// Arenas in the chain that starts at `PL_sv_arenaroot`.
    pub arenas: u64,
    /// Their bytes.
    pub arena_bytes: u64,
    /// Heads in use, as counted in the arenas.
    pub live: u64,
    /// Heads not in use.
    pub free: u64,
    /// Heads in use by type: `NULL`, `IV`, `NV`, `PV`, `PVIV`, `PVMG`, `PVAV`, `PVHV`, `PVCV`, ….
    pub by_type: BTreeMap<String, u64>,
}

/// Bodies of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bodies {
    /// Type: `PV`, `PVMG`, … as in [`Heads::by_type`]; `HE` for entries of hashes.
    pub name: String,
    /// Bytes of one body.
    pub body_bytes: u64,
    /// Number of arenas.
    pub arenas: u64,
    /// Their bytes.
    pub arena_bytes: u64,
    /// Slots in use, as far as values were read.
    pub used: u64,
    /// Slots not in use; `None` if not all values were read, or the free list is damaged.
    pub free: Option<u64>,
}

/// Strings in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Strings {
    /// Values that hold a string (`POK` or `pPOK`).
    pub values: u64,
    /// Their buffers (`LEN > 0`), each counted once. The other strings are keys of hashes, or
    /// static.
    pub buffers: u64,
    /// Bytes of the strings (`CUR`), counted for each value that shares them.
    pub payload_bytes: u64,
    /// Capacity of the buffers (`LEN`), each counted once.
    pub capacity_bytes: u64,
    /// Unused capacity: capacity less the payload and its final NUL, counted once per buffer.
    pub unused_bytes: u64,
    /// malloc's size words before these buffers.
    pub header_bytes: u64,
    /// Bytes that malloc adds to round sizes up.
    pub rounding_bytes: u64,
    /// Heads of these values.
    pub head_bytes: u64,
    /// Bodies of these values.
    pub body_bytes: u64,
    /// Values marked as UTF-8.
    pub utf8: u64,
    /// Strings that do not start at the beginning of their buffer (`OOK`).
    pub offset: u64,
    /// Constants of the program's code; included above.
    pub constants: Constants,
    /// Buffers with several owners.
    pub cow: CopyOnWrite,
    /// Strings of 15 bytes or less.
    pub short: ShortStrings,
    /// Strings that are equal.
    pub equal: EqualStrings,
}

/// Constants of the program's code. In a perl without ithreads only those that its compiler
/// computed (`"a" x 1000`, since 5.20): literals cannot be distinguished from variables that were
/// made read-only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constants {
    /// Number of constants with a buffer.
    pub buffers: u64,
    /// Bytes of the buffers (`LEN`).
    pub capacity_bytes: u64,
}

/// Copy on write: buffers that several values own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CopyOnWrite {
    /// Buffers with more than one owner.
    pub buffers: u64,
    /// Their owners.
    pub owners: u64,
    /// Bytes of these buffers (`LEN`), counted once.
    pub shared_bytes: u64,
    /// Bytes that copies for the other owners would take.
    pub saved_bytes: u64,
    /// Values whose string is a key of a hash (`LEN` is 0).
    pub key_values: u64,
}

/// The effect of storing strings of 15 bytes or less in bodies, as Dave Mitchell proposed to
/// perl5-porters on 2017-05-05: one more word in each body that can hold a string, which with `LEN`
/// gives 16 bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShortStrings {
    /// Strings in use of 15 bytes or less (`CUR`) that have their own buffer, of 24 bytes or
    /// less (`LEN`).
    pub strings: u64,
    /// Bytes of the malloc chunks that hold them, including size words and rounding.
    pub chunk_bytes: u64,
    /// Bytes of the extra word in all bodies in use that can hold a string.
    pub extra_word_bytes: u64,
    /// `chunk_bytes` less `extra_word_bytes`; negative if the change would cost memory.
    pub saved_bytes: i64,
}

/// Equal strings, found by a 64-bit hash. Only the hash of a string is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EqualStrings {
    /// Strings with their own buffers that were compared.
    pub strings: u64,
    /// Distinct strings among them.
    pub distinct: u64,
    /// Bytes of strings (`CUR`) that repeat another string.
    pub repeated_bytes: u64,
    /// One in this many distinct strings was compared: 1 if all were. The figures above are
    /// extrapolated to all strings.
    pub sampled_one_in: u64,
    /// Strings not compared: they could not be read, are longer than the limit for reading, have no
    /// room in the sample or, with millions of values, are in seven of eight parts of the arenas.
    /// `repeated_bytes` is then a lower bound.
    pub skipped: u64,
    /// Their bytes (`CUR`).
    pub skipped_bytes: u64,
}

/// Storage of arrays and hashes in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Containers {
    /// Arrays with storage, including pads.
    pub arrays: u64,
    /// Bytes of this storage (`AvALLOC`).
    pub array_bytes: u64,
    /// Bytes of this storage that no element uses.
    pub array_unused_bytes: u64,
    /// Hashes with storage.
    pub hashes: u64,
    /// Bytes of their tables (`HvARRAY`).
    pub table_bytes: u64,
    /// Keys in the shared table (`PL_strtab`).
    pub shared_keys: u64,
    /// Their bytes.
    pub shared_key_bytes: u64,
    /// Keys that belong to one hash and are not in the shared table.
    pub own_keys: u64,
    /// Their bytes.
    pub own_key_bytes: u64,
}

/// Subs, and what their pads hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subs {
    /// Subs and formats with a body in Perl.
    pub with_pads: u64,
    /// Closures among them (`CvCLONED`).
    pub closures: u64,
    /// Subs that were running when the process was stopped.
    pub running: u64,
    /// Pads: one for each depth of recursion that a sub reached.
    pub pads: u64,
    /// Subs whose pads are damaged or could not be read to the end.
    pub damaged: u64,
    /// Names that were replaced in part: longer than 200 bytes, or with characters that no name
    /// has.
    pub names_replaced: u64,
}

/// Buffers that are retained although their contents are no longer needed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RetainedBuffers {
    /// Sum of the three below.
    pub total: Amount,
    /// Retained by lexicals without a value. A lexical with a value is in use, whether its sub runs
    /// or not.
    pub lexicals: Amount,
    /// Retained by operators' temporaries that are out of use.
    pub temporaries: Amount,
    /// Retained by package variables without a value. Memory that C code holds in its own value is
    /// not distinguished from malloc's other chunks.
    pub other: Amount,
    /// Part of `lexicals`: storage of arrays and hashes without elements.
    pub containers: Amount,
    /// Bytes of whole resident pages within the buffers: what giving all of them back would free.
    pub page_bytes: u64,
    /// All buffers of more than 4 KiB, the largest first, at most 4,096.
    pub top: Vec<Buffer>,
    /// Buffers beyond the limit of `top`, or for which there was no time.
    pub top_left_out: Amount,
}

/// Number and bytes of buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Number of buffers.
    pub buffers: u64,
    /// Their bytes (`LEN`, or what an array's or a hash's storage takes).
    pub bytes: u64,
}

/// The kind of variable that retains a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeper {
    /// A lexical of a sub or a file.
    #[default]
    Lexical,
    /// An operator's target.
    Temporary,
    /// A package variable.
    #[serde(rename = "other")]
    Global,
}

/// What is in a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferKind {
    /// A string's bytes.
    #[default]
    String,
    /// An array's elements.
    Array,
    /// A hash's table.
    Hash,
}

/// A retained buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// The variable that retains it, as in the rows' holders: `main::build_report $buf (depth 2)`.
    pub holder: String,
    /// The kind of this variable.
    pub keeper: Keeper,
    /// What it held.
    pub kind: BufferKind,
    /// The sub: `main::build_report`, `main::__ANON__`, `main (file scope)`; `None` if it is
    /// unknown.
    pub sub: Option<String>,
    /// The lexical, with its sigil; `None` for temporaries.
    pub lexical: Option<String>,
    /// The depth of recursion of its pad, from 1; `None` if it is in no pad.
    pub depth: Option<u64>,
    /// The address of the closure's `CV`, if the sub is a closure.
    pub closure: Option<String>,
    /// The address of the value's head.
    pub head: String,
    /// The address of the buffer, as malloc returned it.
    pub address: String,
    /// Its bytes: `LEN`, and the bytes before the string that `OOK` skips.
    pub bytes: u64,
    /// Whether the variable has no value any more (true of all but operators' targets); if false,
    /// it is out of use because its sub is not running.
    pub valueless: bool,
    /// Bytes of whole resident pages within it.
    pub page_bytes: u64,
}
