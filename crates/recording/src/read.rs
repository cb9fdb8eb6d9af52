//! Reads a recording frame by frame, line by line, with a bounded buffer. A torn or damaged part
//! becomes a caveat with its place and size; everything around it is still read.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use strandline_inspect::{Caveat, counted};
use zstd::bulk::Decompressor;
use zstd::zstd_safe;

use crate::record::{Header, Record, SCHEMA};
use crate::write::FLUSH_THRESHOLD_BYTES;

/// First bytes of a zstd frame (RFC 8878, 3.1.1).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Maximum unpacked size of a frame: see [`FLUSH_THRESHOLD_BYTES`].
const MAX_UNPACKED_BYTES: usize = 8 * FLUSH_THRESHOLD_BYTES;
/// Maximum size of a frame in the file: incompressible data grows by at most a 256th part
/// (`ZSTD_COMPRESSBOUND` of zstd.h).
const MAX_PACKED_BYTES: usize = MAX_UNPACKED_BYTES + MAX_UNPACKED_BYTES / 256;
/// Bytes read from the file at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Maximum number of caveats about the file itself; further ones are only counted.
const MAX_CAVEATS: usize = 50;
/// Maximum number of damaged places after which reading resumes. Hostile data may look like the
/// beginning of a frame every few bytes, and it may take [`MAX_PACKED_BYTES`] to refute one.
const MAX_DAMAGED_PLACES: u32 = 1_000;
/// Maximum length of an unknown schema in an error message.
const MAX_SCHEMA_CHARS: usize = 64;

/// What to do about an error from the kernel, as a clause; empty if the error says it.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory => {
            "; name a recording, as `strandline run -o FILE -- COMMAND` makes one"
        }
        _ => "",
    }
}

/// Why a file cannot be read as a recording.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be opened or read.
    #[error("{path}: {source}{}", advice(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The error from the kernel.
        source: io::Error,
    },
    /// It is not a recording.
    #[error("{path} is not a recording: {detail}; make one with `strandline run -o FILE -- COMMAND`")]
    NotARecording {
        /// The file.
        path: PathBuf,
        /// How that was noticed.
        detail: String,
    },
    /// It was written by another version.
    #[error(
        "{path} is of the schema {schema}, this strandline reads {SCHEMA}; use the version that wrote it"
    )]
    OtherSchema {
        /// The file.
        path: PathBuf,
        /// The schema in its header.
        schema: String,
    },
}

/// Reads a recording.
pub struct Reader<R: Read> {
    input: R,
    /// For messages.
    path: PathBuf,
    decompressor: Decompressor<'static>,
    /// A part of the file.
    packed: Vec<u8>,
    /// Where the bytes that are not unpacked yet begin in `packed`.
    packed_start: usize,
    /// Where `packed` begins in the file.
    file_offset: u64,
    /// Whether `packed` reaches to the end of the file.
    is_at_end: bool,
    /// The current frame, unpacked.
    lines: Vec<u8>,
    /// Where the next line to return begins in `lines`.
    next_line: usize,
    header: Header,
    /// The first record, if it is not a header.
    early_record: Option<Record>,
    /// Damage that was found, up to [`MAX_CAVEATS`].
    caveats: Vec<Caveat>,
    /// Number of caveats beyond those.
    further_caveats: u64,
    /// Number of places at which no intact frame began.
    damaged_places: u32,
    /// Number of lines that are not records.
    bad_lines: u64,
    /// Number of samples beyond those that are read of a block.
    samples_left_out: u64,
}

impl Reader<File> {
    /// Opens a recording.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Self::new(file, path)
    }
}

impl<R: Read> Reader<R> {
    /// Reads a recording from `input`; `path` is for messages.
    ///
    /// # Errors
    /// If the input cannot be read, or does not begin like a recording of this schema.
    pub fn new(input: R, path: &Path) -> Result<Self, Error> {
        let io_failed = |source| Error::Io { path: path.to_owned(), source };
        let mut reader = Self {
            input,
            path: path.to_owned(),
            decompressor: Decompressor::new().map_err(io_failed)?,
            packed: Vec::new(),
            packed_start: 0,
            file_offset: 0,
            is_at_end: false,
            lines: Vec::new(),
            next_line: 0,
            header: Header::default(),
            early_record: None,
            caveats: Vec::new(),
            further_caveats: 0,
            damaged_places: 0,
            bad_lines: 0,
            samples_left_out: 0,
        };
        reader.read_header()?;
        Ok(reader)
    }

    /// Reads the first record, which says what was recorded, and how.
    fn read_header(&mut self) -> Result<(), Error> {
        let not_a_recording = |path: &Path, detail: &str| Error::NotARecording {
            path: path.to_owned(),
            detail: detail.to_owned(),
        };
        self.fill(MAGIC.len()).map_err(|source| Error::Io { path: self.path.clone(), source })?;
        if self.packed.is_empty() {
            return Err(not_a_recording(&self.path, "it is empty"));
        }
        if !self.packed.starts_with(&MAGIC) && !MAGIC.starts_with(&self.packed) {
            return Err(not_a_recording(&self.path, "it does not begin as one"));
        }
        match self.next_record()? {
            Some(Record::Header(header)) if header.schema == SCHEMA => {
                self.header = *header;
                Ok(())
            }
            Some(Record::Header(header)) => {
                let schema =
                    header.schema.chars().filter(|c| !c.is_control()).take(MAX_SCHEMA_CHARS).collect();
                Err(Error::OtherSchema { path: self.path.clone(), schema })
            }
            Some(record) => {
                self.early_record = Some(record);
                let text = "the first line, with what was recorded and how, is lost";
                self.add_caveat("recording_headless", "byte 0".to_owned(), None, text);
                Ok(())
            }
            None if self.caveats.is_empty() => Err(not_a_recording(&self.path, "it holds no records")),
            None => Err(not_a_recording(&self.path, "it is cut off or damaged before its first record ends")),
        }
    }

    /// What was recorded, where and how. Empty, with a caveat, if that part of the file is lost.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What could not be read so far.
    pub fn caveats(&self) -> Vec<Caveat> {
        let mut caveats = self.caveats.clone();
        let place = || self.path.display().to_string();
        if self.further_caveats > 0 {
            let text = format!("{} of the file also damaged", counted(self.further_caveats, "more part"));
            caveats.push(Caveat::new("recording_damaged", place(), None, text));
        }
        if self.damaged_places > MAX_DAMAGED_PLACES {
            let text =
                format!("more than {MAX_DAMAGED_PLACES} places are damaged: what follows them is not read");
            caveats.push(Caveat::new("recording_damaged", place(), None, text));
        }
        if self.bad_lines > 0 {
            let text = format!("{} not understood and left out", counted(self.bad_lines, "line"));
            caveats.push(Caveat::new("recording_lines", place(), None, text));
        }
        if self.samples_left_out > 0 {
            let samples = counted(self.samples_left_out, "sample");
            let text = format!("{samples} left out: more than a line may have");
            caveats.push(Caveat::new("recording_lines", place(), None, text));
        }
        caveats
    }

    /// The next record; `None` at the end, whether torn or not.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn next_record(&mut self) -> Result<Option<Record>, Error> {
        if let Some(record) = self.early_record.take() {
            return Ok(Some(record));
        }
        loop {
            while let Some(line) = next_line(&self.lines, &mut self.next_line) {
                match serde_json::from_slice(line) {
                    Ok(record) => {
                        let left_out = samples_left_out(&record);
                        self.samples_left_out = self.samples_left_out.saturating_add(left_out);
                        return Ok(Some(record));
                    }
                    Err(_) => self.bad_lines += 1,
                }
            }
            match self.next_frame() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(source) => return Err(Error::Io { path: self.path.clone(), source }),
            }
        }
    }

    /// Unpacks the next intact frame into `lines`; false at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        self.lines.clear();
        self.next_line = 0;
        loop {
            self.fill(MAGIC.len())?;
            if self.packed_start == self.packed.len() {
                return Ok(false);
            }
            if let Some(packed_bytes) = self.read_frame()?
                && self.unpack(packed_bytes)
            {
                self.packed_start += packed_bytes;
                return Ok(true);
            }
            if !self.skip_damage()? {
                return Ok(false);
            }
        }
    }

    /// Reads the frame at `packed_start` into `packed` and returns its length; `None` if none
    /// begins there, or if its end is missing.
    fn read_frame(&mut self) -> io::Result<Option<usize>> {
        let mut wanted_bytes = CHUNK_BYTES;
        loop {
            self.fill(wanted_bytes)?;
            let packed = &self.packed[self.packed_start..];
            if packed.starts_with(&MAGIC)
                && let Ok(frame_bytes) = zstd_safe::find_frame_compressed_size(packed)
            {
                return Ok((frame_bytes > 0 && frame_bytes <= packed.len()).then_some(frame_bytes));
            }
            if !packed.starts_with(&MAGIC) || self.is_at_end || packed.len() >= MAX_PACKED_BYTES {
                return Ok(None);
            }
            wanted_bytes = packed.len() + CHUNK_BYTES;
        }
    }

    /// Unpacks the frame of `packed_bytes` at `packed_start` into `lines`; false if it is damaged
    /// or too large.
    fn unpack(&mut self, packed_bytes: usize) -> bool {
        let frame = &self.packed[self.packed_start..self.packed_start + packed_bytes];
        let Ok(Some(unpacked_bytes)) = zstd_safe::get_frame_content_size(frame) else { return false };
        let unpacked_bytes = usize::try_from(unpacked_bytes).unwrap_or(usize::MAX);
        if unpacked_bytes > MAX_UNPACKED_BYTES {
            return false;
        }
        self.lines.clear();
        self.lines.reserve_exact(unpacked_bytes);
        let result = self.decompressor.decompress_to_buffer(frame, &mut self.lines);
        let is_intact = result.is_ok_and(|bytes| bytes == unpacked_bytes);
        if !is_intact {
            self.lines.clear();
        }
        is_intact
    }

    /// Skips to where the next frame may begin, with a caveat for what is skipped; false if the
    /// rest of the file has no frame, or if too many places are damaged.
    fn skip_damage(&mut self) -> io::Result<bool> {
        self.damaged_places += 1;
        if self.damaged_places > MAX_DAMAGED_PLACES {
            (self.packed_start, self.is_at_end) = (self.packed.len(), true);
            return Ok(false);
        }
        let damage_offset = self.file_offset + self.packed_start as u64;
        self.packed_start += 1;
        let is_magic_found = loop {
            let packed = &self.packed[self.packed_start..];
            if let Some(index) = memchr::memmem::find(packed, &MAGIC) {
                self.packed_start += index;
                break true;
            }
            // The magic may begin in the last three bytes.
            self.packed_start += packed.len().saturating_sub(MAGIC.len() - 1);
            if self.is_at_end {
                self.packed_start = self.packed.len();
                break false;
            }
            self.fill(CHUNK_BYTES)?;
        };
        let bytes = self.file_offset + self.packed_start as u64 - damage_offset;
        let place = format!("byte {damage_offset} of {}", self.path.display());
        if is_magic_found {
            let text = format!("{} of the recording damaged and left out", counted(bytes, "byte"));
            self.add_caveat("recording_damaged", place, None, &text);
        } else {
            let text = format!(
                "the recording is cut off: its last part, {}, was not written whole",
                counted(bytes, "byte")
            );
            self.add_caveat("recording_torn", place, None, &text);
        }
        Ok(is_magic_found)
    }

    /// Makes `packed` hold `wanted_bytes` from `packed_start` on, if the file has them.
    fn fill(&mut self, wanted_bytes: usize) -> io::Result<()> {
        if self.packed.len() - self.packed_start >= wanted_bytes || self.is_at_end {
            return Ok(());
        }
        // Not at each call: if many places look like the beginning of a frame, everything would be
        // moved each time.
        if self.packed_start >= self.packed.len() / 2 {
            self.packed.drain(..self.packed_start);
            self.file_offset += self.packed_start as u64;
            self.packed_start = 0;
        }
        let missing_bytes = (wanted_bytes - (self.packed.len() - self.packed_start)).max(CHUNK_BYTES);
        let read_bytes = (&mut self.input).take(missing_bytes as u64).read_to_end(&mut self.packed)?;
        self.is_at_end = read_bytes < missing_bytes;
        Ok(())
    }

    /// Adds a caveat about the file itself, up to [`MAX_CAVEATS`].
    fn add_caveat(&mut self, code: &str, place: String, bytes: Option<u64>, text: &str) {
        if self.caveats.len() < MAX_CAVEATS {
            self.caveats.push(Caveat::new(code, place, bytes, text));
        } else {
            self.further_caveats += 1;
        }
    }
}

/// Number of samples that a record has beyond those that are read.
fn samples_left_out(record: &Record) -> u64 {
    match record {
        Record::Samples(block) => block.samples_left_out(),
        Record::GroupSamples(block) => block.samples_left_out(),
        _ => 0,
    }
}

/// The line that begins at `start`, which is moved past it; `None` at the end.
fn next_line<'a>(lines: &'a [u8], start: &mut usize) -> Option<&'a [u8]> {
    let unread = lines.get(*start..).filter(|unread| !unread.is_empty())?;
    let end = memchr::memchr(b'\n', unread).unwrap_or(unread.len());
    *start += end + 1;
    Some(&unread[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::block::{Block, Run};
    use crate::record::{Heartbeat, ProcessStart};
    use crate::sample::Sample;
    use crate::write::Writer;

    fn recording(frames: u64) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let header = Header { schema: SCHEMA.into(), interval_us: 1000, ..Header::default() };
        writer.push(&Record::Header(Box::new(header))).unwrap();
        writer.push(&Record::Process(ProcessStart { pid: 17, ..ProcessStart::default() })).unwrap();
        for frame in 0..frames {
            let sample = Sample { rss_kib: 100 * frame, ..Sample::default() };
            // Each frame is longer than the one before.
            for part in 0..=frame {
                let at_us = frame * 1_000_000 + part;
                let run = Run { at_us, span_us: 0, count: if part == 0 { 1000 - frame } else { 1 }, sample };
                writer.push(&Record::Samples(Box::new(Block::new(0, &[run])))).unwrap();
            }
            let heartbeat = Heartbeat { at_us: frame * 1_000_000, samples: frame * 1000, missed: 0 };
            writer.push(&Record::Heartbeat(heartbeat)).unwrap();
            writer.flush().unwrap();
        }
        writer.file().clone()
    }

    /// Number of samples that can be read, and caveats.
    fn read(bytes: &[u8]) -> Result<(u64, Vec<Caveat>), Error> {
        let mut reader = Reader::new(bytes, Path::new("test"))?;
        let mut samples = 0;
        while let Some(record) = reader.next_record()? {
            if let Record::Samples(block) = record {
                samples += block.runs().map(|run| run.count).sum::<u64>();
            }
        }
        Ok((samples, reader.caveats()))
    }

    #[test]
    fn what_was_written_is_read() {
        let (samples, caveats) = read(&recording(20)).unwrap();
        assert_eq!(samples, 20_000);
        assert!(caveats.is_empty(), "{caveats:?}");
    }

    #[test]
    fn lines_of_a_later_version_cost_nothing_else() {
        let mut bytes = recording(2);
        let later =
            b"{\"weather\":{\"at_us\":1}}\n{\"beat\":{\"at_us\":1,\"samples\":1,\"missed\":0,\"x\":2}}\n";
        bytes.extend(zstd::bulk::compress(later, 3).unwrap());
        bytes.extend(recording(1));
        let (samples, caveats) = read(&bytes).unwrap();
        assert_eq!(samples, 3000);
        let codes: Vec<&str> = caveats.iter().map(|caveat| &*caveat.code).collect();
        assert!(codes == ["recording_lines"] && caveats[0].text.starts_with("1 line not"), "{caveats:?}");
    }

    #[test]
    fn samples_beyond_the_bound_of_a_block_are_counted() {
        let mut bytes = recording(1);
        let us = vec!["0"; 200].join(",");
        let line = format!("{{\"samples\":{{\"process\":0,\"us\":[{us}],\"count\":[10000]}}}}\n");
        bytes.extend(zstd::bulk::compress(line.as_bytes(), 3).unwrap());
        let (samples, caveats) = read(&bytes).unwrap();
        let left_out = 2_000_000 + 1_000 - samples;
        let codes: Vec<&str> = caveats.iter().map(|caveat| &*caveat.code).collect();
        assert!(left_out > 0 && codes == ["recording_lines"], "{caveats:?}");
        assert!(caveats[0].text.starts_with(&counted(left_out, "sample")), "{caveats:?}");
    }

    #[test]
    fn cut_at_every_byte_it_is_read_up_to_the_cut() {
        let whole = recording(6);
        let mut last = 0;
        for cut in 0..whole.len() {
            match read(&whole[..cut]) {
                Ok((samples, caveats)) => {
                    assert!(samples >= last && samples % 1000 == 0, "cut at {cut}");
                    last = samples;
                    let is_whole_frame = caveats.is_empty();
                    assert!(
                        is_whole_frame || caveats[0].code == "recording_torn",
                        "cut at {cut}: {caveats:?}"
                    );
                }
                Err(error) => {
                    assert_eq!(last, 0, "cut at {cut}: {error}");
                    assert!(matches!(error, Error::NotARecording { .. }), "cut at {cut}: {error}");
                }
            }
        }
        assert_eq!(last, 5000, "all but the last frame");
    }

    #[test]
    fn a_flipped_bit_costs_one_frame_at_most() {
        let whole = recording(6);
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match read(&damaged) {
                Ok((samples, caveats)) => {
                    assert!(samples >= 5000, "bit {bit}: {samples} samples, {caveats:?}");
                    assert!(samples == 6000 || !caveats.is_empty(), "bit {bit}: a loss without a caveat");
                }
                Err(error) => assert!(bit < 32, "bit {bit}: {error}"),
            }
        }
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let text = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert!(text(b"").contains("empty"));
        assert!(text(b"hello, world").contains("not a recording"));
        assert!(
            text(&zstd::bulk::compress(b"hello\n", 3).unwrap()).contains("no records"),
            "zstd of something else"
        );
        let mut writer = Writer::new(Vec::new()).unwrap();
        let header = Header { schema: "strandline/recording/9".into(), ..Header::default() };
        writer.push(&Record::Header(Box::new(header))).unwrap();
        writer.flush().unwrap();
        assert!(text(writer.file()).contains("strandline/recording/9"));
    }

    #[test]
    fn a_frame_that_unpacks_to_gigabytes_is_left_out() {
        let bomb = zstd::bulk::compress(&vec![b'\n'; MAX_UNPACKED_BYTES + 1], 3).unwrap();
        let mut bytes = recording(2);
        bytes.extend(bomb);
        bytes.extend(recording(1));
        let (samples, caveats) = read(&bytes).unwrap();
        assert_eq!(samples, 3000);
        assert_eq!(caveats[0].code, "recording_damaged");
    }

    #[test]
    fn after_very_many_damaged_places_nothing_is_read() {
        let with_damage = |places: usize| {
            let mut bytes = recording(1);
            bytes.extend(MAGIC.repeat(places));
            bytes.extend(recording(1));
            read(&bytes).unwrap()
        };
        let max_places = MAX_DAMAGED_PLACES as usize;
        assert_eq!(with_damage(max_places).0, 2000);
        let (samples, caveats) = with_damage(max_places + 1);
        assert_eq!(samples, 1000);
        assert!(caveats.iter().any(|caveat| caveat.text.contains("is not read")), "{caveats:?}");
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut with_magic = MAGIC.to_vec();
            with_magic.extend(&bytes);
            let _ = read(&bytes);
            let _ = read(&with_magic);
        }
    }
}
