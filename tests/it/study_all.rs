//! `study --all`, and the one page of all studies.
