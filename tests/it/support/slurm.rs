//! Shared by the tests of labs on Slurm: a real Slurm of one node in a private folder, and a fake
//! one that runs nothing and makes up the results of its tasks.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::lab::{Lab, Port};
use crate::support::recording::{Ended, Started, finish, signal};
use crate::support::{Folder, Outcome, Result, skipped, waiting, write_script};

/// Path of a file in tests/slurm.
fn slurm_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slurm").join(name)
}

/// A running Slurm, ended on drop.
pub struct Cluster {
    folder: Folder,
    /// Folder of the labs.
    pub lab: Lab,
    /// Ports of slurmctld and slurmd.
    ports: [Port; 2],
}

/// Replaces squeue in the labs' PATH; appends a line to $SQUEUE_LOG after each answer.
const LOGGING_SQUEUE: &str = "#!/bin/sh
PATH=${PATH#*:}
squeue \"$@\"
status=$?
echo answered >> \"$SQUEUE_LOG\"
exit $status
";

impl Cluster {
    /// Starts a cluster; `None`, reported, if that is not possible here.
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
            skipped(test, "a Slurm in a private folder needs root");
            return Ok(None);
        }
        let ports = [Port::reserve()?, Port::reserve()?];
        let cluster = Self { folder: Folder::new("slurm")?, lab: Lab::new()?, ports };
        std::fs::create_dir(cluster.folder.0.join("bin"))?;
        write_script(cluster.folder.0.join("bin/squeue"), LOGGING_SQUEUE)?;
        let mut up = Command::new(slurm_file("up"));
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
        let programs = self.folder.0.join("bin");
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        command.env("SLURM_CONF", self.folder.0.join("slurm.conf")).env("PATH", path);
        command.env("SQUEUE_LOG", self.squeue_log());
        command
    }

    fn squeue_log(&self) -> PathBuf {
        self.folder.0.join("squeue.log")
    }

    /// Waits until a lab has handled the current state of squeue. The next answer may already be
    /// under way; the one after it is requested later than now, and is handled before a third one
    /// is requested.
    pub fn until_looked(&self) -> Outcome {
        let answers = || std::fs::read_to_string(self.squeue_log()).map_or(0, |text| text.lines().count());
        let before = answers();
        waiting::until_true("three answers of squeue", || answers() >= before + 3)
    }

    /// Runs [`Self::command`] to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<Ended> {
        finish(self.command(arguments), b"")
    }

    /// Starts [`Self::command`].
    pub fn begin(&self, arguments: &[&str]) -> Result<Started> {
        Started::new(self.command(arguments))
    }

    /// The output of one of Slurm's programs.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(words.first().copied().unwrap_or_default());
        command.args(words.iter().skip(1)).env("SLURM_CONF", self.folder.0.join("slurm.conf"));
        Ok(finish(command, b"")?.text())
    }

    /// The active tasks: `JOB_TASK STATE`.
    pub fn queue(&self) -> Result<Vec<String>> {
        Ok(self.ask(&["squeue", "-h", "-r", "-o", "%F_%K %T"])?.lines().map(str::to_owned).collect())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Ends the jobs that are still running.
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
    pub folder: Folder,
    /// Folder of the labs.
    pub lab: Lab,
}

impl Fake {
    /// Creates a fake scheduler; `None`, reported, if that is not possible here.
    pub fn new(test: &str) -> Result<Option<Self>> {
        if !Path::new("/usr/bin/python3").exists() {
            skipped(test, "python3 is not installed");
            return Ok(None);
        }
        let fake = Self { folder: Folder::new("fake-slurm")?, lab: Lab::new()? };
        std::fs::create_dir(fake.folder.0.join("bin"))?;
        for name in ["sbatch", "squeue", "scancel", "scontrol", "fake"] {
            symlink(slurm_file("fake"), fake.folder.0.join("bin").join(name))?;
        }
        Ok(Some(fake))
    }

    /// Sets an option of the fake.
    pub fn set(&self, name: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.folder.0.join(name), text)?)
    }

    /// Removes an option of the fake.
    pub fn unset(&self, name: &str) -> Result<()> {
        Ok(std::fs::remove_file(self.folder.0.join(name))?)
    }

    /// `strandline ARGUMENTS` in the lab's folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.with_fake(self.lab.command(arguments))
    }

    /// A command that calls the fake instead of Slurm's programs.
    fn with_fake(&self, mut command: Command) -> Command {
        let programs = self.folder.0.join("bin");
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("FAKE", &self.folder.0);
        command
    }

    /// Runs [`Self::command`] to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<Ended> {
        finish(self.command(arguments), b"")
    }

    /// Has the held tasks write their results.
    pub fn release(&self) -> Result<()> {
        self.unset("hold")?;
        finish(self.with_fake(Command::new(self.folder.0.join("bin/fake"))), b"").map(drop)
    }

    /// The calls of the fake that begin with `prefix`.
    pub fn calls(&self, prefix: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.0.join("calls")).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect()
    }
}
