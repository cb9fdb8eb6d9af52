//! `top` in its own terminal: keys pressed, and contents of the screen.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};

use crate::support::waiting::until;
use crate::support::{Outcome, Result};

/// Milliseconds between two checks whether the terminal was closed.
const STOP_POLL_MS: u8 = 20;

/// A program in a terminal of 80 columns and 24 lines.
pub struct Terminal {
    pub child: Child,
    /// The keyboard; `None` once the terminal is closed.
    keys: Option<File>,
    /// All output of the program.
    written: Arc<Mutex<Vec<u8>>>,
    /// Whether the reader has to end.
    is_closed: Arc<AtomicBool>,
    /// Reads the output until the program has closed the terminal.
    reader: JoinHandle<()>,
}

/// Parser that turns the output into a screen.
fn parser() -> vt100::Parser {
    const LINES: NonZero<u16> = NonZero::<u16>::MIN.saturating_add(23);
    const COLUMNS: NonZero<u16> = NonZero::<u16>::MIN.saturating_add(79);
    vt100::Parser::new(LINES, COLUMNS, 0)
}

impl Terminal {
    /// Starts a command with the terminal as standard input, output and error.
    pub fn start(mut command: Command) -> Result<Self> {
        // Close-on-exec: a process of another test must not keep the terminal open.
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = ptsname_r(&master)?;
        let sized = Command::new("stty").args(["-F", &path, "rows", "24", "cols", "80"]).status()?;
        if !sized.success() {
            return Err(format!("stty: {sized}").into());
        }
        let slave = || -> Result<File> {
            let flags = OFlag::O_NOCTTY.bits();
            Ok(File::options().read(true).write(true).custom_flags(flags).open(&path)?)
        };
        command.env("TERM", "xterm-256color").stdin(slave()?).stdout(slave()?).stderr(slave()?);
        let child = command.spawn()?;
        // The command holds the other end too.
        drop(command);
        let keys = File::from(OwnedFd::from(master));
        let mut screen = keys.try_clone()?;
        let written = Arc::new(Mutex::new(Vec::new()));
        let is_closed = Arc::new(AtomicBool::new(false));
        let (output, stop_reading) = (Arc::clone(&written), Arc::clone(&is_closed));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let mut source = [PollFd::new(screen.as_fd(), PollFlags::POLLIN)];
                let ready = poll(&mut source, PollTimeout::from(STOP_POLL_MS));
                if stop_reading.load(Ordering::Acquire) || ready.is_err() {
                    return;
                }
                if ready == Ok(0) {
                    continue;
                }
                // The read fails once the other end is closed.
                let Ok(count @ 1..) = screen.read(&mut buffer) else { return };
                output.lock().unwrap_or_else(PoisonError::into_inner).extend(&buffer[..count]);
            }
        });
        Ok(Self { child, keys: Some(keys), written, is_closed, reader })
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) -> Outcome {
        Ok(self.keys.as_mut().ok_or("no terminal")?.write_all(keys.as_bytes())?)
    }

    /// Closes the terminal.
    pub fn hang_up(&mut self) {
        self.keys = None;
        self.is_closed.store(true, Ordering::Release);
    }

    /// All output so far.
    pub fn written(&self) -> Vec<u8> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Contents of the screen.
    pub fn screen(&self) -> String {
        let mut parser = parser();
        parser.process(&self.written());
        parser.screen().contents()
    }

    /// Waits until the screen shows all of `words`.
    pub fn shows(&self, words: &[&str]) -> Result<String> {
        self.shows_where(&format!("{words:?}"), |screen| words.iter().all(|word| screen.contains(word)))
    }

    /// Waits until `condition` holds for the screen. A frame is written in pieces: the condition must
    /// hold for a complete frame only.
    pub fn shows_where(&self, what: &str, condition: impl Fn(&str) -> bool) -> Result<String> {
        let mut seen_bytes = usize::MAX;
        let shown = until(&format!("{what} on the screen"), || {
            // Checked before the screen, so that output up to the end counts.
            let has_ended = self.reader.is_finished();
            let bytes = self.written_bytes();
            if bytes != seen_bytes {
                seen_bytes = bytes;
                let screen = self.screen();
                if condition(&screen) {
                    return Ok(Some(screen));
                }
            }
            if has_ended { Err("the program has closed the terminal".into()) } else { Ok(None) }
        });
        shown.map_err(|error| format!("{what}: {error}; on the screen:\n{}", self.screen()).into())
    }

    /// Waits until this many frames were drawn. Each frame hides the cursor once; no other output
    /// does.
    pub fn draws(&self, frames: usize) -> Outcome {
        until(&format!("frame {frames}"), || Ok((self.frames() >= frames).then_some(())))
    }

    /// Number of frames drawn.
    pub fn frames(&self) -> usize {
        const HIDES_CURSOR: &[u8] = b"\x1b[?25l";
        self.written().windows(HIDES_CURSOR.len()).filter(|bytes| *bytes == HIDES_CURSOR).count()
    }

    fn written_bytes(&self) -> usize {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits for the program's end.
    pub fn end(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        let ended = until("the end of the program", || Ok(child.try_wait()?));
        ended.map_err(|error| format!("{error}; on the screen:\n{}", self.screen()).into())
    }

    /// Whether the terminal was restored: the alternate screen left, the cursor shown.
    pub fn is_restored(&self) -> bool {
        let restored = until("the terminal to be restored", || {
            let has_ended = self.reader.is_finished();
            let mut parser = parser();
            parser.process(&self.written());
            let screen = parser.screen();
            let is_restored = !screen.alternate_screen() && !screen.hide_cursor();
            Ok((is_restored || has_ended).then_some(is_restored))
        });
        restored.unwrap_or(false)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A screen beside a keyboard.
pub trait Screen {
    /// The key Escape.
    const ESCAPE: &'static str;

    /// Presses a key.
    fn press(&mut self, key: &str) -> Outcome;

    /// Waits until `condition` holds for the screen, and returns it.
    fn shows_where(&self, what: &str, condition: &dyn Fn(&str) -> bool) -> Result<String>;
}

impl Screen for Terminal {
    const ESCAPE: &'static str = "\x1b";

    fn press(&mut self, key: &str) -> Outcome {
        Self::press(self, key)
    }

    fn shows_where(&self, what: &str, condition: &dyn Fn(&str) -> bool) -> Result<String> {
        Self::shows_where(self, what, condition)
    }
}

/// Presses a key that requests a ledger of `top`, and waits for all of `words`. Until top's second
/// thread accepts requests, top prompts to press the key again.
pub fn ask<S: Screen>(top: &mut S, key: &str, words: &[&str]) -> Result<String> {
    const AGAIN: &str = "press it again";
    let is_answer = |screen: &str| words.iter().all(|word| screen.contains(word));
    until("a read", || {
        top.press(key)?;
        let screen =
            top.shows_where(&format!("{words:?}"), &|screen| is_answer(screen) || screen.contains(AGAIN))?;
        if is_answer(&screen) {
            return Ok(Some(screen));
        }
        // Removes the message.
        top.press(S::ESCAPE)?;
        top.shows_where("no message", &|screen| !screen.contains(AGAIN))?;
        Ok(None)
    })
}
