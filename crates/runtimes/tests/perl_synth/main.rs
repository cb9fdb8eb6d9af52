//! The reader of Perl against fabricated ones: sound ones, whose every figure is known by construction, damaged
//! ones, and ones built as traps.
//!
//! Nothing here looks at another process. Effort is measured in target memory read, never in time.

#[cfg(test)]
mod adapter;
#[cfg(test)]
mod damaged;
#[cfg(test)]
mod sound;
