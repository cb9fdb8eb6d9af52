//! What is known of a Perl in a process, as data: the shape of `runtimes[].perl` in `explain --json`.
//!
//! Sizes are bytes; unknown is `None`, never 0. Nothing here is of what strings hold: only sizes, counts,
//! addresses and names of code. Words are those of perlguts and sv.h: head, body, arena, CUR, LEN, COW, pad.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strandline_claims::facts::{self, TypeFacts};

use super::layout::HEAD_BYTES;

/// A Perl and its interpreters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Perl {
    /// Whether it was built with interpreters of their own for threads (`useithreads`).
    pub ithreads: bool,
    /// Its interpreters: that of `PL_curinterp` first.
    pub interpreters: Vec<Interpreter>,
}

impl Perl {
    /// Tells what all runtimes tell. Objects are heads, bodies, buffers of strings and storage of arrays and hashes;
    /// types' bytes are those of heads and bodies.
    pub(super) fn summarise(&self, facts: &mut facts::Runtime) {
        let read: Vec<&Interpreter> = self.interpreters.iter().filter(|one| one.read).collect();
        if read.is_empty() {
            return;
        }
        // Figures are the target's: a hostile one's are of any size.
        let sum = |parts: &[u64]| parts.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
        let (mut used, mut committed, mut free) = (0, 0, Some(0));
        let mut types: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for one in &read {
            let (heads, stored) = (&one.heads, &one.containers);
            let buffers = sum(&[
                one.strings.capacity_bytes,
                stored.array_bytes,
                stored.table_bytes,
                stored.shared_key_bytes,
                stored.own_key_bytes,
            ]);
            used = sum(&[used, heads.live.saturating_mul(HEAD_BYTES), buffers]);
            committed = sum(&[committed, heads.arena_bytes, buffers, one.retained.total.bytes]);
            free = free.map(|free| sum(&[free, heads.free.saturating_mul(HEAD_BYTES)]));
            for (name, &count) in &heads.by_type {
                let of_type = types.entry(name).or_default();
                *of_type = (sum(&[of_type.0, count]), sum(&[of_type.1, count.saturating_mul(HEAD_BYTES)]));
            }
            for bodies in &one.bodies {
                let bytes = bodies.used.saturating_mul(bodies.body_bytes);
                used = sum(&[used, bytes]);
                committed = sum(&[committed, bodies.arena_bytes]);
                let places = bodies.free.map(|free| free.saturating_mul(bodies.body_bytes));
                free = free.zip(places).map(|(free, places)| sum(&[free, places]));
                let of_type = types.entry(&bodies.name).or_default();
                // Those that no head counts: entries of hashes.
                let instances = if heads.by_type.contains_key(&bodies.name) { 0 } else { bodies.used };
                *of_type = (sum(&[of_type.0, instances]), sum(&[of_type.1, bytes]));
            }
        }
        (facts.used_bytes, facts.free_bytes, facts.committed_bytes) = (Some(used), free, Some(committed));
        let sv_count = read.iter().fold(0u64, |sum, one| sum.saturating_add(one.sv_count));
        facts.own.insert("PL_sv_count".to_owned(), sv_count.into());
        facts.types = types
            .into_iter()
            .map(|(name, (instances, bytes))| TypeFacts { name: name.to_owned(), instances, bytes })
            .collect();
        facts.types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    }
}

/// One interpreter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interpreter {
    /// Its address, as text; `globals` where the program's only one is in static variables.
    pub id: String,
    /// Whether it is that of `PL_curinterp`.
    pub main: bool,
    /// The thread that has it as its own, where one does.
    pub thread: Option<i32>,
    /// Whether its structures agree with each other; else nothing of it is claimed.
    pub read: bool,
    /// How many values it says to have (`PL_sv_count`).
    pub sv_count: u64,
    /// Heads.
    pub heads: Heads,
    /// Bodies, by the type whose arenas they are in.
    pub bodies: Vec<Bodies>,
    /// Strings in use: values of which somebody may read the bytes. Buffers that are retained are not among
    /// them.
    pub strings: Strings,
    /// Arrays' and hashes' storage.
    pub containers: Containers,
    /// Subs, and what their pads hold.
    pub subs: Subs,
    /// Buffers that are kept though nobody needs what is in them.
    pub retained: Retained,
}

/// Heads (`SV`, 24 bytes each) in their arenas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heads {
    /// Arenas in the chain that `PL_sv_arenaroot` begins.
    pub arenas: u64,
    /// Their bytes.
    pub arena_bytes: u64,
    /// Heads in use: `PL_sv_count`, counted.
    pub live: u64,
    /// Heads not in use.
    pub free: u64,
    /// Heads in use by type: `NULL`, `IV`, `NV`, `PV`, `PVIV`, `PVMG`, `PVAV`, `PVHV`, `PVCV`, ….
    pub by_type: BTreeMap<String, u64>,
}

/// Bodies of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bodies {
    /// Whose: `PV`, `PVMG`, … as in [`Heads::by_type`]; `HE` for entries of hashes.
    pub name: String,
    /// The size of one.
    pub body_bytes: u64,
    /// How many arenas.
    pub arenas: u64,
    /// Their bytes.
    pub arena_bytes: u64,
    /// Slots in use.
    pub used: u64,
    /// Slots not in use; `None` where the list of free ones does not hold together.
    pub free: Option<u64>,
}

/// Strings in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Strings {
    /// How many values hold one (`POK` or `pPOK`).
    pub values: u64,
    /// How many of them have a buffer (`LEN > 0`): the others are keys of hashes, or static.
    pub buffers: u64,
    /// What the values hold (`CUR`), whoever shares it.
    pub payload_bytes: u64,
    /// What the buffers can hold (`LEN`), counted once where values share one.
    pub capacity_bytes: u64,
    /// What of that is not used: capacity less the payload and its final NUL, counted once.
    pub unused_bytes: u64,
    /// malloc's size words before these buffers.
    pub header_bytes: u64,
    /// What malloc adds to round sizes up.
    pub rounding_bytes: u64,
    /// Heads of these values.
    pub head_bytes: u64,
    /// Bodies of these values.
    pub body_bytes: u64,
    /// Values marked as UTF-8.
    pub utf8: u64,
    /// Buffers whose string does not start at their begin (`OOK`).
    pub offset: u64,
    /// Constants of the program's code, among them.
    pub constants: Constants,
    /// Buffers with several owners.
    pub cow: Cow,
    /// Strings of 15 bytes or less.
    pub short: Short,
    /// Strings that are equal.
    pub equal: Equal,
}

/// Constants of the program's code. Of a perl without ithreads only those that its compiler worked out (`"a" x 1000`, since
/// 5.20): literals cannot be told from variables that were made read-only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constants {
    /// How many have a buffer.
    pub buffers: u64,
    /// Bytes of the buffers (`LEN`).
    pub capacity_bytes: u64,
}

/// Copy on write: buffers that several values own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cow {
    /// Buffers with more than one owner.
    pub buffers: u64,
    /// Their owners.
    pub owners: u64,
    /// Bytes of these buffers (`LEN`), counted once.
    pub shared_bytes: u64,
    /// What copies for the other owners would take.
    pub saved_bytes: u64,
    /// Values that share a key of a hash (`LEN` is 0).
    pub key_values: u64,
}

/// What strings of 15 bytes or less would take in their bodies, as Dave Mitchell proposed to perl5-porters
/// on 2017-05-05: one word more in each body that can hold a string, which with `LEN` gives 16 bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Short {
    /// Strings in use of 15 bytes or less (`CUR`) that have a buffer of their own, of 24 bytes or less (`LEN`).
    pub strings: u64,
    /// Chunks of malloc that hold them, size words and rounding included.
    pub chunk_bytes: u64,
    /// What the word more would take in all bodies in use that can hold a string.
    pub extra_word_bytes: u64,
    /// Chunks less words; negative where it would cost.
    pub saved_bytes: i64,
}

/// Strings that are equal, told by a 64-bit hash. Nothing of them is kept but that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Equal {
    /// Strings with buffers of their own that were compared.
    pub strings: u64,
    /// Different ones among them.
    pub distinct: u64,
    /// Bytes of strings (`CUR`) that another one holds too.
    pub repeated_bytes: u64,
    /// One of how many different strings was looked at: 1 where all were. The figures above are those of
    /// all strings, estimated from it.
    pub sampled_one_in: u64,
    /// Strings not compared: longer than what is read of each, and, where there are millions of values, those of
    /// seven in eight places: `repeated_bytes` is then what is at least repeated.
    pub skipped: u64,
    /// Their bytes (`CUR`).
    pub skipped_bytes: u64,
}

/// Arrays' and hashes' storage, in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Containers {
    /// Arrays with storage, pads among them.
    pub arrays: u64,
    /// Bytes of it (`AvALLOC`).
    pub array_bytes: u64,
    /// Bytes of it that no element uses.
    pub array_unused_bytes: u64,
    /// Hashes with storage.
    pub hashes: u64,
    /// Bytes of their tables (`HvARRAY`).
    pub table_bytes: u64,
    /// Keys in the shared table (`PL_strtab`).
    pub shared_keys: u64,
    /// Their bytes.
    pub shared_key_bytes: u64,
    /// Keys that a hash does not share.
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
    /// Subs running when the process was stopped.
    pub running: u64,
    /// Pads: one for each depth of recursion reached.
    pub pads: u64,
    /// Pads that do not hold together, and were not looked at.
    pub damaged: u64,
    /// Names with characters that no name has, or longer than 200 bytes.
    pub names_replaced: u64,
}

/// Buffers that are kept though nobody needs what is in them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Retained {
    /// All of it: the three below.
    pub total: Amount,
    /// Kept by lexicals without a value: what has one is in use, whether its sub runs or not.
    pub lexicals: Amount,
    /// Kept by operators' temporaries out of use.
    pub temporaries: Amount,
    /// Kept by package variables that have no value. Memory that code in C holds by a value without one is not
    /// told from malloc's other chunks.
    pub other: Amount,
    /// Of lexicals: storage of arrays and hashes without elements.
    pub containers: Amount,
    /// Whole resident pages within the buffers: what giving all of them back would free.
    pub page_bytes: u64,
    /// Every one of more than 4 KiB, the largest first, up to 4,096 of them.
    pub top: Vec<Buffer>,
    /// Those that `top` has no place for.
    pub top_left_out: Amount,
}

/// How many, and how large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// How many buffers.
    pub buffers: u64,
    /// Their bytes (`LEN`, or what an array's or a hash's storage takes).
    pub bytes: u64,
}

/// What keeps a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeper {
    /// A lexical of a sub or a file.
    #[default]
    Lexical,
    /// An operator's target.
    Temporary,
    /// A package variable.
    Other,
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

/// One buffer that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Who keeps it, as the rows' holders: `main::build_report $buf (depth 2)`.
    pub holder: String,
    /// What keeps it.
    pub keeper: Keeper,
    /// What it held.
    pub kind: BufferKind,
    /// The sub: `main::build_report`, `main::__ANON__`, `main (file scope)`; `None` where nothing is known.
    pub sub: Option<String>,
    /// The lexical, with its sigil; `None` for temporaries.
    pub lexical: Option<String>,
    /// The depth of recursion whose pad it is in, from 1; `None` where it is in no pad.
    pub depth: Option<u64>,
    /// The address of the closure's `CV`, where the sub is one.
    pub closure: Option<String>,
    /// The address of the value's head.
    pub head: String,
    /// The address of the buffer, as malloc returned it.
    pub address: String,
    /// Its bytes: `LEN`, and what `OOK` hides before it.
    pub bytes: u64,
    /// Whether the variable has no value any more (true of all but operators' targets); else it is out of use because
    /// its sub is not running.
    pub valueless: bool,
    /// Whole resident pages within it.
    pub page_bytes: u64,
}
