//! strandline's integration tests, in one binary: real processes of known answer, looked at by
//! the real program.

mod harness;

mod address_space;
mod bad_input;
mod heap_mallinfo;
mod heap_other;
mod heap_trim;
mod privacy;
mod quiet_stop;
mod synth_adopted;
