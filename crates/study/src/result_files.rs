//! Files that a study writes besides its output: a report, plots, and the results in its README.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strandline_inspect::environment::Environment;
use strandline_lab::path_error::path_error;
use strandline_lab::user::User;
use strandline_report::pages::book::Book;
use strandline_report::pages::names::Names;
use strandline_report::pages::page::{Fact, Page, Section};
use strandline_report::pages::{environment_facts, html, pictures, plot};
use tempfile::NamedTempFile;

use super::find;
use super::pages::readme;
use super::pages::studies::{self, Item};
use super::pages::study::{self, StudyInput};

/// Mode of a new file before the umask.
const NEW_FILE_MODE: u32 = 0o666;
/// Length of the start of a file by which it is recognised.
const START_BYTES: u64 = 8192;

/// Which files are requested.
#[derive(Clone, Debug, Default)]
pub struct FileRequest {
    /// The report.
    pub report: Option<PathBuf>,
    /// The directory for plots.
    pub plots: Option<PathBuf>,
    /// Whether the results go into the studies' READMEs.
    pub writes_readmes: bool,
    /// Where the output goes; `None` for standard output.
    pub output: Option<PathBuf>,
    /// Whether the run has other choices or rounds than the study's own.
    pub is_narrowed: bool,
    /// Whether the run is of the short form.
    pub is_short: bool,
}

type Result<T> = std::result::Result<T, String>;

/// The files to write once the results are there.
pub struct ResultFiles {
    /// Shows messages about the files.
    user: Arc<dyn User>,
    report: Option<PathBuf>,
    plots: Option<PlotFolder>,
    /// Whether the results go into the studies' READMEs.
    writes_readmes: bool,
    /// The form of the run (full, short, narrowed), as the environment lists it.
    form: &'static str,
    /// File names of the plots so far, which are unique.
    names: Names,
    /// Plots that are drawn but not yet written: the results are shown before any file is written.
    drawn: Vec<DrawnPlot>,
}

/// A plot that is not yet written.
struct DrawnPlot {
    path: PathBuf,
    text: String,
}

struct PlotFolder {
    folder: PathBuf,
    /// Its address relative to the output.
    address: String,
}

impl ResultFiles {
    /// Checks, before anything is run, that the files can be written. Messages about them go to
    /// `user`.
    ///
    /// # Errors
    /// One line if a file cannot be written, or READMEs are requested of a narrowed run.
    pub fn new(request: FileRequest, user: Arc<dyn User>) -> Result<Self> {
        let FileRequest { report, plots, writes_readmes, output, is_narrowed, is_short } = request;
        if is_narrowed && writes_readmes {
            let text = "--readme is for a study's results, and not for a run with --axis or --repeat";
            return Err(text.to_owned());
        }
        if let Some(report) = &report {
            check_replaceable(report, html::is_book, "report of studies")?;
            temporary_beside(report)?;
        }
        output.as_deref().map_or(Ok(()), check_writable)?;
        let plots = match plots {
            Some(folder) => {
                fs::create_dir_all(&folder).map_err(|error| path_error(&folder, &error))?;
                temporary_beside(&folder.join("plot.svg"))?;
                let address = address(&folder, output.as_deref())?;
                Some(PlotFolder { folder, address })
            }
            None => None,
        };
        let form = match (is_narrowed, is_short) {
            (true, _) => "narrowed: other choices or rounds than the study's own",
            (_, true) => "short: fewer choices and rounds",
            _ => "full",
        };
        Ok(Self { user, report, plots, writes_readmes, form, names: Names::default(), drawn: Vec::new() })
    }

    /// Draws the plots of a study's page and makes the page refer to their files;
    /// [`ResultFiles::write`] writes them.
    pub fn draw_plots(&mut self, study: &str, page: &mut Page) {
        let Some(PlotFolder { folder, address }) = &self.plots else { return };
        for picture in pictures::pictures(page, study, address, &mut self.names) {
            self.drawn.push(DrawnPlot { path: folder.join(picture.name), text: picture.svg });
        }
    }

    /// Writes plots, READMEs and the report. Shows each failure but the last, and continues.
    ///
    /// # Errors
    /// The last failure, in one line.
    pub fn write(&self, items: &[Item<'_>], pages: &[Page]) -> Result<()> {
        let plots = self.drawn.iter().map(|DrawnPlot { path, text }| write_plot(path, text));
        let readmes = items.iter().map(|item| self.write_readme(item));
        let mut failures: Vec<String> = plots.chain(readmes).filter_map(std::result::Result::err).collect();
        failures.extend(self.write_report(items, pages).err());
        let last_failure = failures.pop();
        failures.iter().for_each(|failure| self.user.show(failure));
        last_failure.map_or(Ok(()), Err)
    }

    /// Reports that a stopped run leaves the files unwritten.
    pub fn report_unwritten(&self) {
        if self.report.is_some() || self.plots.is_some() || self.writes_readmes {
            self.user.show("no report, plots or README were written");
        }
    }

    /// Writes the results of a study into its README, with its first plot. A README without a place
    /// for them is reported and left unchanged.
    fn write_readme(&self, item: &Item<'_>) -> Result<()> {
        let (true, Ok(input)) = (self.writes_readmes, &item.result) else { return Ok(()) };
        let folder = &input.matrix.study.folder;
        let path = folder.join("README.md");
        let leave_unchanged = |reason: &str| {
            self.user.show(&format!("{}: {reason}; it is left unchanged", path.display()));
            Ok(())
        };
        if find::is_embedded(folder) {
            return leave_unchanged("it is built into strandline");
        }
        let old_text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let (path, begin, end) = (path.display(), readme::BEGIN, readme::END);
                self.user.show(&format!(
                    "{path}: no such file; results are written into one with a line `{begin}` and a line `{end}` below it"
                ));
                return Ok(());
            }
            Err(error) => return leave_unchanged(&error.to_string()),
        };
        let mut page = page_with_first_plot(input);
        let drawn = pictures::pictures(&mut page, item.name, "plots", &mut Names::default());
        match readme::insert_results(&old_text, &readme::block(input, &page, &self.environment())) {
            Ok(Some(new_text)) => {
                for picture in &drawn {
                    let folder = folder.join("plots");
                    fs::create_dir_all(&folder).map_err(|error| path_error(&folder, &error))?;
                    write_plot(&folder.join(&picture.name), &picture.svg)?;
                }
                write_atomically(&resolve_links(&path), &new_text)
            }
            Ok(None) => Ok(()),
            Err(reason) => leave_unchanged(&reason),
        }
    }

    /// Writes the report, if it is requested.
    fn write_report(&self, items: &[Item<'_>], pages: &[Page]) -> Result<()> {
        let Some(path) = &self.report else { return Ok(()) };
        let text = html::book(&self.book(items, pages)).map_err(|error| error.to_string())?;
        // Another file may be there since the first check.
        check_replaceable(path, html::is_book, "report of studies")?;
        write_atomically(&resolve_links(path), &text)?;
        self.user.show(&format!("report written to {}", path.display()));
        Ok(())
    }

    /// All results as one book.
    pub fn book(&self, items: &[Item<'_>], pages: &[Page]) -> Book {
        studies::book(items, pages.to_vec(), self.environment())
    }

    /// The environment of the results, with the form of the run.
    fn environment(&self) -> Vec<Fact> {
        let mut environment = environment_facts(&Environment::read());
        environment.push(Fact::new("form of the studies", self.form));
        environment
    }
}

/// The page of a study whose only plot is its first one.
fn page_with_first_plot(input: &StudyInput<'_>) -> Page {
    let mut page = study::page(input);
    let plots: Vec<_> =
        page.sections.iter_mut().flat_map(|section| std::mem::take(&mut section.plots)).collect();
    let plots = plots.into_iter().take(1).collect();
    page.sections.push(Section { plots, ..Section::default() });
    page
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Resolves symbolic links; returns `path` itself if there is nothing at it.
fn resolve_links(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// A temporary file in the directory of `path`.
fn temporary_beside(path: &Path) -> Result<NamedTempFile> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(path_error(path, &"its folder does not exist"));
    }
    // With the permissions of a newly created file: what the umask allows.
    let permissions = fs::Permissions::from_mode(NEW_FILE_MODE);
    let temporary = tempfile::Builder::new().permissions(permissions).tempfile_in(folder);
    temporary.map_err(|error| path_error(path, &error))
}

/// Refuses an output that cannot be written: it is opened only when the result is available.
fn check_writable(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Err(_) => temporary_beside(path).map(drop),
        Ok(metadata) if metadata.is_dir() => Err(path_error(path, &"is a folder")),
        Ok(metadata) if metadata.is_file() => {
            fs::OpenOptions::new().append(true).open(path).map(drop).map_err(|error| path_error(path, &error))
        }
        // Opening a pipe would wait for its reader.
        Ok(_) => Ok(()),
    }
}

/// Atomically writes `text` to `path`, with the mode of a file that it replaces. A link at `path`
/// is replaced, not followed.
fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let mut temporary = temporary_beside(path)?;
    temporary.write_all(text.as_bytes()).map_err(|error| path_error(path, &error))?;
    if let Ok(old_metadata) = fs::symlink_metadata(path)
        && old_metadata.is_file()
    {
        temporary
            .as_file()
            .set_permissions(old_metadata.permissions())
            .map_err(|error| path_error(path, &error))?;
    }
    temporary.persist(path).map(drop).map_err(|error| path_error(path, &error.error))
}

/// Writes a plot if the path is free, a link, or a plot written by strandline.
fn write_plot(path: &Path, text: &str) -> Result<()> {
    if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
        check_replaceable(path, plot::is_file, "plot")?;
    }
    write_atomically(path, text)
}

/// Refuses to replace a file that strandline did not write, as `is_own` determines from its start.
fn check_replaceable(path: &Path, is_own: fn(&[u8]) -> bool, kind: &str) -> Result<()> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(|error| path_error(path, &error))?,
    };
    let refusal = format!("exists and is not a {kind} by strandline; it is not overwritten");
    if !metadata.is_file() {
        return Err(path_error(path, &refusal));
    }
    let mut start = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(START_BYTES).read_to_end(&mut start));
    read.map_err(|error| path_error(path, &error))?;
    if start.is_empty() || is_own(&start) { Ok(()) } else { Err(path_error(path, &refusal)) }
}

/// The address of `folder` relative to `output`, or to the current directory.
fn address(folder: &Path, output: Option<&Path>) -> Result<String> {
    let Some(output) = output else { return Ok(pictures::encoded(&folder.to_string_lossy())) };
    let canonical = |path: &Path| path.canonicalize().map_err(|error| path_error(path, &error));
    Ok(pictures::address(&canonical(folder)?, &canonical(folder_of(output))?))
}
