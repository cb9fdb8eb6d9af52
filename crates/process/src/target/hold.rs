//! What a thread holds of a target is let go in time, also where strandline is stopped or hangs meanwhile: a watchdog then
//! ends it, and with its end the kernel lets go of everything.

use std::cell::{Cell, RefCell};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use strandline_sys::signal::NoStops;
use strandline_sys::watchdog::Watchdog;

thread_local! {
    static OWN: Own = const {
        Own {
            most: Cell::new(Duration::ZERO),
            count: Cell::new(0),
            dog: RefCell::new(None),
            held: RefCell::new(None),
        }
    };
}

/// Read-locked by each thread that holds something.
static HELD: RwLock<()> = RwLock::new(());

/// What the calling thread holds.
struct Own {
    /// For how long it may.
    most: Cell<Duration>,
    /// How many holds there are.
    count: Cell<u32>,
    /// Started with the first of them. Without one, where there can be none, strandline's own limits remain.
    dog: RefCell<Option<Watchdog>>,
    /// Its share of [`HELD`], while it holds something.
    held: RefCell<Option<RwLockReadGuard<'static, ()>>>,
}

/// Runs `work` on a thread of its own, which is the tracer of what it stops; with its end the kernel lets go of whatever it
/// still traces. Nothing is wanted to be held for longer than `most` at a time. `None` where no thread could be started or it
/// panicked.
pub fn on_own_thread<T: Send>(most: Duration, work: impl FnOnce() -> T + Send) -> Option<T> {
    // Ctrl-Z comes when it is over. Where it cannot be kept off, the watchdog sees to the target.
    let no_stops = NoStops::begin().ok();
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

/// Runs `work` while no thread of this process holds anything: waits for those that do, and others wait for `work`.
pub fn while_nothing_is_held<T>(work: impl FnOnce() -> T) -> T {
    let _none = HELD.write().unwrap_or_else(PoisonError::into_inner);
    work()
}

/// Starts the watchdog of the calling thread, if it has one: before memory is taken that a copy of this process would share,
/// and so be copied once more when it is written to.
pub fn prepare() {
    OWN.with(|own| {
        let mut dog = own.dog.borrow_mut();
        if dog.is_none() && !own.most.get().is_zero() {
            *dog = Watchdog::start().ok();
        }
    });
}

/// That the calling thread holds something, from before it is stopped until it is dropped.
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
            // A thread that `on_own_thread` did not start has no limit, and so no watchdog.
            if own.most.get().is_zero() {
                return;
            }
            prepare();
            if let Some(dog) = &*own.dog.borrow() {
                dog.hold(own.most.get());
            }
        });
        Self(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // At the end of the thread its watchdog is gone too.
        let _ = OWN.try_with(|own| {
            own.count.set(own.count.get().saturating_sub(1));
            if own.count.get() > 0 {
                return;
            }
            if let Some(dog) = &*own.dog.borrow() {
                dog.release();
            }
            *own.held.borrow_mut() = None;
        });
    }
}
