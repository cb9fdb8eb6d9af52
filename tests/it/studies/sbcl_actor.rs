//! The study `sbcl-actor` in its short form.
