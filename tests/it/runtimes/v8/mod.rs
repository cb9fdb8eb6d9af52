//! Tests of V8 in Node.js, read from outside, against its own statistics (`tests/subjects/node`).

mod holders;
mod ledger;
mod objects;
mod outside;
mod paths;
mod reclaim;
