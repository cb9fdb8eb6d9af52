//! The reader of Perl against fabricated perls: valid ones, whose figures are all known by
//! construction, damaged ones, and ones built as traps.
//!
//! No test reads another process. Effort is measured in target memory read, never in time.

#[cfg(test)]
mod adapter;
#[cfg(test)]
mod damaged;
#[cfg(test)]
mod sound;
