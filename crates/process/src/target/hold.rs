//! Guarantees that targets held by a thread are released in time, even if strandline is stopped or
//! hangs: a watchdog then kills it, and the kernel releases all its tracees.

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use strandline_sys::signal::StopSignalsBlocked;
use strandline_sys::watchdog::Watchdog;

use super::exit_watch;

thread_local! {
    static OWN: ThreadHolds = const {
        ThreadHolds {
            most: Cell::new(Duration::ZERO),
            count: Cell::new(0),
            dog: RefCell::new(None),
            held: RefCell::new(None),
        }
    };
}

/// Read-locked by each thread that holds a target.
static HELD: RwLock<()> = RwLock::new(());

/// The holds of the calling thread.
struct ThreadHolds {
    /// Maximum time of a hold; zero for no limit.
    most: Cell<Duration>,
    /// Number of nested holds.
    count: Cell<u32>,
    /// Started with the first hold. If it cannot be started, only strandline's own limits apply.
    dog: RefCell<Option<Watchdog>>,
    /// Its read lock on [`HELD`], while it holds something.
    held: RefCell<Option<RwLockReadGuard<'static, ()>>>,
}

/// Runs `work` on a new thread, which traces what it stops; when the thread ends, the kernel
/// releases whatever it still traces. No hold should last longer than `most`. `None` if the thread
/// could not be started or panicked. A thread that watches the target for its exit runs `work`
/// itself, because no other thread can trace the target.
pub fn on_own_thread<T: Send>(most: Duration, work: impl FnOnce() -> T + Send) -> Option<T> {
    // Ctrl-Z takes effect afterwards. If it cannot be blocked, the watchdog protects the target.
    let no_stops = StopSignalsBlocked::begin().ok();
    if exit_watch::is_reading() {
        let done = OWN.with(|own| {
            let before = own.most.replace(most);
            // A panic ends this work only, as it would end a thread of its own.
            let done = std::panic::catch_unwind(AssertUnwindSafe(work)).ok();
            own.most.set(before);
            // Within another work, that one's watchdog stays.
            if before.is_zero() {
                own.dog.take();
            }
            done
        });
        drop(no_stops);
        return done;
    }
    let done = std::thread::scope(|scope| {
        let body = move || {
            OWN.with(|own| own.most.set(most));
            work()
        };
        std::thread::Builder::new().spawn_scoped(scope, body).ok()?.join().ok()
    });
    drop(no_stops);
    done
}

/// Runs `work` while no thread of this process holds anything: waits for current holds to end, and
/// blocks new ones meanwhile.
pub fn while_nothing_is_held<T>(work: impl FnOnce() -> T) -> T {
    let _none = HELD.write().unwrap_or_else(PoisonError::into_inner);
    work()
}

/// Starts the watchdog of the calling thread, if it has a limit. Call it before allocating memory:
/// a watchdog forked later would share that memory, and every write would copy a page.
pub fn start_watchdog() {
    OWN.with(|own| {
        let mut dog = own.dog.borrow_mut();
        if dog.is_none() && !own.most.get().is_zero() {
            *dog = Watchdog::start().ok();
        }
    });
}

/// Marks that the calling thread holds a target, from before its stop until this is dropped.
#[derive(Debug)]
pub(super) struct Hold(());

impl Hold {
    pub fn begin() -> Self {
        OWN.with(|own| {
            own.count.set(own.count.get() + 1);
            if own.count.get() > 1 {
                return;
            }
            *own.held.borrow_mut() = Some(HELD.read().unwrap_or_else(PoisonError::into_inner));
            // A thread not started by `on_own_thread` has no limit, and so no watchdog.
            if own.most.get().is_zero() {
                return;
            }
            start_watchdog();
            if let Some(dog) = &*own.dog.borrow() {
                dog.arm(own.most.get());
            }
        });
        Self(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // At the end of the thread its watchdog is already gone.
        let _ = OWN.try_with(|own| {
            own.count.set(own.count.get().saturating_sub(1));
            if own.count.get() > 0 {
                return;
            }
            if let Some(dog) = &*own.dog.borrow() {
                dog.disarm();
            }
            *own.held.borrow_mut() = None;
        });
    }
}
