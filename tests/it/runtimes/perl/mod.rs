//! Perl read from outside, compared with its own figures (`tests/subjects/perl`): the system's perl
//! always, perls of `scripts/fetch-perls` in full mode.

mod copied;
mod figures;
mod others;
mod remedy;
mod secrets;
mod states;
