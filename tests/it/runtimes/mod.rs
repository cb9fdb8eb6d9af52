//! Tests of language runtimes: what strandline reports against what each reports about itself.

mod cpython;
mod go;
mod jvm;
mod perl;
mod sbcl;
mod v8;
