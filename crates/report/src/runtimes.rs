//! The text of a report on language runtimes that were read: titles, sentences and tables, already
//! clean.

use strandline_inspect::facts::{Runtime, TypeFacts};
use strandline_runtimes::cpython::census::FEW_OBJECTS;
use strandline_runtimes::cpython::facts::{self as python, CPython, Collector};
use strandline_runtimes::go::facts::{Go, SizeClass};
use strandline_runtimes::jvm::facts::{AreaKind, Jvm};
use strandline_runtimes::perl::facts::{Amount, Interpreter, Perl};
use strandline_runtimes::sbcl::facts::{Generation, Path, Sbcl, TypeBytes};

use super::table::{Column, figures, words};
use super::text::{clean, clean_sentence, counted};
use super::units::{bytes, maybe_bytes, thousands};

/// One runtime, ready to be laid out.
#[derive(Clone, Debug)]
pub struct RuntimeView {
    /// `perl 5.36.0: 1 interpreter, 12,345 values`.
    pub title: String,
    /// Sentences.
    pub lines: Vec<String>,
    /// Tables, in order.
    pub tables: Vec<RuntimeTable>,
}

/// A table of a runtime's figures.
#[derive(Clone, Debug)]
pub struct RuntimeTable {
    /// Its columns.
    pub head: &'static [Column],
    /// Its rows.
    pub rows: Vec<Vec<String>>,
    /// Index of the column that is shortened if space is short.
    pub flexible: usize,
}

const SPAN_HEAD: [Column; 5] =
    [figures("free"), figures("spans take"), figures("spans"), figures("objects"), words("of size")];
const AREA_HEAD: [Column; 6] = [
    words("heap"),
    figures("resident"),
    figures("objects"),
    figures("live"),
    figures("free"),
    figures("regions or spaces"),
];
const COMMON_HEAD: [Column; 3] = [figures("bytes"), figures("instances"), words("type")];

/// Maximum number of buffers and types shown.
const MAX_SHOWN: usize = 10;
const MAX_LOADERS: usize = 3;

const RETAINED_HEAD: [Column; 2] = [figures("bytes"), words("kept by")];
const GENERATION_HEAD: [Column; 7] = [
    words("generation"),
    figures("allocated"),
    figures("live"),
    figures("dead"),
    figures("waste"),
    figures("pages"),
    words("collected after"),
];
const TYPE_HEAD: [Column; 5] =
    [words(""), figures("bytes"), figures("instances"), words("type"), words("mostly in")];

/// The views of all runtimes that were read.
pub fn views(runtimes: &[Runtime]) -> Vec<RuntimeView> {
    runtimes.iter().filter(|runtime| runtime.read).map(view).collect()
}

fn view(runtime: &Runtime) -> RuntimeView {
    let name = match &runtime.version {
        Some(version) => format!("{} {}", clean(&runtime.name), clean(version)),
        None => clean(&runtime.name),
    };
    if let Some(facts) = runtime.details::<Perl>("perl") {
        return perl(&name, &facts);
    }
    if let Some(facts) = runtime.details::<CPython>("cpython") {
        return cpython(&name, runtime, &facts);
    }
    if let Some(facts) = runtime.details::<Go>("go") {
        return go(&name, runtime, &facts);
    }
    if let Some(facts) = runtime.details::<Jvm>("jvm") {
        return jvm(&name, runtime, &facts);
    }
    match runtime.details::<Sbcl>("sbcl") {
        Some(facts) => sbcl(&name, &facts),
        None => common(&name, runtime),
    }
}

fn jvm(name: &str, runtime: &Runtime, facts: &Jvm) -> RuntimeView {
    let mut view = common(name, runtime);
    let collector = runtime.own.get("collector").and_then(|name| name.as_str()).unwrap_or_default();
    let most = if facts.doubtful_bytes().is_some() { "at most " } else { "" };
    let live =
        facts.live_bytes.map_or(String::new(), |live| format!(", of which {most}{} live", bytes(live)));
    let most = facts.max_heap_bytes.map_or(String::new(), |most| format!("; -Xmx {}", bytes(most)));
    view.title = format!(
        "{name}, {}: {} of objects{live}, in a heap with {} resident{most}",
        clean(collector),
        maybe_bytes(runtime.used_bytes),
        bytes(facts.resident_bytes)
    );
    let mut loaders = facts.class_loaders.iter().take(MAX_LOADERS).map(|loader| {
        let name = loader.name.as_deref().map_or("one without a name".to_owned(), clean_sentence);
        format!("{name} {}", bytes(loader.used_bytes))
    });
    if facts.class_loader_count > 0 {
        let count = counted(facts.class_loader_count, "class loader");
        let most = loaders.by_ref().collect::<Vec<_>>().join(", ");
        view.lines.push(format!("metaspace of {count}, most of {most}"));
    }
    let row = |of: &AreaKind| {
        let live = maybe_bytes(of.live_bytes);
        let free = bytes(of.free_resident_bytes);
        vec![clean(&of.kind), bytes(of.resident_bytes), bytes(of.used_bytes), live, free, thousands(of.areas)]
    };
    let rows: Vec<_> = facts.kinds.iter().filter(|kind| kind.resident_bytes > 0).map(row).collect();
    if !rows.is_empty() {
        view.tables.insert(0, RuntimeTable { head: &AREA_HEAD, rows, flexible: 0 });
    }
    view
}

/// The view with the figures that all runtimes provide.
fn common(name: &str, runtime: &Runtime) -> RuntimeView {
    let title = format!(
        "{name}: {} of objects in {}; {} of free places",
        maybe_bytes(runtime.used_bytes),
        maybe_bytes(runtime.committed_bytes),
        maybe_bytes(runtime.free_bytes)
    );
    let row = |of_type: &TypeFacts| {
        vec![bytes(of_type.bytes), thousands(of_type.instances), clean_sentence(&of_type.name)]
    };
    let rows: Vec<_> = runtime.types.iter().take(MAX_SHOWN).map(row).collect();
    let tables = if rows.is_empty() {
        Vec::new()
    } else {
        vec![RuntimeTable { head: &COMMON_HEAD, rows, flexible: 2 }]
    };
    RuntimeView { title, lines: Vec::new(), tables }
}

fn cpython(name: &str, runtime: &Runtime, facts: &CPython) -> RuntimeView {
    let mut view = common(name, runtime);
    let arenas = runtime.own_figure("arenas_allocated_current");
    view.title = match facts.arena_bytes {
        Some(arena_bytes) => format!(
            "{name}: {} of blocks in {} of {} each; {} of free places",
            maybe_bytes(runtime.used_bytes),
            arenas.map_or("arenas".to_owned(), |arenas| counted(arenas, "arena")),
            bytes(arena_bytes),
            maybe_bytes(runtime.free_bytes)
        ),
        None if !facts.heaps.is_empty() => format!(
            "{name} without a global lock: {} of blocks in heaps of mimalloc's; {} of free places",
            maybe_bytes(runtime.used_bytes),
            maybe_bytes(runtime.free_bytes)
        ),
        None => format!("{name}: its objects are in blocks of malloc's"),
    };
    if let Some(beside) = &facts.beside_arenas {
        let text = "objects beside the arenas, in malloc's blocks";
        view.lines.push(format!("{text}: {}, {}", thousands(beside.objects), bytes(beside.bytes)));
    }
    if let (Some(free), Some(interned)) = (&facts.free_lists, &facts.interned) {
        view.lines.push(format!(
            "dead objects on free lists: {}, {}; interned strings: {}, {}",
            thousands(free.objects),
            bytes(free.bytes),
            thousands(interned.objects),
            bytes(interned.bytes)
        ));
    }
    if let Some(sparse) = facts.sparse_arenas.as_ref().filter(|sparse| sparse.arenas > 0) {
        let most = sparse.kept_by.iter().take(3);
        let most = most.map(|kept| format!("{} {}", thousands(kept.objects), clean_sentence(&kept.name)));
        let most = most.collect::<Vec<_>>().join(", ");
        view.lines.push(format!(
            "{} kept by fewer than {FEW_OBJECTS} objects each{}{most}",
            counted(sparse.arenas, "arena"),
            if most.is_empty() { "" } else { ": " },
        ));
    }
    view.lines.extend(facts.collectors.last().map(collector));
    view
}

/// Describes the state of the main interpreter's garbage collector.
fn collector(of: &Collector) -> String {
    let all = |tell: fn(&python::Generation) -> String| {
        of.generations.iter().map(tell).collect::<Vec<_>>().join(", ")
    };
    let collected = all(|generation| thousands(generation.collections));
    if !of.enabled {
        return format!(
            "collector off: objects in cycles stay; {collected} collections of its generations so far"
        );
    }
    let next = all(|generation| {
        format!("{} of {}", thousands(generation.count.into()), thousands(generation.threshold.into()))
    });
    format!("collector on, at {next} before it collects; {collected} collections of its generations so far")
}

fn go(name: &str, runtime: &Runtime, facts: &Go) -> RuntimeView {
    let figure = |name: &str| maybe_bytes(runtime.own_figure(name));
    let title = format!(
        "{name}: {} of objects in spans of {}; {} idle, of which {} was given back",
        figure("HeapAlloc"),
        figure("HeapInuse"),
        figure("HeapIdle"),
        figure("HeapReleased")
    );
    let percent = facts.gogc_percent.map_or("not known".to_owned(), |percent| match percent {
        ..0 => "off".to_owned(),
        percent => percent.to_string(),
    });
    let no_limit = if facts.gogc_percent.is_some() { "none" } else { "not known" };
    let limit = facts.memory_limit_bytes.map_or(no_limit.to_owned(), bytes);
    let lines = vec![format!(
        "alive after the last mark: {}; the next collection ends at {} of heap (GOGC {percent}, GOMEMLIMIT {limit})",
        maybe_bytes(facts.live_after_last_mark_bytes),
        maybe_bytes(facts.next_gc_bytes)
    )];
    let row = |class: &SizeClass| {
        let size = if class.object_bytes == 0 { "large".to_owned() } else { bytes(class.object_bytes) };
        let free = bytes(class.free_places.saturating_mul(class.object_bytes));
        vec![free, bytes(class.span_bytes), thousands(class.spans), thousands(class.objects), size]
    };
    let rows: Vec<_> = facts.size_classes.iter().take(MAX_SHOWN).map(row).collect();
    let tables =
        if rows.is_empty() { Vec::new() } else { vec![RuntimeTable { head: &SPAN_HEAD, rows, flexible: 4 }] };
    RuntimeView { title, lines, tables }
}

fn sum(perl: &Perl, figure: impl Fn(&Interpreter) -> u64) -> u64 {
    perl.interpreters.iter().fold(0, |sum: u64, one| sum.saturating_add(figure(one)))
}

fn perl(name: &str, facts: &Perl) -> RuntimeView {
    let title = format!(
        "{name}: {}, {} values",
        counted(facts.interpreters.len() as u64, "interpreter"),
        thousands(sum(facts, |one| one.heads.live))
    );
    let mut lines = vec![format!(
        "strings: {} with {} in them, in buffers of {}; {} of 15 bytes or less take {}",
        thousands(sum(facts, |one| one.strings.values)),
        bytes(sum(facts, |one| one.strings.payload_bytes)),
        bytes(sum(facts, |one| one.strings.capacity_bytes)),
        thousands(sum(facts, |one| one.strings.short.strings)),
        bytes(sum(facts, |one| one.strings.short.chunk_bytes)),
    )];
    let repeated = sum(facts, |one| one.strings.equal.repeated_bytes);
    if repeated > 0 {
        lines.push(format!("equal strings: {} hold what another one holds too", bytes(repeated)));
    }
    let mut retained = Amount::default();
    for one in &facts.interpreters {
        retained.buffers = retained.buffers.saturating_add(one.retained.total.buffers);
        retained.bytes = retained.bytes.saturating_add(one.retained.total.bytes);
    }
    lines.push(format!(
        "kept though nobody needs it: {} in {}",
        bytes(retained.bytes),
        counted(retained.buffers, "buffer")
    ));
    let mut top: Vec<_> = facts.interpreters.iter().flat_map(|one| &one.retained.top).collect();
    top.sort_by_key(|buffer| std::cmp::Reverse(buffer.bytes));
    let mut rows: Vec<Vec<String>> = top
        .iter()
        .take(MAX_SHOWN)
        .map(|buffer| vec![bytes(buffer.bytes), clean_sentence(&buffer.holder)])
        .collect();
    if top.len() > MAX_SHOWN {
        let rest = top[MAX_SHOWN..].iter().fold(0, |sum: u64, buffer| sum.saturating_add(buffer.bytes));
        let more = format!("{} more; --json has them", counted((top.len() - MAX_SHOWN) as u64, "buffer"));
        rows.push(vec![bytes(rest), more]);
    }
    let table = RuntimeTable { head: &RETAINED_HEAD, rows, flexible: 1 };
    RuntimeView { title, lines, tables: if top.is_empty() { Vec::new() } else { vec![table] } }
}

fn sbcl(name: &str, facts: &Sbcl) -> RuntimeView {
    let title = format!(
        "{name}: {} of a dynamic space of {} in use",
        bytes(facts.dynamic_usage_bytes),
        bytes(facts.dynamic_space_bytes)
    );
    let mut lines = Vec::new();
    match (facts.dead_bytes, facts.usage_after_full_gc_bytes) {
        (Some(dead), Some(after)) => lines.push(format!(
            "nothing reaches {}: (gc :full t) is predicted to leave {} in use",
            bytes(dead),
            bytes(after)
        )),
        _ => lines.push("not traced: what is live and what is dead is not known".to_owned()),
    }
    if let Some(path) = &facts.path {
        lines.push(format!("what keeps one of them: {}", path_text(path)));
    }
    let used = facts.generations.iter().filter(|generation| generation.pages > 0);
    let mut tables =
        vec![RuntimeTable { head: &GENERATION_HEAD, rows: used.map(generation_row).collect(), flexible: 6 }];
    let mut rows = type_rows("dead", &facts.dead_by_type, MAX_SHOWN);
    rows.extend(type_rows("live", &facts.live_by_type, MAX_SHOWN / 2));
    if !rows.is_empty() {
        tables.push(RuntimeTable { head: &TYPE_HEAD, rows, flexible: 3 });
    }
    RuntimeView { title, lines, tables }
}

/// `thread 0's control stack → cons, word 0 → MESSAGE`.
fn path_text(path: &Path) -> String {
    let mut parts = vec![clean_sentence(&path.root)];
    for (index, step) in path.steps.iter().enumerate() {
        let word = step.word.map_or_else(String::new, |word| format!(", word {word}"));
        parts.push(format!("{} {:#x}{word}", clean(&step.type_name), step.address));
        if path.left_out > 0 && index + 1 == path.steps.len() / 2 {
            parts.push(format!("({} more)", thousands(path.left_out)));
        }
    }
    parts.join(" → ")
}

fn generation_row(generation: &Generation) -> Vec<String> {
    let name =
        if generation.is_pseudo_static { "pseudo-static".to_owned() } else { generation.number.to_string() };
    vec![
        name,
        bytes(generation.bytes_allocated),
        maybe_bytes(generation.live_bytes),
        maybe_bytes(generation.dead_bytes),
        bytes(generation.waste_bytes),
        thousands(generation.pages),
        generation.waits_for.clone(),
    ]
}

fn type_rows(word: &str, types: &[TypeBytes], most: usize) -> Vec<Vec<String>> {
    let row = |one: &TypeBytes| {
        vec![
            word.to_owned(),
            bytes(one.bytes),
            thousands(one.instances),
            clean(&one.type_name),
            format!("generation {}", one.generation),
        ]
    };
    types.iter().take(most).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_without_a_view_of_its_own_tells_what_all_tell() {
        let types = vec![TypeFacts { name: "dict\x1b[2J".to_owned(), instances: 3000, bytes: 7 << 20 }];
        let runtime = Runtime {
            name: "cpython".to_owned(),
            version: Some("3.12.1".to_owned()),
            read: true,
            used_bytes: Some(8 << 20),
            committed_bytes: Some(10 << 20),
            types,
            ..Runtime::default()
        };
        let [view] = views(&[runtime, Runtime::default()]).try_into().unwrap();
        assert_eq!(view.title, "cpython 3.12.1: 8.00 MiB of objects in 10.0 MiB; ? of free places");
        assert_eq!(view.tables[0].rows, [["7.00 MiB", "3,000", "dict\\u{1b}[2J"]]);
    }
}
