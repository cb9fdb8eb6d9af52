//! Allocators that are recognised but not read yet. An allocator that gets a reader moves to its
//! own folder.

use strandline_claims::reader::{FileName, ReaderInfo, StopHandlers};

use FileName::{Contains, Versioned};

/// snmalloc.
pub static SNMALLOC: ReaderInfo = ReaderInfo::named("snmalloc", "snmalloc")
    .files(&[Contains("libsnmalloc", ".so")])
    .symbols(&["sn_malloc"]);

/// The allocator of AddressSanitizer.
pub static ASAN: ReaderInfo = ReaderInfo::named("asan", "AddressSanitizer's allocator")
    .files(&[Contains("libasan", ".so"), Contains("libclang_rt.asan", ".so")])
    .symbols(&["__asan_init"]);

/// Boehm's collector (libgc.so.N; libgcc_s.so is unrelated).
pub static BDWGC: ReaderInfo = ReaderInfo::named("bdwgc", "Boehm's collector")
    .files(&[Versioned("libgc.so.")])
    .symbols(&["GC_malloc_kind"])
    // libgc 7.2 to 8.2, pthread_stop_world.c.
    .stop_handlers(StopHandlers {
        files: &[Versioned("libgc.so.")],
        symbols: &["GC_suspend_handler", "GC_restart_handler"],
    });

/// GCC's garbage collector, exported for plugins by the compilers proper: ggc_collect(enum
/// ggc_collect) from GCC 12 on, ggc_collect() before.
pub static GGC: ReaderInfo = ReaderInfo::named("ggc", "GCC's collector")
    .symbols(&["_Z11ggc_collect11ggc_collect", "_Z11ggc_collectv"]);

/// Chromium's allocator, which serves every malloc call of the process.
pub static PARTITION_ALLOC: ReaderInfo =
    ReaderInfo::named("partition_alloc", "PartitionAlloc").symbols(&["ChromeMain"]);

/// rpmalloc.
pub static RPMALLOC: ReaderInfo =
    ReaderInfo::named("rpmalloc", "rpmalloc").files(&[Contains("librpmalloc", ".so")]);

/// Hoard.
pub static HOARD: ReaderInfo = ReaderInfo::named("hoard", "Hoard").files(&[Contains("libhoard", ".so")]);

/// Scudo.
pub static SCUDO: ReaderInfo = ReaderInfo::named("scudo", "Scudo")
    .files(&[Contains("libscudo", ".so"), Contains("libclang_rt.scudo", ".so")]);

/// hardened_malloc.
pub static HARDENED_MALLOC: ReaderInfo =
    ReaderInfo::named("hardened_malloc", "hardened_malloc").files(&[Contains("libhardened_malloc", ".so")]);
