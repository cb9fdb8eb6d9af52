//! Heaps of glibc and of the other allocators, against what the allocator and the program say of themselves.

mod adopted;
mod mallinfo;
mod others;
mod pieces;
mod settings;
mod trim;
mod unusual;
