//! Text tables: columns as wide as needed, and one that takes the remaining width.

use super::text::{pad_left, pad_right, shorten, width};

/// Columns, as the tables of readers have them.
pub use strandline_claims::section::{Column, figures, words};

/// Spaces between columns.
const GAP: usize = 2;

/// Formats heading and rows as lines of at most `columns` terminal columns. Shortens the column of
/// the index `flexible` if the table is too wide. Cells missing in a row are empty. Lines have no
/// trailing spaces.
pub fn lay_out(head: &[Column], rows: &[Vec<String>], flexible: usize, columns: usize) -> Vec<String> {
    let mut widths: Vec<usize> = head.iter().map(|column| width(column.title)).collect();
    for row in rows {
        for (cell, column_width) in row.iter().zip(&mut widths) {
            *column_width = (*column_width).max(width(cell));
        }
    }
    let table_width = widths.iter().sum::<usize>() + GAP * head.len().saturating_sub(1);
    if let Some(column_width) = widths.get_mut(flexible) {
        *column_width = column_width.saturating_sub(table_width.saturating_sub(columns));
    }
    let titles: Vec<String> = head.iter().map(|column| column.title.to_owned()).collect();
    std::iter::once(&titles)
        .chain(rows)
        .map(|row| {
            let cells = head.iter().zip(&widths).enumerate().map(|(index, (column, &column_width))| {
                let cell = row.get(index).map_or("", String::as_str);
                if column.holds_figures {
                    pad_left(cell, column_width)
                } else {
                    pad_right(cell, column_width)
                }
            });
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
            // If the table is still too wide, shorten its lines rather than wrap them.
            shorten(line.trim_end(), columns)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flexible_column_shrinks_first() {
        let head = [figures("bytes"), words("name")];
        let rows = [vec!["1".to_owned(), "short".to_owned()], vec!["22".to_owned(), "x".repeat(40)]];
        let lines = lay_out(&head, &rows, 1, 20);
        assert_eq!(lines[0], "bytes  name");
        assert_eq!(lines[1], "    1  short");
        assert_eq!(width(&lines[2]), 20);
        assert!(lines[2].contains('…'));
    }
}
