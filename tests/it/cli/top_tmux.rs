//! `top` in tmux, with real keys, at two sizes.

use std::process::Command;

use crate::support::terminal::{Screen, ask};
use crate::support::waiting::until;
use crate::support::{Folder, Outcome, Result, Subject, here, skipped, strandline};

/// A separate tmux server with one window; ends on drop.
struct Tmux {
    folder: Folder,
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.call(&["kill-server"]);
    }
}

impl Tmux {
    /// A window with a shell; `None` without tmux.
    fn start(columns: u16, lines: u16) -> Result<Option<Self>> {
        let Ok(version) = Command::new("tmux").arg("-V").output() else { return Ok(None) };
        assert!(version.status.success(), "{version:?}");
        let tmux = Self { folder: Folder::new("tmux")? };
        let size = [columns, lines].map(|number| number.to_string());
        tmux.call(&["new-session", "-d", "-x", &size[0], "-y", &size[1], "env PS1= sh"])?;
        // tmux must not wait for more bytes of a key after an Escape.
        tmux.call(&["set-option", "-s", "escape-time", "0"])?;
        Ok(Some(tmux))
    }

    fn call(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.folder.0.join("socket")).args(["-f", "/dev/null"]).args(arguments);
        let output = command.env_remove("TMUX").output()?;
        if !output.status.success() {
            return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    fn key(&self, key: &str) -> Outcome {
        self.call(&["send-keys", key]).map(drop)
    }

    /// Waits until `is` is true of the window, and returns it.
    fn shows_where(&self, what: &str, is: impl Fn(&str) -> bool) -> Result<String> {
        until(&format!("{what} in the window"), || {
            Ok(Some(self.call(&["capture-pane", "-p"])?).filter(|screen| is(screen)))
        })
    }

    /// Waits until the window has all of `words`, and returns it.
    fn shows(&self, words: &[&str]) -> Result<String> {
        self.shows_where(&format!("{words:?}"), |screen| words.iter().all(|word| screen.contains(word)))
    }
}

impl Screen for Tmux {
    const ESCAPE: &'static str = "Escape";

    fn press(&mut self, key: &str) -> Outcome {
        self.key(key)
    }

    fn shows_where(&self, what: &str, is: &dyn Fn(&str) -> bool) -> Result<String> {
        Self::shows_where(self, what, is)
    }
}

#[test]
fn keys_control_top_at_both_sizes() -> Outcome {
    let subject = Subject::start("fragmented", &[])?;
    subject.at_rest()?;
    let pid = subject.pid_text();
    for (columns, lines) in [(80, 24), (200, 60)] {
        let Some(mut tmux) = Tmux::start(columns, lines)? else {
            skipped(here!(), "no tmux here (apt-get install tmux)");
            return Ok(());
        };
        let program = strandline::command(&[]).get_program().to_string_lossy().into_owned();
        let line = format!("echo before; '{program}' top --pid {pid}; echo \"status=$?\"");
        tmux.call(&["send-keys", "-l", &line])?;
        tmux.key("Enter")?;
        let table = tmux.shows(&["▼RSS", "q quit", " fragmented"])?;
        assert_eq!(table.lines().count(), usize::from(lines), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= usize::from(columns)), "{table}");
        let ledger = ask(&mut tmux, "Enter", &[&format!("ledger of process {pid}"), "stranded", "Esc back"])?;
        assert!(ledger.lines().all(|line| line.chars().count() <= usize::from(columns)), "{ledger}");
        tmux.key("Escape")?;
        tmux.shows(&["▼RSS"])?;
        tmux.key("?")?;
        tmux.shows(&["Ctrl-Z"])?;
        tmux.key("q")?;
        tmux.shows(&["▼RSS", "q quit"])?;
        // The other size while it runs.
        let other = if columns == 80 { ["120", "40"] } else { ["80", "24"] };
        tmux.call(&["resize-window", "-x", other[0], "-y", other[1]])?;
        let [columns, lines] = other.map(|number| number.parse::<usize>().unwrap_or(0));
        tmux.shows_where("the table at the other size", |screen| {
            let is_last = screen.lines().last().is_some_and(|line| line.contains("q quit"));
            let is_narrow = screen.lines().all(|line| line.chars().count() <= columns);
            is_last && is_narrow && screen.lines().count() == lines && screen.contains(" fragmented")
        })?;
        tmux.key("q")?;
        // The window is as it was before.
        let end = tmux.shows(&["before", "status=0"])?;
        assert!(!end.contains("▼RSS"), "{end}");
    }
    Ok(())
}
