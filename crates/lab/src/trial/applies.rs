//! Decides, from a run without settings, which candidates apply to a program; and what each
//! candidate then sets.
//!
//! A candidate without any possible effect is not run, and the reason is kept: `failed` is for
//! candidates that were run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::catalogue::{Candidate, Catalogue, Library, Thp, version_numbers};
use super::observation::{MappedRuntime, Observation};
use super::program::{Program, has_word_size};
use super::setting::{BaselineFigure, MergeRule, can_merge, fill_placeholders, merge, merge_rule};
use strandline_process::c_library::CLibrary;
use strandline_process::shell::{shell_value, shell_word};

/// Folders searched for libraries.
const SYSTEM_LIBRARY_FOLDERS: &[&str] = &[
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
];

/// The first release of glibc that has tunables by default; 2.25 has them only if it was built with
/// --enable-tunables (NEWS).
const FIRST_GLIBC_WITH_TUNABLES: [u64; 2] = [2, 26];
/// Word size of a program that is not known.
const DEFAULT_BITS: u8 = 64;
/// Tunables of glibc and the variables that releases without tunables read instead.
const VARIABLES_BEFORE_TUNABLES: &[(&str, &str)] = &[
    ("glibc.malloc.arena_max", "MALLOC_ARENA_MAX"),
    ("glibc.malloc.arena_test", "MALLOC_ARENA_TEST"),
    ("glibc.malloc.mmap_max", "MALLOC_MMAP_MAX_"),
    ("glibc.malloc.mmap_threshold", "MALLOC_MMAP_THRESHOLD_"),
    ("glibc.malloc.trim_threshold", "MALLOC_TRIM_THRESHOLD_"),
    ("glibc.malloc.top_pad", "MALLOC_TOP_PAD_"),
    ("glibc.malloc.perturb", "MALLOC_PERTURB_"),
];

/// Findings of the run without settings.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The command.
    pub command: Vec<String>,
    /// The program that the command starts, if known.
    pub started_program: Option<Program>,
    /// The program of the process with the most memory.
    pub program: Option<Program>,
    /// What was measured.
    pub observation: Observation,
    /// Environment variables of the command.
    pub environment: BTreeMap<String, String>,
    /// The system's setting for huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// Folders searched for libraries.
    pub folders: Vec<PathBuf>,
}

/// An allocator that is mapped into a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedAllocator {
    /// `glibc`, `jemalloc`, …
    pub name: String,
    /// Whether it is linked into the executable itself.
    #[serde(rename = "inside_program")]
    pub is_in_program: bool,
}

/// What a candidate sets, with all placeholders filled in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedSetting {
    /// Variables to set.
    pub variables: Vec<Variable>,
    /// Arguments inserted after the program name.
    pub arguments: Vec<String>,
    /// Setting of transparent huge pages, if changed.
    pub thp: Option<Thp>,
    /// The allocator that must be mapped if the setting took effect.
    pub allocator: Option<String>,
    /// Packages that contain the preloaded library.
    pub packages: Vec<String>,
}

/// A variable to set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its whole value, merged with the previous one.
    pub value: String,
    /// The part added by the candidate.
    pub added: String,
}

/// The folders of this machine that are searched for libraries.
pub fn system_library_folders() -> Vec<PathBuf> {
    SYSTEM_LIBRARY_FOLDERS.iter().map(PathBuf::from).collect()
}

/// What `candidate` sets for the program described by `facts`.
///
/// # Errors
/// The reason why it does not apply, in readable form.
pub fn apply(candidate: &Candidate, catalogue: &Catalogue, facts: &Facts) -> Result<AppliedSetting, String> {
    check_mapped(candidate, facts)?;
    check_unless(candidate, facts)?;
    let figure = |name| match name {
        BaselineFigure::Settled => facts.observation.settled_bytes,
        BaselineFigure::Peak => facts.observation.peak_bytes,
    };
    let mut applied = AppliedSetting { thp: candidate.thp, ..AppliedSetting::default() };
    if candidate.thp == Some(Thp::Never) {
        check_huge_pages(facts)?;
    }
    if !candidate.tunables.is_empty() {
        set_tunables(candidate, facts, &figure, &mut applied)?;
    }
    if let Some(library) = &candidate.library {
        let library = catalogue.libraries.get(library).ok_or_else(|| format!("no [library.{library}]"))?;
        let path = preload(library, facts)?;
        applied.set("LD_PRELOAD", &path.display().to_string(), facts);
        applied.allocator = Some(library.allocator.clone());
        applied.packages.extend(library.package.clone());
    }
    for (name, value) in &candidate.environment {
        let value = fill_placeholders(value, &figure)?;
        applied.set(name, &value, facts);
    }
    for word in &candidate.arguments {
        applied.arguments.push(fill_placeholders(word, &figure)?);
    }
    if !candidate.arguments.is_empty() {
        check_arguments(candidate, facts)?;
    }
    Ok(applied)
}

impl Facts {
    /// Whether everything that `applied` sets is already set.
    pub fn is_already_set(&self, applied: &AppliedSetting) -> bool {
        let is_set = |variable: &Variable| {
            self.environment.get(&variable.name).is_some_and(|value| match merge_rule(&variable.name) {
                MergeRule::Replace => *value == variable.value,
                MergeRule::Keys { separator, .. } => variable
                    .added
                    .split(separator)
                    .all(|item| value.split(separator).any(|set_item| set_item == item)),
                MergeRule::First => value.split([':', ' ']).any(|path| path == variable.added),
                MergeRule::Words => {
                    let mut words = variable.added.split(' ');
                    words.all(|word| value.split_whitespace().any(|set_word| set_word == word))
                }
            })
        };
        let variables = &applied.variables;
        !variables.is_empty()
            && variables.iter().all(is_set)
            && applied.arguments.is_empty()
            && applied.thp.is_none()
    }
}

/// Checks that the allocator and the runtime of the candidate are mapped.
fn check_mapped(candidate: &Candidate, facts: &Facts) -> Result<(), String> {
    let is_mapped = |name: &String| facts.observation.allocators.iter().any(|mapped| mapped.name == *name);
    if !candidate.allocator.is_empty() && !candidate.allocator.iter().any(is_mapped) {
        return Err(format!("{} is not its allocator", candidate.allocator.join(" or ")));
    }
    if candidate.runtime.is_empty() {
        return Ok(());
    }
    let runtime = facts.observation.runtimes.iter().find(|runtime| candidate.runtime.contains(&runtime.name));
    let MappedRuntime { name, version } =
        runtime.ok_or_else(|| format!("no {} in it", candidate.runtime.join(" or ")))?;
    if !candidate.runtime_version.contain(version.as_deref()) {
        let version = version.as_deref().unwrap_or_default();
        return Err(format!("for {name} {}; this is {version}", candidate.runtime_version.text()));
    }
    Ok(())
}

/// Whether disabling huge pages can have an effect. If the system gives huge pages to all memory,
/// finding none at the last ledger proves little: they may have been freed before.
fn check_huge_pages(facts: &Facts) -> Result<(), String> {
    match facts.huge_pages.as_deref() {
        Some("never") => Err("this system has no transparent huge pages".to_owned()),
        Some("always") => Ok(()),
        _ if facts.observation.huge_bytes == Some(0) => {
            Err("the run without settings had no huge pages when it was measured".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks that the user has not decided otherwise; see [`Candidate::unless`].
fn check_unless(candidate: &Candidate, facts: &Facts) -> Result<(), String> {
    let variables = facts.environment.iter().filter(|(name, _)| merge_rule(name) == MergeRule::Words);
    let variable_words = variables.flat_map(|(_, value)| value.split_whitespace());
    let words: Vec<&str> = facts.command.iter().map(String::as_str).chain(variable_words).collect();
    let is_set = |unless: &&String| {
        words.iter().any(|word| {
            word.strip_prefix(unless.as_str())
                .is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('='))
        })
    };
    match candidate.unless.iter().find(is_set) {
        Some(word) => Err(format!("the program is started with {word}")),
        None => Ok(()),
    }
}

/// Checks that the arguments of the candidate can follow the name of the program.
fn check_arguments(candidate: &Candidate, facts: &Facts) -> Result<(), String> {
    let started_program = facts.started_program.as_ref().filter(|program| program.is_direct);
    let started_program =
        started_program.ok_or("its words have to follow the program's name, and the command is a script")?;
    let is_started_program = |program: &Program| {
        let resolved_path = program.path.canonicalize().ok();
        program.path == started_program.path
            || resolved_path.is_some() && resolved_path == started_program.path.canonicalize().ok()
    };
    if !facts.program.as_ref().is_none_or(is_started_program) {
        return Err("its words have to follow the program's name, and the command starts another".to_owned());
    }
    let name = Path::new(facts.command.first().map_or("", String::as_str)).file_name().unwrap_or_default();
    let is_named = |program: &String| name == program.as_str() || started_program.name() == *program;
    if !candidate.program.is_empty() && !candidate.program.iter().any(is_named) {
        return Err(format!("its words are for {}", candidate.program.join(" or ")));
    }
    Ok(())
}

/// Sets the tunables of the candidate, as the release of glibc reads them.
fn set_tunables(
    candidate: &Candidate,
    facts: &Facts,
    figure: &dyn Fn(BaselineFigure) -> Option<u64>,
    applied: &mut AppliedSetting,
) -> Result<(), String> {
    if let Some(why) = facts.program.as_ref().and_then(|program| program.privilege.as_ref()) {
        return Err(format!("glibc takes no settings from the environment of a program with {why}"));
    }
    if !candidate.glibc.contain(facts.observation.glibc.as_deref()) {
        let version = facts.observation.glibc.as_deref().unwrap_or_default();
        return Err(format!("for glibc {}; this is {version}", candidate.glibc.text()));
    }
    let version = facts.observation.glibc.as_deref().and_then(version_numbers);
    let lacks_tunables = version.is_some_and(|version| version.as_slice() < &FIRST_GLIBC_WITH_TUNABLES[..]);
    let mut tunables = Vec::new();
    for (name, value) in &candidate.tunables {
        let value = fill_placeholders(value, figure)?;
        if lacks_tunables {
            let variable = VARIABLES_BEFORE_TUNABLES.iter().find(|(tunable, _)| tunable == name);
            let (_, variable) = variable.ok_or_else(|| format!("{name} needs glibc 2.26"))?;
            applied.set(variable, &value, facts);
        } else {
            tunables.push(format!("{name}={value}"));
        }
    }
    if !tunables.is_empty() {
        applied.set("GLIBC_TUNABLES", &tunables.join(":"), facts);
    }
    Ok(())
}

/// The file of the library, if it can be preloaded into the program.
fn preload(library: &Library, facts: &Facts) -> Result<PathBuf, String> {
    let program = facts.program.as_ref().or(facts.started_program.as_ref());
    if let Some(program) = program {
        if let Some(why) = &program.privilege {
            return Err(format!("nothing is preloaded into a program with {why}"));
        }
        match &program.loader {
            None => return Err("it is linked statically: nothing is preloaded into it".to_owned()),
            Some(loader) if CLibrary::of_file(loader) == Some(CLibrary::Musl) => {
                return Err("it runs on musl, and the libraries here are for glibc".to_owned());
            }
            Some(_) => {}
        }
        if program.defines_malloc {
            return Err("it defines malloc itself, which comes before anything preloaded".to_owned());
        }
    }
    if facts.observation.runtimes.iter().any(|runtime| runtime.name == "php") {
        return Err(
            "PHP loads its modules with RTLD_DEEPBIND: two allocators would free each other's blocks"
                .to_owned(),
        );
    }
    if facts.observation.allocators.iter().any(|mapped| mapped.name == "asan") {
        return Err("it runs under AddressSanitizer, which has its own allocator".to_owned());
    }
    let is_inside = |mapped: &&MappedAllocator| mapped.is_in_program && mapped.name == library.allocator;
    if let Some(built_in) = facts.observation.allocators.iter().find(is_inside) {
        return Err(format!("it brings its own {}", built_in.name));
    }
    find_library(library, program.map_or(DEFAULT_BITS, |program| program.bits), &facts.folders)
}

/// The first file of the library that is for programs of `bits` bits.
fn find_library(library: &Library, bits: u8, folders: &[PathBuf]) -> Result<PathBuf, String> {
    let mut has_other_word_size = false;
    for file in &library.files {
        let paths: Vec<PathBuf> = if file.contains('/') {
            vec![PathBuf::from(file)]
        } else {
            folders.iter().map(|folder| folder.join(file)).collect()
        };
        for path in paths.into_iter().filter(|path| path.is_file()) {
            // The loader splits LD_PRELOAD at both characters.
            if path.to_string_lossy().contains([' ', ':']) {
                return Err(format!(
                    "{}: a path with a space or a colon cannot be preloaded",
                    path.display()
                ));
            }
            if has_word_size(&path, bits) {
                return Ok(path);
            }
            has_other_word_size = true;
        }
    }
    let file = library.files.first().map_or("", String::as_str);
    if has_other_word_size {
        return Err(format!("{file} is not here for programs of {bits} bits"));
    }
    let advice = library.package.as_ref().map(|package| format!(": apt-get install {package}"));
    Err(format!("{file} is not here{}", advice.unwrap_or_default()))
}

/// Checks that two candidates can be combined so that both take effect.
///
/// # Errors
/// Why they cannot.
pub fn check_compatible(a: &Candidate, b: &Candidate) -> Result<(), String> {
    if a.library.is_some() && b.library.is_some() && a.library != b.library {
        return Err("two allocators".to_owned());
    }
    for (preloading, tuning) in [(a, b), (b, a)] {
        if preloading.library.is_some() && !tuning.tunables.is_empty() {
            return Err("settings of glibc's malloc do nothing under another allocator".to_owned());
        }
    }
    if !can_merge("GLIBC_TUNABLES", &a.glibc_tunables(), &b.glibc_tunables()) {
        return Err("the same tunable".to_owned());
    }
    for (name, value) in &a.environment {
        if b.environment.get(name).is_some_and(|b_value| !can_merge(name, value, b_value)) {
            return Err(format!("both set {name}"));
        }
    }
    if !a.arguments.is_empty() && !b.arguments.is_empty() {
        return Err("both need words behind the program's name".to_owned());
    }
    Ok(())
}

impl AppliedSetting {
    /// Sets a variable, merged with its value so far.
    fn set(&mut self, name: &str, added: &str, facts: &Facts) {
        if let Some(variable) = self.variables.iter_mut().find(|variable| variable.name == name) {
            variable.value = merge(name, Some(&variable.value), added);
            variable.added = merge(name, Some(&variable.added), added);
            return;
        }
        let value = merge(name, facts.environment.get(name).map(String::as_str), added);
        self.variables.push(Variable { name: name.to_owned(), value, added: added.to_owned() });
    }

    /// This setting combined with `other`; for a variable that cannot be merged, the value of
    /// `other` wins.
    pub fn combined_with(&self, other: &Self, facts: &Facts) -> Self {
        let mut combined = self.clone();
        for variable in &other.variables {
            if combined.variables.iter().any(|set| set.name == variable.name && set.added == variable.added) {
                continue;
            }
            combined.set(&variable.name, &variable.added, facts);
        }
        combined.arguments.extend(other.arguments.iter().cloned());
        combined.thp = combined.thp.or(other.thp);
        combined.allocator = combined.allocator.or_else(|| other.allocator.clone());
        combined
            .packages
            .extend(other.packages.iter().filter(|package| !self.packages.contains(package)).cloned());
        combined
    }

    /// The variables in the form that a subject takes.
    pub fn environment(&self) -> Vec<(String, Option<String>)> {
        self.variables.iter().map(|variable| (variable.name.clone(), Some(variable.value.clone()))).collect()
    }

    /// `command` with the arguments of the candidate inserted.
    pub fn command(&self, command: &[String]) -> Vec<String> {
        let (program, arguments) = command.split_at(command.len().min(1));
        program.iter().chain(&self.arguments).chain(arguments).cloned().collect()
    }

    /// What it adds, in shell syntax: `GLIBC_TUNABLES=… LD_PRELOAD=…`.
    pub fn setting(&self) -> String {
        let mut words: Vec<String> = self
            .variables
            .iter()
            .map(|variable| format!("{}={}", variable.name, shell_value(&variable.added)))
            .collect();
        words.extend(self.arguments.iter().map(|word| shell_word(word)));
        words.extend(self.thp.map(|_| "THP=never".to_owned()));
        words.join(" ")
    }
}

#[cfg(test)]
#[path = "applies_tests.rs"]
mod tests;
