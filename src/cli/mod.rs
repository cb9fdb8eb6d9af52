//! The command line: arguments in, exit status out.
//!
//! One module per subcommand. A subcommand inspects processes through `strandline-inspect`, passes
//! the results to `report`, and returns how it ended; everything is printed through `Output`.

pub mod arguments;
pub mod arguments_export;
pub mod arguments_lab;
pub mod arguments_process;
pub mod arguments_reading;
pub mod arguments_selection;
pub mod arguments_slurm;
pub mod arguments_top;
mod compare;
pub mod condition;
mod demo;
mod demo_child;
mod doctor;
mod explain;
mod export;
mod generate;
mod group;
mod group_reclaim;
mod holders;
mod lab;
mod live;
mod mark;
mod output;
mod progress;
mod reclaim;
mod record;
mod report;
mod slurm;
mod squeeze;
mod study;
mod top;
mod tree;
mod trial;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};
use strandline_claims::remedy::Action;
use strandline_inspect::group::MEMORY_RECLAIM;

use arguments::{Arguments, Format, Verb};
use arguments_reading::SnapshotChoice;
use output::Output;

/// How a subcommand ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandResult {
    /// Done: 0.
    Done,
    /// Done, and a condition of `--fail-if` or `--fail-if-claims-fail` holds: 1.
    ConditionHolds,
    /// The arguments are wrong, which was already reported: 2.
    Refused,
    /// Failed, and already reported: 3.
    Failed,
    /// A command could not be run, which was already reported: this exit status.
    ExitStatus(u8),
    /// A command that was run ended with this status, as wait(2) reports it.
    WaitStatus(i32),
}

/// Why a subcommand failed: one line for standard error, and exit status 3.
#[derive(Debug)]
pub struct Failure(pub String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// The result of a subcommand, or of a part of it.
pub type Result<T> = std::result::Result<T, Failure>;

/// Reports a usage error that only shows when the files that the arguments name are read.
fn refuse(line: &str) -> Result<CommandResult> {
    output::print_message(line);
    Ok(CommandResult::Refused)
}

const EXIT_CONDITION_HOLDS: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_FAILURE: u8 = 3;

/// Drops the file capabilities that override file permissions: files named by the user are opened
/// with the user's rights. Returns an exit status if strandline must not continue.
pub fn drop_dac_capabilities() -> Option<ExitCode> {
    use strandline_sys::capabilities;
    if capabilities::is_privileged_start() && capabilities::acts_as_other_user() {
        output::print_message(
            "strandline must not be setuid: it would open every file with its owner's rights. Remove the bit (chmod u-s) and \
             give it capabilities (GUIDE.md, \"Which permission do I need?\")",
        );
        return Some(ExitCode::from(EXIT_FAILURE));
    }
    let error = capabilities::drop_dac_capabilities().err()?;
    output::print_message(&format!(
        "strandline cannot drop its file capabilities ({error}): remove them (setcap -r) and run it again"
    ));
    Some(ExitCode::from(EXIT_FAILURE))
}

/// Parses the arguments, runs the subcommand, and returns the exit status.
pub fn run() -> ExitCode {
    let words = with_verb(std::env::args_os().collect());
    let arguments = match Arguments::try_parse_from(&words) {
        Ok(arguments) => arguments,
        Err(error) => return print_clap_message(&error, &words),
    };
    if let Some(line) = conflicting_flags(&arguments) {
        output::print_message(line);
        return ExitCode::from(EXIT_USAGE);
    }
    if arguments.verb.reads_processes() {
        // If this fails, the machine decides whether a crash writes what was read to a file.
        drop(strandline_sys::spawn::disable_core_files());
    }
    let mut output = Output::new(arguments.common);
    let result = match &arguments.verb {
        Verb::Holders(arguments) => holders::run(arguments, &mut output),
        Verb::Explain(explain) if explain.group.name().is_some() => group::run(explain, &mut output),
        Verb::Explain(explain) if explain.tree => tree::run(explain, &mut output),
        Verb::Explain(explain) => explain::run(explain, &mut output),
        Verb::Reclaim(reclaim) if reclaim.group.name().is_some() => group_reclaim::run(reclaim, &mut output),
        Verb::Reclaim(reclaim) => reclaim::run(reclaim, &mut output),
        Verb::Run(run) => record::run(run),
        Verb::Record(record) => record::record(record, &mut output),
        Verb::Mark(mark) => mark::run(mark),
        Verb::Report(report) => report::run(report, &mut output),
        Verb::Compare(compare) => compare::run(compare, &mut output),
        Verb::Squeeze(squeeze) => squeeze::run(squeeze, &mut output),
        Verb::Try(arguments) => trial::run(arguments, &mut output),
        Verb::Study(study) => study::run(study, &mut output),
        Verb::Export(export) => export::run(export),
        Verb::Top(arguments) => top::run(arguments, &mut output),
        Verb::Demo(demo) => demo::run(demo, &mut output),
        Verb::DemoChild(child) => demo_child::run(child),
        Verb::Doctor(arguments) => doctor::run(arguments, &mut output),
        Verb::LabLauncher(launcher) => launch(launcher.socket),
        Verb::LabRound(arguments) => slurm::run(arguments),
        Verb::Completions(completions) => generate::completions(completions, &mut output),
        Verb::Man(man) => generate::man(man),
        Verb::Reference => generate::reference(&mut output),
    };
    match result {
        Ok(CommandResult::Done) => ExitCode::SUCCESS,
        Ok(CommandResult::ConditionHolds) => ExitCode::from(EXIT_CONDITION_HOLDS),
        Ok(CommandResult::Refused) => ExitCode::from(EXIT_USAGE),
        Ok(CommandResult::Failed) => ExitCode::from(EXIT_FAILURE),
        Ok(CommandResult::ExitStatus(status)) => ExitCode::from(status),
        Ok(CommandResult::WaitStatus(wait_status)) => record::end_as(wait_status),
        Err(Failure(line)) => {
            output::print_message(&line);
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

/// `strandline PID` means `strandline explain PID`: adds the verb where the first word is a number.
fn with_verb(mut words: Vec<OsString>) -> Vec<OsString> {
    let mut index = 1;
    while let Some(word) = words.get(index) {
        match word.to_str() {
            Some("--color") => index += 2,
            Some(flag) if flag == "--json" || flag.starts_with("--color=") => index += 1,
            Some(number) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
                words.insert(index, "explain".into());
                break;
            }
            _ => break,
        }
    }
    words
}

/// Starts the commands that a lab requests on its socket, until the lab closes it.
fn launch(descriptor: i32) -> Result<CommandResult> {
    let socket = strandline_sys::spawn::inherited_socket(descriptor);
    let socket = socket.ok_or_else(|| Failure("lab-launcher is started by strandline itself".to_owned()))?;
    // The socket is a copy of the descriptor.
    strandline_sys::spawn::set_close_on_exec(descriptor)?;
    strandline_lab::serve_launcher(socket)?;
    Ok(CommandResult::Done)
}

/// The conflict between --jobs and --on slurm.
const JOBS_ON_SLURM: &str = "--jobs sets the runs at a time on one machine; on Slurm each round has its own node: give --at-once instead";

/// The first conflict of a lab's flags with --on slurm, whose rounds need a shared folder.
fn lab_conflict(verb: &Verb) -> Option<&'static str> {
    let lab = match verb {
        Verb::Compare(compare) => &compare.lab,
        Verb::Try(arguments) => &arguments.lab,
        Verb::Study(study) => &study.lab,
        Verb::Squeeze(squeeze) => return squeeze.slurm.missing_dir(squeeze.dir.as_deref()),
        _ => return None,
    };
    let jobs_conflict = (lab.slurm.on.is_some() && lab.jobs > 1).then_some(JOBS_ON_SLURM);
    jobs_conflict.or_else(|| lab.slurm.missing_dir(lab.dir.as_deref()))
}

/// The first flags that contradict each other or would have no effect. If they were ignored, the
/// user might think that they took effect.
fn conflicting_flags(arguments: &Arguments) -> Option<&'static str> {
    if let Some(conflict) = lab_conflict(&arguments.verb) {
        return Some(conflict);
    }
    match &arguments.verb {
        Verb::Export(_) if arguments.common.json => {
            Some("--json is not for export, which answers in the formats of Prometheus: leave it out")
        }
        Verb::Top(top) if arguments.common.json && !top.once => {
            Some("--json is for a single table: use `strandline top --once --json`")
        }
        Verb::Run(_) if arguments.common.json => Some(
            "--json is not for run, which passes on the command's output; use `strandline report FILE --format json`",
        ),
        Verb::Report(report)
            if arguments.common.json && report.format.is_some_and(|format| format != Format::Json) =>
        {
            Some("--json and another --format contradict each other; leave one out")
        }
        Verb::Report(report) if report.files.len() > report::MAX_FILES => {
            Some("one report shows at most 8 recordings: give fewer")
        }
        Verb::Try(arguments) => try_conflict(arguments),
        Verb::Study(study) if study.name.is_none() && !study.all && study.writes() => {
            Some("--report, --plots and --readme write the results of a study: name one, or give --all")
        }
        Verb::Export(export) => export.conflict(),
        Verb::Reclaim(reclaim) => reclaim_conflict(reclaim),
        Verb::Holders(holders) => holders_conflict(holders.max_stop, holders.snapshot),
        Verb::Explain(explain) if explain.ledgers && explain.group.name().is_none() => {
            Some("--ledgers is for a control group: name one with --cgroup, --container, --unit or --pod")
        }
        Verb::Explain(explain) if explain.holders => holders_conflict(explain.max_stop, explain.snapshot),
        Verb::Completions(_) | Verb::Man(_) | Verb::Mark(_) if arguments.common.json => {
            Some("--json has no effect on this command, which writes no report: leave it out")
        }
        _ => None,
    }
}

/// Conflicting flags of a search for holders: if a limited stop left blocks unread, those that only
/// these reference would seem to leak.
fn holders_conflict(max_stop: Option<Duration>, snapshot: SnapshotChoice) -> Option<&'static str> {
    (max_stop.is_some() && snapshot == SnapshotChoice::Never)
        .then_some("--max-stop needs a snapshot to find what holds memory: leave out --snapshot=never")
}

/// Conflicting flags of `try`.
fn try_conflict(arguments: &arguments::Try) -> Option<&'static str> {
    if arguments.ready.is_some() && arguments.lab.jobs > 1 {
        return Some("--jobs is not for servers, which would share a port: leave it out");
    }
    let is_time_bounded = arguments.goal == arguments_lab::GoalName::TimeBounded;
    if is_time_bounded && arguments.ready.is_some() && arguments.load.is_none() {
        return Some("--goal time-bounded compares a server's time under load: give the load with --load");
    }
    arguments.command.iter().any(|word| word.to_str().is_none()).then_some(
        "a word of the command is not UTF-8, and would be changed: start the command from a script",
    )
}

/// Conflicting flags of `reclaim`.
fn reclaim_conflict(reclaim: &arguments::Reclaim) -> Option<&'static str> {
    let remedy = reclaim.remedy.as_deref();
    if remedy == Some(MEMORY_RECLAIM) && reclaim.group.name().is_none() {
        return Some(
            "memory_reclaim is for a control group: name one with --cgroup, --container, --unit or --pod",
        );
    }
    (reclaim.allow_lost_write_risk && remedy != Some("zero_pages"))
        .then_some("--allow-lost-write-risk is for zero_pages only: add --remedy zero_pages, or leave it out")
}

/// Printed where no subcommand is given.
const FIRST_STEPS: &str = "\
strandline: which command? Start with:
  strandline explain PID   where the memory of a process is, and what releases it
  strandline top           all processes by the memory they hold, live
  strandline demo          explain and reclaim, on an example process
`strandline --help` lists all commands.
";

/// Prints help or version in full; any other message of clap is a usage error and becomes one line.
fn print_clap_message(error: &clap::Error, words: &[OsString]) -> ExitCode {
    use clap::error::ErrorKind;
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If standard error is closed, the message is lost.
        drop(std::io::stderr().write_all(FIRST_STEPS.as_bytes()));
        return ExitCode::from(EXIT_USAGE);
    }
    if !error.use_stderr() {
        // A reader that closes the pipe early (`| head`) is not an error.
        if let Err(error) = error.print().and_then(|()| std::io::stdout().flush())
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            output::print_message(&format!("standard output: {error}"));
            return ExitCode::from(EXIT_FAILURE);
        }
    } else {
        let line = missing_verb_message(error)
            .or_else(|| next_start_message(error))
            .or_else(|| several_processes_message(error, words))
            .or_else(|| missing_process_message(error, words))
            .unwrap_or_else(|| usage_line(&error.render().to_string(), words));
        output::print_message(&line);
    }
    ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
}

/// The text of this kind in an error of clap; `None` if it has none, or several.
fn context(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

/// The answer to a missing subcommand; clap would list the hidden ones too.
fn missing_verb_message(error: &clap::Error) -> Option<String> {
    let is_missing = error.kind() == clap::error::ErrorKind::MissingSubcommand;
    is_missing.then(|| {
        let program = Arguments::command();
        let verbs = program.get_subcommands().filter(|verb| !verb.is_hide_set());
        let names: Vec<&str> = verbs.map(clap::Command::get_name).collect();
        format!("which command? There are {} (see `strandline --help`)", names.join(", "))
    })
}

/// The answer to a second process id.
fn several_processes_message(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let is_unknown = error.kind() == clap::error::ErrorKind::UnknownArgument;
    context(error, ContextKind::InvalidArg).filter(|_| is_unknown)?.parse::<u32>().ok()?;
    let command = command_of(words);
    let for_several = match command.as_str() {
        "strandline explain" => {
            "--tree PID for its descendants too, --cgroup PATH for a control group, or \
             `strandline top --once --pid PID PID` for figures of the kernel"
        }
        "strandline reclaim" => "--cgroup PATH for a control group",
        "strandline record" => "its descendants are recorded too",
        "strandline holders" => "a report is of one process",
        _ => return None,
    };
    Some(format!("{command} takes one PID: run it once for each ({for_several}; see `{command} --help`)"))
}

/// The answer to a missing process id.
fn missing_process_message(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let is_missing = error.kind() == clap::error::ErrorKind::MissingRequiredArgument;
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg).filter(|_| is_missing)
    else {
        return None;
    };
    missing.iter().any(|argument| argument.starts_with("<PID")).then(|| {
        let command = command_of(words);
        format!(
            "{command} needs the id of a process, such as `{command} 1234`: `strandline top` lists processes by \
             their memory, `pidof NAME` prints the id of one (see `{command} --help`)"
        )
    })
}

/// The answer to `--remedy` with a remedy that reclaim cannot apply: a setting for the next start.
fn next_start_message(error: &clap::Error) -> Option<String> {
    if !context(error, ContextKind::InvalidArg)?.starts_with("--remedy") {
        return None;
    }
    let spec = strandline_inspect::readers::remedy(context(error, ContextKind::InvalidValue)?)?;
    matches!(spec.action, Action::NextStart).then(|| {
        format!(
            "{} is a setting for the next start: `strandline try -- COMMAND` compares such settings",
            spec.id
        )
    })
}

/// Joins clap's lines into one: the error in the command line `words`, its tip, and the command
/// that prints the help.
fn usage_line(rendered: &str, words: &[OsString]) -> String {
    let mut lines = rendered.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines.next().unwrap_or_default();
    let mut joined = error.strip_prefix("error: ").unwrap_or(error).to_owned();
    for line in lines {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        joined += if joined.ends_with(':') { " " } else { "; " };
        joined += line.strip_prefix("tip: ").unwrap_or(line);
    }
    joined + &format!(" (see `{} --help`)", command_of(words))
}

/// The command that `words` name: the program, with the subcommand if they name one.
fn command_of(words: &[OsString]) -> String {
    let program = Arguments::command();
    let (mut command, mut line) = (&program, "strandline".to_owned());
    let mut words = words.iter().skip(1).filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        if let Some(verb) = command.get_subcommands().find(|verb| verb.get_name() == word) {
            command = verb;
            line += &format!(" {word}");
        } else if word == "--color" {
            words.next();
        } else if word != "--json" && !word.starts_with("--color=") {
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(arguments: &[&str]) -> String {
        let words: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        usage_line(&Arguments::try_parse_from(&words).unwrap_err().render().to_string(), &words)
    }

    #[test]
    fn flags_without_effect_are_refused() {
        let contradicts =
            |arguments: &[&str]| conflicting_flags(&Arguments::try_parse_from(arguments).unwrap()).is_some();
        assert!(contradicts(&["strandline", "--json", "completions", "bash"]));
        assert!(contradicts(&["strandline", "man", "--json", "DIR"]));
        assert!(!contradicts(&["strandline", "man", "DIR"]));
        assert!(contradicts(&["strandline", "--json", "export", "--all"]));
        assert!(contradicts(&["strandline", "export", "--all", "--listen", "0.0.0.0:9756"]));
        assert!(!contradicts(&["strandline", "export", "--all", "--listen", "[::1]:9756"]));
        assert!(contradicts(&["strandline", "export"]));
        assert!(contradicts(&["strandline", "reclaim", "--allow-lost-write-risk", "1"]));
        let serving = |more: &[&str]| {
            contradicts(&[&["strandline", "try", "--ready", "port=1"][..], more, &["--", "true"]].concat())
        };
        assert!(serving(&["--goal", "time-bounded"]));
        assert!(!serving(&["--goal", "time-bounded", "--load", "true"]) && !serving(&["--goal", "settled"]));
        let risk_contradicts = |remedy| {
            contradicts(&["strandline", "reclaim", "--remedy", remedy, "--allow-lost-write-risk", "1"])
        };
        assert!(risk_contradicts("malloc_trim") && !risk_contradicts("zero_pages"));
    }

    #[test]
    fn the_limit_of_recordings_is_named() {
        let files = ["recording"; report::MAX_FILES + 1];
        let words = [&["strandline", "report"][..], &files[..]].concat();
        let line = conflicting_flags(&Arguments::try_parse_from(words).unwrap()).unwrap();
        assert!(line.contains(&format!("at most {} recordings", report::MAX_FILES)), "{line}");
    }

    #[test]
    fn a_number_is_a_process_to_explain() {
        let verb = |words: &[&str]| with_verb(words.iter().map(OsString::from).collect()).join(" ".as_ref());
        for (words, meant) in [
            (&["s", "4711"][..], "s explain 4711"),
            (&["s", "--json", "--color", "never", "4711", "-v"], "s --json --color never explain 4711 -v"),
            (&["s", "--color=always", "7"], "s --color=always explain 7"),
            (&["s", "explain", "4711"], "s explain 4711"),
            (&["s", "mark", "5"], "s mark 5"),
            (&["s", "47x"], "s 47x"),
            (&["s"], "s"),
        ] {
            assert_eq!(verb(words), meant);
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
        let line = complaint(&["strandline", "explain", "--fail-if", "stranded = 5", "1"]);
        assert!(line.contains("a single = compares nothing"), "{line}");
        for option in [&["-v"][..], &["--rows", "all"], &["--cgroup", "/a"]] {
            let line = complaint(&[&["strandline", "explain", "--tree"][..], option].concat());
            assert!(line.starts_with("the argument '--tree' cannot be used with"), "{line}");
        }
        for verb in ["explain", "reclaim", "holders", "record"] {
            let words = ["strandline", verb].map(OsString::from);
            let line =
                missing_process_message(&Arguments::try_parse_from(&words).unwrap_err(), &words).unwrap();
            assert!(line.contains(&format!("`strandline {verb} 1234`")) && !line.contains('\n'), "{line}");
        }
        let line = complaint(&["strandline", "reclaim", "--remedy", "magic", "1"]);
        assert!(line.contains("magic") && line.contains("malloc_trim"), "{line}");
        let message = |remedy| {
            next_start_message(
                &Arguments::try_parse_from(["s", "reclaim", "--remedy", remedy, "1"]).unwrap_err(),
            )
        };
        let line = message("trim_threshold").unwrap();
        assert!(line.starts_with("trim_threshold is a setting for the next start: "), "{line}");
        assert_eq!(message("magic"), None);
        let several = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            several_processes_message(&Arguments::try_parse_from(&words).unwrap_err(), &words)
        };
        for (verb, advice) in [
            ("explain", "--cgroup PATH"),
            ("reclaim", "--cgroup PATH"),
            ("holders", "once for each"),
            ("record", "descendants"),
        ] {
            let line = several(&["strandline", verb, "1", "2", "3"]).unwrap();
            let start = format!("strandline {verb} takes one PID: ");
            assert!(line.starts_with(&start) && line.contains(advice), "{line}");
        }
        assert_eq!(several(&["strandline", "explain", "1", "x"]), None);
        assert_eq!(several(&["strandline", "top", "1"]), None);
        let line = complaint(&["strandline", "explian", "1"]);
        assert!(line.contains("explain"), "a typo is answered with the verb: {line}");
        assert!(line.ends_with("(see `strandline --help`)"), "{line}");
        let line = complaint(&["strandline", "--color", "never", "record", "abc"]);
        assert!(line.ends_with("(see `strandline record --help`)"), "{line}");
        assert_eq!(line.matches("(see ").count(), 1, "{line}");
        let line = complaint(&["strandline", "study", "new"]);
        assert!(line.ends_with("(see `strandline study new --help`)"), "{line}");
    }

    #[test]
    fn help_offers_the_remedies_that_are_applied_in_lines_that_fit() {
        let mut program = <Arguments as clap::CommandFactory>::command();
        let help = program.find_subcommand_mut("reclaim").unwrap().render_long_help().to_string();
        let values = help.split_once("possible values: ").unwrap().1.split_once(']').unwrap().0;
        assert!(values.contains("zero_pages") && !values.contains("perl_undef"), "{values}");
        let listed = help.split_once("Remedies:").unwrap().1;
        assert!(listed.contains("perl_undef") && listed.lines().all(|line| line.len() <= 80), "{listed}");
        assert!(Arguments::try_parse_from(["strandline", "reclaim", "1", "--remedy", "perl_undef"]).is_ok());
    }
}
