//! What the tests of labs by Slurm share: a Slurm of one node in a private folder, and one that runs nothing and makes
//! up what its tasks would write.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::lab::{Lab, Port};
use crate::support::recording::{Ended, Started, finish, signal};
use crate::support::{Folder, Outcome, Result, skipped, waiting, write_script};

/// A file of these tests.
fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slurm").join(name)
}

/// A Slurm that runs; dropped, it ends.
pub struct Cluster {
    folder: Folder,
    /// Where labs are.
    pub lab: Lab,
    /// Of slurmctld and of slurmd.
    ports: [Port; 2],
}

/// Stands for squeue where labs look for it, and notes each answer in $LOOKS.
const NOTED_SQUEUE: &str = "#!/bin/sh
PATH=${PATH#*:}
squeue \"$@\"
status=$?
echo answered >> \"$LOOKS\"
exit $status
";

impl Cluster {
    /// One of its own; `None` where it cannot be had, which is said.
    pub fn start(test: &str) -> Result<Option<Self>> {
        let has = |program: &&str| {
            ["/usr/bin", "/usr/sbin", "/usr/local/sbin"]
                .iter()
                .any(|folder| Path::new(folder).join(program).exists())
        };
        let programs = ["sbatch", "slurmctld", "slurmd", "munged"];
        if let Some(missing) = programs.iter().find(|program| !has(program)) {
            skipped(test, &format!("{missing} is not here (apt install slurm-wlm munge)"));
            return Ok(None);
        }
        if strandline_sys::host::effective_user() != 0 {
            skipped(test, "a Slurm in a private folder wants root");
            return Ok(None);
        }
        let ports = [Port::reserve()?, Port::reserve()?];
        let cluster = Self { folder: Folder::new("slurm")?, lab: Lab::new()?, ports };
        std::fs::create_dir(cluster.folder.0.join("bin"))?;
        write_script(cluster.folder.0.join("bin/squeue"), NOTED_SQUEUE)?;
        let mut up = Command::new(own("up"));
        up.arg(&cluster.folder.0).args(cluster.ports.iter().map(|port| port.number.to_string()));
        let ended = finish(up, b"")?;
        if ended.how() != 0 {
            return Err(format!("no Slurm: {}", ended.complaint()).into());
        }
        Ok(Some(cluster))
    }

    /// `strandline ARGUMENTS` in the lab's folder, which submits there.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.lab.command(arguments);
        let own = self.folder.0.join("bin");
        let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap_or_default());
        command.env("SLURM_CONF", self.folder.0.join("slurm.conf")).env("PATH", path);
        command.env("LOOKS", self.looks());
        command
    }

    fn looks(&self) -> PathBuf {
        self.folder.0.join("looks")
    }

    /// Waits until a lab has taken what squeue answers now. The next answer may be on its way already, the one after it is asked
    /// for later than now, and is taken before a third one is asked for.
    pub fn until_looked(&self) -> Outcome {
        let answers = || std::fs::read_to_string(self.looks()).map_or(0, |text| text.lines().count());
        let before = answers();
        waiting::until_true("the lab's looks", || answers() >= before + 3)
    }

    /// Runs that to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<Ended> {
        finish(self.command(arguments), b"")
    }

    /// Starts that.
    pub fn begin(&self, arguments: &[&str]) -> Result<Started> {
        Started::new(self.command(arguments))
    }

    /// What one of Slurm's programs says.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(words.first().copied().unwrap_or_default());
        command.args(words.iter().skip(1)).env("SLURM_CONF", self.folder.0.join("slurm.conf"));
        Ok(finish(command, b"")?.text())
    }

    /// The tasks that are under way: `JOB_TASK STATE`.
    pub fn queue(&self) -> Result<Vec<String>> {
        Ok(self.ask(&["squeue", "-h", "-r", "-o", "%F_%K %T"])?.lines().map(str::to_owned).collect())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // What still runs there ends with it.
        drop(self.ask(&["scancel", "-u", "root"]));
        for name in ["slurmd.pid", "slurmctld.pid", "munge/munged.pid"] {
            let pid = std::fs::read_to_string(self.folder.0.join(name)).unwrap_or_default();
            if let Ok(pid) = pid.trim().parse::<i32>() {
                signal(pid, 15);
            }
        }
    }
}

/// A scheduler that runs nothing.
pub struct Fake {
    /// Its folder.
    pub folder: Folder,
    /// Where labs are.
    pub lab: Lab,
}

impl Fake {
    /// One of its own; `None` where it cannot be had, which is said.
    pub fn new(test: &str) -> Result<Option<Self>> {
        if !Path::new("/usr/bin/python3").exists() {
            skipped(test, "python3 is not here");
            return Ok(None);
        }
        let fake = Self { folder: Folder::new("fake-slurm")?, lab: Lab::new()? };
        std::fs::create_dir(fake.folder.0.join("bin"))?;
        for name in ["sbatch", "squeue", "scancel", "scontrol", "fake"] {
            symlink(own("fake"), fake.folder.0.join("bin").join(name))?;
        }
        Ok(Some(fake))
    }

    /// Tells it something.
    pub fn set(&self, name: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.folder.0.join(name), text)?)
    }

    /// Takes that back.
    pub fn unset(&self, name: &str) -> Result<()> {
        Ok(std::fs::remove_file(self.folder.0.join(name))?)
    }

    /// `strandline ARGUMENTS` in the lab's folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.with(self.lab.command(arguments))
    }

    fn with(&self, mut command: Command) -> Command {
        let own = self.folder.0.join("bin");
        let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("FAKE", &self.folder.0);
        command
    }

    /// Runs that to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<Ended> {
        finish(self.command(arguments), b"")
    }

    /// Has the tasks that are held write what they would.
    pub fn release(&self) -> Result<()> {
        self.unset("hold")?;
        finish(self.with(Command::new(self.folder.0.join("bin/fake"))), b"").map(drop)
    }

    /// The calls it had that begin so.
    pub fn calls(&self, begin: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.0.join("calls")).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    }
}
