//! Manual pages and completion scripts, generated from the flag table so that they agree with it.

use clap::CommandFactory;

use super::arguments::{Arguments, Completions, Man};
use super::output::Output;
use super::{CommandResult, Failure, Result};

/// Prints the completion script of a shell.
pub fn completions(arguments: &Completions, output: &mut Output) -> Result<CommandResult> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "strandline", &mut script);
    output.print(&String::from_utf8_lossy(&script))?;
    Ok(CommandResult::Done)
}

/// Writes `strandline.1` and a page for each subcommand.
pub fn man(arguments: &Man) -> Result<CommandResult> {
    let folder = &arguments.folder;
    let failed = |error: std::io::Error| {
        Failure(format!("{}: {error}; give a folder that can be written", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), folder).map_err(failed)?;
    Ok(CommandResult::Done)
}
