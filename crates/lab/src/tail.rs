//! The last lines of output of a run, which belong to its user and may be shown.
//!
//! Only a bounded part of a file is read, and terminal control sequences are removed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use strandline_report::text::{clean, shorten};

/// Maximum size read from the end of a file.
const MAX_TAIL_BYTES: u64 = 8 << 10;
/// Maximum length of a line.
pub const MAX_COLUMNS: usize = 200;

/// The last `count` non-blank lines of the file at `path`, cleaned and shortened; empty if it
/// cannot be read.
pub fn last_lines(path: &Path, count: usize) -> Vec<String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_TAIL_BYTES)))?;
        file.take(MAX_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(length > MAX_TAIL_BYTES)
    });
    let Ok(is_truncated) = read else { return Vec::new() };
    let text = String::from_utf8_lossy(&bytes);
    // Drops a truncated first line.
    let whole_lines = if is_truncated {
        text.split_once('\n').map_or(&*text, |(_, complete_lines)| complete_lines)
    } else {
        &text
    };
    let lines: Vec<_> = whole_lines.lines().filter(|line| !line.trim().is_empty()).collect();
    let last_lines = lines.iter().skip(lines.len().saturating_sub(count));
    last_lines.map(|line| shorten(&clean(&line.replace('\t', "    ")), MAX_COLUMNS)).collect()
}

/// The last `count` lines of a standard error, to follow a sentence; empty if there are none.
pub fn stderr_tail(path: &Path, count: usize) -> String {
    let tail = last_lines(path, count).join(" / ");
    if tail.is_empty() { tail } else { format!("; its standard error ends with: {tail}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_complete_lines_are_kept() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = (0..2000).map(|n| format!("line {n}\n\n")).collect();
        std::fs::write(file.path(), text + "\u{1b}[31mlast\n").unwrap();
        let lines = last_lines(file.path(), 2);
        assert_eq!((lines.len(), lines[0].as_str()), (2, "line 1999"));
        assert!(lines[1].ends_with("last") && !lines[1].contains('\u{1b}'), "{lines:?}");
        assert!(
            last_lines(file.path(), usize::MAX)
                .iter()
                .all(|line| line.starts_with("line ") || line.ends_with("last"))
        );
        assert!(last_lines(Path::new("/nowhere"), 2).is_empty());
    }
}
