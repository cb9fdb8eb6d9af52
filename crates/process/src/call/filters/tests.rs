use super::*;

const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ERRNO: u32 = 0x0005_0001;
const KILL: u32 = 0x8000_0000;
const NOTIFY: u32 = 0x7fc0_0000;

fn of(code: u16, k: u32) -> FilterInstruction {
    FilterInstruction { code, jt: 0, jf: 0, k }
}

fn when(code: u16, k: u32, jt: u8, jf: u8) -> FilterInstruction {
    FilterInstruction { code, jt, jf, k }
}

fn clone_with(flags: Option<u64>) -> RequiredCall {
    RequiredCall { name: "clone", number: 56, arguments: [flags, None, None] }
}

const MADVISE: RequiredCall = any("madvise", 28);

#[test]
fn answers_that_let_through_and_answers_that_do_not() {
    for (answer, lets) in
        [(ALLOW, true), (LOG, true), (ERRNO, false), (KILL, false), (0, false), (NOTIFY, false)]
    {
        assert_eq!(permits(&[of(0x06, answer)], &MADVISE), lets, "{answer:x}");
    }
    assert!(!permits(&[], &MADVISE), "nothing is no filter");
    assert!(!permits(&[of(0x00, 1)], &MADVISE), "and none ends without an answer");
}

/// Docker's filter as libseccomp compiles it: the architecture, the numbers of x32, then one number
/// after the other; clone may not create namespaces.
fn as_dockers() -> Vec<FilterInstruction> {
    vec![
        of(0x20, 4),
        when(0x15, 0xc000_003e, 0, 11),
        of(0x20, 0),
        when(0x35, 0x4000_0000, 9, 0),
        when(0x15, 28, 9, 0),
        when(0x15, 15, 8, 0),
        when(0x15, 56, 0, 6),
        of(0x20, 20),
        when(0x15, 0, 0, 4),
        of(0x20, 16),
        of(0x54, 0x7e02_0000),
        when(0x15, 0, 2, 1),
        of(0x06, ALLOW),
        of(0x06, ERRNO),
        of(0x06, ALLOW),
    ]
}

#[test]
fn what_is_known_of_the_arguments_decides_and_what_is_not_may_be_anything() {
    let filter = as_dockers();
    assert!(permits(&filter, &MADVISE) && permits(&filter, &RETURN));
    assert!(!permits(&filter, &any("futex", 202)));
    assert!(permits(&filter, &clone_with(Some(0x400))));
    assert!(!permits(&filter, &clone_with(Some(0x1000_0000))), "a namespace");
    assert!(!permits(&filter, &clone_with(Some(1 << 32))), "the upper half counts as well");
    assert!(!permits(&filter, &clone_with(None)));
}

#[test]
fn both_ways_are_followed_where_a_word_is_not_known() {
    // Branches on the second argument, which is unknown: one branch allows, the other returns
    // `last`.
    let filter = |last| [of(0x20, 24), when(0x25, 7, 1, 0), of(0x06, ALLOW), of(0x06, last)];
    assert!(permits(&filter(ALLOW), &MADVISE));
    assert!(!permits(&filter(ERRNO), &MADVISE));
    // A value that is equal on both branches is known after they join.
    let meets = |two: u32| {
        [
            of(0x20, 24),
            when(0x25, 7, 0, 2),
            of(0x00, 5),
            of(0x05, 1),
            of(0x00, two),
            when(0x15, 5, 0, 1),
            of(0x06, ALLOW),
            of(0x06, KILL),
        ]
    };
    assert!(permits(&meets(5), &MADVISE));
    assert!(!permits(&meets(6), &MADVISE));
}

#[test]
fn words_are_stored_moved_and_computed() {
    // ((number + 2) * 3 ^ 1) >> 1 of madvise, through scratch and X: ((28 + 2) * 3 ^ 1) >> 1 = 45.
    let filter = [
        of(0x20, 0),
        of(0x02, 3),
        of(0x00, 2),
        of(0x61, 3),
        of(0x0c, 0),
        of(0x24, 3),
        of(0xa4, 1),
        of(0x74, 1),
        when(0x15, 45, 0, 1),
        of(0x06, ALLOW),
        of(0x06, KILL),
    ];
    assert!(permits(&filter, &MADVISE));
    assert!(!permits(&filter, &RETURN));
}

#[test]
fn what_no_filter_has_lets_nothing_through() {
    let allow = of(0x06, ALLOW);
    // A jump past the end, a scratch slot out of range, an unknown instruction, a division by zero,
    // an unknown result.
    assert!(!permits(&[of(0x05, u32::MAX), allow], &MADVISE));
    assert!(!permits(&[when(0x15, 0, 200, 200), allow], &MADVISE));
    assert!(!permits(&[of(0x02, 16), allow], &MADVISE));
    assert!(!permits(&[of(0xffff, 0), allow], &MADVISE));
    assert!(!permits(&[of(0x34, 0), allow], &MADVISE));
    assert!(!permits(&[of(0x20, 24), of(0x16, 0)], &MADVISE));
    assert!(!permits(&[of(0x20, u32::MAX), of(0x16, 0)], &MADVISE));
}
