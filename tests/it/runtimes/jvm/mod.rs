//! HotSpot read from outside, compared with its beans and `jcmd` (`tests/subjects/jvm`): JDKs in
//! /usr/lib/jvm with some collectors always, JDKs of `scripts/fetch-jdks` and all collectors in
//! full mode.

mod dropped;
mod figures;
mod inside;
mod kills;
mod nmt;
mod options;
mod reclaim;
mod view;
