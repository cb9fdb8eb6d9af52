//! Perl read from outside, against what perls know of themselves (`tests/subjects/perl`): the system's perl always,
//! those of `scripts/fetch-perls` in full mode.

mod copied;
mod figures;
mod others;
mod remedy;
mod secrets;
mod states;
