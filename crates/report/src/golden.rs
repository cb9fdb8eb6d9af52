//! Compares terminal output with stored output, and checks the rules that hold for all output.

use strandline_claims::caveat::Caveat;
use strandline_inspect::facts::{
    Explanation, HolderKind, Outcome, Reclamation, Remedy, Runtime, State, TypeFacts,
};

use super::fabricated;
use super::model::{Rows, View};
use super::paint::{Surface, without_colour};
use super::text::{is_unsafe, width};
use super::tree::{Member, Tree};
use super::{reclamation, terminal, tree};

const PLAIN: Surface = Surface { columns: 80, has_colour: false };

fn default_screen(explanation: &Explanation, rows: Rows) -> String {
    let text = terminal::explanation(&View::new(explanation, rows), PLAIN);
    assert_fits(&text, 80);
    assert!(rows != Rows::Large || text.lines().count() <= 40, "{text}");
    text
}

fn detailed(explanation: &Explanation) -> String {
    let text = terminal::details(&View::new(explanation, Rows::All), PLAIN);
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
    insta::assert_snapshot!(default_screen(&fabricated::service(), Rows::Large));
}

#[test]
fn a_tiny_shell_with_all_its_rows() {
    insta::assert_snapshot!(default_screen(&fabricated::shell(), Rows::All));
}

#[test]
fn memory_without_a_reader_is_unattributed() {
    insta::assert_snapshot!(default_screen(&fabricated::java(), Rows::Large));
}

#[test]
fn a_process_without_memory() {
    insta::assert_snapshot!(default_screen(&Explanation::default(), Rows::Large));
}

#[test]
fn hostile_names_cannot_reach_the_terminal() {
    insta::assert_snapshot!(default_screen(&fabricated::hostile(), Rows::Largest(3)));
}

#[test]
fn colour_changes_nothing_but_colour() {
    let view = View::new(&fabricated::service(), Rows::Large);
    let coloured = terminal::explanation(&view, Surface { columns: 80, has_colour: true });
    let plain = without_colour(&coloured);
    assert_eq!(plain, terminal::explanation(&view, PLAIN));
    assert!(coloured.len() > plain.len());
}

#[test]
fn a_fragmented_service_in_detail() {
    insta::assert_snapshot!(detailed(&fabricated::service()));
}

#[test]
fn hostile_names_cannot_reach_a_detailed_screen() {
    detailed(&fabricated::hostile());
}

/// A process with more of everything than a screen has lines.
fn crowded() -> Explanation {
    let mut service = fabricated::service();
    service.verdict.headline = "memory that is free and cannot be released ".repeat(20);
    service.kernel.swap_bytes = 1 << 30;
    for number in 0..30 {
        let text = format!("reason {number} for which this part was not read");
        service.caveats.push(Caveat::new("not_read", format!("arena {number}"), Some(1 << 30), text));
        let how = format!("SETTING{number}={}", "value ".repeat(30));
        let predicted = Some((100 - number) << 20);
        service
            .remedies
            .push(Remedy { predicted_bytes: predicted, ..Remedy::setting("setting", &how, "a cost") });
        let holder = format!("holder number {number} of blocks that nothing else describes");
        let id = format!("row.{number}");
        service.rows.push(fabricated::row(
            &id,
            HolderKind::Values,
            State::Live,
            &holder,
            (90 - number) << 20,
        ));
    }
    let of_type =
        |number: u64| TypeFacts { name: format!("package.Type{number}"), instances: 9, bytes: 1 << 20 };
    let types = (0..30).map(of_type).collect();
    service.runtimes = vec![Runtime { name: "cpython".to_owned(), read: true, types, ..Runtime::default() }];
    fabricated::balanced(service)
}

#[test]
fn a_default_screen_has_at_most_40_lines_and_details_have_the_rest() {
    let process = crowded();
    let (text, details) = (default_screen(&process, Rows::Large), detailed(&process));
    assert!(text.contains("31 caveats (-v)") || text.contains("29 caveats (-v)"), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("stopped 287 ms")), "{text}");
    let unwrapped = details.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in &process.rows {
        assert!(details.contains(&row.id) && unwrapped.contains(&row.holder), "{}: {details}", row.id);
    }
    for caveat in &process.caveats {
        assert!(unwrapped.contains(&caveat.text), "{}: {details}", caveat.text);
    }
    for remedy in &process.remedies {
        let how = remedy.how.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(unwrapped.contains(&how) && unwrapped.contains(&remedy.cost), "{how}: {details}");
    }
}

/// Except for sizes, a default screen has only words that the details have too.
#[test]
fn no_word_is_cut() {
    let fixed_words = "peak pid predicted how release who holds live blocks which ones leaked arenas types strata \
               all rows caveats read more lists it them next start unknown caveat explain smaller v";
    for explanation in [fabricated::service(), fabricated::shell(), fabricated::java(), crowded()] {
        let words = |text: &str| -> std::collections::BTreeSet<String> {
            text.split(|c: char| !c.is_alphanumeric())
                .filter(|word| word.chars().all(char::is_alphabetic))
                .map(str::to_owned)
                .collect()
        };
        let mut known_words = words(&detailed(&explanation));
        known_words.extend(words(fixed_words));
        for columns in 80..=120 {
            let view = View::new(&explanation, Rows::Large);
            let text = terminal::explanation(&view, Surface { columns, has_colour: false });
            assert_fits(&text, columns);
            let cut: Vec<_> = words(&text).difference(&known_words).cloned().collect();
            assert!(cut.is_empty(), "{cut:?} of {text}");
        }
    }
}

#[test]
fn a_significant_caveat_belongs_to_the_answer() {
    let mut large = fabricated::service();
    large.caveats[0].bytes = Some(48 << 20);
    large.caveats.push(Caveat::new("other", "elsewhere", None, "it is small"));
    let text = default_screen(&large, Rows::Large);
    let unwrapped = text.replace('\n', " ");
    assert!(unwrapped.contains("Caveat (48.0 MiB): a thread was inside malloc"), "{text}");
    assert!(text.ends_with("· 1 caveat (-v)\n") && !text.contains("it is small"), "{text}");
}

#[test]
fn a_wider_terminal_is_used() {
    let view = View::new(&fabricated::service(), Rows::All);
    let text = terminal::explanation(&view, Surface { columns: 120, has_colour: false });
    assert_fits(&text, 120);
    assert!(text.lines().any(|line| width(line) > 110), "{text}");
}

#[test]
fn every_row_or_its_fold_is_counted() {
    let full_view = View::new(&fabricated::service(), Rows::All);
    assert_eq!((full_view.rows.len(), full_view.hidden_rows.is_none()), (12, true));
    let largest = View::new(&fabricated::service(), Rows::Largest(5));
    assert_eq!(largest.rows.len(), 5);
    assert_eq!(largest.hidden_rows.unwrap().id, "7 smaller rows");
    let none = View::new(&fabricated::service(), Rows::Largest(0));
    assert_eq!(none.hidden_rows.unwrap().share, "100 %");
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
fn predicted_is_shown_beside_actual() {
    let text = reclamation::reclamation(&given_back(), &[], PLAIN);
    assert_fits(&text, 80);
    insta::assert_snapshot!(text);
}

#[test]
fn exact_figures_are_details() {
    let text = reclamation::details(&given_back(), &[], PLAIN);
    assert_fits(&text, 80);
    insta::assert_snapshot!(text);
}

#[test]
fn a_dry_run_only_predicts() {
    let text = reclamation::reclamation(&Reclamation { dry_run: true, ..given_back() }, &[], PLAIN);
    insta::assert_snapshot!(text);
}

#[test]
fn a_refusal_has_a_reason() {
    let refused = Reclamation {
        remedy: "malloc_trim".to_owned(),
        outcome: Outcome::Refused,
        reason: Some("no thread was outside malloc within 5 s\x1b[2J; try --wait 30".to_owned()),
        ..Reclamation::default()
    };
    let text = reclamation::reclamation(&refused, &[], PLAIN);
    assert_fits(&text, 80);
    insta::assert_snapshot!(text);
}

#[test]
fn nothing_to_give_back_is_one_sentence() {
    let nothing = Reclamation {
        remedy: "malloc_trim".to_owned(),
        outcome: Outcome::NothingToGiveBack,
        reason: Some("no page of its heap is one that the call releases".to_owned()),
        predicted_bytes: Some(0),
        actual_bytes: Some(0),
        rss_before_bytes: Some(4096),
        ..Reclamation::default()
    };
    let text = reclamation::reclamation(&nothing, &[], PLAIN).replace('\n', " ");
    assert_eq!(
        text.trim_end(),
        "malloc_trim has nothing to release: no page of its heap is one that the call releases RSS 4.00 KiB"
    );
}

#[test]
fn arenas_have_separate_lines() {
    use strandline_inspect::facts::{Allocator, Arena, ArenaKind};
    let arena = |number: u64| Arena {
        id: format!("{:#x}", 0x7705_0400_0030 + (number << 26)),
        kind: if number == 0 { ArenaKind::Main } else { ArenaKind::Secondary },
        mapped_bytes: 1023 << 20,
        used_bytes: 1023 << 20,
        free_bytes: 1023 << 10,
        tcache_bytes: Some(1023 << 10),
        top_bytes: Some(1023 << 10),
        trim_bytes: Some(1023 << 10),
        ..Arena::default()
    };
    let glibc = Allocator {
        name: "glibc".to_owned(),
        read: true,
        arenas: (0..8).map(arena).collect(),
        ..Allocator::default()
    };
    let text = detailed(&Explanation { allocators: vec![glibc], ..Explanation::default() });
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
    let alone = tree::tree(&Tree::new(4711, vec![members[1].clone()], Vec::new()), PLAIN);
    assert!(alone.starts_with("1 process holds 100 KiB (PSS)\n"), "{alone}");

    let mut unknown = members.clone();
    let mut without = members[1].explanation.clone();
    without.kernel.pss_bytes = None;
    unknown[1] = Member::new(4711, 1, without);
    let unknown = Tree::new(4711, unknown, Vec::new());
    assert_eq!(unknown.total_pss_bytes, None, "unknown is not 0");
    let live: u64 = members.iter().map(|member| member.explanation.totals.live).sum();
    assert_eq!(unknown.totals.live, live, "parts of RSS where PSS is not known");
}
