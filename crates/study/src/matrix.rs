//! The cells of a study: one choice on every axis that a subject takes. Counts cells before
//! creating them, and finds the cell for given choices. Runs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::file::{Axis, AxisValue, NamedChoice, Need, NeedKind, SUBJECT, Selection, Study, Subject};
use super::labels::labels;
use super::placeholders::escaped;
use strandline_report::units::thousands;

/// Upper bound on the number of cells of a run.
pub const MAX_CELLS: u64 = 1_000_000;
/// Maximum number of combinations of unnamed axes for which a claim, table or plot is made.
const MAX_GROUPS: u64 = 10_000;

/// Reason for a subject that `--axis subject=…` excludes.
const NO_SUBJECT: &str = "its subject is not part of this run";

/// A cell: the subject and, for each axis of the study, the index of its choice; `None` for an axis
/// that the subject does not take.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Index into [`Matrix::subjects`].
    pub subject: usize,
    /// Indices into the choices of [`Matrix::axes`].
    pub choices: Vec<Option<usize>>,
}

/// A study with the choices of one run.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The study.
    pub study: Arc<Study>,
    /// The subjects of this run.
    pub subjects: Vec<Subject>,
    /// The axes of the study, with the choices of this run.
    pub axes: Vec<Axis>,
}

/// A cell that is not run.
#[derive(Clone, Debug)]
pub struct OmittedCell {
    pub key: Key,
    pub why: String,
}

/// Which form of a study is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Full,
    /// That of the table `[short]`, if the study has it.
    Short,
}

/// Why choices do not identify a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellError {
    /// The axis or choice does not exist, or a choice is missing: an error in the file.
    Invalid(String),
    /// The cell is not part of this run.
    NotRun(String),
}

impl Matrix {
    /// A matrix with all choices of the study. An axis whose choices the user supplies gets one
    /// stand-in.
    pub fn full(study: Arc<Study>) -> Self {
        Self::with_stand_in(study, "any")
    }

    /// Like [`Matrix::full`], but the stand-in is a number; `None` if no axis needs one.
    pub fn full_with_numbers(study: Arc<Study>) -> Option<Self> {
        let is_open = study.axes.iter().any(|axis| axis.choices.is_empty());
        is_open.then(|| Self::with_stand_in(study, "1"))
    }

    fn with_stand_in(study: Arc<Study>, stand_in: &str) -> Self {
        let mut matrix = Self::declared(study);
        for axis in matrix.axes.iter_mut().filter(|axis| axis.choices.is_empty()) {
            let (name, value) = (stand_in.to_owned(), stand_in.to_owned());
            axis.choices.push(AxisValue {
                name,
                value,
                number: stand_in.parse().ok(),
                ..AxisValue::default()
            });
        }
        matrix
    }

    /// A matrix with exactly what the study declares.
    fn declared(study: Arc<Study>) -> Self {
        let (mut subjects, axes, repeats) =
            (study.subjects.clone(), study.axes.clone(), study.settings.repeats);
        subjects.iter_mut().for_each(|subject| subject.repeats = Some(subject.repeats.unwrap_or(repeats)));
        Self { study, subjects, axes }
    }

    /// The matrix of one run: the default choices, or those of the short form, overridden by
    /// `overrides`. Choices that the study does not have are added to their axes.
    ///
    /// # Errors
    /// One line that names an unknown axis or subject.
    pub fn chosen(
        study: Arc<Study>,
        form: Form,
        overrides: &[(String, Vec<String>)],
    ) -> Result<Self, String> {
        let mut matrix = Self::declared(study.clone());
        let short = study.short.as_ref().filter(|_| form == Form::Short);
        if let Some(max_repeats) = short.and_then(|short| short.repeats) {
            for (subject, declared) in matrix.subjects.iter_mut().zip(&study.subjects) {
                let repeats = declared.repeats.map_or(max_repeats, |repeats| repeats.min(max_repeats));
                subject.repeats = Some(repeats);
            }
        }
        for (name, _) in overrides {
            if name != SUBJECT && study.axis(name).is_none() {
                let names: Vec<&str> = study.axes.iter().map(|axis| axis.name.as_str()).collect();
                return Err(format!(
                    "--axis {name}: {} has no such axis; it has {} and subject",
                    study.name,
                    names.join(", ")
                ));
            }
        }
        // The last of several lists for an axis counts.
        let named_choices = |axis: &str| -> Option<&Vec<String>> {
            let short_axes = short.map(|short| short.axes.as_slice()).unwrap_or_default();
            let mut lists = overrides.iter().rev().chain(short_axes.iter().rev());
            lists.find(|(name, _)| name == axis).map(|(_, names)| names)
        };
        if let Some(names) = named_choices(SUBJECT) {
            if let Some(name) = names.iter().find(|name| !study.subjects.iter().any(|s| s.name == **name)) {
                let known: Vec<&str> = study.subjects.iter().map(|subject| subject.name.as_str()).collect();
                return Err(format!(
                    "--axis subject={name}: {} has no such subject; it has {}",
                    study.name,
                    known.join(", ")
                ));
            }
            matrix.subjects.retain(|subject| names.contains(&subject.name));
        }
        for axis in &mut matrix.axes {
            let names = named_choices(&axis.name).unwrap_or(&axis.default).clone();
            let mut unique_names = BTreeSet::new();
            let distinct = names.iter().filter(|name| unique_names.insert(name.as_str()));
            let declared: BTreeMap<&str, &AxisValue> =
                axis.choices.iter().rev().map(|choice| (choice.name.as_str(), choice)).collect();
            let declared_choice = |name: &String| declared.get(name.as_str()).map(|choice| (*choice).clone());
            axis.choices = distinct
                .map(|name| declared_choice(name).unwrap_or_else(|| new_choice(axis, name)))
                .collect();
        }
        Ok(matrix)
    }

    /// Sets the number of runs of every cell, overriding the study.
    pub fn repeat(&mut self, repeats: u32) {
        self.subjects.iter_mut().for_each(|subject| subject.repeats = Some(repeats));
    }

    /// Number of runs of a cell.
    pub fn repeats_of(&self, key: &Key) -> u32 {
        self.subjects.get(key.subject).and_then(|subject| subject.repeats).unwrap_or(1)
    }

    /// The largest number of runs of any cell.
    pub fn max_repeats(&self) -> u32 {
        self.subjects.iter().filter_map(|subject| subject.repeats).max().unwrap_or(1)
    }

    /// Total number of runs, excluded cells counted too; `None` on overflow.
    pub fn run_count(&self) -> Option<u64> {
        self.subjects.iter().try_fold(0u64, |sum, subject| {
            let runs = self.cell_count_of(subject)?.checked_mul(u64::from(subject.repeats.unwrap_or(1)))?;
            sum.checked_add(runs)
        })
    }

    /// Indices of the axes that a subject takes.
    fn axes_of(&self, subject: &Subject) -> Vec<usize> {
        let takes = |axis: &Axis| subject.axes.contains(&axis.name);
        self.axes.iter().enumerate().filter(|(_, axis)| takes(axis)).map(|(index, _)| index).collect()
    }

    /// Number of cells, excluded ones counted too; `None` on overflow.
    pub fn cell_count(&self) -> Option<u64> {
        self.subjects.iter().try_fold(0u64, |sum, subject| sum.checked_add(self.cell_count_of(subject)?))
    }

    /// Number of cells of a subject, excluded ones counted too; `None` on overflow.
    fn cell_count_of(&self, subject: &Subject) -> Option<u64> {
        self.product_count(&self.axes_of(subject))
    }

    /// Number of combinations of choices on the `varied` axes; `None` on overflow.
    fn product_count(&self, varied: &[usize]) -> Option<u64> {
        let choices = |&axis: &usize| self.axes.get(axis).map_or(0, |axis| axis.choices.len() as u64);
        varied.iter().map(choices).try_fold(1u64, u64::checked_mul)
    }

    /// All cells except excluded ones.
    ///
    /// # Errors
    /// One line if there are more than `MAX_CELLS`.
    pub fn cells(&self) -> Result<Vec<Key>, String> {
        Ok(self.all_cells()?.into_iter().filter(|key| self.exclusion_reason(key).is_none()).collect())
    }

    /// All cells, excluded ones too.
    fn all_cells(&self) -> Result<Vec<Key>, String> {
        match self.cell_count() {
            Some(count) if count <= MAX_CELLS => {}
            count => {
                let count = count.map_or_else(|| "more than 10^19".to_owned(), thousands);
                let max_cells = thousands(MAX_CELLS);
                return Err(format!(
                    "{count} cells are too many: at most {max_cells}; narrow an axis with --axis"
                ));
            }
        }
        let mut cells = Vec::new();
        for (index, subject) in self.subjects.iter().enumerate() {
            let varied: Vec<usize> = self.axes_of(subject);
            let start = Key { subject: index, choices: vec![None; self.axes.len()] };
            cells.extend(self.products(start, &varied));
        }
        Ok(cells)
    }

    /// The cells that the study excludes.
    ///
    /// # Errors
    /// Those of [`Self::cells`].
    pub fn excluded_cells(&self) -> Result<Vec<OmittedCell>, String> {
        let omitted = |key: Key| Some(OmittedCell { why: self.exclusion_reason(&key)?.to_owned(), key });
        Ok(self.all_cells()?.into_iter().filter_map(omitted).collect())
    }

    /// `start` with every combination of choices on the axes `varied`; callers have bounded their
    /// number.
    fn products(&self, start: Key, varied: &[usize]) -> Vec<Key> {
        let mut keys = vec![start];
        for &axis in varied {
            let choices = self.axes.get(axis).map_or(0, |axis| axis.choices.len());
            keys = keys
                .into_iter()
                .flat_map(|key| {
                    (0..choices).map(move |choice| {
                        let mut key = key.clone();
                        if let Some(chosen) = key.choices.get_mut(axis) {
                            *chosen = Some(choice);
                        }
                        key
                    })
                })
                .collect();
        }
        keys
    }

    /// The reason why a cell is excluded, if it is.
    pub fn exclusion_reason(&self, key: &Key) -> Option<&str> {
        let matching = self.study.exclusions.iter().find(|exclusion| {
            let is_chosen = |choice: &NamedChoice| self.choice_name(key, &choice.axis) == Some(&choice.name);
            exclusion.selection.iter().all(is_chosen)
        });
        matching.map(|exclusion| exclusion.why.as_str())
    }

    /// Name of the choice of a cell on an axis, or of its subject.
    pub fn choice_name<'m>(&'m self, key: &'m Key, axis: &str) -> Option<&'m str> {
        if axis == SUBJECT {
            return self.subjects.get(key.subject).map(|subject| subject.name.as_str());
        }
        self.choices(key).find(|(listed, _)| listed.name == axis).map(|(_, choice)| choice.name.as_str())
    }

    /// The choices of a cell.
    pub fn choices<'m>(&'m self, key: &'m Key) -> impl Iterator<Item = (&'m Axis, &'m AxisValue)> {
        let pairs = self.axes.iter().zip(&key.choices);
        pairs.filter_map(|(axis, choice)| Some((axis, axis.choices.get((*choice)?)?)))
    }

    /// Names of the choices of a cell, preceded by the subject if the study has several.
    pub fn names(&self, key: &Key) -> Selection {
        let subject = self.subjects.get(key.subject).filter(|_| self.study.subjects.len() > 1);
        let subject = subject.map(|subject| NamedChoice::new(SUBJECT, &subject.name));
        let choices = self.choices(key).map(|(axis, choice)| NamedChoice::new(&axis.name, &choice.name));
        subject.into_iter().chain(choices).collect()
    }

    /// The choices of [`Self::names`] by axis.
    pub fn names_by_axis(&self, key: &Key) -> BTreeMap<String, String> {
        self.names(key).into_iter().map(|choice| (choice.axis, choice.name)).collect()
    }

    /// The cell identified by the `named` choices, with `fixed` choices for the other axes.
    ///
    /// # Errors
    /// Why the choices do not identify a cell of this run.
    pub fn resolve(&self, named: &[NamedChoice], fixed: &[NamedChoice]) -> Result<Key, CellError> {
        for choice in named {
            self.check_choice(choice)?;
        }
        let choice_on = |axis: &str| {
            let mut choices = named.iter().chain(fixed);
            choices.find(|choice| choice.axis == axis).map(|choice| choice.name.as_str())
        };
        let (index, subject) = self.resolve_subject(choice_on(SUBJECT))?;
        let is_not_taken =
            |choice: &&NamedChoice| choice.axis != SUBJECT && !subject.axes.contains(&choice.axis);
        if let Some(NamedChoice { axis, .. }) = named.iter().find(is_not_taken) {
            let text = format!("the subject `{}` does not take the axis `{axis}`", subject.name);
            return Err(CellError::Invalid(text));
        }
        let mut key = Key { subject: index, choices: vec![None; self.axes.len()] };
        for index in self.axes_of(subject) {
            if let (Some(axis), Some(chosen)) = (self.axes.get(index), key.choices.get_mut(index)) {
                *chosen = Some(resolve_choice(axis, choice_on(&axis.name))?);
            }
        }
        match self.exclusion_reason(&key) {
            Some(why) => Err(CellError::NotRun(format!("left out: {why}"))),
            None => Ok(key),
        }
    }

    /// The subject of this name, or the only one, with its index.
    fn resolve_subject(&self, name: Option<&str>) -> Result<(usize, &Subject), CellError> {
        if name.is_none() && self.subjects.len() > 1 {
            let text = "there are several subjects: name one, { \"subject\": … }";
            return Err(CellError::Invalid(text.to_owned()));
        }
        let has_name = |subject: &Subject| name.is_none_or(|name| subject.name == name);
        let mut subjects = self.subjects.iter().enumerate().filter(|(_, subject)| has_name(subject));
        subjects.next().ok_or_else(|| CellError::NotRun(NO_SUBJECT.to_owned()))
    }

    /// Checks that the study, or this run, has the choice.
    ///
    /// # Errors
    /// `CellError::Invalid` if it does not exist.
    pub fn check_choice(&self, NamedChoice { axis, name }: &NamedChoice) -> Result<(), CellError> {
        let unknown = |what: &str| Err(CellError::Invalid(format!("there is no {what}")));
        if axis == SUBJECT {
            let exists = self.study.subjects.iter().any(|subject| subject.name == *name);
            return if exists { Ok(()) } else { unknown(&format!("subject `{name}`")) };
        }
        let Some(declared) = self.study.axis(axis) else { return unknown(&format!("axis `{axis}`")) };
        let in_run = self.axes.iter().find(|in_run| in_run.name == *axis);
        let exists = declared.choice(name).or_else(|| in_run.and_then(|axis| axis.choice(name))).is_some();
        if exists { Ok(()) } else { unknown(&format!("value `{name}` on the axis `{axis}`")) }
    }

    /// All combinations of choices on the axes that are not `named`; a claim, table or plot is made
    /// for each. Axes with one choice are included. If `subjects` is not empty, only these count.
    ///
    /// # Errors
    /// One line if there are more than `MAX_GROUPS`.
    pub fn groups(
        &self,
        is_named: &dyn Fn(&str) -> bool,
        subjects: &BTreeSet<String>,
    ) -> Result<Vec<Selection>, String> {
        let mut groups: Vec<Selection> = Vec::new();
        let names_an_axis = self.axes.iter().any(|axis| is_named(&axis.name));
        let is_selected = |subject: &Subject| subjects.is_empty() || subjects.contains(&subject.name);
        let free_axes = |subject: &Subject| -> BTreeSet<usize> {
            let is_free = |axis: &usize| self.axes.get(*axis).is_some_and(|axis| !is_named(&axis.name));
            self.axes_of(subject).into_iter().filter(is_free).collect()
        };
        let selected_subjects: Vec<(usize, &Subject)> =
            self.subjects.iter().enumerate().filter(|(_, subject)| is_selected(subject)).collect();
        if is_named(SUBJECT) {
            // Subjects are compared for each combination of all their axes; a subject that does not
            // take an axis is the same for all its choices.
            let all_free: BTreeSet<usize> =
                selected_subjects.iter().flat_map(|(_, subject)| free_axes(subject)).collect();
            if let Some((index, _)) = selected_subjects.first() {
                self.add_groups(*index, None, all_free, &mut groups)?;
            }
            return Ok(groups);
        }
        for (index, subject) in selected_subjects {
            let takes_all =
                self.axes.iter().all(|axis| !is_named(&axis.name) || subject.axes.contains(&axis.name));
            // Only subjects that take all named axes count.
            if names_an_axis && !takes_all {
                continue;
            }
            self.add_groups(index, Some(subject), free_axes(subject), &mut groups)?;
        }
        Ok(groups)
    }

    /// Adds the combinations of choices on the `free` axes, which the subject with this index
    /// takes, to `groups`; each also names `subject`, if given.
    fn add_groups(
        &self,
        index: usize,
        subject: Option<&Subject>,
        free: BTreeSet<usize>,
        groups: &mut Vec<Selection>,
    ) -> Result<(), String> {
        let free: Vec<usize> = free.into_iter().collect();
        let count = self.product_count(&free);
        if count.is_none_or(|count| count.saturating_add(groups.len() as u64) > MAX_GROUPS) {
            return Err(format!(
                "the axes it does not name have more than {} combinations; name more of them",
                thousands(MAX_GROUPS)
            ));
        }
        for key in self.products(Key { subject: index, choices: vec![None; self.axes.len()] }, &free) {
            let choices = self.choices(&key).map(|(axis, choice)| NamedChoice::new(&axis.name, &choice.name));
            let subject = subject.map(|subject| NamedChoice::new(SUBJECT, &subject.name));
            groups.push(subject.into_iter().chain(choices).collect());
        }
        Ok(())
    }

    /// The subjects that an expression reading these `metrics` and naming these `subjects` applies
    /// to: without named ones, those that have all of the metrics; empty if these are all subjects.
    pub fn relevant_subjects<'m>(
        &self,
        subjects: &BTreeSet<String>,
        metrics: impl Iterator<Item = &'m String> + Clone,
    ) -> BTreeSet<String> {
        if !subjects.is_empty() {
            return subjects.clone();
        }
        let has = |subject: &&Subject| metrics.clone().all(|name| subject.metrics.contains_key(name));
        let having = |subjects: &[Subject]| -> BTreeSet<String> {
            subjects.iter().filter(has).map(|subject| subject.name.clone()).collect()
        };
        match having(&self.subjects) {
            names if names.is_empty() => having(&self.study.subjects),
            names if names.len() == self.subjects.len() => BTreeSet::new(),
            names => names,
        }
    }

    /// Why there is no cell of these `subjects`, or of any subject if empty.
    pub fn why_no_cell(&self, subjects: &BTreeSet<String>) -> String {
        let is_selected = |subject: &&Subject| subjects.is_empty() || subjects.contains(&subject.name);
        let selected_subjects = self.subjects.iter().filter(is_selected);
        if selected_subjects.clone().next().is_none() {
            return NO_SUBJECT.to_owned();
        }
        let axes = selected_subjects
            .flat_map(|subject| self.axes_of(subject))
            .filter_map(|axis| self.axes.get(axis));
        let mut open_axes = axes.filter(|axis| axis.choices.is_empty());
        let default_reason = || "none of its cells is part of this run".to_owned();
        open_axes.next().map_or_else(default_reason, |axis| not_given(&axis.name))
    }

    /// Label of a group: its choices on axes with several choices; empty if there are none.
    pub fn group_name(&self, group: &[NamedChoice]) -> String {
        let has_several = |choice: &&NamedChoice| {
            if choice.axis == SUBJECT {
                return self.subjects.len() > 1;
            }
            self.axes.iter().any(|listed| listed.name == choice.axis && listed.choices.len() > 1)
        };
        let choices = group.iter().filter(has_several);
        let part = |NamedChoice { axis, name }: &NamedChoice| format!("{axis}={}", self.label(axis, name));
        choices.map(part).collect::<Vec<_>>().join(", ")
    }

    /// How a choice of an axis is shown.
    pub fn label(&self, axis: &str, choice: &str) -> String {
        // Only paths are shortened.
        let path_axis = self.axes.iter().find(|listed| listed.name == axis && choice.starts_with('/'));
        let names: Vec<&str> =
            path_axis.iter().flat_map(|axis| &axis.choices).map(|choice| choice.name.as_str()).collect();
        let index = names.iter().position(|name| *name == choice);
        index.and_then(|index| labels(&names).into_iter().nth(index)).unwrap_or_else(|| choice.to_owned())
    }
}

/// Index of the choice of this name on an axis, or of the only one.
fn resolve_choice(axis: &Axis, name: Option<&str>) -> Result<usize, CellError> {
    match (name, axis.choices.len()) {
        (Some(name), _) => {
            let index = axis.choices.iter().position(|choice| choice.name == name);
            let not_run = || CellError::NotRun(format!("{}={name} is not part of this run", axis.name));
            index.ok_or_else(not_run)
        }
        (None, 1) => Ok(0),
        (None, 0) => Err(CellError::NotRun(not_given(&axis.name))),
        (None, _) => Err(CellError::Invalid(format!(
            "the axis `{}` has several values: name one, {{ \"{}\": … }}",
            axis.name, axis.name
        ))),
    }
}

/// Reason for an axis without a choice in this run.
fn not_given(axis: &str) -> String {
    format!("nothing is chosen for {axis}: --axis {axis}=…")
}

/// The choice for a `name` that the study does not have, similar to the other choices of the axis.
fn new_choice(axis: &Axis, name: &str) -> AxisValue {
    // An allocator supplied for an axis of allocators is to be preloaded.
    let preloads = axis.choices.iter().any(|choice| choice.preload.is_some());
    // Cells run in their own folders: makes a path absolute from the user's working directory.
    let path =
        std::path::absolute(name).ok().filter(|path| name.contains('/') && (preloads || path.exists()));
    let value = path.map_or_else(|| name.to_owned(), |path| path.to_string_lossy().into_owned());
    let need = Need { kind: NeedKind::Library, name: escaped(&value), ..Need::default() };
    AxisValue {
        name: name.to_owned(),
        number: name.parse().ok().filter(|number: &f64| number.is_finite()),
        preload: preloads.then(|| escaped(&value)),
        needs: preloads.then_some(need).into_iter().collect(),
        value,
        ..AxisValue::default()
    }
}
