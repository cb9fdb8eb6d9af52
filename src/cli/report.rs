//! `report FILE…`: recordings as charts, pages, tables and documents.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use strandline_recording::Reader;
use tempfile::NamedTempFile;

use super::arguments::{Format, Report};
use super::holders;
use super::output::{Output, print_message};
use super::{CommandResult, Failure, Result};
use strandline_report::timeline::chart::{self, Glyphs};
use strandline_report::timeline::{Timeline, export, groups_csv, html, svg};

/// More lines cannot be distinguished.
pub const MAX_FILES: usize = 8;
/// Number of roots and types shown of a `holders` document.
const HOLDERS_SHOWN: usize = 20;

/// Reads the recordings and writes the requested format.
pub fn run(arguments: &Report, output: &mut Output) -> Result<CommandResult> {
    let format = if output.json { Some(Format::Json) } else { arguments.format };
    let files = &arguments.files;
    let is_of_holders = files.iter().any(|file| holders::is_document(file));
    if arguments.r#type.is_some() && is_of_holders {
        return Err(Failure("--type is for the chart of a recording: leave it out".to_owned()));
    }
    if arguments.r#type.is_some() && format.is_some() {
        return Err(Failure(
            "--type is for the chart in the terminal: leave --format and --json out (json has all types)"
                .to_owned(),
        ));
    }
    if matches!(format, Some(Format::Csv | Format::GroupsCsv | Format::Json)) && files.len() > 1 {
        return Err(Failure(
            "csv, groups-csv and json are of one recording each: call report once for each file".to_owned(),
        ));
    }
    if let Some(output) = &arguments.output {
        refuse_overwrite(output)?;
    }
    if let Some(file) = files.iter().find(|file| holders::is_document(file)) {
        if files.len() > 1 {
            let name = file.display();
            return Err(Failure(format!(
                "{name}: what holders wrote is shown by itself: name no other file"
            )));
        }
        return of_holders(file, arguments, output);
    }
    if matches!(format, Some(Format::Csv | Format::GroupsCsv | Format::Json)) {
        let is_pipe =
            |file: &&PathBuf| std::fs::metadata(file).is_ok_and(|data| !data.is_file() && !data.is_dir());
        if let Some(pipe) = files.iter().find(is_pipe) {
            return Err(Failure(format!(
                "{}: csv, groups-csv and json read a recording twice, and a pipe can be read once; save it to a file first",
                pipe.display()
            )));
        }
    }
    let timelines =
        files.iter().map(|file| Timeline::read(file)).collect::<std::result::Result<Vec<_>, _>>()?;
    let Some(format) = format else {
        return chart(&timelines, arguments, output);
    };
    let mut out = Out::open(arguments, format)?;
    let (Some(file), Some(timeline)) = (files.first(), timelines.first()) else {
        return Ok(CommandResult::Done);
    };
    let written = match format {
        Format::Json => export::json(file, timeline, &mut out.to),
        Format::Csv => export::csv(file, &mut out.to),
        Format::GroupsCsv => groups_csv::csv(file, timeline, &mut out.to),
        Format::Html => picture(html::page(&timelines).map(String::into_bytes), &mut out)?,
        Format::Svg => picture(svg::svg(&timelines).map(String::into_bytes), &mut out)?,
        Format::Png => picture(svg::png(&timelines), &mut out)?,
    };
    let (name, is_named_by_us) = (out.name.clone(), out.is_named_by_us);
    written_as(&name, is_named_by_us, written.and_then(|()| out.finish().map_err(Into::into)))
}

/// Converts the result of writing.
fn written_as(
    name: &str,
    has_default_name: bool,
    written: std::result::Result<(), export::ExportError>,
) -> Result<CommandResult> {
    match written {
        // A reader that closes the pipe early (`| head`) is not an error.
        Err(export::ExportError::Io(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Ok(CommandResult::Done)
        }
        Err(error) => Err(Failure(format!("{name}: {error}"))),
        Ok(()) => {
            if has_default_name {
                print_message(&format!("wrote {name}"));
            }
            Ok(CommandResult::Done)
        }
    }
}

/// Shows a `holders --json` document as a page or on the terminal.
fn of_holders(file: &Path, arguments: &Report, output: &mut Output) -> Result<CommandResult> {
    let found = holders::read(file)?;
    match arguments.format.filter(|_| !output.json) {
        None if !output.json && arguments.output.is_none() => {
            output.print(&strandline_report::holders::details(
                &found,
                Some(HOLDERS_SHOWN),
                output.surface,
            ))?;
            Ok(CommandResult::Done)
        }
        Some(Format::Html) => {
            let mut out = Out::open(arguments, Format::Html)?;
            let page = strandline_report::holders::page::page(&found).map(String::into_bytes);
            let (name, is_named_by_us) = (out.name.clone(), out.is_named_by_us);
            let written = picture(page, &mut out)?;
            written_as(&name, is_named_by_us, written.and_then(|()| out.finish().map_err(Into::into)))
        }
        _ => Err(Failure(format!(
            "{}: of what holders wrote --format html makes a page; without it, it is shown here",
            file.display()
        ))),
    }
}

/// Writes a drawn picture; the outer error is that of drawing, the inner one that of writing.
fn picture<E: std::fmt::Display>(
    drawn: std::result::Result<Vec<u8>, E>,
    out: &mut Out,
) -> Result<std::result::Result<(), export::ExportError>> {
    let bytes = drawn.map_err(|error| Failure(error.to_string()))?;
    Ok(out.to.write_all(&bytes).map_err(Into::into))
}

fn chart(timelines: &[Timeline], arguments: &Report, output: &mut Output) -> Result<CommandResult> {
    let variable = |name: &str| std::env::var(name).ok();
    let (all, ctype, lang) = (variable("LC_ALL"), variable("LC_CTYPE"), variable("LANG"));
    let glyphs = Glyphs::of_locale(all.as_deref(), ctype.as_deref(), lang.as_deref());
    let text = chart::chart(timelines, arguments.r#type.as_deref(), output.surface, glyphs);
    match &arguments.output {
        None => output.print(&text)?,
        Some(path) => {
            std::fs::write(path, text).map_err(|error| Failure(format!("{}: {error}", path.display())))?;
        }
    }
    Ok(CommandResult::Done)
}

/// Refuses to overwrite a recording or a `holders` document.
fn refuse_overwrite(output: &Path) -> Result<()> {
    if holders::is_document(output) {
        let name = output.display();
        return Err(Failure(format!(
            "{name} is a document: it is not overwritten; name another file with -o"
        )));
    }
    let is_file = std::fs::metadata(output).is_ok_and(|data| data.is_file());
    if is_file && Reader::open(output).is_ok() {
        return Err(Failure(format!(
            "{} is a recording: it is not overwritten; name another file with -o",
            output.display()
        )));
    }
    Ok(())
}

/// The destination of a report: a file appears under its name only when it is complete.
struct Out {
    to: Box<dyn Write>,
    temporary: Option<NamedTempFile>,
    path: Option<PathBuf>,
    name: String,
    is_named_by_us: bool,
}

impl Out {
    fn open(arguments: &Report, format: Format) -> Result<Self> {
        let is_picture = matches!(format, Format::Html | Format::Svg | Format::Png);
        let default = || {
            let to_file = is_picture && std::io::stdout().is_terminal();
            let stem = arguments.files.first().and_then(|file| file.file_stem()).map(Path::new);
            to_file.then(|| stem.unwrap_or(Path::new("report")).with_extension(extension(format)))
        };
        let is_named_by_us = arguments.output.is_none();
        let Some(path) = arguments.output.clone().or_else(default) else {
            let name = "standard output".to_owned();
            let to = Box::new(std::io::stdout().lock());
            return Ok(Self { to, temporary: None, path: None, name, is_named_by_us: false });
        };
        let failed = |error: std::io::Error| {
            Failure(format!("{}: {error}; name another file with -o", path.display()))
        };
        let name = path.display().to_string();
        refuse_overwrite(&path)?;
        if std::fs::metadata(&path).is_ok_and(|data| !data.is_file()) {
            // Write directly to a device or a pipe.
            let to = Box::new(File::options().write(true).open(&path).map_err(failed)?);
            return Ok(Self { to, temporary: None, path: None, name, is_named_by_us });
        }
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        // With the permissions of an existing file, or those that the umask allows.
        let older = std::fs::metadata(&path).ok().map(|data| data.permissions());
        let all = older.unwrap_or_else(|| std::fs::Permissions::from_mode(0o666));
        let mut builder = tempfile::Builder::new();
        let temporary = builder.permissions(all).tempfile_in(folder).map_err(failed)?;
        let to = Box::new(temporary.reopen().map_err(failed)?);
        Ok(Self { to, temporary: Some(temporary), path: Some(path), name, is_named_by_us })
    }

    /// Completes the report.
    fn finish(self) -> std::io::Result<()> {
        let Self { mut to, temporary, path, .. } = self;
        to.flush()?;
        match (temporary, path) {
            (Some(temporary), Some(path)) => temporary.persist(path).map(drop).map_err(|error| error.error),
            _ => Ok(()),
        }
    }
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

    #[test]
    fn a_picture_is_never_named_as_its_recording() {
        let path = PathBuf::from("perl.strandline");
        let stem = path.file_stem().map(Path::new).unwrap();
        assert_eq!(stem.with_extension(extension(Format::Html)), PathBuf::from("perl.html"));
    }
}
