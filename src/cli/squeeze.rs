//! `squeeze -- COMMAND`: the smallest limit on memory under which it still succeeds.

use strandline_inspect::environment::Environment;
use strandline_sys::spawn::Resource;

use super::arguments_lab::{Lab, Squeeze};
use super::arguments_slurm::OnSlurm;
use super::lab::{Bench, Teller, show, stopped};
use super::output::Output;
use super::{Ending, Failure, Result};
use strandline_lab::cell::Subject;
use strandline_lab::pages::squeeze::page;
use strandline_lab::squeeze::findings::{NoAnswer, Question, squeeze};
use strandline_lab::squeeze::runner::Runner;
use strandline_lab::squeeze::search::{PAGE_BYTES, Plan, pages_down};
use strandline_lab::squeeze::{Kind, Tried};
use strandline_report::pages::surroundings;
use strandline_report::units::bytes;

const SCHEMA: &str = "strandline/squeeze/1";
/// No process has more address space (x86-64 with four levels of page tables).
const MOST_BYTES: u64 = 1 << 47;
/// A group to see whether groups can be made.
const ANY_GROUP_BYTES: u64 = 1 << 30;

/// Squeezes the command.
pub fn run(arguments: &Squeeze, output: &mut Output) -> Result<Ending> {
    let kind = Kind::from(arguments.kind);
    let machine = Environment::read();
    let question = Question {
        kind,
        command: arguments.command.clone(),
        success: arguments.success.clone(),
        plan: Plan {
            repeat: arguments.repeat,
            resolution: arguments.resolution.unwrap_or_default(),
            most_trials: arguments.most_runs,
            floor_bytes: PAGE_BYTES,
            ceiling_bytes: ceiling(kind, machine.memory_bytes)?,
        },
        rounds: arguments.rounds,
        seed: arguments.seed,
    };
    let subject = Subject {
        name: "command".to_owned(),
        command: arguments.command.clone(),
        timeout: arguments.timeout,
        ..Subject::default()
    };
    // What of the question only says how far to go is left out: more runs may be asked for later.
    let described = (kind, &arguments.success);
    let lab = Lab {
        timeout: arguments.timeout,
        dir: arguments.dir.clone(),
        fresh: arguments.fresh,
        jobs: 1,
        yes: true,
        slurm: OnSlurm::default(),
    };
    let mut bench = Bench::open("squeeze", &described, std::slice::from_ref(&subject), &lab)?;
    let teller = Teller::new("squeeze", !output.json);
    let found = match bench.executors.first_mut() {
        Some(executor) => {
            let success = arguments.success.clone();
            let mut runner = Runner::new(kind, subject, success, executor.as_mut(), &mut bench.journal);
            squeeze(&question, &mut runner, &mut |count, tried| teller.say(&progress(count, tried)))
        }
        None => return Err(Failure("there is nothing to run commands on".to_owned())),
    };
    drop(teller);
    let findings = match found {
        Ok(findings) => findings,
        Err(NoAnswer::Stopped(why)) => {
            // What runs is ended before anything is said.
            drop(bench);
            return stopped(&why);
        }
        Err(NoAnswer::FailsUnlimited(line)) => {
            // There is nothing to go on from: what failed may be mended.
            bench.abandon();
            return Err(Failure(line));
        }
    };
    show(SCHEMA, &findings, &page(&findings, surroundings(&machine)), &arguments.shown, output)?;
    bench.close();
    Ok(Ending::Done)
}

/// A line on a run: `trial 7: 12.3 MiB succeeded`.
fn progress(count: usize, tried: &Tried) -> String {
    let limit = tried.limit_bytes.map_or_else(|| "no limit".to_owned(), bytes);
    match &tried.failure {
        None => format!("trial {count}: {limit} succeeded"),
        Some(failure) => format!("trial {count}: {limit} failed: {}", failure.words),
    }
}

/// The largest limit that can be tried.
fn ceiling(kind: Kind, memory_bytes: Option<u64>) -> Result<u64> {
    let resource = match kind {
        Kind::AddressSpace => Resource::AddressSpace,
        Kind::Data => Resource::Data,
        Kind::Cgroup => {
            strandline_recorder::can_limit_memory(ANY_GROUP_BYTES).map_err(|why| {
                Failure(format!("{why}; --kind address_space and --kind data need no privileges"))
            })?;
            return Ok(memory_bytes.map_or(MOST_BYTES, pages_down).max(PAGE_BYTES));
        }
    };
    let (_, hard) = resource.get().map_err(|error| Failure(format!("{}: {error}", kind.name())))?;
    Ok(pages_down(hard).clamp(PAGE_BYTES, MOST_BYTES))
}
