//! Figures of one process, read from its open files in /proc within a few microseconds.
//!
//! `statm` shows whether anything changed. Only then are `status` and `stat` read, which take
//! several times as long; `stat` is also read every hundredth of a second. The open files stay
//! those of one process: after its end they never refer to another.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use strandline_process::procfs::Process;
use strandline_recording::Sample;

/// The files of a process, and what was last read from them.
#[derive(Debug)]
pub struct Sampler {
    statm: File,
    stat: File,
    status: StatusFile,
    /// The content of `statm` at the last sample.
    statm_text: Vec<u8>,
    /// When `stat` was last read.
    stat_read_at: Option<Instant>,
    /// The last figures read.
    last_sample: Sample,
    /// VmHWM as last read.
    high_water_kib: Option<u64>,
    /// Whether the process was in a tracer's stop when `stat` was last read.
    is_traced_stop: bool,
}

/// Error number: no such process.
pub const ESRCH: i32 = 3;

/// Size of a buffer for `statm`: seven fields of at most 21 bytes.
const STATM_BYTES: usize = 256;
/// Size of a buffer for `stat`: 52 fields of at most 21 bytes, and a name.
const STAT_BYTES: usize = 2048;
/// Size of a buffer for `status`: a few KiB, unless its list of groups is long.
const STATUS_BYTES: usize = 16 << 10;
/// Maximum size of `status`: its list has at most 65,536 groups (NGROUPS_MAX) of up to ten digits.
const MAX_STATUS_BYTES: usize = 1 << 20;

/// By how much the lines of `status` before its sizes may become shorter, apart from the groups:
/// states, numbers of files and ids have few digits.
const MAX_SHRINKAGE_BYTES: usize = 1024;

/// Interval of reading `stat` while memory does not change: the kernel counts processor times in
/// steps of the same length.
const STAT_EVERY: Duration = Duration::from_millis(10);

/// Numbers of the fields of `stat` (proc_pid_stat(5)).
mod stat_fields {
    /// The first field after the name and the state.
    pub const PPID: u32 = 4;
    pub const MINFLT: u32 = 10;
    pub const MAJFLT: u32 = 12;
    pub const UTIME: u32 = 14;
    pub const STIME: u32 = 15;
    pub const NUM_THREADS: u32 = 20;
}
/// The state in `stat` of a process that a tracer has stopped.
const TRACING_STOP: u8 = b't';

/// Maximum number of threads to try for the memory of a process whose main thread has ended.
const MAX_THREADS_TRIED: usize = 16;

/// Units of the figures in /proc.
#[derive(Clone, Copy, Debug)]
pub struct Units {
    page_kib: u64,
    /// Clock ticks, in which `stat` has times.
    ticks_per_second: u64,
}

impl Units {
    /// The units of this machine.
    pub fn read() -> Self {
        Self {
            page_kib: strandline_sys::host::page_bytes() / 1024,
            ticks_per_second: strandline_sys::host::ticks_per_second(),
        }
    }
}

/// All current figures of a process.
#[derive(Debug)]
pub struct WholeSample {
    /// The figures of a sample.
    pub sample: Sample,
    /// Every size in `status` by name, in bytes.
    pub status_bytes: BTreeMap<String, u64>,
}

/// Reads a file from its beginning. Returns the number of bytes; ESRCH if the process is gone.
fn read_from_start(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    match file.read_at(buffer, 0)? {
        // The files of a process that is gone have no content.
        0 => Err(io::Error::from_raw_os_error(ESRCH)),
        length => Ok(length),
    }
}

/// `status`, of which the part with the sizes is read.
#[derive(Debug)]
struct StatusFile {
    file: File,
    /// Where reading begins: 0, or a little before the sizes, which may be behind a long list of
    /// groups.
    read_offset: u64,
}

impl StatusFile {
    /// Reads the part with the sizes, into `buffer` if it fits.
    fn read<'a>(&mut self, buffer: &'a mut [u8; STATUS_BYTES]) -> io::Result<Cow<'a, [u8]>> {
        if self.read_offset > 0 {
            let length = self.file.read_at(buffer, self.read_offset)?;
            // Without the first size the list has become shorter; a full buffer may lack the last.
            if length < buffer.len() && offset_of_sizes(&buffer[..length]).is_some() {
                return Ok(Cow::Borrowed(&buffer[..length]));
            }
            self.read_offset = 0;
        }
        let length = read_from_start(&self.file, buffer)?;
        if length < buffer.len() {
            return Ok(Cow::Borrowed(&buffer[..length]));
        }
        let mut whole = vec![0; MAX_STATUS_BYTES];
        let length = read_from_start(&self.file, &mut whole)?;
        whole.truncate(length);
        self.read_offset = offset_of_sizes(&whole).unwrap_or(0).saturating_sub(MAX_SHRINKAGE_BYTES) as u64;
        Ok(Cow::Owned(whole))
    }
}

/// Offset of the newline before VmPeak, the first of the sizes (fs/proc/task_mmu.c, task_mem).
fn offset_of_sizes(status: &[u8]) -> Option<usize> {
    memchr::memmem::find(status, b"\nVmPeak:")
}

impl Sampler {
    /// Opens the files of `process`.
    ///
    /// # Errors
    /// If the process is gone, or its files cannot be opened.
    pub fn open(process: &Process) -> strandline_process::error::Result<Self> {
        Self::open_files(process, "")
    }

    /// Opens the files of a process whose main thread has ended while others run: the files of
    /// another thread show its memory.
    ///
    /// # Errors
    /// If no other thread runs.
    pub fn open_by_thread(process: &Process, units: Units) -> strandline_process::error::Result<Self> {
        let pid = process.pid();
        let other_tids = process.tasks()?.into_iter().filter(|&tid| tid != pid).take(MAX_THREADS_TRIED);
        for tid in other_tids {
            if let Ok(mut sampler) = Self::open_files(process, &format!("task/{tid}/"))
                && sampler.sample(units).is_ok()
            {
                return Ok(sampler);
            }
        }
        Err(strandline_inspect::Error::Ended { pid })
    }

    /// Opens the files, those on memory in `thread_folder`: empty, or `task/TID/`.
    fn open_files(process: &Process, thread_folder: &str) -> strandline_process::error::Result<Self> {
        Ok(Self {
            statm: process.open_file(&format!("{thread_folder}statm"))?,
            stat: process.open_file("stat")?,
            status: StatusFile {
                file: process.open_file(&format!("{thread_folder}status"))?,
                read_offset: 0,
            },
            statm_text: Vec::new(),
            stat_read_at: None,
            last_sample: Sample::default(),
            high_water_kib: None,
            is_traced_stop: false,
        })
    }

    /// Reads the current figures.
    ///
    /// # Errors
    /// ESRCH if the process is gone; a zombie, which has no memory either, counts as gone.
    pub fn sample(&mut self, units: Units) -> io::Result<Sample> {
        let mut text = [0; STATM_BYTES];
        let length = read_from_start(&self.statm, &mut text)?;
        let statm = &text[..length];
        let has_changed = statm != self.statm_text;
        if has_changed {
            let mut pages = numbers(statm);
            let mut kib = || pages.next().unwrap_or(0).saturating_mul(units.page_kib);
            // size resident shared text lib data dt (proc(5)); a zombie has zeros.
            let [size, resident, shared, _, _, data] = [kib(), kib(), kib(), kib(), kib(), kib()];
            if size == 0 {
                return Err(io::Error::from_raw_os_error(ESRCH));
            }
            self.last_sample = Sample {
                rss_kib: resident,
                virtual_kib: size,
                data_kib: data,
                anonymous_kib: resident.saturating_sub(shared),
                file_kib: shared,
                // Part of `shared`, unless `status` shows it.
                shmem_kib: 0,
                ..self.last_sample
            };
            // `statm` adds data with stack, and files with shared memory.
            let mut buffer = [0; STATUS_BYTES];
            let status = self.status.read(&mut buffer)?;
            self.apply_sizes(&status);
            self.statm_text.clear();
            self.statm_text.extend_from_slice(statm);
        }
        if has_changed || self.stat_read_at.is_none_or(|read_at| read_at.elapsed() >= STAT_EVERY) {
            self.read_stat(units)?;
            self.stat_read_at = Some(Instant::now());
        }
        Ok(self.last_sample)
    }

    /// Takes over the sizes of a text of `status`, with swap and the high-water mark.
    fn apply_sizes(&mut self, status: &[u8]) {
        for (name, kib) in sizes(status) {
            match name {
                b"VmData" => self.last_sample.data_kib = kib,
                b"RssFile" => self.last_sample.file_kib = kib,
                b"RssShmem" => self.last_sample.shmem_kib = kib,
                b"RssAnon" => self.last_sample.anonymous_kib = kib,
                b"VmSwap" => self.last_sample.swap_kib = kib,
                b"VmHWM" => self.high_water_kib = Some(kib),
                _ => {}
            }
        }
        // `status` is read after `statm`: RSS becomes the sum of the parts in the same text.
        let parts = self.last_sample.anonymous_kib.saturating_add(self.last_sample.file_kib);
        let parts = parts.saturating_add(self.last_sample.shmem_kib);
        if parts > 0 {
            self.last_sample.rss_kib = parts;
        }
    }

    /// Reads faults, times and threads.
    fn read_stat(&mut self, units: Units) -> io::Result<()> {
        let mut text = [0; STAT_BYTES];
        let length = read_from_start(&self.stat, &mut text)?;
        let text = &text[..length];
        // The name (field 2) may contain anything and ends at the last bracket. The state, a
        // letter (field 3), and numbers follow. A text without a name is cut off: the last figures
        // stand.
        let Some(name_end) = text.iter().rposition(|&byte| byte == b')') else { return Ok(()) };
        self.is_traced_stop = text.get(name_end + 2) == Some(&TRACING_STOP);
        let fields = numbers(text.get(name_end + 4..).unwrap_or_default());
        for (field, value) in (stat_fields::PPID..=stat_fields::NUM_THREADS).zip(fields) {
            let ticks_in_ms = || value.saturating_mul(1000) / units.ticks_per_second;
            match field {
                stat_fields::MINFLT => self.last_sample.minor_faults = value,
                stat_fields::MAJFLT => self.last_sample.major_faults = value,
                stat_fields::UTIME => self.last_sample.user_ms = ticks_in_ms(),
                stat_fields::STIME => self.last_sample.system_ms = ticks_in_ms(),
                stat_fields::NUM_THREADS => self.last_sample.threads = value,
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads all current figures, whether anything changed or not.
    ///
    /// # Errors
    /// Like [`Sampler::sample`].
    pub fn sample_all(&mut self, units: Units) -> io::Result<WholeSample> {
        let mut buffer = [0; STATUS_BYTES];
        let text = self.status.read(&mut buffer)?;
        let mut status_bytes = BTreeMap::new();
        for (name, kib) in sizes(&text) {
            status_bytes.insert(String::from_utf8_lossy(name).into_owned(), kib.saturating_mul(1024));
            match name {
                b"VmSize" => self.last_sample.virtual_kib = kib,
                b"VmRSS" => self.last_sample.rss_kib = kib,
                _ => {}
            }
        }
        if status_bytes.is_empty() {
            // A zombie has no sizes.
            return Err(io::Error::from_raw_os_error(ESRCH));
        }
        self.apply_sizes(&text);
        self.read_stat(units)?;
        // The next sample reads again.
        self.statm_text.clear();
        Ok(WholeSample { sample: self.last_sample, status_bytes })
    }

    /// Whether the process was in a tracer's stop when `stat` was last read. A watched process
    /// stays in this state at its end; at other times the state is brief.
    pub fn is_traced_stop(&self) -> bool {
        self.is_traced_stop
    }

    /// The last figures read.
    pub fn last_sample(&self) -> Sample {
        self.last_sample
    }

    /// VmHWM as last read.
    pub fn high_water_kib(&self) -> Option<u64> {
        self.high_water_kib
    }
}

/// The numbers of a line of the kernel, in order. A word that is no number counts as 0, as a
/// negative one does (field 8 of `stat`, -1): no field that is read may be negative.
fn numbers(text: &[u8]) -> impl Iterator<Item = u64> + '_ {
    text.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()).map(|word| {
        word.iter()
            .try_fold(0u64, |value, &byte| {
                byte.is_ascii_digit().then(|| value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')))
            })
            .unwrap_or(0)
    })
}

/// The lines of `status` that are memory sizes, in KiB. The process chooses the value of one line,
/// its name, but cannot forge a size with it: the kernel escapes newlines in the name.
fn sizes(text: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    text.split(|&byte| byte == b'\n').filter_map(|line| {
        let is_size =
            line.starts_with(b"Vm") || line.starts_with(b"Rss") || line.starts_with(b"HugetlbPages");
        let (name, value) = line.split_at(line.iter().position(|&byte| byte == b':').filter(|_| is_size)?);
        let value = value.strip_prefix(b":")?.strip_suffix(b" kB")?;
        numbers(value).next().map(|kib| (name, kib))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_sampler() -> (Process, Sampler) {
        let process = Process::open(std::process::id() as i32).unwrap();
        let sampler = Sampler::open(&process).unwrap();
        (process, sampler)
    }

    #[test]
    fn own_figures_are_those_of_status() {
        let (process, mut sampler) = own_sampler();
        let before = process.stat().unwrap();
        let WholeSample { sample, status_bytes } = sampler.sample_all(Units::read()).unwrap();
        let after = process.stat().unwrap();
        assert!(
            status_bytes["VmRSS"] > 0 && status_bytes["VmData"] == sample.data_kib * 1024,
            "{status_bytes:?}"
        );
        assert_eq!(sample.rss_kib, sample.anonymous_kib + sample.file_kib + sample.shmem_kib);
        // Other tests in this process touch pages at the same time.
        assert!((before.minor_faults..=after.minor_faults).contains(&sample.minor_faults));
        assert!(sample.minor_faults > 0);
        assert!(sample.threads >= 2, "tests run on threads of their own");
        assert!(sampler.high_water_kib().unwrap() >= 1000);
    }

    #[test]
    fn sizes_behind_a_long_list_of_groups_are_read() {
        let mut status = StatusFile { file: tempfile::tempfile().unwrap(), read_offset: 0 };
        // The numbers of groups one after another, and whether the whole text has to be read.
        let steps = [
            (3, false),
            (60_000, true),
            (60_000, false),
            (60_100, false),
            (59_900, false),
            (70_000, true),
            (30_000, true),
            (3, false),
        ];
        for (step, (groups, is_whole)) in steps.into_iter().enumerate() {
            let list = "1000 ".repeat(groups);
            let text =
                format!("Name:\tx\nGroups:\t{list}\nVmPeak:\t    90 kB\nVmRSS:\t    84 kB\nSeccomp:\t0\n");
            status.file.set_len(0).unwrap();
            status.file.write_all_at(text.as_bytes(), 0).unwrap();
            let mut buffer = [0; STATUS_BYTES];
            let text = status.read(&mut buffer).unwrap();
            assert_eq!(matches!(text, Cow::Owned(_)), is_whole, "step {step}");
            let expected = [(b"VmPeak".as_slice(), 90), (b"VmRSS".as_slice(), 84)];
            assert_eq!(sizes(&text).collect::<Vec<_>>(), expected, "step {step}");
        }
    }

    #[test]
    fn a_block_that_is_touched_is_seen() {
        use std::io::Write;
        // Other tests in this process free memory at the same time, hence a child. dd waits for the
        // last byte of its block.
        let mut dd = std::process::Command::new("dd");
        dd.args(["bs=64M", "count=1", "iflag=fullblock", "of=/dev/null"]);
        dd.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
        let mut child = dd.spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        // Before its exec it shares the memory of this process.
        let own = own_sampler().0.executable();
        while process.executable().is_none_or(|path| Some(path) == own) {
            std::thread::yield_now();
        }
        let mut sampler = Sampler::open(&process).unwrap();
        let before = sampler.sample(Units::read()).unwrap();
        // What was written has been read, except for what is in the pipe.
        child.stdin.as_mut().unwrap().write_all(&vec![1; (64 << 20) - 1]).unwrap();
        let after = sampler.sample(Units::read()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(after.anonymous_kib >= before.anonymous_kib + (60 << 10), "{before:?} {after:?}");
        assert!(after.data_kib >= 64 << 10, "{after:?}");
    }

    #[test]
    fn an_ended_process_is_removed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        let mut sampler = Sampler::open(&process).unwrap();
        assert!(sampler.sample(Units::read()).is_ok());
        child.kill().unwrap();
        while !process.status().unwrap().is_zombie() {
            std::thread::yield_now();
        }
        assert!(sampler.sample(Units::read()).is_err(), "a zombie");
        child.wait().unwrap();
        assert_eq!(sampler.sample(Units::read()).unwrap_err().raw_os_error(), Some(3));
    }

    #[test]
    fn numbers_survive_anything() {
        assert_eq!(numbers(b"1 -1 x 99999999999999999999999 7\n").count(), 5);
        assert_eq!(sizes(b"VmRSS:\t  12 kB\nVmX\nName:\tVmRSS: 3 kB\nVmHWM:\t kB\n").count(), 1);
    }
}
