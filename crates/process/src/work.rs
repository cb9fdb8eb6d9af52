//! Distributes work among threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

/// Maximum number of threads.
const MAX_WORKERS: usize = 64;

/// Runs `work` on `workers` threads, this one included, or on as many as the system allows, and
/// returns the results. Passes on a panic.
pub fn on_threads<S: Send>(workers: usize, work: impl Fn() -> S + Sync) -> Vec<S> {
    std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, &work).ok();
        let other_threads: Vec<_> = (1..workers.clamp(1, MAX_WORKERS)).map_while(start).collect();
        let own_result = work();
        let other_results = other_threads.into_iter().map(result_of);
        std::iter::once(own_result).chain(other_results).collect()
    })
}

/// Runs both functions, the first on another thread if the system allows one.
pub fn in_parallel<A: Send, B>(mut first: impl FnMut() -> A + Send, second: impl FnOnce() -> B) -> (A, B) {
    let (first_result, second_result) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, &mut first).ok();
        let second_result = second();
        (thread.map(result_of), second_result)
    });
    (first_result.unwrap_or_else(first), second_result)
}

/// Waits for a thread to end, and returns its result or passes on its panic.
pub(crate) fn result_of<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs jobs `0..jobs` on `workers` threads, each with its own state. Returns the states, and the
/// number of jobs not finished when the deadline passed.
pub fn run_jobs<S: Send>(
    workers: usize,
    jobs: usize,
    deadline: Instant,
    new_state: impl Fn() -> S + Sync,
    run_job: impl Fn(&mut S, usize) + Sync,
) -> (Vec<S>, usize) {
    let next_index = AtomicUsize::new(0);
    let done_count = AtomicUsize::new(0);
    let states = on_threads(workers.min(jobs), || {
        let mut state = new_state();
        while Instant::now() < deadline {
            let index = next_index.fetch_add(1, Ordering::Relaxed);
            if index >= jobs {
                break;
            }
            run_job(&mut state, index);
            done_count.fetch_add(1, Ordering::Relaxed);
        }
        state
    });
    (states, jobs - done_count.load(Ordering::Relaxed).min(jobs))
}

/// Calls `work` with 0 to `count` - 1 on `workers` threads, and returns the results in order.
pub fn in_order<T: Default + Send>(count: usize, workers: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next_index = AtomicUsize::new(0);
    let indices = || Some(next_index.fetch_add(1, Ordering::Relaxed)).filter(|&index| index < count);
    let results_per_thread = on_threads(workers.min(count), || {
        std::iter::from_fn(indices).map(|index| (index, work(index))).collect::<Vec<_>>()
    });
    let mut results: Vec<T> = (0..count).map(|_| T::default()).collect();
    for (index, result) in results_per_thread.into_iter().flatten() {
        if let Some(slot) = results.get_mut(index) {
            *slot = result;
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_job_is_done_once() {
        let far = Instant::now() + Duration::from_secs(1000);
        let (states, unfinished) = run_jobs(3, 100, far, Vec::new, |mine, job| mine.push(job));
        let mut all: Vec<usize> = states.concat();
        all.sort_unstable();
        assert_eq!((all, unfinished), ((0..100).collect(), 0));
        let (states, unfinished) =
            run_jobs(2, 5, Instant::now(), Vec::new, |mine: &mut Vec<usize>, job| mine.push(job));
        assert_eq!((states.concat().len(), unfinished), (0, 5));
    }

    #[test]
    fn results_are_in_order() {
        for workers in [0, 1, 3] {
            assert_eq!(in_order(50, workers, |number| number * 2), (0..100).step_by(2).collect::<Vec<_>>());
        }
        assert_eq!(in_order(0, 4, |number| number), []);
    }

    #[test]
    fn both_functions_run() {
        let mut runs = 0;
        let first = || {
            runs += 1;
            "first"
        };
        assert_eq!((in_parallel(first, || "second"), runs), (("first", "second"), 1));
    }
}
