//! Process groups that tests start. Ctrl-C does not reach them, so a shell kills the remaining ones
//! when this program ends for any reason.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::Result;

/// Keeps a list of groups, and kills them at the end of its input: the end of this program.
const GUARD: &str = r#"
all=' '
while read -r sign group; do
    case $sign in
    +) all="$all$group " ;;
    -) all="${all%% $group *} ${all#* $group }" ;;
    esac
done
for group in $all; do kill -9 "-$group" 2>/dev/null; done
"#;

/// A process group that is killed on drop.
#[derive(Debug)]
pub struct Group {
    number: Pid,
    has_ended: bool,
}

impl Group {
    /// The group of a process that was started as its leader.
    pub fn of(leader: u32) -> Self {
        let number = Pid::from_raw(leader.cast_signed());
        // Without the guard, only a test program that is killed leaves the group behind.
        let _ = send('+', number);
        Self { number, has_ended: false }
    }

    /// Kills the group. Must come before its leader is waited for: then another group may get its
    /// number.
    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            // Its processes may all have ended.
            let _ = killpg(self.number, Signal::SIGKILL);
            let _ = send('-', self.number);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has the guard add (`+`) or remove (`-`) a group.
fn send(sign: char, group: Pid) -> Result<()> {
    static INPUT: OnceLock<std::result::Result<Mutex<ChildStdin>, String>> = OnceLock::new();
    let input = INPUT.get_or_init(|| start_guard().map_err(|error| error.to_string())).as_ref();
    let input = input.map_err(String::clone)?;
    let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
    // One write per line, since this program may end at any time.
    Ok(input.write_all(format!("{sign} {group}\n").as_bytes())?)
}

/// Starts the guard, in its own group.
fn start_guard() -> Result<Mutex<ChildStdin>> {
    let mut command = Command::new("sh");
    command.args(["-c", GUARD]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut guard = command.process_group(0).spawn()?;
    Ok(Mutex::new(guard.stdin.take().ok_or("no pipe")?))
}
