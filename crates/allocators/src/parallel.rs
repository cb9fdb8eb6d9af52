//! Work in parts, by several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Does `work` for each of `count` items with `threads` threads, and returns the results in order.
pub fn in_parallel<T: Default + Send>(
    count: usize,
    threads: usize,
    work: &(dyn Fn(usize) -> T + Sync),
) -> Vec<T> {
    let results: Vec<Mutex<T>> = (0..count).map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some((item, slot)) = {
            let item = next.fetch_add(1, Ordering::Relaxed);
            results.get(item).map(|slot| (item, slot))
        } {
            let result = work(item);
            if let Ok(mut slot) = slot.lock() {
                *slot = result;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(run);
        }
        run();
    });
    results.into_iter().map(|slot| slot.into_inner().unwrap_or_default()).collect()
}
