//! A program with polars, which has its own jemalloc: its names are prefixed, and its thread
//! variables are placed by the linker.

use std::process::Command;

use super::{Result, Subject, skipped};

const SCRIPT: &str = "
import polars, gc, sys
frame = polars.DataFrame({'a': range(1000000)})
frame = frame.with_columns([(polars.col('a') * i).cast(polars.Utf8).alias(f'c{i}') for i in range(1, 5)])
del frame; gc.collect()
print('ready', flush=True)
sys.stdin.read()";

/// Starts a program that freed some 100 MB; `None`, reported for `test`, without polars.
pub fn start(test: &str, setting: Option<(&str, &str)>) -> Result<Option<Subject>> {
    let Some(python) = std::env::var_os("STRANDLINE_POLARS") else {
        skipped(test, "STRANDLINE_POLARS names no python3 (scripts/fetch-polars DIR)");
        return Ok(None);
    };
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]).envs(setting);
    Subject::start_command(command).map(Some)
}
