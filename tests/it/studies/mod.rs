//! `study`: the verb (`verb`, `needs`, `files`, `all`), and each study of `studies/` in short form.

mod all;
mod files;
mod freed_heap;
mod half_deleted;
mod needs;
mod perl_lexicals;
mod pooled_pages;
mod sbcl_actor;
mod short_strings;
mod verb;
mod who_holds;
mod zeroed_buffers;
