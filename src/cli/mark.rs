//! `mark NAME`: names an instant from a shell script.

use std::io::{Read, Write};

use super::arguments::Mark;
use super::{CommandResult, Failure, Result};
use strandline_recorder::MARK_VARIABLE;

/// Sends the mark and waits until it is recorded. Does nothing without a recording, or if it has
/// ended.
pub fn run(arguments: &Mark) -> Result<CommandResult> {
    let Some(number) = std::env::var_os(MARK_VARIABLE) else { return Ok(CommandResult::Done) };
    let number = number.to_str().and_then(|number| number.parse().ok());
    let Some(mut socket) = number.and_then(strandline_sys::spawn::inherited_socket) else {
        return Err(Failure(format!(
            "{MARK_VARIABLE} does not name a socket: the script closed it, or took its number for something else"
        )));
    };
    let name: String = arguments.name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // A recorder that was killed must not make the script fail.
    let sent = socket.write_all(format!("{name}\n").as_bytes());
    if sent.is_ok() {
        // One byte is the answer; the end of the socket means that the recording ended.
        drop(socket.read_exact(&mut [0]));
    }
    Ok(CommandResult::Done)
}
