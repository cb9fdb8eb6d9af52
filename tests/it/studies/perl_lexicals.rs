//! The study `perl-lexicals` in its short form.
