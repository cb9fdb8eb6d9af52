//! `squeeze -- COMMAND`: finds the smallest memory limit under which the command still succeeds.

use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;
use strandline_inspect::environment::Environment;
use strandline_process::pages::USER_ADDRESS_END;
use strandline_sys::spawn::Resource;

use super::arguments_lab::{Lab, LabFormat, Squeeze};
use super::lab::{LabProgress, chosen_format, lab_options, report_stop, show, write_output};
use super::output::{Output, print_message};
use super::{CommandResult, Failure, Result};
use strandline_lab::cell::Subject;
use strandline_lab::executable;
use strandline_lab::executor::NoResult;
use strandline_lab::nodes::NodeKind;
use strandline_lab::pages::squeeze::page;
use strandline_lab::setup::{LEFT_BEHIND, LabContent, LabSetup};
use strandline_lab::squeeze::runner::Runner;
use strandline_lab::squeeze::search::{PAGE_BYTES, Plan, Resolution, pages_down};
use strandline_lab::squeeze::{LimitKind, LimitedRun, SqueezeOptions, squeeze};
use strandline_lab::user::ProgressDisplay;
use strandline_report::json;
use strandline_report::pages::environment_facts;
use strandline_report::units::bytes;

const SCHEMA: &str = "strandline/squeeze/1";
/// Upper bound of a process's address space, and so of each limit.
const MAX_ADDRESS_SPACE_BYTES: u64 = USER_ADDRESS_END;
/// Limit of a group made only to check whether groups can be made.
const PROBE_GROUP_BYTES: u64 = 1 << 30;

/// Searches for the smallest limit, here or on a cluster, and shows it.
pub fn run(arguments: &Squeeze, output: &mut Output) -> Result<CommandResult> {
    if arguments.slurm.on.is_some() {
        return run_on_cluster(arguments, output);
    }
    let kind = LimitKind::from(arguments.kind);
    let machine = Environment::read();
    let options = SqueezeOptions {
        kind,
        command: arguments.command.clone(),
        success: arguments.success.clone(),
        plan: Plan {
            repeat: arguments.repeat,
            resolution: arguments.resolution.unwrap_or_default(),
            max_edge_runs: arguments.most_runs,
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
    // Leave out the options that only determine the extent of the search: more runs may be
    // requested later.
    let description = (kind, &arguments.success);
    let subjects = std::slice::from_ref(&subject);
    let content = LabContent { verb: "squeeze", description: &description, subjects };
    let mut lab = LabSetup::open(content, &lab_options(&lab_arguments(arguments))).map_err(Failure)?;
    let progress = LabProgress::new("squeeze", !output.is_json);
    let executor = lab.executors.first_mut().ok_or_else(no_executor)?;
    let success = arguments.success.clone();
    let mut runner = Runner::new(kind, subject.clone(), success, executor.as_mut(), &mut lab.journal);
    let search_result =
        squeeze(&options, &mut runner, &mut |count, tried| progress.show_line(&trial_line(count, tried)));
    drop(progress);
    let mut findings = match search_result {
        Ok(findings) => findings,
        Err(NoResult::Stopped(stop)) => {
            // End running commands before printing.
            drop(lab);
            return report_stop(&stop);
        }
        Err(NoResult::Failed(line) | NoResult::Unconfirmed(line)) => {
            // Do not resume from this lab: the cause of the failure may be fixed.
            lab.abandon();
            return Err(Failure(line));
        }
    };
    // The findings have their own caveat on processes left behind: of the runs that succeeded.
    let lab_caveats = lab.caveats().into_iter().filter(|caveat| caveat.code != LEFT_BEHIND);
    findings.caveats.extend(lab_caveats.map(|caveat| caveat.of_verb("squeeze")));
    show(
        SCHEMA,
        &[],
        &findings,
        &page(&findings, environment_facts(&machine)),
        &arguments.report_output,
        output,
    )?;
    lab.close();
    Ok(CommandResult::Done)
}

/// The arguments of a lab that a search implies: its runs follow each other, unconfirmed.
fn lab_arguments(arguments: &Squeeze) -> Lab {
    Lab {
        timeout: arguments.timeout,
        dir: arguments.dir.clone(),
        fresh: arguments.fresh,
        jobs: 1,
        yes: true,
        slurm: arguments.slurm.clone(),
    }
}

/// Squeezes the command as a single task, because each limit depends on the previous result on the
/// same node. The state for resuming the search is in a directory per node and boot, below the
/// lab's.
fn run_on_cluster(arguments: &Squeeze, output: &mut Output) -> Result<CommandResult> {
    // $0 is strandline, $1 the lab's folder, and the other words are the search's.
    const NODE_SCRIPT: &str = "d=$1/search-$(uname -n)-$(cut -c1-8 /proc/sys/kernel/random/boot_id); shift
mkdir -p \"$d\" && exec \"$0\" squeeze --dir \"$d\" \"$@\"";
    let options = lab_options(&lab_arguments(arguments));
    options.stage().map_err(Failure)?;
    let program = executable::staged_program()
        .ok_or_else(|| Failure("strandline's program was not copied to the lab's folder".to_owned()))?;
    let words = search_arguments(arguments, output.is_json);
    let subjects = [Subject { command: arguments.command.clone(), ..Subject::default() }];
    let content = LabContent { verb: "squeeze-elsewhere", description: &words, subjects: &subjects };
    let mut lab = LabSetup::open(content, &options).map_err(Failure)?;
    let folder = lab.journal.folder().to_string_lossy().into_owned();
    let remote = lab.executors.first_mut().and_then(|executor| executor.remote());
    let remote = remote.ok_or_else(no_executor)?;
    let shell = ["sh", "-c", NODE_SCRIPT].map(str::to_owned);
    let command =
        shell.into_iter().chain([program.to_string_lossy().into_owned(), folder]).chain(words).collect();
    let subject = Subject { name: "squeeze".to_owned(), command, ..Subject::default() };
    let progress = LabProgress::new("squeeze", !output.is_json);
    let outcome = remote.run_as_round(&subject, &|tasks| {
        progress.show_line(if tasks.running > 0 { "its task runs" } else { "its task waits for a node" });
    });
    drop(progress);
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(stop) => {
            drop(lab);
            return report_stop(&stop);
        }
    };
    if !outcome.end.is_success() {
        // Do not resume from this round: the cause of the failure may be fixed.
        remote.discard_rounds();
        return Err(Failure(outcome.describe_end()));
    }
    let Some(stdout) = outcome.stdout.as_deref() else {
        // Resumed from this round, the same command would fail again.
        remote.discard_rounds();
        return Err(Failure("the output of the search was not kept".to_owned()));
    };
    let text =
        std::fs::read_to_string(stdout).map_err(|error| Failure(format!("{}: {error}", stdout.display())))?;
    let text = match chosen_format(&arguments.report_output, output) {
        LabFormat::Json => with_nodes(&text, &lab.kinds_of(outcome.node.iter())),
        _ => Ok(text),
    };
    let text = text.map_err(|Failure(reason)| {
        if let Some(remote) = lab.executors.first_mut().and_then(|executor| executor.remote()) {
            remote.discard_rounds();
        }
        Failure(format!("{}: not the document of the search: {reason}; run it again", stdout.display()))
    })?;
    if let Some(node) = &outcome.node {
        print_message(&format!("squeezed on {}", node.name));
    }
    write_output(&text, &arguments.report_output, output)?;
    lab.close();
    Ok(CommandResult::Done)
}

/// The document of a search on a node, with the kind of the node.
fn with_nodes(text: &str, nodes: &[NodeKind]) -> Result<String> {
    let mut document: Value = serde_json::from_str(text)?;
    if let Some(Value::Object(environment)) = document.get_mut("environment") {
        environment.insert("nodes".to_owned(), serde_json::to_value(nodes)?);
    }
    Ok(json::escape(&serde_json::to_string_pretty(&document)?) + "\n")
}

fn no_executor() -> Failure {
    Failure("there is nothing to run commands on".to_owned())
}

/// The flags of the search, and the command.
fn search_arguments(arguments: &Squeeze, is_json: bool) -> Vec<String> {
    let mut words = vec![
        format!("--kind={}", LimitKind::from(arguments.kind).name()),
        format!("--repeat={}", arguments.repeat),
        format!("--rounds={}", arguments.rounds),
        format!("--most-runs={}", arguments.most_runs),
        format!("--seed={}", arguments.seed),
    ];
    words.extend(arguments.success.as_ref().map(|success| format!("--success={success}")));
    words.extend(arguments.resolution.map(|Resolution { fraction, min_bytes }| {
        if fraction > 0.0 {
            format!("--resolution={}%", fraction * 100.0)
        } else {
            format!("--resolution={min_bytes}")
        }
    }));
    words.extend(arguments.timeout.map(timeout_word));
    words.extend(arguments.fresh.then(|| "--fresh".to_owned()));
    let format = if is_json {
        Some("json".to_owned())
    } else {
        let value = arguments.report_output.format.and_then(|format| format.to_possible_value());
        value.map(|value| value.get_name().to_owned())
    };
    words.extend(format.map(|format| format!("--format={format}")));
    words.push("--".to_owned());
    words.extend(arguments.command.iter().cloned());
    words
}

/// The flag of a timeout, in microseconds, the smallest unit that is parsed: rounded up, as 0 is
/// refused.
fn timeout_word(timeout: Duration) -> String {
    format!("--timeout={}us", timeout.as_nanos().div_ceil(1_000).max(1))
}

/// A progress line for a run: `trial 7: 12.3 MiB succeeded`.
fn trial_line(count: usize, tried: &LimitedRun) -> String {
    let limit = tried.limit_bytes.map_or_else(|| "no limit".to_owned(), bytes);
    match &tried.failure {
        None => format!("trial {count}: {limit} succeeded"),
        Some(failure) => format!("trial {count}: {limit} failed: {}", failure.words),
    }
}

fn ceiling(kind: LimitKind, memory_bytes: Option<u64>) -> Result<u64> {
    let resource = match kind {
        LimitKind::AddressSpace => Resource::AddressSpace,
        LimitKind::Data => Resource::Data,
        LimitKind::Cgroup => {
            strandline_recorder::can_limit_memory(PROBE_GROUP_BYTES).map_err(|why| {
                Failure(format!("{why}; --kind address_space and --kind data need no privileges"))
            })?;
            return Ok(memory_bytes.map_or(MAX_ADDRESS_SPACE_BYTES, pages_down).max(PAGE_BYTES));
        }
    };
    let limits = resource.get().map_err(|error| Failure(format!("{}: {error}", kind.name())))?;
    Ok(pages_down(limits.hard).clamp(PAGE_BYTES, MAX_ADDRESS_SPACE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_of_a_node_names_it() {
        let text = r#"{"schema":"strandline/squeeze/1","environment":{"kernel":"6.0"},"trials":[]}"#;
        let kind = NodeKind { kind: "a".to_owned(), runs: 1, ..NodeKind::default() };
        let document = with_nodes(text, &[kind]).unwrap();
        assert!(document.starts_with("{\n  \"schema\"") && document.ends_with("}\n"), "{document}");
        let document: Value = serde_json::from_str(&document).unwrap();
        assert_eq!(document["environment"]["nodes"][0]["kind"], "a");
        assert_eq!(document["environment"]["kernel"], "6.0");
    }

    #[test]
    fn a_node_gets_the_timeout() {
        let second = Duration::from_secs(1);
        let year = 366 * 24 * 3_600 * second;
        for (timeout, sent) in [
            (Duration::from_nanos(1), Duration::from_micros(1)),
            (Duration::from_micros(500), Duration::from_micros(500)),
            (1_500 * Duration::from_millis(1), 1_500 * Duration::from_millis(1)),
            (year, year),
        ] {
            let word = timeout_word(timeout);
            let parsed = strandline_recorder::plan::duration(word.strip_prefix("--timeout=").unwrap());
            assert_eq!(parsed, Ok(sent), "{word}");
        }
    }
}
