//! The file that records are written to. If the disk is full, the command continues and the records
//! of that time are lost: earlier records stay intact, and as soon as the disk has free space
//! again, the recording continues with a caveat about the loss.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use strandline_inspect::Caveat;
use strandline_recording::{CaveatRecord, Error, FLUSH_THRESHOLD_BYTES, Reader, Record, Writer};

/// Maximum length of the part of a file name that comes from the program.
const MAX_PROGRAM_CHARS: usize = 60;
/// Highest number that is appended to a file name.
const MAX_FILE_NUMBER: u32 = 9_999;

/// The file of a recording.
pub struct Sink {
    writer: Writer<File>,
    path: PathBuf,
    /// Whether the file did not exist before.
    is_new: bool,
    /// When everything recorded so far was last written, in microseconds.
    written_us: u64,
    /// Set while nothing can be written.
    failure: Option<WriteFailure>,
    /// A failure to report to the user, not taken yet.
    pub warning: Option<String>,
}

/// Why records are lost at the moment.
struct WriteFailure {
    /// Since when records are lost.
    since_us: u64,
    reason: String,
}

impl Sink {
    /// Opens `path` for a new recording and locks it against other recorders. An older recording
    /// there is replaced by [`Sink::begin`]; any other file is not changed.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn create(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{}: {error}; name another file with -o", path.display());
        let refused = |problem: &str| format!("{} {problem}; name another file with -o", path.display());
        let (file, is_new) =
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
                    if kind.is_fifo() || kind.is_socket() {
                        // Without a reader, a pipe would block the command at its marks.
                        return Err(refused("is a pipe, which may block"));
                    }
                    (OpenOptions::new().read(kind.is_file()).write(true).open(path).map_err(failed)?, false)
                }
                created => (created.map_err(failed)?, true),
            };
        let metadata = file.metadata().map_err(failed)?;
        // A device holds nothing that could be lost.
        if metadata.is_file() && metadata.len() > 0 && !is_recording(path) {
            return Err(refused("exists and is not a recording: it is not overwritten"));
        }
        // Last, so that the lock ends with the sink: see its Drop.
        if metadata.is_file() && strandline_sys::files::lock(&file).is_err() {
            return Err(refused("is being recorded into by another strandline"));
        }
        let writer = Writer::new(file).map_err(failed)?;
        Ok(Self { writer, path: path.to_owned(), is_new, written_us: 0, failure: None, warning: None })
    }

    /// Begins the recording: an older one is deleted.
    pub fn begin(&mut self) {
        let file = self.writer.file();
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            // A failure shows at the first write.
            drop(file.set_len(0));
        }
    }

    /// Removes the file if it was created for a recording that did not begin.
    pub fn discard(&self) {
        if self.is_new {
            drop(std::fs::remove_file(&self.path));
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a record. `now_us` is the time now, for a flush of a full buffer.
    pub fn push(&mut self, record: &Record, now_us: u64) {
        if let Err(error) = self.writer.push(record) {
            self.warning = Some(format!("a record could not be written: {error}"));
        }
        if self.writer.buffered_bytes() > FLUSH_THRESHOLD_BYTES {
            self.flush(now_us);
        }
    }

    /// Writes the buffered records.
    pub fn flush(&mut self, now_us: u64) {
        let earlier_failure = self.failure.take();
        if let Some(WriteFailure { since_us, reason }) = &earlier_failure {
            let text = format!(
                "nothing could be written from {:.1} s to {:.1} s: {reason}",
                *since_us as f64 / 1e6,
                now_us as f64 / 1e6
            );
            let caveat = Caveat::new("recording_lost", self.path.display().to_string(), None, text);
            drop(self.writer.push(&Record::Caveat(CaveatRecord { at_us: now_us, caveat })));
        }
        let Err(error) = self.write_frame(now_us) else { return };
        self.writer.drop_buffered();
        if earlier_failure.is_none() {
            self.warning = Some(format!(
                "{}: {error}; the command runs on, samples that cannot be written are lost",
                self.path.display()
            ));
        }
        let since_us = earlier_failure.map_or(self.written_us, |failure| failure.since_us);
        self.failure = Some(WriteFailure { since_us, reason: error.to_string() });
    }

    /// Writes one frame; on failure removes what was written of it.
    fn write_frame(&mut self, now_us: u64) -> io::Result<()> {
        let result = self.writer.flush();
        if result.is_ok() {
            self.written_us = now_us;
        } else {
            let mut file = self.writer.file();
            drop(file.set_len(self.writer.written_bytes()));
            drop(file.seek(SeekFrom::Start(self.writer.written_bytes())));
        }
        result
    }

    /// Bytes that reached the file.
    pub fn written_bytes(&self) -> u64 {
        self.writer.written_bytes()
    }
}

impl Drop for Sink {
    /// Unlocks: a child that was just forked has the file open until its exec, and would keep the
    /// lock.
    fn drop(&mut self) {
        drop(strandline_sys::files::unlock(self.writer.file()));
    }
}

/// Whether a file is a recording of any version.
fn is_recording(path: &Path) -> bool {
    matches!(Reader::open(path), Ok(_) | Err(Error::OtherSchema { .. }))
}

/// A file name for a recording of `command`: the name of its program, with a number if that is
/// taken. If all numbers are taken, the one without a number is replaced.
pub fn default_path(command: &str) -> PathBuf {
    let program = Path::new(command).file_name().map(|name| name.to_string_lossy().into_owned());
    let program = program.filter(|name| !name.is_empty()).unwrap_or_else(|| "process".to_owned());
    let portable = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let program: String =
        program.trim_start_matches('.').chars().take(MAX_PROGRAM_CHARS).map(portable).collect();
    let plain = PathBuf::from(format!("{program}.strandline"));
    let numbered =
        (2..=MAX_FILE_NUMBER).map(|number| PathBuf::from(format!("{program}.{number}.strandline")));
    std::iter::once(plain.clone()).chain(numbered).find(|path| !path.exists()).unwrap_or(plain)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use strandline_recording::{Header, Heartbeat, SCHEMA};

    use super::*;

    fn header() -> Record {
        Record::Header(Box::new(Header { schema: SCHEMA.into(), ..Header::default() }))
    }

    #[test]
    fn foreign_files_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter.txt");
        std::fs::write(&path, "dear").unwrap();
        assert!(Sink::create(&path).is_err_and(|error| error.contains("not overwritten")));
        assert_eq!(std::fs::read(&path).unwrap(), b"dear");
        let mut packed = Writer::new(Vec::new()).unwrap();
        packed.push(&Record::Heartbeat(Heartbeat::default())).unwrap();
        packed.flush().unwrap();
        // The right kind of file, but not a recording.
        std::fs::write(&path, &packed.file()[..packed.file().len() - 4]).unwrap();
        assert!(Sink::create(&path).is_err_and(|error| error.contains("not overwritten")));
    }

    #[test]
    fn an_older_recording_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.strandline");
        for _ in 0..2 {
            let mut sink = Sink::create(&path).unwrap();
            assert!(Sink::create(&path).is_err_and(|error| error.contains("another strandline")));
            sink.begin();
            sink.push(&header(), 0);
            sink.flush(0);
            let data = std::fs::metadata(&path).unwrap();
            assert_eq!((data.len(), data.mode() & 0o777), (sink.written_bytes(), 0o600));
        }
        // A command that is not found must not destroy a recording.
        let size = std::fs::metadata(&path).unwrap().len();
        Sink::create(&path).unwrap().discard();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
        let new_path = folder.path().join("b.strandline");
        Sink::create(&new_path).unwrap().discard();
        assert!(!new_path.exists());
    }

    #[test]
    fn a_full_disk_costs_only_its_time() {
        // /dev/full always returns ENOSPC.
        let mut sink = Sink::create(Path::new("/dev/full")).unwrap();
        sink.push(&header(), 0);
        sink.flush(1_000_000);
        assert!(sink.warning.take().is_some_and(|warning| warning.contains("the command runs on")));
        assert!(sink.failure.as_ref().is_some_and(|failure| failure.since_us == 0), "all is lost");
        sink.push(&Record::Heartbeat(Heartbeat::default()), 2_000_000);
        sink.flush(2_000_000);
        assert_eq!(sink.warning, None, "reported once");
        assert_eq!(sink.written_bytes(), 0);
    }

    #[test]
    fn the_header_survives_a_disk_that_is_full_at_the_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.strandline");
        let mut sink = Sink::create(&path).unwrap();
        sink.push(&header(), 0);
        sink.push(&Record::Heartbeat(Heartbeat::default()), 0);
        // As after a write that failed.
        sink.writer.drop_buffered();
        sink.failure = Some(WriteFailure { since_us: 0, reason: "No space left on device".into() });
        sink.flush(1_000_000);
        let mut reader = Reader::open(&path).unwrap();
        assert!(reader.next_record().unwrap().is_some_and(|record| matches!(record, Record::Caveat(_))));
        assert!(reader.next_record().unwrap().is_none());
    }

    #[test]
    fn names_for_recordings_are_safe_and_new() {
        assert_eq!(default_path("/usr/bin/perl5.36"), PathBuf::from("perl5.36.strandline"));
        assert_eq!(default_path("../.a b;c"), PathBuf::from("a_b_c.strandline"));
        assert_eq!(default_path(""), PathBuf::from("process.strandline"));
    }

    #[test]
    fn losses_are_caveats_in_the_recording() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.strandline");
        let mut sink = Sink::create(&path).unwrap();
        sink.push(&header(), 0);
        sink.flush(0);
        sink.failure = Some(WriteFailure { since_us: 1_000_000, reason: "No space left on device".into() });
        sink.push(&Record::Heartbeat(Heartbeat::default()), 2_000_000);
        sink.flush(2_000_000);
        let mut reader = Reader::open(&path).unwrap();
        let mut last_text = String::new();
        while let Some(record) = reader.next_record().unwrap() {
            if let Record::Caveat(record) = record {
                last_text = record.caveat.text;
            }
        }
        assert_eq!(last_text, "nothing could be written from 1.0 s to 2.0 s: No space left on device");
    }
}
