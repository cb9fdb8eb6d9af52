//! What a cell needs before it runs: values of placeholders, build folders and commands, variables,
//! and libraries to preload.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use super::file::{Axis, AxisValue};
use super::matrix::{Key, Matrix};
use super::placeholders::{fill, placeholders};
use strandline_lab::cell::Subject;
use strandline_lab::trial::program::{Program, has_word_size};
use strandline_process::c_library::CLibrary;

/// Usual folders of the loader for a library without a path; `ldconfig` may list more.
const LIBRARY_FOLDERS: [&str; 8] = [
    "/usr/local/lib",
    "/usr/local/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
];

/// What to do if the path of a folder of the lab is not UTF-8.
const LAB_ADVICE: &str = "give --dir another folder";
/// What to do if the path of a study's folder is not UTF-8.
const STUDY_ADVICE: &str = "move the study to another folder";

/// Values of the placeholders of a cell, except `{build}`.
///
/// # Errors
/// One line: the path of a folder is not UTF-8.
pub fn placeholder_values(matrix: &Matrix, key: &Key) -> Result<BTreeMap<String, String>, String> {
    let choices = matrix.choices(key).map(|(axis, choice)| (axis.name.clone(), choice.value.clone()));
    let folder = path_text(&matrix.study.folder, STUDY_ADVICE)?;
    let probes = path_text(&super::find::probes(), "give --dir, or set XDG_CACHE_HOME to another folder")?;
    Ok(choices.chain([("dir".to_owned(), folder), ("probes".to_owned(), probes)]).collect())
}

/// Values of all placeholders of a cell, whose build folder is `build`.
///
/// # Errors
/// Those of [`placeholder_values`].
pub fn all_placeholder_values(
    matrix: &Matrix,
    key: &Key,
    build: &Path,
) -> Result<BTreeMap<String, String>, String> {
    let mut values = placeholder_values(matrix, key)?;
    values.insert("build".to_owned(), path_text(build, LAB_ADVICE)?);
    Ok(values)
}

/// A path as text, for words and variables.
fn path_text(path: &Path, advice: &str) -> Result<String, String> {
    path.to_str().map(str::to_owned).ok_or_else(|| format!("{}: not UTF-8; {advice}", path.display()))
}

/// The file of a library: a path is relative to the `folder` of the study, a name is looked up like
/// the loader does.
pub fn find_library(name: &str, folder: &Path) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(folder.join(name)).filter(|path| path.is_file());
    }
    let library_path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let user_folders: Vec<PathBuf> =
        std::env::split_paths(&library_path).filter(|path| path.is_absolute()).collect();
    let folders = user_folders.into_iter().chain(LIBRARY_FOLDERS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The `{build}` folder of a cell, below `root`: one for each set of filled build commands, so that
/// builds do not overwrite each other.
///
/// # Errors
/// Those of [`placeholder_values`].
pub fn build_folder(matrix: &Matrix, key: &Key, root: &Path) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    fill_commands(matrix, key, &placeholder_values(matrix, key)?).hash(&mut hasher);
    // Builds that differ only by a variable get their own folders too.
    let choices = named_by_build(matrix, key).filter(|(axis, _)| names_variable(matrix, key, &axis.name));
    choices.for_each(|(axis, choice)| (&axis.name, &choice.value).hash(&mut hasher));
    Ok(root.join(format!("{:016x}", hasher.finish())))
}

/// The filled build commands of the subject of a cell, whose build folder is `build`.
///
/// # Errors
/// Those of [`placeholder_values`].
pub fn build_commands(matrix: &Matrix, key: &Key, build: &Path) -> Result<Vec<Vec<String>>, String> {
    Ok(fill_commands(matrix, key, &all_placeholder_values(matrix, key, build)?))
}

/// Name of the environment variable that holds the choice on an axis.
pub fn axis_variable(axis: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("STRANDLINE_AXIS_{}", axis.chars().map(upper).collect::<String>())
}

/// Whether the build commands of the subject of a cell contain the variable of an axis.
fn names_variable(matrix: &Matrix, key: &Key, axis: &str) -> bool {
    let subject = matrix.subjects.get(key.subject).into_iter();
    mentions_variable(subject.flat_map(|subject| subject.build.iter().flatten()), &axis_variable(axis))
}

/// Whether one of these words contains the name of a variable.
pub fn mentions_variable<'w>(mut words: impl Iterator<Item = &'w String>, variable: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    words.any(|word| {
        word.match_indices(variable)
            .any(|(at, _)| !word.get(at + variable.len()..).is_some_and(|after| after.starts_with(is_name)))
    })
}

/// The choices of a cell on axes that its build commands name, as placeholders or variables. Cells
/// that differ only on other axes share builds.
fn named_by_build<'m>(matrix: &'m Matrix, key: &'m Key) -> impl Iterator<Item = (&'m Axis, &'m AxisValue)> {
    let subject = matrix.subjects.get(key.subject);
    matrix.choices(key).filter(move |(axis, _)| {
        let mut words = subject.into_iter().flat_map(|subject| subject.build.iter().flatten());
        words.any(|word| placeholders(word).contains(&axis.name.as_str()))
            || names_variable(matrix, key, &axis.name)
    })
}

/// Variables with the folders of the study and of the build, and with the choices of the cell.
///
/// # Errors
/// Those of [`placeholder_values`].
pub fn cell_variables(
    matrix: &Matrix,
    key: &Key,
    build: &Path,
) -> Result<BTreeMap<String, Option<String>>, String> {
    variables(matrix, build, matrix.choices(key))
}

/// Variables for the build of a cell: those of [`cell_variables`] without choices that its commands
/// do not name.
///
/// # Errors
/// Those of [`placeholder_values`].
pub fn build_variables(
    matrix: &Matrix,
    key: &Key,
    build: &Path,
) -> Result<BTreeMap<String, Option<String>>, String> {
    variables(matrix, build, named_by_build(matrix, key))
}

fn variables<'m>(
    matrix: &Matrix,
    build: &Path,
    choices: impl Iterator<Item = (&'m Axis, &'m AxisValue)>,
) -> Result<BTreeMap<String, Option<String>>, String> {
    let study = path_text(&matrix.study.folder, STUDY_ADVICE)?;
    let build = path_text(build, LAB_ADVICE)?;
    let program = own_program().map(|path| path_text(&path, LAB_ADVICE)).transpose()?;
    let folders = [
        ("STRANDLINE_STUDY_DIR".to_owned(), Some(study)),
        ("STRANDLINE_STUDY_BUILD".to_owned(), Some(build)),
        ("STRANDLINE_PROGRAM".to_owned(), program),
    ];
    let choices = choices.map(|(axis, choice)| (axis_variable(&axis.name), Some(choice.value.clone())));
    Ok(folders.into_iter().chain(choices).collect())
}

/// The executable of strandline, also if its file was replaced since the start; the staged copy, if
/// staged for other machines. `None` if its path is unknown or not UTF-8.
pub fn own_program() -> Option<PathBuf> {
    if let Some(program) = strandline_lab::executable::staged_program() {
        return Some(program);
    }
    let program = std::env::current_exe().ok()?;
    let name = program.to_str()?;
    Some(name.strip_suffix(" (deleted)").filter(|_| !program.exists()).map_or(program.clone(), PathBuf::from))
}

/// The build commands of the subject of a cell, with these values of placeholders.
fn fill_commands(matrix: &Matrix, key: &Key, values: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    let Some(subject) = matrix.subjects.get(key.subject) else { return Vec::new() };
    let fill_words = |words: &Vec<String>| words.iter().map(|word| fill(word, values)).collect();
    subject.build.iter().map(fill_words).collect()
}

/// A library that a choice preloads.
#[derive(Clone, Debug)]
pub struct Preload {
    /// Its name or path, with placeholders filled in.
    pub name: String,
    /// Its file, if that exists.
    pub file: Option<PathBuf>,
}

/// The libraries preloaded by the choices of a cell, with these `values` of placeholders.
pub fn preloads(matrix: &Matrix, key: &Key, values: &BTreeMap<String, String>) -> Vec<Preload> {
    let named = matrix.choices(key).filter_map(|(_, choice)| choice.preload.as_deref());
    let preload = |name: &str| {
        let name = fill(name, values);
        let file = find_library(&name, &matrix.study.folder);
        Preload { name, file }
    };
    named.map(preload).collect()
}

/// Why the preloaded libraries of a cell, whose build folder is `build`, would not take effect, if
/// that is known before the run. Otherwise a program that ignores a preloaded library would be
/// measured under the name of the library.
pub fn why_not_preloaded(matrix: &Matrix, key: &Key, build: &Path, subject: &Subject) -> Option<String> {
    let libraries = match all_placeholder_values(matrix, key, build) {
        Ok(values) => preloads(matrix, key, &values),
        Err(why) => return Some(why),
    };
    if libraries.is_empty() {
        return None;
    }
    let own_path = subject.environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
    let path = own_path.unwrap_or_else(|| std::env::var("PATH").ok());
    let program = Program::of_command(&subject.command, subject.directory.as_deref(), path.as_deref());
    for Preload { name, file } in libraries {
        let Some(file) = file else { return Some(format!("{name} is not here")) };
        // The loader splits LD_PRELOAD at both characters.
        if file.to_str().is_some_and(|path| path.contains([' ', ':'])) {
            let file = file.display();
            return Some(format!("{file}: a path with a space or a colon cannot be preloaded"));
        }
        if file.to_str().is_none() {
            return Some(format!("{}: a path that is not UTF-8 cannot be preloaded", file.display()));
        }
        let program = match &program {
            Ok(program) => program,
            Err(why) => return Some(format!("whether {name} can be preloaded is not known: {why}")),
        };
        if let Some(why) = why_not_loaded(program, &file) {
            return Some(format!("{name} is not preloaded: {why}"));
        }
    }
    None
}

/// Why a program would not load the library `file`; `None` if it would.
fn why_not_loaded(program: &Program, file: &Path) -> Option<String> {
    let name = program.name();
    if let Some(why) = &program.privilege {
        return Some(format!("nothing is preloaded into {name}, a program with {why}"));
    }
    let is_musl = program.loader.as_deref().and_then(CLibrary::of_file) == Some(CLibrary::Musl);
    if program.loader.is_none() {
        Some(format!("{name} is linked statically"))
    } else if is_musl {
        Some(format!("{name} runs on musl, and the library is for glibc"))
    } else if !has_word_size(file, program.bits) {
        Some(format!("it is not a {}-bit library, which {name} needs", program.bits))
    } else if program.defines_malloc && Program::of_file(file).is_ok_and(|library| library.defines_malloc) {
        // An unreadable library was rejected above.
        Some(format!("{name} defines malloc itself, which comes before anything preloaded"))
    } else {
        None
    }
}
