//! The lines of a default screen on a process beside its ledger: name, answer, largest types, what
//! releases memory, what to type next. `model` has the details. Reads no process and knows no
//! terminal.

use strandline_claims::caveat::Caveat;
use strandline_inspect::facts::{Explanation, Remedy, RemedyKind};

use super::model::short_name;
use super::text::{clean, clean_sentence, counted, shorten};
use super::units::{bytes, maybe_bytes, seconds, stopped, thousands};

const MAX_REMEDIES: usize = 3;
const MAX_TYPES: usize = 3;
/// Maximum number of important caveats shown.
const MAX_IMPORTANT_CAVEATS: usize = 2;
/// A caveat that touches more than 1/`IMPORTANT_DIVISOR` of RSS belongs to the answer.
const IMPORTANT_DIVISOR: u64 = 100;
/// Maximum width of a type's name.
const MAX_TYPE_COLUMNS: usize = 32;

/// The parts of a default screen.
#[derive(Clone, Debug)]
pub struct Brief {
    /// `python3, pid 28914, 1 thread`.
    pub name: String,
    /// `RSS 142 MiB (peak 144 MiB, PSS 138 MiB)`.
    pub resident: String,
    /// The headline, and the caveats that touch a significant part of RSS.
    pub answer: String,
    /// The largest types of the largest runtime: `dict 27.1 MiB (151,670)`.
    pub types: Vec<String>,
    /// What releases memory, best first.
    pub releases: Vec<Release>,
    /// Number of other remedies, which only `-v` shows.
    pub hidden_releases: usize,
    /// The commands to type next.
    pub next: [NextCommand; 2],
    /// The cost of the inspection, and the number of the other caveats.
    pub cost: String,
}

/// One line of what releases memory.
#[derive(Clone, Debug)]
pub struct Release {
    /// The remedy's name.
    pub id: String,
    /// What it is predicted to release, or `unknown`.
    pub predicted: String,
    /// The command or setting to paste.
    pub how: String,
}

/// A command to type next.
#[derive(Clone, Debug)]
pub struct NextCommand {
    /// What to type.
    pub command: String,
    /// What it shows or does.
    pub effect: String,
}

impl NextCommand {
    /// The command with its effect.
    pub fn new(command: String, effect: &str) -> Self {
        Self { command, effect: effect.to_owned() }
    }
}

impl Brief {
    /// The parts of the screen on `explanation`.
    pub fn new(explanation: &Explanation) -> Self {
        let (pid, kernel) = (explanation.target.pid, &explanation.kernel);
        let important = ImportantCaveats::of(&explanation.caveats, kernel.rss_bytes);
        let headline = clean_sentence(&explanation.verdict.headline);
        let sentences = Some(headline).filter(|headline| !headline.is_empty());
        let answer: Vec<String> = sentences.into_iter().chain(important.sentences).collect();
        let releases = releases(explanation);
        let effective_count = explanation.remedies.iter().filter(is_effective).count();
        let swap = match kernel.swap_bytes {
            0 => String::new(),
            swap => format!(", swap {}", bytes(swap)),
        };
        Self {
            name: format!(
                "{}, pid {pid}, {}",
                short_name(&explanation.target),
                counted(explanation.target.threads, "thread")
            ),
            resident: format!(
                "RSS {} (peak {}, PSS {}{swap})",
                bytes(kernel.rss_bytes),
                maybe_bytes(kernel.high_water_bytes),
                maybe_bytes(kernel.pss_bytes)
            ),
            answer: answer.join(". "),
            types: types(explanation),
            hidden_releases: effective_count.saturating_sub(releases.len()),
            releases,
            next: [
                NextCommand::new(
                    format!("strandline holders {pid}"),
                    "who holds live blocks, which ones leaked",
                ),
                NextCommand::new(format!("strandline explain -v {pid}"), &detail_names(explanation)),
            ],
            cost: cost(explanation, important.other_count),
        }
    }
}

/// What the view with all details lists: `arenas, types, all rows, caveats`.
fn detail_names(explanation: &Explanation) -> String {
    let parts = [
        ("arenas, ", explanation.allocators.iter().any(|allocator| !allocator.arenas.is_empty())),
        ("types, ", explanation.runtimes.iter().any(|runtime| !runtime.types.is_empty())),
        ("all rows", true),
        (", caveats", !explanation.caveats.is_empty()),
    ];
    parts.into_iter().filter_map(|(text, is_present)| is_present.then_some(text)).collect()
}

/// The caveats that belong to the answer, because they touch a significant part of RSS.
pub struct ImportantCaveats {
    /// The caveats as sentences.
    pub sentences: Vec<String>,
    /// Number of the other caveats.
    pub other_count: usize,
}

impl ImportantCaveats {
    /// The caveats of a process of `rss_bytes`, or of a group with that charge.
    pub fn of(caveats: &[Caveat], rss_bytes: u64) -> Self {
        let min_bytes = rss_bytes / IMPORTANT_DIVISOR;
        let sentences = caveats.iter().filter_map(|caveat| {
            let touched_bytes = caveat.bytes.filter(|&touched| touched > min_bytes)?;
            Some(format!("Caveat ({}): {}", bytes(touched_bytes), clean_sentence(&caveat.text)))
        });
        let sentences: Vec<String> = sentences.take(MAX_IMPORTANT_CAVEATS).collect();
        Self { other_count: caveats.len() - sentences.len(), sentences }
    }
}

/// The largest types of the largest runtime.
fn types(explanation: &Explanation) -> Vec<String> {
    let with_types = explanation.runtimes.iter().filter(|runtime| !runtime.types.is_empty());
    let largest = with_types.max_by_key(|runtime| runtime.used_bytes);
    let types = largest.map_or(&[][..], |runtime| &runtime.types).iter().take(MAX_TYPES);
    types
        .map(|facts| {
            let name = shorten(&clean(&facts.name), MAX_TYPE_COLUMNS);
            format!("{name} {} ({})", bytes(facts.bytes), thousands(facts.instances))
        })
        .collect()
}

/// Whether a remedy releases anything, as far as is known.
fn is_effective(remedy: &&Remedy) -> bool {
    remedy.predicted_bytes != Some(0)
}

/// The remedies that release something that those before them do not, those of little effect last.
fn releases(explanation: &Explanation) -> Vec<Release> {
    let min_bytes = explanation.kernel.rss_bytes / IMPORTANT_DIVISOR;
    let effective = explanation.remedies.iter().filter(is_effective);
    let mut additional: Vec<&Remedy> =
        effective.filter(|remedy| remedy.predicted_after_better_bytes != Some(0)).collect();
    additional.sort_by_key(|remedy| remedy.predicted_bytes.is_some_and(|predicted| predicted < min_bytes));
    additional.into_iter().take(MAX_REMEDIES).map(release).collect()
}

fn release(remedy: &Remedy) -> Release {
    let how = clean_sentence(&remedy.how);
    let at_least = || remedy.predicted_least_bytes.map(|bound| format!("≥ {}", bytes(bound)));
    let is_later = matches!(remedy.kind, RemedyKind::Setting | RemedyKind::Allocator);
    Release {
        id: clean(&remedy.id),
        predicted: remedy.predicted_bytes.map(bytes).or_else(at_least).unwrap_or("unknown".to_owned()),
        how: match &remedy.needs {
            Some(needs) => format!("{how} (needs {})", clean(needs)),
            None if is_later && !how.is_empty() => format!("{how} (next start)"),
            None => how,
        },
    }
}

/// `stopped 5.6 ms · 173 ms · 185 MiB read · 2 caveats (-v)`.
fn cost(explanation: &Explanation, caveat_count: usize) -> String {
    let cost = &explanation.cost;
    cost_line(cost.stopped_seconds, cost.wall_seconds, Some(cost.bytes_read), caveat_count)
}

/// The last line of a default screen. A `bytes_read` of `None` is left out; `caveat_count` is the
/// number of caveats that only `-v` shows.
pub fn cost_line(
    stopped_seconds: f64,
    wall_seconds: f64,
    bytes_read: Option<u64>,
    caveat_count: usize,
) -> String {
    let read = bytes_read.map(|size| format!("{} read", bytes(size)));
    let caveats = (caveat_count > 0).then(|| format!("{} (-v)", counted(caveat_count as u64, "caveat")));
    let parts = [Some(stopped(stopped_seconds)), Some(seconds(wall_seconds)), read, caveats];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}
