//! Waiting for states. A test never waits for a time: the speed of a machine does not matter.

use std::path::Path;
use std::time::{Duration, Instant};

use super::Result;

/// Upper bound of a wait for a state. It ends a test that hangs; a slow and busy machine does not
/// reach it.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Pause between two checks of a state.
const PAUSE: Duration = Duration::from_millis(2);

/// Calls `poll` repeatedly until it returns a value, which messages call `what`.
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(value) = poll()? {
            return Ok(value);
        }
        std::thread::sleep(PAUSE);
    }
    Err(format!("waited {PATIENCE:?} for {what}").into())
}

/// Waits until `condition` holds.
pub fn until_true(what: &str, mut condition: impl FnMut() -> bool) -> super::Outcome {
    until(what, || Ok(condition().then_some(())))
}

/// The state of thread `tid` of process `pid` (`R`, `S`, `T`, `t`, `Z`, …); `None` if it has ended.
pub fn state(pid: i32, tid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The threads of process `pid`.
pub fn threads(pid: i32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether something traces a thread of process `pid`.
pub fn is_traced(pid: i32) -> bool {
    threads(pid).into_iter().any(|tid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
    })
}

/// Waits until process `pid` has a tracer or has ended; true if it has a tracer. Polls without a
/// pause, to return early in the stop.
pub fn until_traced(pid: i32) -> bool {
    let start = Instant::now();
    while Path::new(&format!("/proc/{pid}")).exists() && start.elapsed() < PATIENCE {
        if is_traced(pid) {
            return true;
        }
    }
    false
}

/// Waits until nothing traces process `pid`, and no thread of it is stopped.
pub fn until_free(pid: i32) -> super::Outcome {
    let is_stopped = |tid| matches!(state(pid, tid), Some('t' | 'T'));
    until_true("the process to be detached and to run", || {
        !is_traced(pid) && !threads(pid).into_iter().any(is_stopped)
    })
}

/// Waits until the main thread of process `pid` sleeps in a read of its standard input, and each
/// other thread in some system call. A subject prints before it sleeps, and may touch pages and
/// allocate in between.
pub fn until_at_rest(pid: i32) -> super::Outcome {
    let call = |tid: i32| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
    until(&format!("process {pid} to rest"), || {
        if let Err(error) = call(pid) {
            return Err(
                format!("process {pid} has ended, or its system call may not be read: {error}").into()
            );
        }
        let is_asleep =
            |tid: i32| call(tid).is_ok_and(|call| !call.starts_with("running") && !call.starts_with('-'));
        // poll, ppoll, select, pselect6, epoll_wait, epoll_pwait: event loops wait for input in
        // these.
        const WAITING_CALLS: [&str; 6] = ["7 ", "271 ", "23 ", "270 ", "232 ", "281 "];
        let main_call = call(pid).unwrap_or_default();
        let is_waiting = WAITING_CALLS.iter().any(|number| main_call.starts_with(number));
        let is_reading = is_waiting || main_call.starts_with("0 0x0 ");
        Ok((is_reading && threads(pid).into_iter().all(is_asleep)).then_some(()))
    })
}
