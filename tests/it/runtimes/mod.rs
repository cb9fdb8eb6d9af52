//! Language runtimes, against what each says of itself.

mod cpython;
mod go;
mod jvm;
mod perl;
mod sbcl;
