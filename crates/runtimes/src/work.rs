//! Distributes jobs among threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Runs jobs `0..jobs` on `workers` threads, each with its own state. Returns the states, and the
/// number of jobs not finished when the deadline passed.
pub fn run_jobs<S: Send>(
    workers: usize,
    jobs: usize,
    deadline: Instant,
    state: impl Fn() -> S + Sync,
    job: impl Fn(&mut S, usize) + Sync,
) -> (Vec<S>, usize) {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let work = || {
        let mut mine = state();
        while Instant::now() < deadline {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= jobs {
                break;
            }
            job(&mut mine, number);
            done.fetch_add(1, Ordering::Relaxed);
        }
        mine
    };
    let others = workers.clamp(1, 64).min(jobs.max(1)) - 1;
    let states = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
        let mine = work();
        let theirs = threads.into_iter().filter_map(|thread| thread.join().ok());
        std::iter::once(mine).chain(theirs).collect()
    });
    (states, jobs - done.load(Ordering::Relaxed).min(jobs))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_job_is_done_once() {
        let far = Instant::now() + Duration::from_secs(1000);
        let (states, left) = run_jobs(3, 100, far, Vec::new, |mine, job| mine.push(job));
        let mut all: Vec<usize> = states.concat();
        all.sort_unstable();
        assert_eq!((all, left), ((0..100).collect(), 0));
        let (states, left) =
            run_jobs(2, 5, Instant::now(), Vec::new, |mine: &mut Vec<usize>, job| mine.push(job));
        assert_eq!((states.concat().len(), left), (0, 5));
    }
}
