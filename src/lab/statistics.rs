//! Judging figures that vary.
