//! What a report shows of language runtimes that were read: the sections of their readers, cleaned.

use strandline_claims::section::{Section, Table, common};
use strandline_inspect::facts::Runtime;
use strandline_inspect::readers;

use super::text::{clean, clean_sentence};

pub fn sections(runtimes: &[Runtime]) -> Vec<Section> {
    runtimes.iter().filter(|runtime| runtime.read).map(section).collect()
}

/// The section of one runtime. Names in it are chosen by the process.
fn section(runtime: &Runtime) -> Section {
    let of_reader = readers::runtime_reader(&runtime.name).and_then(|reader| (reader.section)(runtime));
    let Section { title, lines, tables } = of_reader.unwrap_or_else(|| common(runtime));
    Section {
        title: clean_sentence(&title),
        lines: lines.iter().map(|line| clean_sentence(line)).collect(),
        tables: tables.into_iter().map(clean_table).collect(),
    }
}

/// Cleans the cells of a table. The last column is the widest, and may have sentences.
fn clean_table(table: Table) -> Table {
    let last_column = table.head.len().saturating_sub(1);
    let clean_cell = |(column, text): (usize, String)| {
        if column == last_column { clean_sentence(&text) } else { clean(&text) }
    };
    let clean_row = |cells: Vec<String>| cells.into_iter().enumerate().map(clean_cell).collect();
    Table { rows: table.rows.into_iter().map(clean_row).collect(), ..table }
}

#[cfg(test)]
mod tests {
    use strandline_inspect::facts::TypeFacts;

    use super::*;

    #[test]
    fn a_runtime_without_a_special_view_has_the_common_figures() {
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
        let [section] = sections(&[runtime, Runtime::default()]).try_into().unwrap();
        assert_eq!(section.title, "cpython 3.12.1: 8.00 MiB of objects in 10.0 MiB; ? of free slots");
        assert_eq!(section.tables[0].rows, [["7.00 MiB", "3,000", "dict\\u{1b}[2J"]]);
    }
}
