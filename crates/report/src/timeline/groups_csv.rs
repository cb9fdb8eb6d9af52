//! The control groups of recordings as a CSV table: a line per sample, a column per row.

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use strandline_recording::{GroupSample, OTHER_ROWS, Reader, Record};

use super::Timeline;
use super::choice::seconds_of;
use super::export::{ExportError, Tables, quoted};

/// The columns before those of the rows.
const LEADING_COLUMNS: &str =
    "seconds,group,path,current_bytes,working_set_bytes,reclaimable_bytes,swap_bytes,oom_kills";

/// Writes the table of the recordings at `paths`, from which `timelines` were read. Of several
/// recordings the first column is the path.
///
/// # Errors
/// A recording cannot be read, or the table cannot be written.
pub fn csv(paths: &[PathBuf], timelines: &[Timeline], out: &mut dyn Write) -> Result<(), ExportError> {
    let mut out = BufWriter::new(out);
    let tables = Tables::new(paths);
    let groups = timelines.iter().flat_map(|timeline| &timeline.groups);
    let rows: BTreeSet<&str> = groups.flat_map(|group| &group.rows).map(String::as_str).collect();
    write!(out, "{}{LEADING_COLUMNS}", tables.head)?;
    for row in &rows {
        write!(out, ",{}", quoted(row))?;
    }
    writeln!(out)?;
    for ((path, begin), timeline) in tables.recordings.into_iter().zip(timelines) {
        let mut reader = Reader::open(path)?;
        while let Some(record) = reader.next_record()? {
            let Record::GroupSamples(block) = record else { continue };
            let group = usize::try_from(block.group).ok().and_then(|number| timeline.groups.get(number));
            let path = quoted(group.map_or("", |group| &group.start.path));
            let group_cells = format!("{},{path}", block.group);
            for sample in block.samples() {
                out.write_all(begin.as_bytes())?;
                write_sample(&sample, &group_cells, &rows, &mut out)?;
            }
        }
    }
    Ok(out.flush()?)
}

/// Writes the cells of one sample; `group_cells` are the number and path of its group.
fn write_sample(
    sample: &GroupSample,
    group_cells: &str,
    rows: &BTreeSet<&str>,
    out: &mut impl Write,
) -> std::io::Result<()> {
    write!(out, "{:.6},{group_cells},{}", seconds_of(sample.at_us), sample.current_bytes)?;
    let figures = [sample.working_set_bytes, sample.reclaimable_bytes, sample.swap_bytes, sample.oom_kills];
    // The timeline sums rows that have no column too.
    let other_rows = sample.rows.iter().filter(|(id, _)| *id == OTHER_ROWS || !rows.contains(id.as_str()));
    let other_bytes = other_rows.map(|(_, bytes)| *bytes).reduce(u64::saturating_add);
    let row_bytes =
        |row: &&str| if *row == OTHER_ROWS { other_bytes } else { sample.rows.get(*row).copied() };
    for figure in figures.into_iter().chain(rows.iter().map(row_bytes)) {
        match figure {
            Some(figure) => write!(out, ",{figure}")?,
            None => out.write_all(b",")?,
        }
    }
    out.write_all(b"\n")
}
