//! `report FILE…`: recordings as charts, pages, tables and documents.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use strandline_inspect::environment::Environment;
use strandline_recording::{Error as ReadError, Reader};
use tempfile::NamedTempFile;

use super::arguments::{Format, Report};
use super::holders;
use super::output::{Output, print_message};
use super::{CommandResult, Failure, Result, refuse};
use strandline_report::template::DrawError;
use strandline_report::timeline::chart::{self, Glyphs};
use strandline_report::timeline::{Timeline, export, groups_csv, html, svg};

/// Maximum number of recordings in a report: more lines of a chart cannot be distinguished.
pub const MAX_FILES: usize = html::MAX_RECORDINGS;
/// Number of roots and types shown of a `holders` document.
const HOLDERS_SHOWN: usize = 20;

/// Reads the recordings and writes the requested format.
pub fn run(arguments: &Report, output: &mut Output) -> Result<CommandResult> {
    let format = if output.is_json { Some(Format::Json) } else { arguments.format };
    let files = &arguments.files;
    let holders_document = files.iter().find(|file| holders::is_document(file));
    if let Err(line) = check_arguments(arguments, format, holders_document) {
        return refuse(&line);
    }
    if let Some(document) = holders_document {
        return show_holders(document, arguments, output);
    }
    check_files(files, format)?;
    let timelines =
        files.iter().map(|file| Timeline::read(file)).collect::<std::result::Result<Vec<_>, _>>()?;
    let Some(format) = format else {
        return chart(&timelines, arguments, output);
    };
    let mut destination = Destination::open(arguments, format)?;
    let written = match format {
        Format::Json => export::json(files, &timelines, &Environment::read(), &mut destination.writer),
        Format::Csv => export::csv(files, &mut destination.writer),
        Format::GroupsCsv => groups_csv::csv(files, &timelines, &mut destination.writer),
        Format::Html => destination.write(html::page(&timelines).map(String::into_bytes)),
        Format::Svg => destination.write(svg::svg(&timelines).map(String::into_bytes)),
        Format::Png => destination.write(svg::png(&timelines)),
    };
    destination.finish(written)
}

/// Whether a format is written from recordings that are read twice.
fn needs_regular_files(format: Option<Format>) -> bool {
    matches!(format, Some(Format::Csv | Format::GroupsCsv | Format::Json))
}

/// Refuses files and options that cannot be combined.
fn check_arguments(
    arguments: &Report,
    format: Option<Format>,
    holders_document: Option<&PathBuf>,
) -> std::result::Result<(), String> {
    let files = &arguments.files;
    let refuse = |line: &str| Err(line.to_owned());
    if arguments.r#type.is_some() && holders_document.is_some() {
        return refuse("--type applies to recordings, not to a holders document: leave it out");
    }
    if arguments.r#type.is_some() && format.is_some() {
        return refuse(
            "--type is for the chart in the terminal: leave --format and --json out (json has all types)",
        );
    }
    if let Some(document) = holders_document {
        let line =
            format!("{}: a holders document is reported alone: name no other file", document.display());
        return if files.len() > 1 { Err(line) } else { Ok(()) };
    }
    Ok(())
}

/// Checks that a recording that is read twice is no pipe.
fn check_files(files: &[PathBuf], format: Option<Format>) -> Result<()> {
    let is_pipe = |file: &&PathBuf| {
        std::fs::metadata(file).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
    };
    match files.iter().find(is_pipe) {
        Some(pipe) if needs_regular_files(format) => Err(Failure(format!(
            "{}: csv, groups-csv and json read a recording twice, and a pipe can be read once; save it to a file first",
            pipe.display()
        ))),
        _ => Ok(()),
    }
}

/// Shows a `holders --json` document as a page or on the terminal.
fn show_holders(file: &Path, arguments: &Report, output: &mut Output) -> Result<CommandResult> {
    let findings = holders::read(file)?;
    match arguments.format.filter(|_| !output.is_json) {
        None if !output.is_json && arguments.output.is_none() => {
            output.print(&strandline_report::holders::details(
                &findings,
                Some(HOLDERS_SHOWN),
                output.surface,
            ))?;
            Ok(CommandResult::Done)
        }
        Some(Format::Html) => {
            let mut destination = Destination::open(arguments, Format::Html)?;
            let page = strandline_report::holders::page::page(&findings).map(String::into_bytes);
            let written = destination.write(page);
            destination.finish(written)
        }
        _ => Err(Failure(format!(
            "{}: a holders document can be shown in the terminal (no --format, no -o) or as a page (--format html)",
            file.display()
        ))),
    }
}

/// Shows recordings as a chart of text.
fn chart(timelines: &[Timeline], arguments: &Report, output: &mut Output) -> Result<CommandResult> {
    let variable = |name: &str| std::env::var(name).ok();
    let (lc_all, ctype, lang) = (variable("LC_ALL"), variable("LC_CTYPE"), variable("LANG"));
    let glyphs = Glyphs::of_locale(lc_all.as_deref(), ctype.as_deref(), lang.as_deref());
    let text = chart::chart(timelines, arguments.r#type.as_deref(), output.surface, glyphs);
    let Some(path) = &arguments.output else {
        output.print(&text)?;
        return Ok(CommandResult::Done);
    };
    let mut destination = Destination::create(path.clone())?;
    let written = destination.writer.write_all(text.as_bytes()).map_err(Into::into);
    destination.finish(written)
}

/// Refuses to overwrite a recording, also of another version, or a `holders` document.
fn refuse_overwrite(output: &Path) -> Result<()> {
    let is_file = std::fs::metadata(output).is_ok_and(|metadata| metadata.is_file());
    let is_recording = || matches!(Reader::open(output), Ok(_) | Err(ReadError::OtherSchema { .. }));
    let kind = match is_file {
        true if holders::is_document(output) => "document",
        true if is_recording() => "recording",
        _ => return Ok(()),
    };
    let name = output.display();
    Err(Failure(format!("{name} is a {kind}: it is not overwritten; name another file with -o")))
}

/// Whether a report was written.
type Written = std::result::Result<(), export::ExportError>;

/// The destination of a report: a file appears under its name only when it is complete.
struct Destination {
    writer: Box<dyn Write>,
    /// The incomplete file; `None` for a device, a pipe or standard output.
    temporary: Option<NamedTempFile>,
    /// The path that the incomplete file gets in the end; `None` without such a file.
    path: Option<PathBuf>,
    name: String,
    /// Whether strandline chose the name of the file, and has to print it.
    has_default_name: bool,
}

impl Destination {
    /// The file that `-o` names, or standard output; a picture is not written to a terminal, but to
    /// a file that is named after the first recording.
    fn open(arguments: &Report, format: Format) -> Result<Self> {
        let is_picture = matches!(format, Format::Html | Format::Svg | Format::Png);
        match &arguments.output {
            Some(path) => Self::create(path.clone()),
            None if is_picture && std::io::stdout().is_terminal() => {
                let path = default_name(arguments.files.first(), format);
                Ok(Self { has_default_name: true, ..Self::create(path)? })
            }
            None => Ok(Self {
                writer: Box::new(std::io::stdout().lock()),
                temporary: None,
                path: None,
                name: "standard output".to_owned(),
                has_default_name: false,
            }),
        }
    }

    /// The file, device or pipe `path`; refuses to overwrite what strandline reads.
    fn create(path: PathBuf) -> Result<Self> {
        let cannot_write = |error: std::io::Error| {
            Failure(format!("{}: {error}; name another file with -o", path.display()))
        };
        let name = path.display().to_string();
        refuse_overwrite(&path)?;
        let existing = std::fs::metadata(&path).ok();
        if existing.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            // Write directly to a device or a pipe.
            let writer = Box::new(File::options().write(true).open(&path).map_err(cannot_write)?);
            return Ok(Self { writer, temporary: None, path: None, name, has_default_name: false });
        }
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        // With the permissions of an existing file, or those that the umask allows.
        let existing = existing.map(|metadata| metadata.permissions());
        let permissions = existing.clone().unwrap_or_else(|| std::fs::Permissions::from_mode(0o666));
        let mut builder = tempfile::Builder::new();
        let temporary = builder.permissions(permissions).tempfile_in(folder).map_err(cannot_write)?;
        if let Some(existing) = existing {
            // The umask was applied to these too.
            temporary.as_file().set_permissions(existing).map_err(cannot_write)?;
        }
        let writer = Box::new(temporary.reopen().map_err(cannot_write)?);
        Ok(Self { writer, temporary: Some(temporary), path: Some(path), name, has_default_name: false })
    }

    /// Writes a drawn page or picture.
    fn write(&mut self, drawn: std::result::Result<Vec<u8>, DrawError>) -> Written {
        Ok(self.writer.write_all(&drawn?)?)
    }

    /// Completes the report if it was `written`, and prints the name that strandline chose.
    fn finish(self, written: Written) -> Result<CommandResult> {
        let (name, has_default_name) = (self.name.clone(), self.has_default_name);
        match written.and_then(|()| self.persist().map_err(Into::into)) {
            // A reader that closes the pipe early (`| head`) is not an error.
            Err(export::ExportError::Io(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(export::ExportError::Draw(error)) => return Err(Failure(error.to_string())),
            Err(error) => return Err(Failure(format!("{name}: {error}"))),
            Ok(()) if has_default_name => print_message(&format!("wrote {name}")),
            Ok(()) => {}
        }
        Ok(CommandResult::Done)
    }

    /// Gives a complete file its name.
    fn persist(self) -> std::io::Result<()> {
        let Self { mut writer, temporary, path, .. } = self;
        writer.flush()?;
        match (temporary, path) {
            (Some(temporary), Some(path)) => temporary.persist(path).map(drop).map_err(|error| error.error),
            _ => Ok(()),
        }
    }
}

/// The name of a picture, in the working folder. Only the recording's last extension is replaced:
/// `app.2.strandline` is another recording than `app.strandline`.
fn default_name(recording: Option<&PathBuf>, format: Format) -> PathBuf {
    let stem = recording.and_then(|file| file.file_stem()).unwrap_or(OsStr::new("report"));
    let mut name = stem.to_owned();
    name.push(".");
    name.push(extension(format));
    name.into()
}

fn extension(format: Format) -> &'static str {
    match format {
        Format::Html => "html",
        Format::Svg => "svg",
        Format::Png => "png",
        Format::Csv | Format::GroupsCsv => "csv",
        Format::Json => "json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_recording::{Header, Record, Writer};

    #[test]
    fn pictures_of_different_recordings_have_different_names() {
        for (recording, picture) in [
            ("perl.strandline", "perl.html"),
            ("folder/perl5.36.strandline", "perl5.36.html"),
            ("app.2.strandline", "app.2.html"),
            ("recording", "recording.html"),
            ("..", "report.html"),
        ] {
            let name = default_name(Some(&PathBuf::from(recording)), Format::Html);
            assert_eq!(name, PathBuf::from(picture));
        }
    }

    #[test]
    fn a_recording_of_another_version_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("newer.strandline");
        let mut writer = Writer::new(File::create(&path).unwrap()).unwrap();
        let schema = "strandline/recording/99".to_owned();
        writer.push(&Record::Header(Box::new(Header { schema, ..Header::default() }))).unwrap();
        writer.flush().unwrap();
        let refusal = refuse_overwrite(&path).unwrap_err();
        assert!(refusal.0.contains("is a recording: it is not overwritten"), "{refusal:?}");
        std::fs::write(&path, "text").unwrap();
        assert!(refuse_overwrite(&path).is_ok());
    }

    #[test]
    fn a_file_is_replaced_only_by_a_complete_one_with_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chart.txt");
        std::fs::write(&path, "old").unwrap();
        // Group write permission: most umasks remove it from new files.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
        let mut destination = Destination::create(path.clone()).unwrap();
        destination.writer.write_all(b"new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert!(destination.finish(Ok(())).is_ok());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o664);
    }
}
