//! Reads one interpreter: finds its arenas, checks them against each other, then reads all values.

use super::census::{self, Census};
use super::facts::{Bodies, Interpreter};
use super::locate::InterpreterLocation;
use super::names::Names;
use super::objects::{Head, Type};
use super::retained;
use super::roots::{self, PadFindings};
use super::spaces::{self, BodyArena, BodySpaces, BodyType, Bounds, Damage, HeadArena};
use super::sums::{SurveySums, UsedBodies};
use super::survey;
use super::{Slots, figures, globals, keys};
use crate::batch::PageCache;
use crate::perl::layout::{HASH_KEYS, Layout};
use std::time::Instant;
use strandline_claims::caveat::Caveat;
use strandline_claims::class::FreeSlots;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::{Context, NamedBlock};
use strandline_claims::units::thousands;
use strandline_process::memory::Memory;
use strandline_process::pages::{PAGE_BYTES, page_of};

/// Id of an interpreter in static variables, which has no address.
const GLOBALS_ID: &str = "globals";

/// Reads the interpreters of one program.
pub struct Reader<'a> {
    /// The stopped process.
    pub context: &'a Context<'a>,
    pub memory: &'a dyn Memory,
    pub release: &'static Layout,
    /// Where buffers and arenas are claimed.
    pub refinements: &'a Refinements,
    /// The slots that they are claimed with.
    pub slots: Slots,
    bounds: Bounds,
}

/// What was read of one interpreter.
#[derive(Default)]
pub struct InterpreterReading {
    /// Its figures.
    pub facts: Interpreter,
    /// Buffers that it retains, by name.
    pub named_blocks: Vec<NamedBlock>,
    /// What could not be read.
    pub caveats: Vec<Caveat>,
}

/// Arenas and variables of one interpreter, before its values are checked.
struct Arenas {
    heads: Vec<HeadArena>,
    bodies: BodySpaces,
    /// `PL_sv_count`
    sv_count: u64,
    /// `PL_strtab`
    strtab: u64,
    /// `PL_main_cv`
    main_cv: u64,
    /// The first free entry of hashes, in `PL_body_roots`.
    first_free_entry: u64,
}

impl<'a> Reader<'a> {
    /// A reader that claims what it finds in `refinements`.
    pub fn new(
        context: &'a Context<'a>,
        memory: &'a dyn Memory,
        release: &'static Layout,
        refinements: &'a Refinements,
        slots: Slots,
    ) -> Self {
        let resident_bytes = context.resident_bytes((0, u64::MAX));
        let bounds = Bounds { resident_bytes, deadline: context.deadline };
        Self { context, memory, release, refinements, slots, bounds }
    }

    /// Reads the interpreter at `location`. If its structures do not agree with each other, nothing
    /// is claimed.
    pub fn read(&self, location: &InterpreterLocation) -> InterpreterReading {
        let mut reading = InterpreterReading::default();
        reading.facts.id =
            location.interpreter.map_or_else(|| GLOBALS_ID.to_owned(), |address| format!("{address:#x}"));
        reading.facts.main = location.is_main;
        reading.facts.thread = location.thread;
        let mut pages = PageCache::new(self.memory);
        match self.find_arenas(location, &mut pages) {
            Ok(arenas) => {
                reading.facts.sv_count = arenas.sv_count;
                self.read_arenas(&arenas, &mut pages, &mut reading);
            }
            Err(_) if Instant::now() > self.context.deadline => {
                let id = &reading.facts.id;
                let text =
                    format!("{}: the time limit for the stop ended before it was read", display_name(id));
                reading.caveats.push(Caveat::new("perl_late", id, None, text));
            }
            Err(Damage { address, problem }) => {
                let interpreter = display_name(&reading.facts.id);
                let text = format!("{interpreter}: {problem}; strandline read nothing of it");
                reading.caveats.push(Caveat::new("perl_damaged", format!("{address:#x}"), None, text));
            }
        }
        reading
    }

    /// Finds the arenas, and checks that variables have the types that they must have.
    fn find_arenas(
        &self,
        location: &InterpreterLocation,
        pages: &mut PageCache<'_>,
    ) -> Result<Arenas, Damage> {
        let addresses = &location.addresses;
        let mut word = |address: u64| {
            pages
                .word(address)
                .ok_or(Damage { address, problem: "a variable of the interpreter cannot be read" })
        };
        let (sv_count, first_arena) = (word(addresses.sv_count)?, word(addresses.sv_arenaroot)?);
        let (strtab, main_cv) = (word(addresses.strtab)?, word(addresses.main_cv)?);
        let (first_free_entry, body_arenas) = (word(addresses.body_roots)?, word(addresses.body_arenas)?);
        if first_arena == 0 {
            return Err(Damage { address: addresses.sv_arenaroot, problem: "it has no values" });
        }
        self.check_type(pages, strtab, Type::PvHv)?;
        self.check_type(pages, main_cv, Type::PvCv)?;
        let heads = spaces::head_arenas(pages, first_arena, &self.bounds)?;
        let bodies = spaces::body_spaces(pages, body_arenas, self.release, &self.bounds)?;
        Ok(Arenas { heads, bodies, sv_count, strtab, main_cv, first_free_entry })
    }

    /// Checks that a variable points to a value of the expected type: a build with unknown options
    /// has its variables elsewhere.
    fn check_type(&self, pages: &mut PageCache<'_>, address: u64, expected: Type) -> Result<(), Damage> {
        let problem =
            "its variables are not where this release has them (perl may be built with other options)";
        let found = Head::read(pages, address).and_then(|head| head.kind(self.release));
        if address == 0 || found == Some(expected) { Ok(()) } else { Err(Damage { address, problem }) }
    }

    fn read_arenas(&self, arenas: &Arenas, pages: &mut PageCache<'_>, reading: &mut InterpreterReading) {
        let census =
            census::count_heads(self.context, self.memory, &arenas.heads, &arenas.bodies, self.release);
        let arena_bytes = arenas.heads.iter().map(HeadArena::bytes).sum();
        reading.facts.heads = figures::heads(&arenas.heads, &census);
        let inconsistency = if census.is_complete {
            census.inconsistency(reading.facts.sv_count)
        } else {
            Some("the time limit for the stop ended before its values were counted".to_owned())
        };
        if let Some(reason) = inconsistency {
            let id = &reading.facts.id;
            let text = format!("{} is not read: {reason}", display_name(id));
            reading.caveats.push(Caveat::new("perl_disagrees", id, Some(arena_bytes), text));
            return;
        }
        reading.facts.read = true;
        let pad_context = roots::PadContext {
            memory: self.memory,
            release: self.release,
            main_cv: arenas.main_cv,
            deadline: self.context.deadline,
            workers: self.context.workers,
            resident_bytes: self.bounds.resident_bytes,
        };
        let pads = roots::read_pads(&pad_context, &census.subs);
        let survey = survey::survey_values(&survey::Survey {
            reader: self,
            heads: &arenas.heads,
            bodies: &arenas.bodies.arenas,
            marks: &pads.marks,
            strtab: arenas.strtab,
        });
        let has_followed_keys = self.follow_keys(arenas, &survey, pages, &mut reading.facts);
        let has_free_entries = self.claim_arenas(arenas, &census, &survey, pages, &mut reading.facts.bodies);
        let has_all_keys = has_followed_keys && has_free_entries;
        let is_over = Instant::now() > self.context.deadline;
        let is_late = !pads.is_complete || survey.unread_arenas > 0 || (!has_all_keys && is_over);
        let are_keys_damaged = !has_all_keys && !is_over;
        let (unread_heads, left_out) = (census.unread_heads, census.subs_left_out);
        let inputs = CaveatInputs { is_late, are_keys_damaged, unread_heads, left_out, arena_bytes };
        self.fill_facts(arenas, pads, survey, inputs, reading);
    }

    /// Follows the chains of keys; false if some keys were not reached.
    fn follow_keys(
        &self,
        arenas: &Arenas,
        survey: &SurveySums,
        pages: &mut PageCache<'_>,
        facts: &mut Interpreter,
    ) -> bool {
        facts.containers = survey.containers.clone();
        let tables = &survey.tables_with_own_keys;
        let own_keys = keys::follow(self, tables, keys::KeyStorage::Own);
        (facts.containers.own_keys, facts.containers.own_key_bytes) = (own_keys.count, own_keys.bytes);
        let Some(strtab) = hash_table(pages, arenas.strtab) else { return false };
        let shared_keys = keys::follow(self, &[strtab], keys::KeyStorage::Shared);
        (facts.containers.shared_keys, facts.containers.shared_key_bytes) =
            (shared_keys.count, shared_keys.bytes);
        own_keys.is_complete && shared_keys.is_complete
    }

    /// Claims the arenas; false if the free entries of hashes are not known: then these count as in
    /// use.
    fn claim_arenas(
        &self,
        arenas: &Arenas,
        census: &Census,
        survey: &SurveySums,
        pages: &mut PageCache<'_>,
        bodies: &mut Vec<Bodies>,
    ) -> bool {
        let mut free_heads = census.arenas_with_free_heads.iter().peekable();
        for (index, arena) in arenas.heads.iter().enumerate() {
            let free = free_heads.next_if(|free| free.arena == index);
            let free_bytes = free.map_or([0, 0], |free| free.bytes_on_pages);
            if !arena.is_fake {
                self.claim_arena(arena.address, arena.bytes(), free_bytes);
            }
        }
        for set in &arenas.bodies.sets {
            self.refinements.claim(set.start, set.len(), self.slots.arena);
        }
        // What is not known to be free counts as in use.
        let knows_used_bodies = survey.unread_arenas == 0 && census.unread_heads == 0;
        let deadline = self.context.deadline;
        let free_entries =
            keys::free_entries(pages, arenas.first_free_entry, &arenas.bodies.arenas, deadline);
        for (index, arena) in arenas.bodies.arenas.iter().enumerate() {
            let free_bytes = if arena.body_type == BodyType::Entry {
                free_entries.as_ref().and_then(|entries| entries.bytes_on_pages.get(index).copied())
            } else {
                let used_bodies = survey.used_bodies.get(index).filter(|_| knows_used_bodies);
                used_bodies.map(|used| free_body_bytes(arena, used))
            };
            let free_bytes = free_bytes.unwrap_or([0, 0]);
            self.claim_arena(arena.address, arena.bytes, free_bytes);
        }
        let free_count = free_entries.map(|entries| entries.count);
        *bodies = figures::bodies(&arenas.bodies.arenas, survey, free_count, knows_used_bodies);
        free_count.is_some()
    }

    /// Claims an arena with its free bytes on its first page and behind it. An arena on more than
    /// two pages is claimed as in use: only unusual builds have one, because `PERL_ARENA_SIZE` is
    /// 4080 by default (perl.h, from 5.36 on sv_inline.h).
    fn claim_arena(&self, address: u64, bytes: u64, free_bytes: [u16; 2]) {
        let end = address.saturating_add(bytes);
        let Slots { arena, arena_free, .. } = self.slots;
        if free_bytes == [0, 0] || end > page_of(address) + 2 * PAGE_BYTES {
            self.refinements.claim(address, bytes, arena);
        } else {
            let free = FreeSlots { class: arena_free, bytes_on_pages: free_bytes };
            self.refinements.claim_arena(address, bytes, arena, free);
        }
    }

    /// Fills in the facts that follow from pads and values, and adds the caveats.
    fn fill_facts(
        &self,
        arenas: &Arenas,
        pads: PadFindings,
        mut survey: SurveySums,
        mut inputs: CaveatInputs,
        reading: &mut InterpreterReading,
    ) {
        let slot = self.slots.global_retained;
        let retained_globals =
            globals::claim_globals(self.memory, &mut survey, &pads.globs, self.refinements, slot);
        let facts = &mut reading.facts;
        facts.strings = survey.strings.clone();
        facts.subs = pads.subs.clone();
        facts.retained = std::mem::take(&mut survey.retained);
        let mut pages = PageCache::new(self.memory);
        let mut names = Names::new(PageCache::new(self.memory), self.release, arenas.main_cv);
        let mut retained_buffers = pads.retained_buffers;
        retained_buffers.extend(retained_globals);
        let listed = retained::list_largest(
            self.context,
            self.slots,
            &mut pages,
            &mut names,
            retained_buffers,
            &mut facts.retained,
        );
        reading.named_blocks = listed.named_blocks;
        inputs.is_late |= !listed.is_complete;
        facts.subs.names_replaced = names.replaced_count;
        inputs.left_out += pads.left_out_entries + survey.left_out_values;
        add_caveats(&survey, &inputs, reading);
    }
}

/// Adds the caveats on the parts of the interpreter that were not read.
fn add_caveats(survey: &SurveySums, inputs: &CaveatInputs, reading: &mut InterpreterReading) {
    let id = &reading.facts.id;
    let interpreter = display_name(id);
    if inputs.is_late {
        let text = format!("{interpreter}: the time limit for the stop ended before all of it was read");
        reading.caveats.push(Caveat::new("perl_late", id, Some(inputs.arena_bytes), text));
    }
    if inputs.are_keys_damaged {
        let text = format!(
            "{interpreter}: chains of hash keys are inconsistent (they may have changed while read): keys that were not \
             reached count for the allocator's rows, free entries of hashes as in use"
        );
        reading.caveats.push(Caveat::new("perl_keys_damaged", id, None, text));
    }
    let damaged_subs = reading.facts.subs.damaged;
    let mut add_problem = |code: &str, count: u64, problem: &str| {
        if count > 0 {
            let text = format!(
                "{interpreter}: {problem}: {}; their buffers count for the allocator's rows",
                thousands(count)
            );
            reading.caveats.push(Caveat::new(code, id, None, text));
        }
    };
    let problem = "inconsistent values (they may have changed while read)";
    add_problem("perl_values_damaged", survey.damaged_values, problem);
    let unread = survey.unread_values + inputs.unread_heads;
    add_problem("perl_values_unread", unread, "values on pages that are not resident");
    add_problem("perl_subs_damaged", damaged_subs, "subs with inconsistent pads");
    add_problem("perl_left_out", inputs.left_out, "values or subs beyond the limits of what is read");
}

/// What was not read, in addition to what the survey of values counts.
struct CaveatInputs {
    /// Whether the deadline passed before all was read.
    is_late: bool,
    /// Whether chains of keys are inconsistent.
    are_keys_damaged: bool,
    /// Heads on pages that could not be read.
    unread_heads: u64,
    /// Subs, pad entries and values beyond the limits.
    left_out: u64,
    /// Bytes of the arenas of heads.
    arena_bytes: u64,
}

/// The name of the interpreter with this id in texts.
fn display_name(id: &str) -> String {
    if id == GLOBALS_ID {
        "perl's only interpreter".to_owned()
    } else {
        format!("perl's interpreter at {id}")
    }
}

/// Free bytes of an arena on its first page and behind it, by its bodies in use.
fn free_body_bytes(arena: &BodyArena, used: &UsedBodies) -> [u16; 2] {
    let [on_first, behind] = arena.bytes_by_page(0, arena.slots() * arena.body_bytes);
    let [used_on_first, used_behind] = used.bytes_on_pages.map(u64::from);
    // Only an arena on more than two pages has more, and none of its bytes is claimed as free.
    [on_first.saturating_sub(used_on_first), behind.saturating_sub(used_behind)]
        .map(|bytes| u16::try_from(bytes).unwrap_or(0))
}

/// The table of the hash at `address`; `None` if it cannot be read, or is damaged.
fn hash_table(pages: &mut PageCache<'_>, address: u64) -> Option<keys::BucketTable> {
    let head = Head::read(pages, address)?;
    let (keys, last_bucket) = pages.pair(head.any.checked_add(HASH_KEYS)?)?;
    roots::table_bytes(last_bucket).filter(|_| head.u != 0)?;
    Some(keys::BucketTable { address: head.u, last_bucket, keys })
}
