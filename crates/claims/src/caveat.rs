//! What was not read, and why. A caveat is data: it travels with the ledger to every report.

use serde::{Deserialize, Serialize};

/// One thing the ledger does not know, or knows only in part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caveat {
    /// A short, stable name for scripts, such as `heap_damaged`.
    pub code: String,
    /// Where: an address, a mapping, a thread, a file.
    #[serde(rename = "where")]
    pub place: String,
    /// Resident bytes affected; `None` if unknown.
    pub bytes: Option<u64>,
    /// One sentence for a person. Never contains bytes of the target's memory.
    pub text: String,
}

impl Caveat {
    /// Makes a caveat about `place`.
    pub fn new(code: &str, place: impl Into<String>, bytes: Option<u64>, text: impl Into<String>) -> Self {
        Self { code: code.to_owned(), place: place.into(), bytes, text: text.into() }
    }

    /// Whether it reports that a reader ran out of time.
    pub fn is_late(&self) -> bool {
        self.code.ends_with("_too_slow") || self.code == "perl_late"
    }
}
