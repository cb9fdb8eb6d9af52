//! Facts from the file of a program: whether a library can be preloaded, and which interpreter runs
//! a script.
//!
//! Sizes of reads are limited, because the content is not trusted. No program is started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};
use strandline_sys::spawn::DEFAULT_PATH;

use crate::path_error::AtPath;

/// Maximum number of scripts in a row that the kernel follows (`fs/exec.c`, `exec_binprm`: ELOOP
/// at a `depth` above 5).
const MAX_SCRIPTS: usize = 5;
/// Maximum size of a table that is read.
const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Maximum length of the name of a dynamic loader: the kernel starts no program with a longer one
/// (`fs/binfmt_elf.c`, `load_elf_binary`: `PATH_MAX`).
const MAX_LOADER_BYTES: u64 = 4096;
/// Maximum length of the first line of a script, as in the kernel since Linux 5.1
/// (include/uapi/linux/binfmts.h, `BINPRM_BUF_SIZE`).
const MAX_LINE_BYTES: usize = 256;
/// Length of the start of an ELF file up to its class, and the index of the class (elf(5),
/// `EI_CLASS`).
const CLASS_END: usize = CLASS_INDEX + 1;
const CLASS_INDEX: usize = 4;
/// Room for the value of `security.capability`, at most 24 bytes (include/uapi/linux/capability.h,
/// `XATTR_CAPS_SZ`).
const CAPABILITY_BYTES: usize = 64;
/// Permission to execute, of the user, the group or others.
const EXECUTABLE_BITS: u32 = 0o111;

/// Facts from the file of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// Whether the command names this file and not a script that it interprets.
    pub is_direct: bool,
    /// 32 or 64.
    pub bits: u8,
    /// Its dynamic loader (`/lib64/ld-linux-x86-64.so.2`); `None` if it is linked statically.
    pub loader: Option<String>,
    /// Why the loader ignores the environment: setuid, setgid or file capabilities; `None` if it
    /// does not.
    pub privilege: Option<String>,
    /// Whether it defines `malloc` where the loader searches first.
    pub defines_malloc: bool,
}

impl Program {
    /// File name without folders.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Reads the program that `command` starts, which for a script is its interpreter. Relative
    /// paths start at `directory`; `search` is the value of `PATH`.
    ///
    /// # Errors
    /// One line that names the file that is missing or not a program.
    pub fn of_command(
        command: &[String],
        directory: Option<&Path>,
        search: Option<&str>,
    ) -> Result<Self, String> {
        let name = command.first().ok_or("there is no command")?;
        let mut path = find(OsStr::new(name), directory, search)?;
        for step in 0..=MAX_SCRIPTS {
            match interpreter(&path)? {
                None => return Ok(Self { is_direct: step == 0, ..Self::of_file(&path)? }),
                Some(interpreter) => path = find(&interpreter, directory, search)?,
            }
        }
        Err(format!("{name}: scripts that start scripts, more than {MAX_SCRIPTS} deep"))
    }

    /// Reads the program in the file `path`.
    ///
    /// # Errors
    /// One line that names the file and the reason why it cannot be read as an ELF file.
    pub fn of_file(path: &Path) -> Result<Self, String> {
        let file = File::open(path).at(path)?;
        let metadata = file.metadata().at(path)?;
        let privilege = privilege(path, metadata.permissions().mode());
        let file_data = ReadCache::new(file);
        let class = file_data.read_bytes_at(0, CLASS_END as u64).ok();
        let class = class.and_then(|bytes| bytes.get(CLASS_INDEX).copied());
        let (bits, linking) = match class {
            Some(class) if class == elf::ELFCLASS32.0 => {
                (32, Linking::read::<elf::FileHeader32<object::Endianness>, _>(&file_data))
            }
            _ => (64, Linking::read::<elf::FileHeader64<object::Endianness>, _>(&file_data)),
        };
        let Linking { loader, defines_malloc } =
            linking.ok_or_else(|| format!("{}: no program in the ELF format", path.display()))?;
        Ok(Self { path: path.to_owned(), is_direct: true, bits, loader, privilege, defines_malloc })
    }
}

/// How an ELF file is linked.
struct Linking {
    loader: Option<String>,
    defines_malloc: bool,
}

impl Linking {
    /// Reads how a file is linked; `None` if it is no program.
    fn read<'data, H: FileHeader, R: ReadRef<'data>>(file_data: R) -> Option<Self> {
        let header = H::parse(file_data).ok()?;
        let endian = header.endian().ok()?;
        // An extended number may be large; the kernel starts no such program.
        if header.e_phnum(endian) == elf::PN_XNUM {
            return None;
        }
        let mut loader = None;
        for segment in header.program_headers(endian, file_data).ok()? {
            let bytes: u64 = segment.p_filesz(endian).into();
            if bytes <= MAX_LOADER_BYTES
                && let Some(name) = segment.interpreter(endian, file_data).ok()?
            {
                loader = Some(String::from_utf8_lossy(name).into_owned());
            }
        }
        // A valid program may have no sections. It then counts as not defining malloc: the
        // candidate is tried, and its figures show whether it has an effect.
        let defines_malloc = defines_malloc::<H, R>(header, endian, file_data).unwrap_or(false);
        Some(Self { loader, defines_malloc })
    }
}

/// Whether an ELF file exports `malloc`; `None` if its table of dynamic symbols cannot be read.
fn defines_malloc<'data, H: FileHeader, R: ReadRef<'data>>(
    header: &H,
    endian: H::Endian,
    file_data: R,
) -> Option<bool> {
    // There are no sections, or their number is extended (elf(5), `e_shnum`).
    if header.e_shnum(endian) == 0 {
        return None;
    }
    let sections = header.sections(endian, file_data).ok()?;
    let (_, table) = sections.enumerate().find(|(_, section)| section.sh_type(endian) == elf::SHT_DYNSYM)?;
    let names = sections.section(object::SectionIndex(table.sh_link(endian) as usize)).ok()?;
    let is_small = |section: &H::SectionHeader| section.sh_size(endian).into() <= MAX_TABLE_BYTES;
    if !is_small(table) || !is_small(names) {
        return None;
    }
    let names = names.data(endian, file_data).ok()?;
    let symbols: &[H::Sym] = table.data_as_array(endian, file_data).ok()?;
    Some(symbols.iter().any(|symbol| {
        let name = names.get(symbol.st_name(endian) as usize..).unwrap_or_default();
        !symbol.is_undefined(endian) && name.starts_with(b"malloc\0")
    }))
}

/// Whether the file is an ELF file of `bits` (32 or 64); a program loads only libraries of its own
/// class.
pub fn has_word_size(library: &Path, bits: u8) -> bool {
    let mut start = [0u8; CLASS_END];
    let read = File::open(library).and_then(|mut file| file.read_exact(&mut start));
    let class = if bits == 32 { elf::ELFCLASS32.0 } else { elf::ELFCLASS64.0 };
    read.is_ok() && start.starts_with(b"\x7fELF") && start.ends_with(&[class])
}

/// Returns why a process of this file would gain privileges; `None` if it would not.
fn privilege(path: &Path, mode: u32) -> Option<String> {
    let bits = [(0o4000, "setuid"), (0o2000, "setgid")];
    if let Some((_, name)) = bits.iter().find(|(bit, _)| mode & bit != 0) {
        return Some((*name).to_owned());
    }
    let mut value = [0u8; CAPABILITY_BYTES];
    let length = rustix::fs::getxattr(path, "security.capability", &mut value[..]);
    length.is_ok_and(|length| length > 0).then(|| "file capabilities".to_owned())
}

/// Returns the file that `name` starts: `name` itself if it is a path, else the first program of
/// that name in the folders of `search`. Relative paths start at `directory`.
pub(crate) fn find(name: &OsStr, directory: Option<&Path>, search: Option<&str>) -> Result<PathBuf, String> {
    let at = |path: &Path| directory.map_or_else(|| path.to_owned(), |directory| directory.join(path));
    if name.as_bytes().contains(&b'/') {
        let path = at(Path::new(name));
        return if path.is_file() { Ok(path) } else { Err(format!("{}: no such file", path.display())) };
    }
    let folders = search.filter(|search| !search.is_empty()).unwrap_or(DEFAULT_PATH).split(':');
    let mut paths =
        folders.map(|folder| at(&Path::new(if folder.is_empty() { "." } else { folder }).join(name)));
    paths
        .find(|path| is_executable(path))
        .ok_or_else(|| format!("{}: not found in PATH", name.to_string_lossy()))
}

/// Whether `path` is a file that somebody may execute.
pub(crate) fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & EXECUTABLE_BITS != 0)
}

/// Returns the interpreter of the script `path`: the word after `#!`, or the program that `env`
/// starts. `None` if the file is not a script.
fn interpreter(path: &Path) -> Result<Option<OsString>, String> {
    let file = File::open(path).at(path)?;
    let mut start = Vec::new();
    file.take(MAX_LINE_BYTES as u64).read_to_end(&mut start).at(path)?;
    let Some(line) = start.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let interpreter = words.next().ok_or_else(|| format!("{}: `#!` without a program", path.display()))?;
    let is_env = interpreter.rsplit(|&byte| byte == b'/').next() == Some(b"env");
    let word = if is_env {
        words.find(|word| !word.starts_with(b"-") && !word.contains(&b'=')).unwrap_or(interpreter)
    } else {
        interpreter
    };
    Ok(Some(OsStr::from_bytes(word).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn script(folder: &Path, name: &str, text: &str) -> String {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    #[test]
    fn a_dynamic_program_has_a_loader() {
        let program = Program::of_command(&command(&["cat"]), None, Some("/nowhere:/usr/bin")).unwrap();
        assert!(
            program.is_direct && program.bits == 64 && program.privilege.is_none() && !program.defines_malloc
        );
        assert!(program.loader.is_some_and(|loader| loader.contains("ld")));
        assert!(has_word_size(Path::new("/bin/cat"), 64) && !has_word_size(Path::new("/bin/cat"), 32));
        assert!(!has_word_size(Path::new("/etc/passwd"), 64));
    }

    #[test]
    fn scripts_are_followed_to_their_interpreters() {
        let folder = tempfile::tempdir().unwrap();
        let plain = script(folder.path(), "plain", "#!/bin/cat\n");
        let by_env = script(folder.path(), "by-env", "#! /usr/bin/env -S A=1 cat -n\nx\n");
        let twice = script(folder.path(), "twice", &format!("#!{plain}\n"));
        for path in [&plain, &by_env, &twice] {
            let program = Program::of_command(&command(&[path]), None, Some("/bin")).unwrap();
            assert_eq!(program.name(), "cat", "{path}");
            assert!(!program.is_direct);
        }
        let script_path = script(folder.path(), "own", "");
        std::fs::write(&script_path, format!("#!{script_path}\n")).unwrap();
        assert!(Program::of_command(&command(&[&script_path]), None, None).unwrap_err().contains("deep"));
    }

    #[test]
    fn errors_are_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let text = script(folder.path(), "text", "no program");
        let cut = folder.path().join("cut");
        std::fs::write(&cut, std::fs::read("/bin/cat").unwrap().get(..100).unwrap()).unwrap();
        for words in [vec!["no-such-program"], vec!["/no/such"], vec![text.as_str()], vec![]] {
            let error = Program::of_command(&command(&words), None, Some("/bin")).unwrap_err();
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(Program::of_file(&cut).is_err());
        let mut extended = std::fs::read("/bin/cat").unwrap();
        // e_phnum of Elf64_Ehdr.
        extended[56..58].copy_from_slice(&elf::PN_XNUM.to_ne_bytes());
        std::fs::write(&cut, extended).unwrap();
        assert!(Program::of_file(&cut).is_err());
    }

    #[test]
    fn damaged_programs_never_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged");
        let program_bytes = std::fs::read("/bin/cat").unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let mut bytes = program_bytes.clone();
            for _ in 0..20 {
                let at = if random.bool() { random.usize(..1024) } else { random.usize(..bytes.len()) };
                bytes[at] = random.u8(..);
            }
            bytes.truncate(if random.bool() {
                program_bytes.len()
            } else {
                random.usize(..program_bytes.len())
            });
            std::fs::write(&path, &bytes).unwrap();
            drop(Program::of_file(&path));
        }
    }

    #[test]
    fn setuid_and_setgid_are_privileges() {
        assert_eq!(privilege(Path::new("/bin/cat"), 0o104_755).as_deref(), Some("setuid"));
        assert_eq!(privilege(Path::new("/bin/cat"), 0o102_755).as_deref(), Some("setgid"));
        assert_eq!(privilege(Path::new("/bin/cat"), 0o100_755), None);
    }
}
