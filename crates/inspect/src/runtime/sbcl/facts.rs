//! Figures of a process's SBCL.

use serde::{Deserialize, Serialize};

/// Figures of SBCL.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sbcl {}
