//! How a process is read, in the arguments of several verbs.

use clap::ValueEnum;
use strandline_inspect::explain::ByPhotograph;
use strandline_recorder::plan;

/// When a photograph is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Photograph {
    /// Never: the process is stopped while it is read
    Never,
    /// Where a language runtime (Perl, SBCL) or an allocator whose blocks tell what they are (musl, tcmalloc, mimalloc) is read,
    /// which takes longer, and it can do no harm
    Auto,
    /// Where it can do no harm; else the process is stopped while it is read, which a caveat says
    Try,
    /// Always; refuse where it could do harm
    Always,
}

impl Photograph {
    /// As the library takes it.
    pub fn wanted(self) -> ByPhotograph {
        match self {
            Self::Never => ByPhotograph::Never,
            Self::Auto => ByPhotograph::IfShorter,
            Self::Try => ByPhotograph::IfPossible,
            Self::Always => ByPhotograph::Always,
        }
    }
}

/// A time as [`plan::duration`] has it, or none.
pub fn duration_or_none(text: &str) -> Result<std::time::Duration, String> {
    let number = text.trim_end_matches(|c: char| c.is_alphabetic());
    if number.parse::<f64>() == Ok(0.0) { Ok(std::time::Duration::ZERO) } else { plan::duration(text) }
}
