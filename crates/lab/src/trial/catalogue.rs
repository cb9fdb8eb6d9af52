//! The candidates of `try` as data: the built-in catalogue and that of the user.
//!
//! A file is accepted as a whole or rejected with the faulty line: a misspelt key must not produce
//! a candidate without effect. Whether a candidate applies to a program is decided in
//! [`super::applies`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::setting::{BaselineFigure, fill_placeholders};
use crate::command_line::is_variable_name;
use crate::path_error::AtPath;
use strandline_process::shell::{is_unsafe, shell_value, shell_word};

const BUILT_IN: &str = include_str!("remedies.toml");
/// Maximum length of an id and of the name of a library.
const MAX_ID_BYTES: usize = 60;
/// Maximum size of a user's catalogue.
const MAX_CATALOGUE_BYTES: u64 = 1 << 20;
/// Maximum number of candidates: each costs runs.
const MAX_CANDIDATES: usize = 1000;

/// All candidates and libraries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// The candidates, in catalogue order.
    pub candidates: Vec<Candidate>,
    /// The libraries that candidates preload, by name.
    pub libraries: BTreeMap<String, Library>,
}

/// Kind of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A setting of the allocator or of the kernel.
    Setting,
    /// Another allocator.
    Allocator,
    /// A setting of the language runtime.
    Runtime,
}

/// Setting of transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thp {
    /// Off for the process and its children (`PR_SET_THP_DISABLE`).
    Never,
}

/// One setting to try.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Its name: lower-case letters, digits and `_`.
    pub id: String,
    /// Readable description.
    pub title: String,
    /// Its kind.
    pub kind: Kind,
    /// Applies if one of these allocators is mapped; if empty, to any.
    #[serde(default)]
    pub allocator: Vec<String>,
    /// Applies if one of these runtimes is mapped; if empty, to any program.
    #[serde(default)]
    pub runtime: Vec<String>,
    /// Versions of the runtime that it applies to.
    #[serde(default)]
    pub runtime_version: Versions,
    /// Versions of glibc that it applies to.
    #[serde(default)]
    pub glibc: Versions,
    /// Tunables of glibc to set, by full name.
    #[serde(default)]
    pub tunables: BTreeMap<String, String>,
    /// Variables to set.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The library to preload, by its name in the catalogue.
    #[serde(default)]
    pub library: Option<String>,
    /// Arguments to insert right after the program name.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Names, without folders, of programs that take these arguments; if empty, any.
    #[serde(default)]
    pub program: Vec<String>,
    /// Setting of transparent huge pages.
    #[serde(default)]
    pub thp: Option<Thp>,
    /// Options that show that the user has already decided otherwise; searched for on the command
    /// line and in variables that hold options.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Known cost.
    pub cost: String,
    /// Sources of this information.
    pub source: Vec<String>,
}

/// A library to preload.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    /// The allocator that must be mapped after preloading it.
    pub allocator: String,
    /// Its files, each a path or a name to look up in the library folders; the first one that
    /// exists is used.
    pub files: Vec<String>,
    /// Its Debian package.
    #[serde(default)]
    pub package: Option<String>,
}

/// A range of versions, each given as numbers and dots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// Lower bound, inclusive.
    #[serde(default)]
    pub least: Option<String>,
    /// Upper bound, exclusive.
    #[serde(default)]
    pub below: Option<String>,
}

impl Versions {
    /// Whether `version` is in the range; an unknown version counts as in the range.
    pub fn contain(&self, version: Option<&str>) -> bool {
        let Some(version) = version.and_then(version_numbers) else { return true };
        let least = self.least.as_deref().and_then(version_numbers);
        let below = self.below.as_deref().and_then(version_numbers);
        least.is_none_or(|least| version >= least) && below.is_none_or(|below| version < below)
    }

    /// The range in readable form: `15 or later`, `below 1.16`.
    pub fn text(&self) -> String {
        match (&self.least, &self.below) {
            (Some(least), Some(below)) => format!("from {least} on, below {below}"),
            (Some(least), None) => format!("{least} or later"),
            (None, Some(below)) => format!("below {below}"),
            (None, None) => "any".to_owned(),
        }
    }
}

/// The leading numbers of a version such as `17.0.15+6`; `None` if it does not begin with one.
pub fn version_numbers(version: &str) -> Option<Vec<u64>> {
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let parts: Option<Vec<u64>> =
        version.get(..end)?.trim_end_matches('.').split('.').map(|part| part.parse().ok()).collect();
    parts.filter(|parts| !parts.is_empty())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogueFile {
    #[serde(default)]
    library: BTreeMap<String, Spanned<Library>>,
    #[serde(default)]
    candidate: Vec<Spanned<Candidate>>,
}

impl Catalogue {
    /// The built-in catalogue.
    ///
    /// # Errors
    /// One line, if it is faulty: a test checks that it is not.
    pub fn built_in() -> Result<Self, String> {
        let mut catalogue = Self::default();
        catalogue.add(BUILT_IN, "the built-in catalogue")?;
        Ok(catalogue)
    }

    /// The built-in catalogue plus that of a file, whose candidates and libraries replace those of
    /// the same name.
    ///
    /// # Errors
    /// One line with the file and the faulty line.
    pub fn with_file(path: &Path) -> Result<Self, String> {
        use std::io::Read;
        let name = path.display().to_string();
        let mut text = String::new();
        let file = std::fs::File::open(path);
        let read = file.and_then(|file| file.take(MAX_CATALOGUE_BYTES + 1).read_to_string(&mut text));
        read.at(path)?;
        if text.len() as u64 > MAX_CATALOGUE_BYTES {
            return Err(format!("{name}: larger than a catalogue can be ({MAX_CATALOGUE_BYTES} bytes)"));
        }
        let mut catalogue = Self::built_in()?;
        catalogue.add(&text, &name)?;
        Ok(catalogue)
    }

    /// Adds the candidates and libraries of `text`, replacing those of the same name.
    ///
    /// # Errors
    /// One line with `name` and the faulty line.
    pub fn add(&mut self, text: &str, name: &str) -> Result<(), String> {
        let line_of = |offset: usize| text.get(..offset).map_or(1, |before| before.matches('\n').count() + 1);
        let file: CatalogueFile = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            format!("{name}:{}: {}", line_of(offset), error.message().replace('\n', " "))
        })?;
        for (key, library) in file.library {
            let line = line_of(library.span().start);
            let library = library.into_inner();
            library.check(&key).map_err(|problem| format!("{name}:{line}: library {key:?}: {problem}"))?;
            self.libraries.insert(key, library);
        }
        let mut ids = BTreeSet::new();
        for candidate in file.candidate {
            let line = line_of(candidate.span().start);
            let candidate = candidate.into_inner();
            let checked = candidate.check(&self.libraries);
            checked.map_err(|problem| format!("{name}:{line}: candidate {:?}: {problem}", candidate.id))?;
            if !ids.insert(candidate.id.clone()) {
                return Err(format!("{name}:{line}: candidate `{}`: its id is used before", candidate.id));
            }
            match self.candidates.iter_mut().find(|listed| listed.id == candidate.id) {
                Some(listed) => *listed = candidate,
                None => self.candidates.push(candidate),
            }
        }
        if self.candidates.len() > MAX_CANDIDATES {
            return Err(format!("{name}: more than {MAX_CANDIDATES} candidates"));
        }
        Ok(())
    }
}

/// Rejects characters that a terminal would interpret or a reader would not see: the texts go to
/// terminals, and into files that are pasted elsewhere.
fn check_text<'a>(texts: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    match texts.into_iter().find(|text| text.chars().any(is_unsafe)) {
        Some(text) => Err(format!("{text:?} has characters that cannot be shown")),
        None => Ok(()),
    }
}

/// Whether `name` can be an id or the name of a library.
fn is_id(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !name.is_empty() && name.len() <= MAX_ID_BYTES && name.chars().all(is_plain)
}

impl Library {
    /// Checks the library under the name `key`.
    fn check(&self, key: &str) -> Result<(), String> {
        if !is_id(key) {
            return Err(format!(
                "its name is made of lower-case letters, digits and `_`, at most {MAX_ID_BYTES}"
            ));
        }
        if self.files.is_empty() || self.allocator.is_empty() {
            return Err("it needs an allocator and at least one file".to_owned());
        }
        // A package name becomes a shell word in a Dockerfile (Debian policy 5.6.7; `:` is for an
        // architecture).
        let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_package = |name: &&String| {
            name.starts_with(is_alphanumeric)
                && name.chars().all(|c| is_alphanumeric(c) || matches!(c, '+' | '-' | '.' | ':'))
        };
        if let Some(name) = self.package.iter().find(|name| !is_package(name)) {
            return Err(format!("{name:?} is not the name of a Debian package"));
        }
        check_text(self.files.iter().chain([&self.allocator]))
    }
}

impl Candidate {
    fn check(&self, libraries: &BTreeMap<String, Library>) -> Result<(), String> {
        if !is_id(&self.id) {
            return Err(format!(
                "an id is made of lower-case letters, digits and `_`, at most {MAX_ID_BYTES}"
            ));
        }
        if self.id == "baseline" {
            return Err("`baseline` is the run without settings".to_owned());
        }
        if let Some(library) = &self.library
            && !libraries.contains_key(library)
        {
            return Err(format!("there is no [library.{library}]"));
        }
        let sets_no_value =
            self.tunables.is_empty() && self.environment.is_empty() && self.arguments.is_empty();
        if sets_no_value && self.library.is_none() && self.thp.is_none() {
            return Err("it sets nothing (tunables, environment, library, arguments or thp)".to_owned());
        }
        if self.source.iter().all(|source| source.trim().is_empty()) {
            return Err("`source` is the origin of the knowledge; give at least one".to_owned());
        }
        self.check_names()?;
        let values = self.environment.values().chain(self.tunables.values()).chain(&self.arguments);
        for value in values {
            fill_placeholders(value, &|_: BaselineFigure| Some(1))?;
        }
        for version in [&self.runtime_version, &self.glibc] {
            for text in version.least.iter().chain(&version.below) {
                version_numbers(text).ok_or_else(|| format!("`{text}` is not a version"))?;
            }
        }
        Ok(())
    }

    /// Checks the names of variables and tunables, and the characters of all texts.
    fn check_names(&self) -> Result<(), String> {
        for name in self.environment.keys() {
            if !is_variable_name(name) {
                return Err(format!("`{name}` is not the name of a variable"));
            }
            if name == "GLIBC_TUNABLES" || name == "LD_PRELOAD" {
                return Err(format!("`{name}` is written by `tunables` and `library`"));
            }
        }
        for (name, value) in &self.tunables {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            if !name.starts_with("glibc.") || !name.chars().all(is_plain) || value.contains(':') {
                return Err(format!("`{name}` is not a tunable of glibc, or its value has a colon"));
            }
        }
        let values = self.environment.values().chain(self.tunables.values()).chain(&self.arguments);
        let names = self.allocator.iter().chain(&self.runtime).chain(&self.program).chain(&self.unless);
        check_text([&self.title, &self.cost].into_iter().chain(&self.source).chain(values).chain(names))?;
        let versions = [&self.runtime_version, &self.glibc];
        check_text(versions.into_iter().flat_map(|version| version.least.iter().chain(&version.below)))
    }

    /// Its part of the variable `GLIBC_TUNABLES`, with unfilled placeholders.
    pub fn glibc_tunables(&self) -> String {
        let pairs: Vec<String> =
            self.tunables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join(":")
    }

    /// Its setting with unfilled placeholders, in shell syntax.
    pub fn setting(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        if !self.tunables.is_empty() {
            words.push(format!("GLIBC_TUNABLES={}", self.glibc_tunables()));
        }
        words.extend(self.library.iter().map(|library| format!("LD_PRELOAD={library}")));
        words.extend(self.environment.iter().map(|(name, value)| format!("{name}={}", shell_value(value))));
        words.extend(self.arguments.iter().map(|word| shell_word(word)));
        words.extend(self.thp.map(|_| "THP=never".to_owned()));
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str =
        "[[candidate]]\nid = \"a\"\ntitle = \"t\"\nkind = \"setting\"\ncost = \"\"\nsource = [\"s\"]\n";

    fn refusal(text: &str) -> String {
        Catalogue::built_in().unwrap().add(text, "own.toml").unwrap_err()
    }

    #[test]
    fn the_built_in_catalogue_is_valid() {
        let catalogue = Catalogue::built_in().unwrap();
        assert!(catalogue.candidates.len() >= 40);
        for id in ["arena_max_2", "jemalloc_decay_0", "jvm_zgc_uncommit", "gomemlimit_50", "d_heap_factor"] {
            assert!(catalogue.candidates.iter().any(|candidate| candidate.id == id), "{id}");
        }
        for candidate in &catalogue.candidates {
            assert!(!candidate.cost.is_empty() && !candidate.title.is_empty(), "{}", candidate.id);
            assert!(candidate.cost.len() < 160, "{}", candidate.id);
        }
        let arena = catalogue.candidates.iter().find(|candidate| candidate.id == "arena_max_2").unwrap();
        assert_eq!(arena.setting(), "GLIBC_TUNABLES=glibc.malloc.arena_max=2");
    }

    #[test]
    fn a_user_s_candidate_replaces_or_adds() {
        let mut catalogue = Catalogue::built_in().unwrap();
        let count = catalogue.candidates.len();
        let text = SMALL.replace("\"a\"", "\"arena_max_2\"") + "environment = { X = \"1\" }\n";
        catalogue.add(&text, "own.toml").unwrap();
        assert_eq!(catalogue.candidates.len(), count);
        catalogue.add(&(SMALL.to_owned() + "environment = { X = \"1\" }\n"), "own.toml").unwrap();
        assert_eq!(catalogue.candidates.len(), count + 1);
        let replaced = catalogue.candidates.iter().find(|candidate| candidate.id == "arena_max_2").unwrap();
        assert_eq!(replaced.setting(), "X=1");
    }

    #[test]
    fn errors_have_line_numbers() {
        let text = format!("# own\n{SMALL}enviroment = {{ X = \"1\" }}\n");
        let error = refusal(&text);
        assert!(error.starts_with("own.toml:8: ") && error.contains("enviroment"), "{error}");
        assert!(!error.contains('\n'));
        let error = refusal("\n\n[[candidate]\n");
        assert!(error.starts_with("own.toml:3: "), "{error}");
        let error = refusal(&format!("\n\n{SMALL}"));
        assert!(error.starts_with("own.toml:3: ") && error.contains("sets nothing"), "{error}");
        for (line, expected) in [
            ("environment = { GLIBC_TUNABLES = \"x\" }", "written by"),
            ("environment = { \"A-B\" = \"x\" }", "not the name"),
            ("environment = { A = \"{settled*}\" }", "{settled*}"),
            ("environment = { A = \"{memory}\" }", "memory"),
            ("tunables = { \"malloc.x\" = \"1\" }", "not a tunable"),
            ("library = \"none\"", "no [library.none]"),
            ("thp = \"always\"", "always"),
            ("thp = \"never\"\nglibc = { least = \"new\" }", "not a version"),
        ] {
            let error = refusal(&format!("{SMALL}{line}\n"));
            assert!(error.contains(expected) && error.starts_with("own.toml:"), "{line}: {error}");
        }
        for (package, is_good) in [
            ("libjemalloc2", true),
            ("g++-12:amd64", true),
            ("x && rm -rf /", false),
            ("x\\nRUN true", false),
            ("", false),
            ("-y", false),
        ] {
            let library =
                format!("[library.own]\nallocator = \"x\"\nfiles = [\"x\"]\npackage = \"{package}\"\n");
            let added = Catalogue::built_in().unwrap().add(&library, "own.toml");
            assert_eq!(added.is_ok(), is_good, "{package}: {added:?}");
        }
        for hostile in [
            SMALL.replace("\"t\"", "\"\\u001b[2J\"") + "thp = \"never\"\n",
            SMALL.replace("\"s\"", "\"\\u202e\"") + "thp = \"never\"\n",
            SMALL.to_owned() + "environment = { A = \"a\\nb\" }\n",
            SMALL.to_owned() + "thp = \"never\"\nglibc = { least = \"2.3\\u001b\" }\n",
            "[library.a]\nallocator = \"x\"\nfiles = [\"\\u0007\"]\n".to_owned(),
        ] {
            let error = refusal(&hostile);
            assert!(error.contains("cannot be shown") && !error.chars().any(is_unsafe), "{error}");
        }
        assert!(
            refusal("[library.\"a b\"]\nallocator = \"x\"\nfiles = [\"x\"]\n").contains("lower-case letters")
        );
        let twice = format!("{SMALL}thp = \"never\"\n{SMALL}thp = \"never\"\n");
        assert!(refusal(&twice).contains("used before"));
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let range = Versions { least: Some("1.9".into()), below: Some("1.16".into()) };
        assert!(range.contain(Some("1.10")) && range.contain(Some("1.9")) && range.contain(None));
        assert!(!range.contain(Some("1.16")) && !range.contain(Some("1.8.9")));
        assert_eq!(version_numbers("17.0.15+6-Debian"), Some(vec![17, 0, 15]));
        assert_eq!(version_numbers("go1.2"), None);
        assert_eq!(version_numbers("99999999999999999999999"), None);
    }
}
