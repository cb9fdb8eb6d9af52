//! Guarantees that targets held by a thread are released in time, even if strandline is stopped or
//! hangs: a watchdog then kills it, and the kernel releases all its tracees.

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use strandline_sys::signal::StopSignalsBlocked;
use strandline_sys::watchdog::Watchdog;

use super::exit_watch;

thread_local! {
    static THIS_THREAD: ThreadHolds = const {
        ThreadHolds {
            limit: Cell::new(None),
            count: Cell::new(0),
            since: Cell::new(None),
            held_time: Cell::new(Duration::ZERO),
            watchdog: RefCell::new(None),
            read_lock: RefCell::new(None),
        }
    };
}

/// Read-locked by each thread that holds a target.
static HELD: RwLock<()> = RwLock::new(());

struct ThreadHolds {
    /// Maximum time of a hold; `None` for no limit.
    limit: Cell<Option<Duration>>,
    /// Number of nested holds.
    count: Cell<u32>,
    /// When the outermost hold began.
    since: Cell<Option<Instant>>,
    /// See [`held_time`].
    held_time: Cell<Duration>,
    /// Started with the first hold. If it cannot be started, only strandline's own limits apply.
    watchdog: RefCell<Option<Watchdog>>,
    /// Its read lock on [`HELD`], while it holds something.
    read_lock: RefCell<Option<RwLockReadGuard<'static, ()>>>,
}

/// Runs `work` on a new thread, which traces what it stops; when the thread ends, the kernel
/// releases whatever it still traces. If a hold lasts longer than `limit` and a grace, the watchdog
/// kills this process. `None` if the thread could not be started or panicked. A thread that watches
/// the target for its exit runs `work` itself, because no other thread can trace the target.
pub fn on_own_thread<T: Send>(limit: Duration, work: impl FnOnce() -> T + Send) -> Option<T> {
    // Ctrl-Z takes effect afterwards. If it cannot be blocked, the watchdog protects the target.
    let stops_blocked = StopSignalsBlocked::begin().ok();
    if exit_watch::is_reading() {
        let result = THIS_THREAD.with(|thread| {
            let outer_limit = thread.limit.replace(Some(limit));
            // A panic ends this work only, as it would end a separate thread.
            let result = std::panic::catch_unwind(AssertUnwindSafe(work)).ok();
            thread.limit.set(outer_limit);
            // The watchdog of an enclosing `on_own_thread` stays.
            if outer_limit.is_none() {
                thread.watchdog.take();
            }
            result
        });
        drop(stops_blocked);
        return result;
    }
    let result = std::thread::scope(|scope| {
        let body = move || {
            THIS_THREAD.with(|thread| thread.limit.set(Some(limit)));
            // After a panic the time of its hold counts as well.
            let result = std::panic::catch_unwind(AssertUnwindSafe(work)).ok();
            (result, held_time())
        };
        std::thread::Builder::new().spawn_scoped(scope, body).ok()?.join().ok()
    });
    drop(stops_blocked);
    let (result, held_by_thread) = result?;
    THIS_THREAD.with(|thread| thread.held_time.set(thread.held_time.get() + held_by_thread));
    result
}

/// How long this thread and those that it started by [`on_own_thread`] have held targets, in total.
pub fn held_time() -> Duration {
    THIS_THREAD.with(|thread| thread.held_time.get())
}

/// Runs `work` while no thread of this process holds anything: waits for current holds to end, and
/// blocks new ones meanwhile.
pub fn while_nothing_is_held<T>(work: impl FnOnce() -> T) -> T {
    let _no_holds = HELD.write().unwrap_or_else(PoisonError::into_inner);
    work()
}

/// Starts the watchdog of the calling thread, if it has a limit. Call it before allocating memory:
/// a watchdog forked later would share that memory, and every write would copy a page.
pub fn start_watchdog() {
    THIS_THREAD.with(|thread| {
        let mut watchdog = thread.watchdog.borrow_mut();
        if watchdog.is_none() && thread.limit.get().is_some() {
            *watchdog = Watchdog::start().ok();
        }
    });
}

/// Marks that the calling thread holds a target, from before its stop until this is dropped.
#[derive(Debug)]
pub(super) struct Hold(());

impl Hold {
    /// Begins a hold, or one within another.
    pub fn begin() -> Self {
        THIS_THREAD.with(|thread| {
            thread.count.set(thread.count.get() + 1);
            if thread.count.get() > 1 {
                return;
            }
            *thread.read_lock.borrow_mut() = Some(HELD.read().unwrap_or_else(PoisonError::into_inner));
            thread.since.set(Some(Instant::now()));
            // A thread not started by `on_own_thread` has no limit, and so no watchdog.
            let Some(limit) = thread.limit.get() else { return };
            start_watchdog();
            if let Some(watchdog) = &*thread.watchdog.borrow() {
                watchdog.arm(limit);
            }
        });
        Self(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // At the end of the thread its watchdog is already gone.
        let _ = THIS_THREAD.try_with(|thread| {
            thread.count.set(thread.count.get().saturating_sub(1));
            if thread.count.get() > 0 {
                return;
            }
            if let Some(watchdog) = &*thread.watchdog.borrow() {
                watchdog.disarm();
            }
            *thread.read_lock.borrow_mut() = None;
            let held_time = thread.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            thread.held_time.set(thread.held_time.get() + held_time);
        });
    }
}
