//! Tests layers of claims over a real heap: two runtimes in one process, memory of a reader within
//! malloc blocks, and claims without a block in use behind them. The readers are made up; the
//! process and its malloc are real.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use strandline_allocators::glibc;
use strandline_claims::accumulator::{AccumulatedPart, Accumulator};
use strandline_claims::allocator::RangeClaim;
use strandline_claims::class::Class;
use strandline_claims::refinements::Refinements;
use strandline_claims::rows::RowRef;
use strandline_claims::runtime::{self, Busy, Context, NamedBlock};
use strandline_process::target::admission;
use strandline_process::target::hold::on_own_thread;
use strandline_runtimes::{perl, sbcl};

use super::Account;
use crate::capture::{FrozenState, Options, StoppedBy, take_with};
use crate::explain::describe;
use crate::facts::Explanation;
use crate::readers::{AllocatorInLayer, FoundReaders};

/// Blocks of 100 and 200 bytes, two of 200,000 bytes, the second one freed, and one of 3 MB, a
/// mapping of its own; each followed by a small block. All bytes are written.
const SUBJECT: &str = r#"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void) {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  size_t sizes[] = {100, 200, 200000, 200000, 3000000};
  char *at[5];
  for (int i = 0; i < 5; i++) { memset(at[i] = malloc(sizes[i]), 0x55, sizes[i]); malloc(24); }
  free(at[3]);
  printf("%p %p %p %p %p\n", (void *)at[0], (void *)at[1], (void *)at[2], (void *)at[3], (void *)at[4]);
  fflush(stdout);
  char byte;
  return (int)read(0, &byte, 1);
}
"#;

struct Subject(Child);

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles and starts the subject; also returns the addresses of its five blocks.
fn subject() -> (Subject, [u64; 5]) {
    let (pid, thread) = (std::process::id(), std::thread::current().id());
    let folder = std::env::temp_dir().join(format!("strandline-layers-{pid}-{thread:?}"));
    std::fs::create_dir_all(&folder).unwrap();
    let binary = folder.join("subject");
    let mut compiler = Command::new("cc")
        .args(["-O1", "-fno-builtin", "-x", "c", "-o"])
        .arg(&binary)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(SUBJECT.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
    let child = Command::new(&binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut subject = Subject(child);
    let mut line = String::new();
    BufReader::new(subject.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    // It still touches pages between printing the line and its read.
    let call = format!("/proc/{}/syscall", subject.0.id());
    while !std::fs::read_to_string(&call).unwrap().starts_with("0 0x0 ") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let at: Vec<u64> = line
        .split_whitespace()
        .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap())
        .collect();
    (subject, at.try_into().unwrap())
}

/// A made-up runtime that claims this in any process.
struct MadeUp {
    name: &'static str,
    row: RowRef,
    /// Blocks: pointer and bytes.
    blocks: Vec<(u64, u64)>,
    /// Its own memory.
    ranges: Vec<(u64, u64)>,
}

impl runtime::FoundRuntime for MadeUp {
    fn read(
        &self,
        context: &Context<'_>,
        refinements: &Refinements,
    ) -> std::result::Result<Vec<runtime::Reading>, Busy> {
        let mut reading = runtime::Reading::default();
        reading.facts.name = self.name.to_owned();
        reading.facts.read = true;
        let slot = refinements.slot(self.row, None).unwrap();
        for &(pointer, bytes) in &self.blocks {
            assert!(refinements.claim(pointer, bytes, slot));
            reading.named_blocks.push(NamedBlock {
                pointer,
                bytes,
                slot,
                holder: format!("{} {bytes}", self.name),
            });
        }
        let own = reading.palette.add(self.row, None).unwrap();
        for &(start, end) in &self.ranges {
            let pages = context.pages(start, end);
            let mut accumulator = Accumulator::new(start, &pages);
            accumulator.claim_to(end, Class::Refined(own));
            let mut all = AccumulatedPart::empty(start);
            all.join(accumulator.cut(), &pages).unwrap();
            reading.claims.push(RangeClaim { start, end, sums: all.finish(&pages) });
        }
        Ok(vec![reading])
    }
}

/// Explains a process as if these runtimes were found in it.
fn account_with(pid: u32, runtimes: Vec<Box<dyn runtime::FoundRuntime>>) -> Explanation {
    let process = admission::open_target(pid.cast_signed()).unwrap();
    let options = Options { makes_page_map: true, ..Options::default() };
    let (space, _) = strandline_process::map::AddressSpace::parse(&process.maps_text().unwrap());
    let found = FoundReaders {
        allocators: vec![AllocatorInLayer {
            layer: glibc::READER.layer,
            found: (glibc::READER.find)(&process, &space).unwrap(),
        }],
        runtimes,
    };
    let start = Instant::now();
    let frozen: FrozenState = on_own_thread(std::time::Duration::from_secs(600), || {
        take_with(&process, &StoppedBy::Us, 2, &options, &space, &found)
    })
    .unwrap()
    .unwrap();
    describe(&process, &mut Account::new(&process, frozen, &options, start).unwrap())
}

/// The bytes of a row.
fn row(explanation: &Explanation, id: &str) -> u64 {
    explanation.rows.iter().filter(|row| row.id == id).map(|row| row.bytes).sum()
}

#[test]
fn each_layer_refines_the_one_below_where_that_holds_a_block() {
    let (subject, [small, other, block, freed, mapped]) = subject();
    let pid = subject.0.id();
    let plain = account_with(pid, Vec::new());
    let in_block = (block + 0x111, block + 150_003);
    let in_mapped = (mapped + 4096, mapped + 1_000_003);
    let one = MadeUp {
        name: "one",
        row: &perl::rows::STRING,
        blocks: vec![(small, 100), (freed, 5000), (other + 16, 8)],
        ranges: vec![in_block, in_mapped, (freed + 64, freed + 9000)],
    };
    let two = MadeUp {
        name: "two",
        row: &sbcl::rows::LIVE,
        blocks: vec![(other, 200)],
        // Extends past the end of its block.
        ranges: vec![(block + 199_000, block + 201_000)],
    };
    let layered = account_with(pid, vec![Box::new(one), Box::new(two)]);
    let length = |range: (u64, u64)| range.1 - range.0;
    assert_eq!(row(&layered, "perl.string"), 100 + length(in_block) + length(in_mapped));
    assert_eq!(row(&layered, "sbcl.live"), 200);
    // malloc loses what the runtimes claim; everything else is unchanged.
    assert_eq!(row(&plain, "glibc.live") - row(&layered, "glibc.live"), 100 + 200 + length(in_block));
    assert_eq!(row(&plain, "glibc.mmapped") - row(&layered, "glibc.mmapped"), length(in_mapped));
    for id in ["glibc.header", "glibc.free.kept", "glibc.free.pinned", "glibc.free.trim", "anonymous"] {
        assert_eq!(row(&plain, id), row(&layered, id), "{id}");
    }
    // The kernel may drop clean file pages between the two.
    let kept = |one: &Explanation| one.kernel.rss_bytes - row(one, "kernel.file") - row(one, "program.text");
    assert_eq!(kept(&plain), kept(&layered));
    let refused: Vec<_> =
        layered.caveats.iter().filter(|caveat| caveat.code == "claim_not_in_block").collect();
    assert_eq!(refused.len(), 2, "one in a free block, one over the end of its own: {refused:?}");
    assert_eq!(layered.allocators[0].live_bytes, plain.allocators[0].live_bytes);
    assert_eq!(layered.allocators[0].mallinfo, plain.allocators[0].mallinfo);
}

/// Two readers may take hostile bytes for their structures: the first one's claims count, and the
/// inspection continues.
#[test]
fn memory_of_two_runtimes_counts_for_the_first() {
    let (subject, _) = subject();
    let pid = subject.0.id();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
    let end = u64::from_str_radix(stack.split(['-', ' ']).nth(1).unwrap(), 16).unwrap();
    let made_up = |name, row: RowRef, ranges| MadeUp { name, row, blocks: Vec::new(), ranges };
    let one = made_up("one", &perl::rows::STRING, vec![(end - 0x2800, end - 0x800)]);
    let two = made_up("two", &sbcl::rows::LIVE, vec![(end - 0x1000, end)]);
    let layered = account_with(pid, vec![Box::new(one), Box::new(two)]);
    assert!(row(&layered, "perl.string") >= 0x800);
    assert_eq!(row(&layered, "sbcl.live"), 0);
    let refused: Vec<_> = layered.caveats.iter().filter(|one| one.code == "runtimes_disagree").collect();
    assert_eq!((refused.len(), refused[0].bytes), (1, Some(0x1000)), "{refused:?}");
    assert_eq!(refused[0].place, format!("{:#x}-{end:#x}", end - 0x1000));
}
