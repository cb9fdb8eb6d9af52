//! The study `zeroed-buffers` in its short form.
