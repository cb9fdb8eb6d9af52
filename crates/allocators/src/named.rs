//! Allocators that are recognised but not read yet. An allocator that gets a reader moves to its
//! own folder.

use strandline_claims::reader::{About, Evidence, FileName};

use FileName::{Has, Versioned};

/// snmalloc.
pub static SNMALLOC: About = About {
    name: "snmalloc",
    title: "snmalloc",
    evidence: Evidence { files: &[Has("libsnmalloc", ".so")], symbols: &["sn_malloc"], ..Evidence::NONE },
    ..About::NONE
};

/// The allocator of AddressSanitizer.
pub static ASAN: About = About {
    name: "asan",
    title: "AddressSanitizer's allocator",
    evidence: Evidence {
        files: &[Has("libasan", ".so"), Has("libclang_rt.asan", ".so")],
        symbols: &["__asan_init"],
        ..Evidence::NONE
    },
    ..About::NONE
};

/// Boehm's collector (libgc.so.N; libgcc_s.so is unrelated).
pub static BDWGC: About = About {
    name: "bdwgc",
    title: "Boehm's collector",
    evidence: Evidence { files: &[Versioned("libgc.so.")], symbols: &["GC_malloc_kind"], ..Evidence::NONE },
    ..About::NONE
};

/// GCC's garbage collector, exported for plugins by the compilers proper: ggc_collect(enum
/// ggc_collect) from GCC 12 on, ggc_collect() before.
pub static GGC: About = About {
    name: "ggc",
    title: "GCC's collector",
    evidence: Evidence { symbols: &["_Z11ggc_collect11ggc_collect", "_Z11ggc_collectv"], ..Evidence::NONE },
    ..About::NONE
};

/// Chromium's allocator, which serves every malloc call of the process.
pub static PARTITION_ALLOC: About = About {
    name: "partition_alloc",
    title: "PartitionAlloc",
    evidence: Evidence { symbols: &["ChromeMain"], ..Evidence::NONE },
    ..About::NONE
};

/// rpmalloc.
pub static RPMALLOC: About = library("rpmalloc", "rpmalloc", &[Has("librpmalloc", ".so")]);
/// Hoard.
pub static HOARD: About = library("hoard", "Hoard", &[Has("libhoard", ".so")]);
/// Scudo.
pub static SCUDO: About =
    library("scudo", "Scudo", &[Has("libscudo", ".so"), Has("libclang_rt.scudo", ".so")]);
/// hardened_malloc.
pub static HARDENED_MALLOC: About =
    library("hardened_malloc", "hardened_malloc", &[Has("libhardened_malloc", ".so")]);

const fn library(name: &'static str, title: &'static str, files: &'static [FileName]) -> About {
    About { name, title, evidence: Evidence { files, ..Evidence::NONE }, ..About::NONE }
}
