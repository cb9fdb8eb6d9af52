//! Compares terminal output with stored output, and checks the rules that hold for all output.

use strandline_inspect::facts::{Explanation, Outcome, Reclamation};

use super::fabricated;
use super::model::{Rows, View};
use super::paint::Surface;
use super::text::{is_unsafe, width};
use super::tree::{Member, Tree};
use super::{reclamation, terminal, tree};

const PLAIN: Surface = Surface { columns: 80, colour: false };

fn shown(explanation: &Explanation, rows: Rows) -> String {
    let text = terminal::explanation(&View::new(explanation, rows), PLAIN);
    assert_fits(&text, 80);
    text
}

fn assert_fits(text: &str, columns: usize) {
    for line in text.lines() {
        assert!(width(line) <= columns, "{} columns: {line:?}", width(line));
        assert!(!line.chars().any(is_unsafe), "{line:?}");
    }
}

#[test]
fn a_fragmented_service() {
    insta::assert_snapshot!(shown(&fabricated::service(), Rows::Large));
}

#[test]
fn a_tiny_shell_with_all_its_rows() {
    insta::assert_snapshot!(shown(&fabricated::shell(), Rows::All));
}

#[test]
fn memory_nobody_reads_is_unattributed() {
    insta::assert_snapshot!(shown(&fabricated::java(), Rows::Large));
}

#[test]
fn a_process_without_memory() {
    insta::assert_snapshot!(shown(&Explanation::default(), Rows::Large));
}

#[test]
fn hostile_names_cannot_reach_the_terminal() {
    insta::assert_snapshot!(shown(&fabricated::hostile(), Rows::Largest(3)));
}

#[test]
fn colour_changes_nothing_but_colour() {
    let view = View::new(&fabricated::service(), Rows::Large);
    let coloured = terminal::explanation(&view, Surface { columns: 80, colour: true });
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once('\x1b') {
        plain += before;
        rest = after.split_once('m').unwrap().1;
    }
    plain += rest;
    assert_eq!(plain, terminal::explanation(&view, PLAIN));
    assert!(coloured.len() > plain.len());
}

#[test]
fn a_wider_terminal_is_used() {
    let view = View::new(&fabricated::service(), Rows::All);
    let text = terminal::explanation(&view, Surface { columns: 100, colour: false });
    assert_fits(&text, 100);
    assert!(text.lines().any(|line| width(line) > 90));
}

#[test]
fn every_row_or_its_fold_is_counted() {
    let all = View::new(&fabricated::service(), Rows::All);
    assert_eq!((all.rows.len(), all.folded.is_none()), (12, true));
    let most = View::new(&fabricated::service(), Rows::Largest(5));
    assert_eq!(most.rows.len(), 5);
    assert_eq!(most.folded.unwrap().id, "7 smaller rows");
    let none = View::new(&fabricated::service(), Rows::Largest(0));
    assert_eq!(none.folded.unwrap().share, "100.0 %");
}

fn given_back() -> Reclamation {
    Reclamation {
        remedy: "malloc_trim".to_owned(),
        outcome: Outcome::Done,
        predicted_bytes: Some(1_180_696_576),
        actual_bytes: Some(1_180_692_480),
        rss_before_bytes: Some(1_705_000_960),
        rss_after_bytes: Some(524_308_480),
        call_seconds: Some(0.1184),
        stopped_seconds: Some(0.0012),
        minor_faults_after: Some(1_622),
        minor_faults_seconds: Some(2.0),
        ..Reclamation::default()
    }
}

#[test]
fn predicted_stands_beside_actual() {
    let text = reclamation::reclamation(&given_back(), PLAIN);
    assert_fits(&text, 80);
    insta::assert_snapshot!(text);
}

#[test]
fn a_dry_run_only_predicts() {
    let text = reclamation::reclamation(&Reclamation { dry_run: true, ..given_back() }, PLAIN);
    insta::assert_snapshot!(text);
}

#[test]
fn a_refusal_says_why() {
    let refused = Reclamation {
        remedy: "malloc_trim".to_owned(),
        outcome: Outcome::Refused,
        reason: Some("no thread was outside malloc within 5 s\x1b[2J; try --wait 30".to_owned()),
        ..Reclamation::default()
    };
    let text = reclamation::reclamation(&refused, PLAIN);
    assert_fits(&text, 80);
    insta::assert_snapshot!(text);
}

#[test]
fn nothing_to_give_back_is_one_sentence() {
    let nothing = Reclamation {
        remedy: "malloc_trim".to_owned(),
        outcome: Outcome::NothingToGiveBack,
        reason: Some("no page of its heap is one that the call gives back".to_owned()),
        predicted_bytes: Some(0),
        actual_bytes: Some(0),
        rss_before_bytes: Some(4096),
        ..Reclamation::default()
    };
    let text = reclamation::reclamation(&nothing, PLAIN).replace('\n', " ");
    assert_eq!(
        text.trim_end(),
        "malloc_trim has nothing to give back: no page of its heap is one that the call gives back"
    );
}

#[test]
fn arenas_are_told_apart() {
    use strandline_inspect::facts::{Allocator, Arena, ArenaKind};
    let arena = |number: u64| Arena {
        id: format!("{:#x}", 0x7705_0400_0030 + (number << 26)),
        kind: if number == 0 { ArenaKind::Main } else { ArenaKind::Secondary },
        mapped_bytes: 1023 << 20,
        used_bytes: 1023 << 20,
        free_bytes: 1023 << 10,
        tcache_bytes: 1023 << 10,
        top_bytes: 1023 << 10,
        trim_bytes: 1023 << 10,
        ..Arena::default()
    };
    let glibc = Allocator {
        name: "glibc".to_owned(),
        read: true,
        arenas: (0..8).map(arena).collect(),
        ..Allocator::default()
    };
    let text = shown(&Explanation { allocators: vec![glibc], ..Explanation::default() }, Rows::Large);
    let names =
        text.lines().filter(|line| line.contains("1.00 GiB  1.00 GiB")).map(|line| line.split(' ').next());
    let names: std::collections::BTreeSet<_> = names.collect();
    assert_eq!(names.len(), 8, "{text}");
    assert!(names.contains(&Some("0x770508000030")), "{text}");
}

#[test]
fn a_tree_counts_shared_pages_once() {
    let mut child = fabricated::shell();
    child.kernel.pss_bytes = Some(100 * 1024);
    let members = vec![
        Member::new(1, 0, fabricated::service()),
        Member::new(4711, 1, child),
        Member::new(4711, 1, fabricated::hostile()),
    ];
    let text = tree::tree(&Tree::new(4711, members.clone(), Vec::new()), PLAIN);
    assert_fits(&text, 80);
    insta::assert_snapshot!(text);

    let mut unknown = members.clone();
    let mut without = members[1].explanation.clone();
    without.kernel.pss_bytes = None;
    unknown[1] = Member::new(4711, 1, without);
    let unknown = Tree::new(4711, unknown, Vec::new());
    assert_eq!(unknown.total_pss_bytes, None, "unknown is not 0");
    let live: u64 = members.iter().map(|member| member.explanation.totals.live).sum();
    assert_eq!(unknown.totals.live, live, "parts of RSS where PSS is not known");
}
