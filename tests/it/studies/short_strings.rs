//! The study `short-strings` in its short form.
