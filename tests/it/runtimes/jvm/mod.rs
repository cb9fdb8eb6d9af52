//! HotSpot read from outside, against what its beans and `jcmd` know of it (`tests/subjects/jvm`): those in /usr/lib/jvm
//! with some collectors always, those of `scripts/fetch-jdks` and all collectors in full mode.

mod dropped;
mod figures;
mod inside;
mod kills;
mod nmt;
mod options;
mod reclaim;
mod view;
