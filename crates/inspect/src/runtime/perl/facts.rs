//! Figures of a process's Perl interpreters.

use serde::{Deserialize, Serialize};

/// Figures of Perl.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Perl {}
