//! Has one process call malloc_trim once: `reclaim_once PID WAIT_SECONDS [LOCK_ADDRESS]…`, with
//! addresses in hexadecimal. With `--thread TID` first, only that thread may make the call.
//! `reclaim_once --zero PID WAIT_SECONDS START END` releases all-zero pages instead, at the risk
//! of losing a write.

use std::time::Duration;

use strandline_inspect::remedy::Applied;
use strandline_inspect::remedy::malloc_trim::{self, TrimRequest};
use strandline_inspect::remedy::zero_pages::{self, ZeroRequest};
use strandline_process::elf::Object;
use strandline_process::procfs::Process;

type Failure = Box<dyn std::error::Error>;

fn main() -> std::process::ExitCode {
    match run() {
        Ok(applied) => {
            println!("{applied:?}");
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::from(3)
        }
    }
}

fn run() -> Result<Applied, Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut thread = None;
    if arguments.first().is_some_and(|first| first == "--thread") {
        thread = Some(arguments.get(1).ok_or("--thread needs a TID")?.parse()?);
        arguments.drain(..2);
    }
    if arguments.first().is_some_and(|first| first == "--zero") {
        return zero(&arguments[1..]);
    }
    let pid: i32 = arguments.first().ok_or("usage: reclaim_once PID WAIT [LOCK]…")?.parse()?;
    let wait_seconds: f64 = arguments.get(1).ok_or("WAIT is missing")?.parse()?;
    let locks: Result<Vec<u64>, _> =
        arguments.iter().skip(2).map(|lock| u64::from_str_radix(lock, 16)).collect();
    let process = Process::open(pid)?;
    let space = process.address_space()?;
    let libc = space
        .mappings()
        .iter()
        .find(|mapping| mapping.permissions.execute && mapping.name.contains("/libc.so"))
        .ok_or("no libc is mapped")?;
    let libc = Object::open(&process, &space, libc)?;
    let heaps = space.mappings().iter().filter(|mapping| mapping.is_private_anonymous());
    let heaps = heaps.map(|mapping| mapping.start..mapping.end);
    let request = TrimRequest {
        function: libc.symbol_address("malloc_trim").ok_or("no malloc_trim")?,
        libc: &libc,
        code: strandline_allocators::glibc::code::ranges,
        locks: locks?,
        heaps: heaps.collect(),
        wait: Duration::try_from_secs_f64(wait_seconds)?,
        watch: Duration::ZERO,
        thread,
    };
    Ok(malloc_trim::apply(pid, &request)?)
}

fn zero(arguments: &[String]) -> Result<Applied, Failure> {
    let [pid, wait, start, end] = arguments else { return Err("usage: --zero PID WAIT START END".into()) };
    let request = ZeroRequest {
        ranges: std::iter::once(u64::from_str_radix(start, 16)?..u64::from_str_radix(end, 16)?).collect(),
        allow_risk: true,
        wait: Duration::try_from_secs_f64(wait.parse()?)?,
        watch: Duration::ZERO,
    };
    Ok(zero_pages::apply(pid.parse()?, &request)?.applied)
}
