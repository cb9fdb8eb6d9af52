//! Every verb and every flag, in one place, with the help and examples that people see.
//!
//! Arguments are only described and parsed here; what they mean is up to the verbs' own files.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::condition::Condition;
use crate::report::model::Rows;

const STATUSES: &str = "\
Exit status: 0 done; 1 done, and a --fail-if condition holds; 2 usage; 3 could not.

Start here:
  strandline demo              see it work on a process of its own
  strandline doctor            what this machine and user allow
  strandline explain PID       where the memory of a process is
  strandline reclaim PID       give back what can be given back";

/// Accounts for every resident byte of a process, says what is stranded, and gives it back.
#[derive(Debug, Parser)]
#[command(name = "strandline", version, max_term_width = 100, after_help = STATUSES)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Flags of every verb.
    #[command(flatten)]
    pub common: Common,
}

/// Flags of every verb.
#[derive(Args, Clone, Copy, Debug)]
pub struct Common {
    /// Print one JSON document on standard output, and nothing else there
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colour; NO_COLOR is respected
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: When,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Account for every resident byte of a running process
    ///
    /// Stops the process for a moment, reads its page tables and its heaps, and prints a ledger whose
    /// rows add up to the kernel's RSS to the byte, what each remedy would give back, and what is not
    /// known.
    Explain(Explain),
    /// Apply a remedy inside a running process: predicted, actual, cost
    ///
    /// The process needs no preparation. What was predicted is printed beside what was really given
    /// back. Refuses, and touches nothing, where no moment is safe.
    Reclaim(Reclaim),
    /// Watch it work, in under 10 s, on a process that strandline starts itself
    ///
    /// Starts a process that fills its heap, frees most of it around a few survivors and keeps a zeroed
    /// buffer; explains it, reclaims, and explains it again.
    Demo(Demo),
    /// Say what this machine and user allow, and how to get what is missing
    ///
    /// Tries what explain and reclaim need, on strandline itself and a child of its own. Changes nothing.
    Doctor(Doctor),
    /// Print the completion script of a shell
    Completions(Completions),
    /// Write the manual pages into a folder
    ///
    /// One for strandline and one for each verb; the folder is made if need be.
    Man(Man),
    /// The process that `demo` looks at
    #[command(hide = true)]
    DemoChild(DemoChild),
}

/// Arguments of `explain`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline explain 4711
  strandline explain --rows all $(pidof my-service)
  strandline explain --tree 4711
  strandline explain --json 4711 | jq .totals
  strandline explain --fail-if 'stranded > 200MiB' --fail-if 'stranded >= 20%' 4711

Conditions: NAME OP SIZE, where
  NAME  live, stranded, pinned, evictable, unattributed, rss, pss,
        predicted (what the best remedy is predicted to give back), or row.ID
  OP    >  >=  <  <=  ==
  SIZE  bytes, or a number with B, KB, KiB, MB, MiB, GB, GiB, or % of RSS")]
pub struct Explain {
    /// The process to look at
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: i32,
    /// Rows shown: `all`, or the N largest; by default those of at least 0.5 % of RSS
    #[arg(long, value_name = "all|N", value_parser = rows)]
    pub rows: Option<Rows>,
    /// Exit with status 1 if this holds; may be given several times
    #[arg(long, value_name = "EXPR", value_parser = Condition::parse)]
    pub fail_if: Vec<Condition>,
    /// Look at the process and all its descendants: a line each, shared pages counted once
    #[arg(long)]
    pub tree: bool,
}

/// Arguments of `reclaim`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline reclaim 4711
  strandline reclaim --dry-run 4711
  strandline reclaim --remedy zero_pages 4711
  strandline reclaim --wait 30 --json 4711

Remedies:
  malloc_trim  glibc gives back the whole free pages of its heaps
  zero_pages   the kernel takes back resident pages that are all zero

A refusal is exit status 3, with the reason.")]
pub struct Reclaim {
    /// The process to give back memory of
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: i32,
    /// Which remedy; malloc_trim if not given
    #[arg(long, value_name = "ID", value_parser = ["malloc_trim", "zero_pages"])]
    pub remedy: Option<String>,
    /// Predict only; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How long to wait for a safe moment
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = duration)]
    pub wait: std::time::Duration,
    /// Allow the direct way of zero_pages: if strandline is killed at the wrong instant, a write of the
    /// process to one of those pages may be lost. Only with `--remedy zero_pages`
    #[arg(long)]
    pub allow_lost_write_risk: bool,
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline demo
  strandline demo --mebibytes 64
  strandline demo --json | jq '.reclaim | {predicted_bytes, actual_bytes}'")]
pub struct Demo {
    /// How large the heap gets before most of it is freed
    #[arg(long, value_name = "MiB", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub mebibytes: u32,
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline doctor
  sudo strandline doctor
  strandline doctor --json | jq '.checks[] | select(.status != \"ok\")'")]
pub struct Doctor {}

/// Arguments of `completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline completions bash > ~/.local/share/bash-completion/completions/strandline
  strandline completions zsh > ~/.zfunc/_strandline
  strandline completions fish > ~/.config/fish/completions/strandline.fish")]
pub struct Completions {
    /// Which shell
    pub shell: Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline man ~/.local/share/man/man1 && man strandline-explain")]
pub struct Man {
    /// Where to
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Arguments of `demo-child`.
#[derive(Args, Debug)]
pub struct DemoChild {
    /// How large the heap gets before most of it is freed
    #[arg(long)]
    pub heap_mebibytes: u32,
    /// How large the zeroed buffer is
    #[arg(long)]
    pub zero_mebibytes: u32,
}

fn pid(text: &str) -> Result<i32, String> {
    match text.parse::<i32>() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ if std::path::Path::new(text).is_file() => {
            Err("core files cannot be read yet; give the id of a running process".to_owned())
        }
        _ => {
            Err("a process id is a whole number from 1 to 2147483647 (see `pidof NAME` or `ps -e`)"
                .to_owned())
        }
    }
}

fn rows(text: &str) -> Result<Rows, String> {
    if text == "all" {
        return Ok(Rows::All);
    }
    text.parse().map(Rows::Most).map_err(|_| "use `all` or a number of rows".to_owned())
}

fn duration(text: &str) -> Result<std::time::Duration, String> {
    const MOST_SECONDS: f64 = 86_400.0;
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
    seconds
        .filter(|seconds| (0.0..=MOST_SECONDS).contains(seconds))
        .map(std::time::Duration::from_secs_f64)
        .ok_or_else(|| format!("use a number of seconds from 0 to {MOST_SECONDS}, such as 5 or 0.5"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flag_table_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn arguments_are_checked_where_they_are_parsed() {
        assert_eq!(pid("4711"), Ok(4711));
        assert!(pid("-1").is_err() && pid("0").is_err() && pid("x").is_err() && pid("99999999999").is_err());
        assert!(pid("/etc/passwd").is_err_and(|error| error.contains("core files")));
        assert_eq!(rows("all"), Ok(Rows::All));
        assert_eq!(rows("7"), Ok(Rows::Most(7)));
        assert!(rows("-7").is_err());
        assert_eq!(duration("0.5"), Ok(std::time::Duration::from_millis(500)));
        assert_eq!(duration("2s"), Ok(std::time::Duration::from_secs(2)));
        assert!(duration("nan").is_err() && duration("-1").is_err() && duration("1e30").is_err());
    }
}
