//! Tests which candidates apply to a program.

use super::*;

fn catalogue() -> Catalogue {
    Catalogue::built_in().unwrap()
}

fn mapped(name: &str) -> MappedAllocator {
    MappedAllocator { name: name.into(), is_in_program: false }
}

fn runtime(name: &str, version: Option<&str>) -> MappedRuntime {
    MappedRuntime { name: name.into(), version: version.map(str::to_owned) }
}

/// A dynamic 64-bit program on glibc 2.36, with a library of each allocator in a folder.
fn facts(folder: &Path) -> Facts {
    for file in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2.0"] {
        std::fs::write(folder.join(file), b"\x7fELF\x02\x01").unwrap();
    }
    let program = Program {
        path: "/usr/bin/thing".into(),
        is_direct: true,
        bits: 64,
        loader: Some("/lib64/ld-linux-x86-64.so.2".into()),
        ..Program::default()
    };
    Facts {
        command: vec!["thing".into(), "x".into()],
        started_program: Some(program.clone()),
        program: Some(program),
        observation: Observation {
            allocators: vec![mapped("glibc")],
            glibc: Some("2.36".into()),
            settled_bytes: Some(100 << 20),
            peak_bytes: Some(200 << 20),
            ..Observation::default()
        },
        folders: vec![folder.to_owned()],
        ..Facts::default()
    }
}

fn try_one(id: &str, facts: &Facts) -> Result<AppliedSetting, String> {
    let catalogue = catalogue();
    let candidate = catalogue.candidates.iter().find(|candidate| candidate.id == id).unwrap();
    apply(candidate, &catalogue, facts)
}

#[test]
fn a_plain_program_gets_glibc_and_allocators_only() {
    let folder = tempfile::tempdir().unwrap();
    let facts = facts(folder.path());
    let catalogue = catalogue();
    let applied: Vec<&str> = catalogue
        .candidates
        .iter()
        .filter(|candidate| apply(candidate, &catalogue, &facts).is_ok())
        .map(|candidate| candidate.id.as_str())
        .collect();
    assert!(applied.contains(&"arena_max_2") && applied.contains(&"jemalloc_decay_0"));
    assert!(applied.contains(&"mimalloc2_decommit_0") && !applied.contains(&"mimalloc3_purge_0"));
    assert!(applied.iter().all(|id| !id.starts_with("python") && !id.starts_with("jvm")), "{applied:?}");
    assert_eq!(try_one("python_malloc", &facts).unwrap_err(), "no cpython in it");
    assert!(try_one("mimalloc3", &facts).unwrap_err().ends_with("apt-get install libmimalloc3"));
}

#[test]
fn tunables_are_merged_or_written_as_old_variables() {
    let folder = tempfile::tempdir().unwrap();
    let mut facts = facts(folder.path());
    facts.environment.insert("GLIBC_TUNABLES".into(), "glibc.malloc.arena_max=8:glibc.rtld.nns=3".into());
    let applied = try_one("arena_max_2", &facts).unwrap();
    let value = &applied.environment()[0];
    assert_eq!(
        value,
        &("GLIBC_TUNABLES".to_owned(), Some("glibc.rtld.nns=3:glibc.malloc.arena_max=2".to_owned()))
    );
    assert_eq!(applied.setting(), "GLIBC_TUNABLES=glibc.malloc.arena_max=2");
    facts.observation.glibc = Some("2.24".into());
    let applied = try_one("arena_max_1_trim", &facts).unwrap();
    assert_eq!(
        applied.setting(),
        "MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072"
    );
    assert_eq!(try_one("tcache_0", &facts).unwrap_err(), "for glibc 2.26 or later; this is 2.24");
    facts.observation.allocators = vec![mapped("musl")];
    assert_eq!(try_one("arena_max_2", &facts).unwrap_err(), "glibc is not its allocator");
}

#[test]
fn preloading_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let good = facts(folder.path());
    let path = folder.path().join("libjemalloc.so.2").display().to_string();
    let applied = try_one("jemalloc", &good).unwrap();
    assert_eq!(applied.environment(), [("LD_PRELOAD".to_owned(), Some(path))]);
    assert_eq!(applied.allocator.as_deref(), Some("jemalloc"));
    let with = |change: &dyn Fn(&mut Program)| {
        let mut facts = good.clone();
        change(facts.program.as_mut().unwrap());
        try_one("jemalloc", &facts).unwrap_err()
    };
    assert!(with(&|program| program.loader = None).contains("statically"));
    assert!(with(&|program| program.loader = Some("/lib/ld-musl-x86_64.so.1".into())).contains("musl"));
    assert!(with(&|program| program.privilege = Some("setuid".into())).contains("setuid"));
    assert!(with(&|program| program.defines_malloc = true).contains("defines malloc"));
    assert!(with(&|program| program.bits = 32).contains("32 bits"));
    let mut php = good.clone();
    php.observation.runtimes.push(runtime("php", None));
    assert!(try_one("jemalloc", &php).unwrap_err().contains("RTLD_DEEPBIND"));
    let mut own = good.clone();
    own.observation.allocators.push(MappedAllocator { name: "jemalloc".into(), is_in_program: true });
    assert!(try_one("jemalloc", &own).unwrap_err().contains("its own jemalloc"));
    let mut nowhere = good;
    nowhere.folders = vec!["/nowhere".into()];
    assert!(try_one("jemalloc", &nowhere).unwrap_err().contains("apt-get install libjemalloc2"));
}

#[test]
fn runtimes_are_recognised_by_name_and_version() {
    let folder = tempfile::tempdir().unwrap();
    let mut facts = facts(folder.path());
    facts.observation.runtimes = vec![runtime("jvm", Some("11.0.2"))];
    assert_eq!(try_one("jvm_zgc_uncommit", &facts).unwrap_err(), "for jvm 15 or later; this is 11.0.2");
    facts.observation.runtimes = vec![runtime("jvm", None)];
    assert!(try_one("jvm_zgc_uncommit", &facts).is_ok());
    facts.environment.insert("JAVA_TOOL_OPTIONS".into(), "-Xmx2g -XX:+UseG1GC".into());
    assert!(try_one("jvm_zgc_uncommit", &facts).unwrap_err().contains("-XX:+UseG1GC"));
    let g1 = try_one("jvm_g1_periodic", &facts).unwrap();
    assert!(g1.variables[0].value.starts_with("-Xmx2g -XX:+UseG1GC -XX:+UseG1GC"));
    assert!(!g1.setting().contains("Xmx2g"), "what was there is the user's");
    facts.observation.runtimes = vec![runtime("go", Some("1.26"))];
    let go = try_one("gomemlimit_50", &facts).unwrap();
    assert_eq!(go.setting(), format!("GOMEMLIMIT={}", 100 << 20));
    facts.observation.peak_bytes = None;
    assert!(try_one("gomemlimit_50", &facts).unwrap_err().contains("no figure"));
    assert!(try_one("go_madvdontneed", &facts).unwrap_err().contains("below 1.16"));
}

#[test]
fn options_follow_the_program_that_takes_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut facts = facts(folder.path());
    facts.observation.runtimes = vec![runtime("d", None), runtime("node", None)];
    let applied = try_one("d_heap_factor", &facts).unwrap();
    assert_eq!(applied.command(&facts.command), ["thing", "--DRT-gcopt=heapSizeFactor:1.2", "x"]);
    assert!(try_one("node_optimize_for_size", &facts).unwrap_err().contains("for node"));
    facts.program.as_mut().unwrap().path = "/usr/bin/other".into();
    assert!(try_one("d_heap_factor", &facts).unwrap_err().contains("starts another"));
    facts.started_program.as_mut().unwrap().is_direct = false;
    assert!(try_one("d_heap_factor", &facts).unwrap_err().contains("script"));
}

#[test]
fn huge_pages_are_switched_off_where_there_are_any() {
    let folder = tempfile::tempdir().unwrap();
    let mut facts = facts(folder.path());
    assert_eq!(try_one("thp_never", &facts).unwrap().thp, Some(Thp::Never));
    facts.observation.huge_bytes = Some(0);
    facts.huge_pages = Some("madvise".into());
    assert!(try_one("thp_never", &facts).unwrap_err().contains("no huge pages when it was measured"));
    facts.huge_pages = Some("always".into());
    assert!(try_one("thp_never", &facts).is_ok(), "they may have been given back before");
    (facts.huge_pages, facts.observation.huge_bytes) = (Some("never".into()), Some(1));
    assert!(try_one("thp_never", &facts).unwrap_err().contains("this system"));
}

#[test]
fn pairs_must_agree() {
    let catalogue = catalogue();
    let find = |id: &str| catalogue.candidates.iter().find(|candidate| candidate.id == id).unwrap();
    let pair = |a: &str, b: &str| check_compatible(find(a), find(b));
    assert!(pair("arena_max_1", "trim_threshold_128k").is_ok());
    assert!(pair("arena_max_1", "arena_max_2").is_err());
    assert!(pair("jemalloc", "tcmalloc").unwrap_err().contains("two allocators"));
    assert!(pair("jemalloc", "arena_max_1").unwrap_err().contains("do nothing"));
    assert!(pair("jemalloc_decay_0", "python_malloc").is_ok());
    assert!(pair("jvm_serial", "jvm_zgc_uncommit").is_err());
    assert!(pair("jemalloc_decay_0", "jemalloc_background").is_err());
    let folder = tempfile::tempdir().unwrap();
    let facts = facts(folder.path());
    let both =
        try_one("arena_max_1", &facts).unwrap().combined_with(&try_one("top_pad_0", &facts).unwrap(), &facts);
    assert_eq!(both.setting(), "GLIBC_TUNABLES=glibc.malloc.arena_max=1:glibc.malloc.top_pad=0");
    let same = try_one("jemalloc", &facts).unwrap();
    assert_eq!(same.combined_with(&same, &facts), same);
}
