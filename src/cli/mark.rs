//! `mark NAME`: names an instant from a shell script.

use std::io::{Read, Write};

use super::arguments::Mark;
use super::{CommandResult, Failure, Result};
use strandline_recorder::MARK_VARIABLE;

/// Sends the mark and waits until it is recorded. Does nothing without a recording, or if it has
/// ended.
pub fn run(arguments: &Mark) -> Result<CommandResult> {
    let Some(value) = std::env::var_os(MARK_VARIABLE) else { return Ok(CommandResult::Done) };
    let Some(descriptor) = value.to_str().and_then(|number| number.parse::<i32>().ok()) else {
        return Err(Failure(format!(
            "cannot send the mark: {MARK_VARIABLE} in the environment is no file descriptor; do not set it, strandline does"
        )));
    };
    let Some(mut socket) = strandline_sys::spawn::inherited_socket(descriptor) else {
        return Err(Failure(format!(
            "cannot send the mark: file descriptor {descriptor} ({MARK_VARIABLE}) is not the recorder's socket; keep it open in \
             the script, and use another number for its own files"
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
