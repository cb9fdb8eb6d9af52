//! What leaked, as a clause of the headline and as a table.

use strandline_inspect::holders::UNREAD_RUNTIME;
use strandline_inspect::holders::facts::{Holders, Holding, Unreachable};

use super::names::{shortened, shown_type, step_text};
use crate::table::{Column, figures, words};
use crate::text::{clean, counted};
use crate::units::{bytes, percent, thousands};

/// Columns of the table of leaked blocks.
pub const LEAKED_HEAD: [Column; 4] =
    [words("leaked blocks"), figures("instances"), figures("bytes"), figures("retained")];
/// Maximum number of kinds of leaked blocks in a sentence.
const MAX_LEAKED_KINDS: usize = 2;

/// `464 MiB leaked in 445,001 blocks (39.0 % of live bytes): 400,000 blocks of 1,208 bytes (464 MiB
/// retained), block of 360,432 bytes (352 KiB); the last pointer to 400,001 of them (461 MiB) is
/// lost, and only these lead to the other 45,000`.
pub fn leaked_text(facts: &Holders, leaked: &Unreachable) -> String {
    let mut text = format!(
        "{} leaked in {} ({} of live bytes)",
        bytes(leaked.bytes),
        counted(leaked.blocks, "block"),
        percent(leaked.bytes, facts.live.bytes)
    );
    let kinds: Vec<String> =
        leaked.holds.iter().take(MAX_LEAKED_KINDS).map(|kind| leaked_kind(leaked, kind)).collect();
    if !kinds.is_empty() {
        text += &format!(": {}", kinds.join(", "));
        let others_bytes = bytes_beyond(leaked, MAX_LEAKED_KINDS);
        if others_bytes > 0 {
            text += &format!(", others ({})", bytes(others_bytes));
        }
    }
    let other_blocks = leaked.blocks.saturating_sub(leaked.definite.blocks);
    if leaked.definite.blocks > 0 && other_blocks > 0 {
        text += &format!(
            "; the last pointer to {} of them ({}) is lost, and only these lead to the other {}",
            thousands(leaked.definite.blocks),
            bytes(leaked.definite.bytes),
            thousands(other_blocks)
        );
    }
    let unread = facts.caveats.iter().filter(|caveat| caveat.code == UNREAD_RUNTIME);
    let unread: Vec<String> = unread.map(|caveat| clean(&caveat.place)).collect();
    if !unread.is_empty() {
        let verb = if unread.len() == 1 { "is" } else { "are" };
        text += &format!("; {}, which {verb} not read, may refer to leaked blocks", unread.join(" and "));
    }
    let comparison = facts.since.as_ref();
    let growth = comparison.and_then(|comparison| Some((comparison.unreachable?.bytes, comparison.seconds?)));
    let is_growing = |&(grown_bytes, seconds): &(i64, f64)| grown_bytes > 0 && seconds > 0.0;
    if let Some((grown_bytes, seconds)) = growth.filter(is_growing) {
        text += &format!("; growing {}/min", bytes((grown_bytes as f64 * 60.0 / seconds) as u64));
    }
    text
}

/// Leaked blocks of one type that no other leaked type retains, and their size if there are others.
fn leaked_kind(leaked: &Unreachable, kind: &Holding) -> String {
    let name = shortened(&step_text(kind));
    let size = bytes(kind.retained_bytes);
    match kind.retained_bytes {
        retained if retained == leaked.bytes => name,
        retained if retained > kind.bytes => format!("{name} ({size} retained)"),
        _ => format!("{name} ({size})"),
    }
}

/// The leaked bytes that the first `count` of the listed types do not retain.
fn bytes_beyond(leaked: &Unreachable, count: usize) -> u64 {
    let listed = leaked.holds.iter().take(count);
    listed.fold(leaked.bytes, |remaining, kind| remaining.saturating_sub(kind.retained_bytes))
}

/// Rows of the leaked blocks that no other leaked type retains, by type, largest first.
pub fn leaked_rows(facts: &Holders, top: usize) -> Vec<Vec<String>> {
    let Some(leaked) = facts.unreachable.as_ref().filter(|leaked| !leaked.holds.is_empty()) else {
        return Vec::new();
    };
    let row = |kind: &Holding| {
        let (own_size, retained_size) = (bytes(kind.bytes), bytes(kind.retained_bytes));
        vec![shown_type(&kind.name), thousands(kind.instances), own_size, retained_size]
    };
    let mut rows: Vec<Vec<String>> = leaked.holds.iter().take(top).map(row).collect();
    let others_bytes = bytes_beyond(leaked, top);
    if others_bytes > 0 {
        rows.push(vec!["others".to_owned(), String::new(), String::new(), bytes(others_bytes)]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use strandline_claims::caveat::Caveat;
    use strandline_inspect::holders::facts::Sum;

    use super::*;

    #[test]
    fn the_headline_of_a_leak_names_its_base_and_what_it_leaves_out() {
        let kind = |name: &str, instances: u64, bytes: u64, below: Sum| Holding {
            name: name.into(),
            instances,
            bytes,
            retained_bytes: bytes + below.bytes,
            retained_blocks: instances + below.blocks,
            ..Holding::default()
        };
        let below = Sum { bytes: 1 << 20, blocks: 45_000 };
        let kinds = [
            kind("1208-byte blocks", 400_000, 400_000 * 1208, below),
            kind("360432-byte blocks", 1, 360_432, Sum::default()),
            kind("shop::Session", 7, 7 * 232, Sum::default()),
        ];
        let definite =
            kinds.iter().fold(Sum::default(), |sum, kind| Sum { bytes: sum.bytes + kind.bytes, ..sum });
        let definite = Sum { blocks: 400_008, ..definite };
        let leaked = |holds: &[Holding]| Unreachable {
            bytes: definite.bytes + below.bytes,
            blocks: definite.blocks + below.blocks,
            definite,
            holds: holds.to_vec(),
            ..Unreachable::default()
        };
        let mut facts = Holders { live: Sum { bytes: 1 << 30, blocks: 1 }, ..Holders::default() };
        let text =
            |facts: &Holders| facts.unreachable.as_ref().map(|leaked| leaked_text(facts, leaked)).unwrap();
        facts.unreachable = Some(leaked(&kinds));
        let full_text = text(&facts);
        let expected = "462 MiB leaked in 445,008 blocks (45.1 % of live bytes): 400,000 blocks of 1,208 bytes \
             (462 MiB retained), block of 360,432 bytes (352 KiB), others (1.59 KiB); the last pointer to \
             400,008 of them (461 MiB) is lost, and only these lead to the other 45,000";
        assert_eq!(full_text, expected);
        let rows: Vec<String> = leaked_rows(&facts, 2).into_iter().map(|row| row.join(" ")).collect();
        let first_row = "blocks of 1,208 bytes 400,000 461 MiB 462 MiB";
        assert_eq!(rows, [first_row, "blocks of 360,432 bytes 1 352 KiB 352 KiB", "others   1.59 KiB"]);
        facts.caveats.push(Caveat::new(UNREAD_RUNTIME, "chez", None, ""));
        assert!(text(&facts).ends_with("45,000; chez, which is not read, may refer to leaked blocks"));
        // A document may say nothing about the types.
        facts.unreachable = Some(leaked(&[]));
        assert!(leaked_rows(&facts, 2).is_empty() && !text(&facts).contains("others"));
    }
}
