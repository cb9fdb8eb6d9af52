//! Allocators that are recognised but not read yet. An allocator that gets a reader moves to its
//! own folder.

use strandline_claims::reader::{Evidence, FileName, ReaderInfo, StopHandlers};

use FileName::{Contains, Versioned};

/// snmalloc.
pub static SNMALLOC: ReaderInfo = ReaderInfo {
    name: "snmalloc",
    title: "snmalloc",
    evidence: Evidence {
        files: &[Contains("libsnmalloc", ".so")],
        symbols: &["sn_malloc"],
        ..Evidence::NONE
    },
    ..ReaderInfo::NONE
};

/// The allocator of AddressSanitizer.
pub static ASAN: ReaderInfo = ReaderInfo {
    name: "asan",
    title: "AddressSanitizer's allocator",
    evidence: Evidence {
        files: &[Contains("libasan", ".so"), Contains("libclang_rt.asan", ".so")],
        symbols: &["__asan_init"],
        ..Evidence::NONE
    },
    ..ReaderInfo::NONE
};

/// Boehm's collector (libgc.so.N; libgcc_s.so is unrelated).
pub static BDWGC: ReaderInfo = ReaderInfo {
    name: "bdwgc",
    title: "Boehm's collector",
    evidence: Evidence { files: &[Versioned("libgc.so.")], symbols: &["GC_malloc_kind"], ..Evidence::NONE },
    // libgc 7.2 to 8.2, pthread_stop_world.c.
    stop_handlers: StopHandlers {
        files: &[Versioned("libgc.so.")],
        symbols: &["GC_suspend_handler", "GC_restart_handler"],
    },
    ..ReaderInfo::NONE
};

/// GCC's garbage collector, exported for plugins by the compilers proper: ggc_collect(enum
/// ggc_collect) from GCC 12 on, ggc_collect() before.
pub static GGC: ReaderInfo = ReaderInfo {
    name: "ggc",
    title: "GCC's collector",
    evidence: Evidence { symbols: &["_Z11ggc_collect11ggc_collect", "_Z11ggc_collectv"], ..Evidence::NONE },
    ..ReaderInfo::NONE
};

/// Chromium's allocator, which serves every malloc call of the process.
pub static PARTITION_ALLOC: ReaderInfo = ReaderInfo {
    name: "partition_alloc",
    title: "PartitionAlloc",
    evidence: Evidence { symbols: &["ChromeMain"], ..Evidence::NONE },
    ..ReaderInfo::NONE
};

/// rpmalloc.
pub static RPMALLOC: ReaderInfo = library("rpmalloc", "rpmalloc", &[Contains("librpmalloc", ".so")]);
/// Hoard.
pub static HOARD: ReaderInfo = library("hoard", "Hoard", &[Contains("libhoard", ".so")]);
/// Scudo.
pub static SCUDO: ReaderInfo =
    library("scudo", "Scudo", &[Contains("libscudo", ".so"), Contains("libclang_rt.scudo", ".so")]);
/// hardened_malloc.
pub static HARDENED_MALLOC: ReaderInfo =
    library("hardened_malloc", "hardened_malloc", &[Contains("libhardened_malloc", ".so")]);

const fn library(name: &'static str, title: &'static str, files: &'static [FileName]) -> ReaderInfo {
    ReaderInfo { name, title, evidence: Evidence { files, ..Evidence::NONE }, ..ReaderInfo::NONE }
}
