//! `report FILE…`: recordings as charts, pages, tables and documents.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;

use super::arguments::{Format, Report};
use super::output::{Output, complain};
use super::{Ending, Failure, Result};
use crate::report::timeline::{self, Timeline, export};

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
        return chart(&timelines, output);
    };
    let mut out = Out::open(arguments, format)?;
    let (Some(file), Some(timeline)) = (files.first(), timelines.first()) else { return Ok(Ending::Done) };
    let written = match format {
        Format::Json => export::json(file, timeline, &mut out.to),
        Format::Csv => export::csv(file, &mut out.to),
        Format::Html | Format::Svg | Format::Png => picture(format, &timelines, &mut out.to)?,
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

/// Writes the recordings as a picture, laid over each other.
fn picture(
    format: Format,
    timelines: &[Timeline],
    to: &mut dyn Write,
) -> Result<std::result::Result<(), export::Failed>> {
    let drawn = match format {
        Format::Png => timeline::png(timelines),
        Format::Svg => timeline::svg(timelines).map(String::into_bytes),
        _ => timeline::page(timelines).map(String::into_bytes),
    };
    let drawn = drawn.map_err(|error| Failure(error.to_string()))?;
    Ok(to.write_all(&drawn).map_err(Into::into))
}

fn chart(timelines: &[Timeline], output: &mut Output) -> Result<Ending> {
    let variable = |name: &str| std::env::var(name).ok();
    let [lc_all, lc_ctype, lang] = ["LC_ALL", "LC_CTYPE", "LANG"].map(variable);
    let glyphs = timeline::Glyphs::of_locale(lc_all.as_deref(), lc_ctype.as_deref(), lang.as_deref());
    output.print(&timeline::chart(timelines, output.surface, glyphs))?;
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
