//! What a study's run writes besides its output: a report of its own, its plots as files, and the results in its
//! README.

use std::fs;
use std::path::{Path, PathBuf};

use strandline_inspect::environment::Environment;

use super::super::arguments_lab::Study as Arguments;
use super::super::output::complain;
use super::super::{Failure, Result};
use crate::lab::study::find;
use crate::report::lab::book::Book;
use crate::report::lab::names::Names;
use crate::report::lab::page::Page;
use crate::report::lab::studies::{self, Item};
use crate::report::lab::{html, pictures, readme, study, surroundings};

/// Enough of a file to tell whose it is.
const BEGIN_BYTES: u64 = 512;

/// The files that were asked for.
pub struct Files {
    report: Option<PathBuf>,
    /// The folder for plots, and its address in what is shown.
    plots: Option<(PathBuf, String)>,
    readme: bool,
    is_short: bool,
    names: Names,
}

impl Files {
    /// As the arguments say; `report` is what the report is called by default. Refuses before anything is run what
    /// could not be written after it.
    pub fn wanted(arguments: &Arguments, report: &str) -> Result<Self> {
        let file = |file: &Option<PathBuf>| file.clone().unwrap_or_else(|| PathBuf::from(report));
        let report = arguments.report.as_ref().map(file);
        report.as_deref().map_or(Ok(()), may_be_written)?;
        let plots = match &arguments.plots {
            Some(folder) => {
                fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
                Some((folder.clone(), address(folder, arguments.shown.output.as_deref())?))
            }
            None => None,
        };
        let (readme, is_short) = (arguments.readme, arguments.short);
        Ok(Self { report, plots, readme, is_short, names: Names::default() })
    }

    /// Writes the plots of a study's page as files, which it then refers to.
    pub fn pictures(&mut self, study: &str, page: &mut Page) -> Result<()> {
        let Some((folder, address)) = &self.plots else { return Ok(()) };
        for (name, text) in pictures::pictures(page, study, address, &mut self.names) {
            write(&folder.join(name), &text)?;
        }
        Ok(())
    }

    /// Writes what came of a study into its README, with its first plot beside it. One that has no place for it is told
    /// of and left as it is.
    pub fn readme(&self, item: &Item<'_>) -> Result<()> {
        let (true, Ok(facts)) = (self.readme, &item.came) else { return Ok(()) };
        let folder = &facts.matrix.study.folder;
        let path = folder.join("README.md");
        let refused = |why: &str| complain(&format!("{}: {why}; it is left as it is", path.display()));
        if find::came_with_strandline(folder) {
            refused("it came with strandline");
            return Ok(());
        }
        let mut page = study::page(facts);
        let mut plots = page.sections.iter_mut().map(|section| std::mem::take(&mut section.plots));
        let first: Vec<_> = plots.by_ref().flatten().take(1).collect();
        plots.for_each(drop);
        page.sections.extend([crate::report::lab::page::Section { plots: first, ..Default::default() }]);
        let drawn = pictures::pictures(&mut page, item.name, "plots", &mut Names::default());
        let block = readme::block(facts, &page, &self.environment());
        let old = match fs::read_to_string(&path) {
            Ok(old) => old,
            Err(error) => {
                refused(&error.to_string());
                return Ok(());
            }
        };
        match readme::filled(&old, &block) {
            Ok(Some(new)) => {
                for (name, text) in &drawn {
                    let folder = folder.join("plots");
                    fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
                    write(&folder.join(name), text)?;
                }
                write(&path, &new)
            }
            Ok(None) => Ok(()),
            Err(why) => {
                refused(&why);
                Ok(())
            }
        }
    }

    /// Writes the report, where one was asked for.
    pub fn report(&self, items: &[Item<'_>], pages: &[Page]) -> Result<()> {
        let Some(path) = &self.report else { return Ok(()) };
        let text = html::book(&self.book(items, pages))?;
        // Somebody may have put another file there meanwhile.
        may_be_written(path)?;
        write(path, &text)?;
        complain(&format!("the report is in {}", path.display()));
        Ok(())
    }

    /// All of them as one book.
    pub fn book(&self, items: &[Item<'_>], pages: &[Page]) -> Book {
        studies::book(items, pages.to_vec(), self.environment())
    }

    fn environment(&self) -> Vec<(String, String)> {
        let form = if self.is_short { "short: fewer choices and rounds" } else { "full" };
        let mut environment = surroundings(&Environment::read());
        environment.push(("form of the studies".to_owned(), form.to_owned()));
        environment
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure(format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| failed(path, &error))
}

/// A report takes the place of nothing but a report.
fn may_be_written(path: &Path) -> Result<()> {
    use std::io::Read;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return Err(failed(path, &"there is no such folder to write the report into"));
    }
    let data = match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        data => data.map_err(|error| failed(path, &error))?,
    };
    let other = "is there already, and is no report of studies by strandline: it is not overwritten; give --report=FILE";
    if !data.is_file() {
        return Err(failed(path, &other));
    }
    let mut begin = Vec::new();
    let file = fs::File::open(path).and_then(|file| file.take(BEGIN_BYTES).read_to_end(&mut begin));
    file.map_err(|error| failed(path, &error))?;
    if begin.is_empty() || html::is_book(&begin) { Ok(()) } else { Err(failed(path, &other)) }
}

/// The address of `folder` in what is written to `output`, or shown here.
fn address(folder: &Path, output: Option<&Path>) -> Result<String> {
    let Some(output) = output else { return Ok(pictures::encoded(&folder.to_string_lossy())) };
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let whole = |path: &Path| path.canonicalize().map_err(|error| failed(path, &error));
    Ok(pictures::address(&whole(folder)?, &whole(parent)?))
}
