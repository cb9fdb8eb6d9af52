//! `report FILE…`: recordings as charts, pages, tables and documents.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;

use super::arguments::{Format, Report};
use super::output::{Output, complain};
use super::{Ending, Failure, Result};
use crate::report::timeline::chart::{self, Glyphs};
use crate::report::timeline::{Timeline, export, html, svg};

/// Reads the recordings and writes what was asked for.
pub fn run(arguments: &Report, output: &mut Output) -> Result<Ending> {
    let format = if output.json { Some(Format::Json) } else { arguments.format };
    let files = &arguments.files;
    if matches!(format, Some(Format::Csv | Format::Json)) && files.len() > 1 {
        return Err(Failure(
            "csv and json are of one recording each: call report once for each file".to_owned(),
        ));
    }
    let timelines =
        files.iter().map(|file| Timeline::read(file)).collect::<std::result::Result<Vec<_>, _>>()?;
    let Some(format) = format else {
        return chart(&timelines, arguments, output);
    };
    let mut out = Out::open(arguments, format)?;
    let (Some(file), Some(timeline)) = (files.first(), timelines.first()) else { return Ok(Ending::Done) };
    let written = match format {
        Format::Json => export::json(file, timeline, &mut out.to),
        Format::Csv => export::csv(file, &mut out.to),
        Format::Html => picture(html::page(&timelines).map(String::into_bytes), &mut out)?,
        Format::Svg => picture(svg::svg(&timelines).map(String::into_bytes), &mut out)?,
        Format::Png => picture(svg::png(&timelines), &mut out)?,
    };
    let written = written.and_then(|()| out.to.flush().map_err(Into::into));
    match written {
        // A reader that has seen enough (`| head`) is no error.
        Err(export::Failed::Io(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Ending::Done),
        Err(error) => Err(Failure(format!("{}: {error}", out.name))),
        Ok(()) => {
            if out.is_named_by_us {
                complain(&format!("wrote {}", out.name));
            }
            Ok(Ending::Done)
        }
    }
}

/// A picture that was drawn, or not; and whether it could be written.
fn picture<E: std::fmt::Display>(
    drawn: std::result::Result<Vec<u8>, E>,
    out: &mut Out,
) -> Result<std::result::Result<(), export::Failed>> {
    let bytes = drawn.map_err(|error| Failure(error.to_string()))?;
    Ok(out.to.write_all(&bytes).map_err(Into::into))
}

fn chart(timelines: &[Timeline], arguments: &Report, output: &mut Output) -> Result<Ending> {
    let variable = |name: &str| std::env::var(name).ok();
    let (all, ctype, lang) = (variable("LC_ALL"), variable("LC_CTYPE"), variable("LANG"));
    let glyphs = Glyphs::of_locale(all.as_deref(), ctype.as_deref(), lang.as_deref());
    let text = chart::chart(timelines, output.surface, glyphs);
    match &arguments.output {
        None => output.print(&text)?,
        Some(path) => {
            std::fs::write(path, text).map_err(|error| Failure(format!("{}: {error}", path.display())))?;
        }
    }
    Ok(Ending::Done)
}

/// Where a report goes.
struct Out {
    to: Box<dyn Write>,
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
        match arguments.output.clone().or_else(default) {
            None => Ok(Self {
                to: Box::new(std::io::stdout().lock()),
                name: "standard output".to_owned(),
                is_named_by_us: false,
            }),
            Some(path) => {
                let file =
                    File::create(&path).map_err(|error| Failure(format!("{}: {error}", path.display())))?;
                Ok(Self { to: Box::new(file), name: path.display().to_string(), is_named_by_us })
            }
        }
    }
}

fn extension(format: Format) -> &'static str {
    match format {
        Format::Html => "html",
        Format::Svg => "svg",
        Format::Png => "png",
        Format::Csv => "csv",
        Format::Json => "json",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_picture_is_never_named_as_its_recording() {
        let path = PathBuf::from("perl.strandline");
        let stem = path.file_stem().map(Path::new).unwrap();
        assert_eq!(stem.with_extension(extension(Format::Html)), PathBuf::from("perl.html"));
    }
}
