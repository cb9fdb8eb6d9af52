//! STUB, to be replaced: just enough of `explain` for the command line to be built against. Splits
//! smaps_rollup's Rss into file pages and unattributed memory, and reads no heap.

use crate::error::{Error, Result};
use crate::facts::{Explanation, Kernel, Row, State, Stratum, Target, TargetKind, Totals, Verdict};

/// Called with what is being done, bytes done and bytes in all.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// How to look.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Whether all-zero pages of private anonymous memory become `kernel.zero`.
    pub fold_zero_pages: bool,
    /// How many threads read; `None` for one a CPU.
    pub threads: Option<usize>,
    /// Told about progress.
    pub progress: Option<Progress<'a>>,
}

/// Looks at a process.
pub fn explain(pid: i32, options: &Options<'_>) -> Result<Explanation> {
    let started = std::time::Instant::now();
    if pid == std::process::id().cast_signed() {
        return Err(Error::Myself { pid });
    }
    let folder = format!("/proc/{pid}");
    let rollup = std::fs::read_to_string(format!("{folder}/smaps_rollup")).map_err(|source| {
        if source.kind() == std::io::ErrorKind::NotFound {
            Error::NoSuchProcess { pid }
        } else {
            Error::Io { pid, what: "reading smaps_rollup".to_owned(), source }
        }
    })?;
    let field = |name: &str| -> u64 {
        let line = rollup.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    let (rss, anonymous) = (field("Rss:"), field("Anonymous:"));
    let file = rss.saturating_sub(anonymous);
    if let Some(progress) = options.progress {
        progress("reading", rss, rss);
    }
    let row = |id: &str, stratum, state, holder: &str, bytes| Row {
        id: id.to_owned(),
        stratum,
        state,
        holder: holder.to_owned(),
        bytes,
    };
    let mut rows = vec![
        row("anonymous", Stratum::Values, State::Unattributed, "anonymous memory, not read", rss - file),
        row("kernel.file", Stratum::Kernel, State::Evictable, "page cache", file),
    ];
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let command = std::fs::read(format!("{folder}/cmdline")).unwrap_or_default();
    Ok(Explanation {
        target: Target {
            kind: TargetKind::Live,
            pid,
            executable: std::fs::read_link(format!("{folder}/exe"))
                .ok()
                .map(|path| path.display().to_string()),
            command: command
                .split(|&b| b == 0)
                .filter(|a| !a.is_empty())
                .map(|a| String::from_utf8_lossy(a).into_owned())
                .collect(),
            threads: 1,
        },
        kernel: Kernel {
            rss_bytes: rss,
            pss_bytes: Some(field("Pss:")),
            anonymous_bytes: anonymous,
            file_bytes: file,
            ..Kernel::default()
        },
        rows,
        totals: Totals { unattributed: anonymous, evictable: file, ..Totals::default() },
        verdict: Verdict {
            headline: "this build does not read heaps yet".to_owned(),
            class: "unattributed".to_owned(),
        },
        cost: crate::facts::Cost {
            wall_seconds: started.elapsed().as_secs_f64(),
            ..crate::facts::Cost::default()
        },
        ..Explanation::default()
    })
}
