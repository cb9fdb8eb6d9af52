//! The study `freed-heap` in its short form.
