//! Files that a study writes besides its output: a report, plots, and the results in its README.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use strandline_inspect::environment::Environment;
use tempfile::NamedTempFile;

use super::super::arguments_lab::Study as Arguments;
use super::super::output::print_message;
use super::super::{Failure, Result};
use strandline_report::pages::book::Book;
use strandline_report::pages::names::Names;
use strandline_report::pages::page::Page;
use strandline_report::pages::{html, pictures, plot, surroundings};
use strandline_study::find;
use strandline_study::pages::studies::{self, Item};
use strandline_study::pages::{readme, study};

/// Length of the start of a file by which it is recognised.
const BEGIN_BYTES: u64 = 8192;

/// The requested files.
pub struct Files {
    report: Option<PathBuf>,
    /// The directory for plots, and its address in the output.
    plots: Option<(PathBuf, String)>,
    readme: bool,
    form: &'static str,
    names: Names,
    /// Plots that are drawn but not yet written: the results are shown before any file is written.
    drawn: Vec<(PathBuf, String)>,
}

impl Files {
    /// Takes the files from the arguments; `report` is the default name of the report. Fails now,
    /// before anything is run, if a file could not be written.
    pub fn wanted(arguments: &Arguments, report: &str) -> Result<Self> {
        let is_narrowed = !arguments.axis.is_empty() || arguments.repeat.is_some();
        if is_narrowed && arguments.readme {
            let why = "--readme is for a study's results, and not for a run with --axis or --repeat";
            return Err(Failure(why.to_owned()));
        }
        let file = |file: &Option<PathBuf>| file.clone().unwrap_or_else(|| PathBuf::from(report));
        let report = arguments.report.as_ref().map(file);
        if let Some(report) = &report {
            check_replaceable(report, html::is_book, "report of studies")?;
            temporary_beside(report)?;
        }
        arguments.shown.output.as_deref().map_or(Ok(()), check_writable)?;
        let plots = match &arguments.plots {
            Some(folder) => {
                fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
                temporary_beside(&folder.join("plot.svg"))?;
                Some((folder.clone(), address(folder, arguments.shown.output.as_deref())?))
            }
            None => None,
        };
        let form = match (is_narrowed, arguments.short) {
            (true, _) => "narrowed: other choices or rounds than the study's own",
            (_, true) => "short: fewer choices and rounds",
            _ => "full",
        };
        let readme = arguments.readme;
        Ok(Self { report, plots, readme, form, names: Names::default(), drawn: Vec::new() })
    }

    /// Draws the plots of a study's page and makes the page refer to their files; [`Files::write`]
    /// writes them.
    pub fn pictures(&mut self, study: &str, page: &mut Page) {
        let Some((folder, address)) = &self.plots else { return };
        for (name, text) in pictures::pictures(page, study, address, &mut self.names) {
            self.drawn.push((folder.join(name), text));
        }
    }

    /// Writes plots, READMEs and the report. Reports each failure and continues.
    ///
    /// # Errors
    /// Returns the last failure.
    pub fn write(&self, items: &[Item<'_>], pages: &[Page]) -> Result<()> {
        let plots = self.drawn.iter().map(|(path, text)| put_plot(path, text));
        let readmes = items.iter().map(|item| self.readme(item));
        let mut failures: Vec<Failure> = plots.chain(readmes).filter_map(std::result::Result::err).collect();
        failures.extend(self.report(items, pages).err());
        let last = failures.pop();
        failures.iter().for_each(|failure| print_message(&failure.0));
        last.map_or(Ok(()), Err)
    }

    /// Reports that a stopped run leaves the files unwritten.
    pub fn none_written(&self) {
        if self.report.is_some() || self.plots.is_some() || self.readme {
            print_message("no report, plots or README were written");
        }
    }

    /// Writes the results of a study into its README, with its first plot. A README without a place
    /// for them is reported and left unchanged.
    fn readme(&self, item: &Item<'_>) -> Result<()> {
        let (true, Ok(facts)) = (self.readme, &item.came) else { return Ok(()) };
        let folder = &facts.matrix.study.folder;
        let path = folder.join("README.md");
        let refused = |why: &str| print_message(&format!("{}: {why}; it is left as it is", path.display()));
        if find::is_embedded(folder) {
            refused("it came with strandline");
            return Ok(());
        }
        let old = match fs::read_to_string(&path) {
            Ok(old) => old,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let (path, begin, end) = (path.display(), readme::BEGIN, readme::END);
                print_message(&format!(
                    "{path}: there is none; results are written into one with a line `{begin}` and a line `{end}` below it"
                ));
                return Ok(());
            }
            Err(error) => {
                refused(&error.to_string());
                return Ok(());
            }
        };
        let mut page = study::page(facts);
        let mut plots = page.sections.iter_mut().map(|section| std::mem::take(&mut section.plots));
        let first: Vec<_> = plots.by_ref().flatten().take(1).collect();
        plots.for_each(drop);
        page.sections
            .extend([strandline_report::pages::page::Section { plots: first, ..Default::default() }]);
        let drawn = pictures::pictures(&mut page, item.name, "plots", &mut Names::default());
        let block = readme::block(facts, &page, &self.environment());
        match readme::insert_results(&old, &block) {
            Ok(Some(new)) => {
                for (name, text) in &drawn {
                    let folder = folder.join("plots");
                    fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
                    put_plot(&folder.join(name), text)?;
                }
                write_atomically(&resolve_links(&path), &new)
            }
            Ok(None) => Ok(()),
            Err(why) => {
                refused(&why);
                Ok(())
            }
        }
    }

    fn report(&self, items: &[Item<'_>], pages: &[Page]) -> Result<()> {
        let Some(path) = &self.report else { return Ok(()) };
        let text = html::book(&self.book(items, pages))?;
        // Another file may have been put there meanwhile.
        check_replaceable(path, html::is_book, "report of studies")?;
        write_atomically(&resolve_links(path), &text)?;
        print_message(&format!("the report is in {}", path.display()));
        Ok(())
    }

    /// All results as one book.
    pub fn book(&self, items: &[Item<'_>], pages: &[Page]) -> Book {
        studies::book(items, pages.to_vec(), self.environment())
    }

    fn environment(&self) -> Vec<(String, String)> {
        let mut environment = surroundings(&Environment::read());
        environment.push(("form of the studies".to_owned(), self.form.to_owned()));
        environment
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure(format!("{}: {error}", path.display()))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Resolves symbolic links.
fn resolve_links(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// A temporary file in the directory of `path`.
fn temporary_beside(path: &Path) -> Result<NamedTempFile> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(failed(path, &"there is no such folder to write it into"));
    }
    // With the permissions of a newly created file: what the umask allows.
    let made = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o666)).tempfile_in(folder);
    made.map_err(|error| failed(path, &error))
}

/// Refuses an output that cannot be written: it is opened only when the result is available.
fn check_writable(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Err(_) => temporary_beside(path).map(drop),
        Ok(data) if data.is_dir() => Err(failed(path, &"is a folder")),
        Ok(data) if data.is_file() => {
            fs::OpenOptions::new().append(true).open(path).map(drop).map_err(|error| failed(path, &error))
        }
        // Opening a pipe would wait for its reader.
        Ok(_) => Ok(()),
    }
}

/// Atomically writes `text` to `path`. An existing file gives its mode, and a link there is
/// replaced.
fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let mut new = temporary_beside(path)?;
    new.write_all(text.as_bytes()).map_err(|error| failed(path, &error))?;
    if let Ok(old) = fs::symlink_metadata(path)
        && old.is_file()
    {
        new.as_file().set_permissions(old.permissions()).map_err(|error| failed(path, &error))?;
    }
    new.persist(path).map(drop).map_err(|error| failed(path, &error.error))
}

/// Writes a plot if the path is free, a link, or a plot written by strandline.
fn put_plot(path: &Path, text: &str) -> Result<()> {
    if !fs::symlink_metadata(path).is_ok_and(|data| data.is_symlink()) {
        check_replaceable(path, plot::is_file, "plot")?;
    }
    write_atomically(path, text)
}

/// Refuses to replace a file that strandline did not write, as `is_own` determines from its start.
fn check_replaceable(path: &Path, is_own: fn(&[u8]) -> bool, what: &str) -> Result<()> {
    let data = match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        data => data.map_err(|error| failed(path, &error))?,
    };
    let other = format!("is there already, and is no {what} by strandline: it is not overwritten");
    if !data.is_file() {
        return Err(failed(path, &other));
    }
    let mut begin = Vec::new();
    let file = fs::File::open(path).and_then(|file| file.take(BEGIN_BYTES).read_to_end(&mut begin));
    file.map_err(|error| failed(path, &error))?;
    if begin.is_empty() || is_own(&begin) { Ok(()) } else { Err(failed(path, &other)) }
}

/// The address of `folder` relative to `output`, or to the current directory.
fn address(folder: &Path, output: Option<&Path>) -> Result<String> {
    let Some(output) = output else { return Ok(pictures::encoded(&folder.to_string_lossy())) };
    let whole = |path: &Path| path.canonicalize().map_err(|error| failed(path, &error));
    Ok(pictures::address(&whole(folder)?, &whole(folder_of(output))?))
}
