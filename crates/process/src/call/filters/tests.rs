//! Tests of the interpreter of seccomp filters, on filters written by hand.

use super::*;

// Results of a filter (`include/uapi/linux/seccomp.h`, `SECCOMP_RET_*`).
const KILL_THREAD: u32 = 0;
const ERRNO: u32 = 0x0005_0001;
const USER_NOTIF: u32 = 0x7fc0_0000;
const LOG: u32 = 0x7ffc_0000;
const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

// Codes of instructions (`include/uapi/linux/bpf_common.h`, `include/uapi/linux/filter.h`).
const LOAD_CONSTANT: u16 = 0x00;
const STORE: u16 = 0x02;
const JUMP: u16 = 0x05;
const RETURN_CONSTANT: u16 = 0x06;
const ADD_X: u16 = 0x0c;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN_A: u16 = 0x16;
const LOAD_DATA: u16 = 0x20;
const MULTIPLY: u16 = 0x24;
const JUMP_IF_GREATER: u16 = 0x25;
const DIVIDE: u16 = 0x34;
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
const AND: u16 = 0x54;
const LOAD_X_SCRATCH: u16 = 0x61;
const SHIFT_RIGHT: u16 = 0x74;
const XOR: u16 = 0xa4;

// Offsets in `struct seccomp_data` (`include/uapi/linux/seccomp.h`).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;
const FIRST_ARGUMENT_UPPER_HALF: u32 = 20;
const SECOND_ARGUMENT: u32 = 24;

const MADVISE: RequiredCall = RequiredCall::with_any_arguments("madvise", 28);

fn instruction(code: u16, k: u32) -> FilterInstruction {
    FilterInstruction { code, jt: 0, jf: 0, k }
}

fn jump_if(code: u16, k: u32, jt: u8, jf: u8) -> FilterInstruction {
    FilterInstruction { code, jt, jf, k }
}

fn returning(value: u32) -> FilterInstruction {
    instruction(RETURN_CONSTANT, value)
}

fn clone_with(flags: Option<u64>) -> RequiredCall {
    RequiredCall { name: "clone", number: 56, arguments: [flags, None, None] }
}

#[test]
fn only_allow_and_log_permit_a_call() {
    let results = [
        (ALLOW, true),
        (LOG, true),
        (ERRNO, false),
        (KILL_PROCESS, false),
        (KILL_THREAD, false),
        (USER_NOTIF, false),
    ];
    for (value, is_permitted) in results {
        assert_eq!(permits(&[returning(value)], &MADVISE), is_permitted, "{value:x}");
    }
    assert!(!permits(&[], &MADVISE), "an empty filter");
    assert!(!permits(&[instruction(LOAD_CONSTANT, 1)], &MADVISE), "a filter without a return");
}

/// Docker's filter as libseccomp compiles it: it compares the architecture, the numbers of x32,
/// then one number after the other, and rejects a clone that creates namespaces.
fn docker_filter() -> Vec<FilterInstruction> {
    vec![
        instruction(LOAD_DATA, ARCHITECTURE),
        jump_if(JUMP_IF_EQUAL, 0xc000_003e, 0, 11),
        instruction(LOAD_DATA, NUMBER),
        jump_if(JUMP_IF_GREATER_OR_EQUAL, 0x4000_0000, 9, 0),
        jump_if(JUMP_IF_EQUAL, 28, 9, 0),
        jump_if(JUMP_IF_EQUAL, 15, 8, 0),
        jump_if(JUMP_IF_EQUAL, 56, 0, 6),
        instruction(LOAD_DATA, FIRST_ARGUMENT_UPPER_HALF),
        jump_if(JUMP_IF_EQUAL, 0, 0, 4),
        instruction(LOAD_DATA, FIRST_ARGUMENT),
        instruction(AND, 0x7e02_0000),
        jump_if(JUMP_IF_EQUAL, 0, 2, 1),
        returning(ALLOW),
        returning(ERRNO),
        returning(ALLOW),
    ]
}

#[test]
fn known_arguments_decide_and_unknown_arguments_may_have_any_value() {
    let filter = docker_filter();
    assert!(permits(&filter, &MADVISE) && permits(&filter, &SIGNAL_RETURN));
    assert!(!permits(&filter, &RequiredCall::with_any_arguments("futex", 202)));
    assert!(permits(&filter, &clone_with(Some(0x400))));
    assert!(!permits(&filter, &clone_with(Some(0x1000_0000))), "a namespace");
    assert!(!permits(&filter, &clone_with(Some(1 << 32))), "a flag in the upper half");
    assert!(!permits(&filter, &clone_with(None)));
}

#[test]
fn a_jump_on_an_unknown_word_takes_both_branches() {
    // The second argument is unknown: one branch allows, the other returns `value`.
    let filter = |value| {
        [
            instruction(LOAD_DATA, SECOND_ARGUMENT),
            jump_if(JUMP_IF_GREATER, 7, 1, 0),
            returning(ALLOW),
            returning(value),
        ]
    };
    assert!(permits(&filter(ALLOW), &MADVISE));
    assert!(!permits(&filter(ERRNO), &MADVISE));
    // A value that is equal on both branches is known after they join.
    let joining_filter = |other: u32| {
        [
            instruction(LOAD_DATA, SECOND_ARGUMENT),
            jump_if(JUMP_IF_GREATER, 7, 0, 2),
            instruction(LOAD_CONSTANT, 5),
            instruction(JUMP, 1),
            instruction(LOAD_CONSTANT, other),
            jump_if(JUMP_IF_EQUAL, 5, 0, 1),
            returning(ALLOW),
            returning(KILL_PROCESS),
        ]
    };
    assert!(permits(&joining_filter(5), &MADVISE));
    assert!(!permits(&joining_filter(6), &MADVISE));
}

#[test]
fn arithmetic_and_scratch_words_are_computed() {
    // ((number + 2) * 3 ^ 1) >> 1 of madvise, through scratch and X: ((28 + 2) * 3 ^ 1) >> 1 = 45.
    let filter = [
        instruction(LOAD_DATA, NUMBER),
        instruction(STORE, 3),
        instruction(LOAD_CONSTANT, 2),
        instruction(LOAD_X_SCRATCH, 3),
        instruction(ADD_X, 0),
        instruction(MULTIPLY, 3),
        instruction(XOR, 1),
        instruction(SHIFT_RIGHT, 1),
        jump_if(JUMP_IF_EQUAL, 45, 0, 1),
        returning(ALLOW),
        returning(KILL_PROCESS),
    ];
    assert!(permits(&filter, &MADVISE));
    assert!(!permits(&filter, &SIGNAL_RETURN));
}

#[test]
fn invalid_filters_permit_nothing() {
    let allow = returning(ALLOW);
    assert!(!permits(&[instruction(JUMP, u32::MAX), allow], &MADVISE), "a jump past the end");
    assert!(!permits(&[jump_if(JUMP_IF_EQUAL, 0, 200, 200), allow], &MADVISE), "a jump past the end");
    assert!(!permits(&[instruction(STORE, 16), allow], &MADVISE), "no such scratch word");
    assert!(!permits(&[instruction(0xffff, 0), allow], &MADVISE), "an unknown code");
    assert!(!permits(&[instruction(DIVIDE, 0), allow], &MADVISE), "a division by zero");
    let unknown_result = [instruction(LOAD_DATA, SECOND_ARGUMENT), instruction(RETURN_A, 0)];
    assert!(!permits(&unknown_result, &MADVISE), "an unknown result");
    let outside_data = [instruction(LOAD_DATA, u32::MAX), instruction(RETURN_A, 0)];
    assert!(!permits(&outside_data, &MADVISE), "a load outside the data");
}
