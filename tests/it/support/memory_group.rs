//! A control group whose memory is counted, made by a test and removed on drop.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Result, Subject};

/// Number of pages in a batch of the kernel's counters (`MEMCG_CHARGE_BATCH`).
const BATCH_PAGES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// Its own control group, in the hierarchy that counts memory.
#[derive(Debug)]
pub struct MemoryGroup {
    pub folder: PathBuf,
}

impl MemoryGroup {
    /// Makes a group whose name ends in `name`; `None` if none can be made here.
    pub fn new(name: &str) -> Option<Self> {
        static TURN: AtomicU64 = AtomicU64::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let hierarchies = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
        let counts_memory = |hierarchy: &&str| {
            let is_version_1 = Path::new(hierarchy).join("memory.usage_in_bytes").exists();
            let controllers = std::fs::read_to_string(Path::new(hierarchy).join("cgroup.subtree_control"));
            let has_memory = |text: String| text.split_whitespace().any(|name| name == "memory");
            is_version_1 || controllers.is_ok_and(has_memory)
        };
        let hierarchy = Path::new(hierarchies.into_iter().find(counts_memory)?);
        let folder = hierarchy.join(format!("strandline-{}-{turn}-{name}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        Some(Self { folder })
    }

    /// Makes a group below this one.
    pub fn child(&self, name: &str) -> Option<Self> {
        let folder = self.folder.join(name);
        std::fs::create_dir(&folder).ok()?;
        Some(Self { folder })
    }

    /// Its path as an argument.
    pub fn path(&self) -> String {
        self.folder.display().to_string()
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Sets its limit.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        let names = ["memory.max", "memory.limit_in_bytes"];
        let file = names.map(|name| self.folder.join(name)).into_iter().find(|file| file.exists());
        std::fs::write(file.ok_or("no file of a limit")?, bytes.to_string())?;
        // Forbids swap, if the kernel counts its use.
        drop(std::fs::write(self.folder.join("memory.swap.max"), "0"));
        drop(std::fs::write(self.folder.join("memory.memsw.limit_in_bytes"), bytes.to_string()));
        Ok(())
    }

    /// Starts a Python program in the group, from its first page on, and waits for its first line.
    pub fn python(&self, program: &str, arguments: &[&str]) -> Result<Subject> {
        let mut command = Command::new("sh");
        let enter = "echo $$ > \"$1\"/cgroup.procs && shift && exec python3 -c \"$@\"";
        command.args(["-c", enter, "sh"]).arg(&self.folder).arg(program).args(arguments);
        Subject::start_command(command)
    }
}

/// By how much the kernel's counters of groups may lag: a batch for each processor.
pub fn batch_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let processors = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    BATCH_PAGES * PAGE_BYTES * processors.count() as u64
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A killed process leaves its group some time later.
        let start = Instant::now();
        while std::fs::remove_dir(&self.folder).is_err() && self.folder.exists() {
            if start.elapsed() > Duration::from_secs(10) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
