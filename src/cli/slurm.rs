//! Slurm: output and questions of the lab's subcommands, and the subcommand that runs a round on
//! its node.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::arguments_lab::Lab;
use super::arguments_slurm::LabRound;
use super::output::print_message;
use super::{CommandResult, Failure, Result};
use strandline_lab::elsewhere::TaskCounts;
use strandline_lab::executor::Stopped;
use strandline_lab::interrupt::Interrupt;
use strandline_lab::journal::{Journal, STAGED};
use strandline_lab::local::Local;
use strandline_lab::own;
use strandline_lab::slurm::{Decision, Options, Slurm, TaskArguments, User, serve};
use strandline_lab::trial::server::Service;

/// A user who does not answer the question in this time gets the default: the jobs are cancelled.
const PATIENCE: Duration = Duration::from_secs(30);

/// Copies strandline and its data to a directory that all nodes see.
pub fn stage(lab: &Lab) -> Result<()> {
    match (lab.slurm.on, &lab.dir) {
        (Some(_), Some(dir)) if own::staged().is_none() => {
            let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
            own::stage(&dir.join(STAGED)).map_err(Failure)
        }
        _ => Ok(()),
    }
}

/// The executor for the rounds of the lab in `journal`.
pub fn open(
    journal: &Journal,
    lab: &Lab,
    service: Option<&Service>,
    interrupt: &Arc<Interrupt>,
) -> Result<Slurm> {
    stage(lab)?;
    let program = own::staged_program().ok_or_else(|| Failure("--on slurm needs --dir".to_owned()))?;
    let local = Local::start(&journal.work_folder(0), interrupt).map_err(Failure)?;
    let options = Options {
        sbatch: lab.slurm.options(),
        is_shared: lab.slurm.shared,
        max_running: lab.slurm.at_once,
        service: service.cloned(),
    };
    let place = (journal.folder(), journal.key(), lab.fresh);
    Slurm::open(place, program, options, Box::new(TerminalUser), (local, interrupt)).map_err(Failure)
}

/// The user at the terminal.
struct TerminalUser;

impl User for TerminalUser {
    fn show(&self, line: &str) {
        if std::io::stderr().is_terminal() {
            // Erase the progress line.
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
        print_message(line);
    }

    fn decide(&self, signal: i32, jobs: &str, tasks: TaskCounts, interrupt: &Interrupt) -> Decision {
        // Treat a closed terminal like a crashed machine: the same command collects the results
        // later.
        if signal == Signal::SIGHUP as i32 {
            return Decision::Leave;
        }
        let (input, shown) = (std::io::stdin(), std::io::stderr());
        let can_ask = input.is_terminal() && shown.is_terminal() && strandline_sys::host::is_in_foreground();
        if signal != Signal::SIGINT as i32 || !can_ask {
            return Decision::Cancel;
        }
        let TaskCounts { running, waiting } = tasks;
        drop(write!(
            std::io::stderr(),
            "\r\x1b[Kstrandline: cancel job {jobs} ({running} rounds run, {waiting} wait)? [Y/n] "
        ));
        answer(interrupt)
    }
}

/// Reads the answer; a second signal or a timeout counts as yes.
fn answer(interrupt: &Interrupt) -> Decision {
    let begin = Instant::now();
    let mut input = std::io::stdin();
    let mut typed = Vec::new();
    while begin.elapsed() < PATIENCE && !interrupt.has_another() {
        let timeout = PollTimeout::from(200u8);
        let mut source = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        let is_typed = poll(&mut source, timeout).is_ok_and(|count| count > 0);
        if !is_typed {
            continue;
        }
        let mut byte = [0];
        match input.read(&mut byte) {
            Ok(1) if byte != *b"\n" && typed.len() < 16 => typed.extend(byte),
            _ => break,
        }
    }
    match typed.first() {
        Some(b'n' | b'N') => Decision::Leave,
        _ => Decision::Cancel,
    }
}

pub fn round(arguments: &LabRound) -> Result<CommandResult> {
    let LabRound { folder, array, task, node, restarts } = arguments;
    let (task, array, restarts) = (*task, *array, *restarts);
    let order = TaskArguments { folder: folder.clone(), array, task, node: node.clone(), restarts };
    match serve(order) {
        Ok(()) => Ok(CommandResult::Done),
        Err(Stopped::Interrupted(signal)) => Ok(CommandResult::Command(signal)),
        Err(Stopped::Failed(why)) => Err(Failure(why)),
    }
}
