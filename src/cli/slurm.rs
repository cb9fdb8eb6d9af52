//! The subcommand that runs a round of a lab on its node.

use super::arguments_slurm::LabRound;
use super::{CommandResult, Failure, Result};
use strandline_lab::executor::StopReason;
use strandline_lab::slurm::{TaskArguments, serve};

/// Runs the round that is the task `arguments.task` of a job array.
pub fn run(arguments: &LabRound) -> Result<CommandResult> {
    let LabRound { folder, array, task, node, restarts } = arguments;
    let (task, array, restarts) = (*task, *array, *restarts);
    let task = TaskArguments { folder: folder.clone(), array, task, node: node.clone(), restarts };
    match serve(task) {
        Ok(()) => Ok(CommandResult::Done),
        Err(StopReason::Interrupted(signal)) => Ok(CommandResult::WaitStatus(signal)),
        Err(StopReason::Failed(why)) => Err(Failure(why)),
    }
}
