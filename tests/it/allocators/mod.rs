//! Heaps of glibc and of the other allocators, compared with the figures of allocator and program.

mod adopted;
mod mallinfo;
mod others;
mod pieces;
mod settings;
mod trim;
mod unusual;
