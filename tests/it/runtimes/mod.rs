//! Language runtimes, compared with what each reports of itself.

mod cpython;
mod go;
mod jvm;
mod perl;
mod sbcl;
mod v8;
mod v8_holders;
mod v8_objects;
mod v8_outside;
mod v8_paths;
mod v8_reclaim;
