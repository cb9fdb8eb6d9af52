//! The call that makes V8 collect and release its pool: `Isolate::MemoryPressureNotification` with
//! the level `kCritical`, which V8 allows from any thread.
//!
//! It sets `memory_pressure_level_` of the heap, requests an interrupt, and posts a task
//! (`Heap::MemoryPressureNotification` in `src/heap/heap.cc`). The isolate's own thread then resets
//! the level and collects (`Heap::CheckMemoryPressure`), at once if it sleeps in its event loop. A
//! call while the level is set does nothing.
//!
//! A wrong address would be harmful, so three things must agree: the heap refers to its isolate;
//! the function itself adds the distance between them to the address that it gets; and the isolate
//! is the current one of a thread that sleeps in libuv's loop, which Node's code runs, so that
//! Node's platform has it registered. For another isolate Node 18 and 20 would abort
//! (`NodePlatform::ForIsolate`).

use super::claims::Claimed;
use super::forecast::Forecasts;
use super::heap::{Heaps, Isolate, SpaceAddress};
use super::layout::{Layout, NOT_IN_GC, SPACE_HEAP, SPACE_ID};
use super::locate::{self, Program};
use super::remedies::{self, MEMORY_PRESSURE};
use strandline_claims::remedy::{Notification, NotifyCall, Word};
use strandline_claims::runtime::Context;

/// `v8::MemoryPressureLevel::kCritical` (`include/v8-isolate.h`).
const CRITICAL: u64 = 2;
/// Bytes of stack for the call: it allocates a task and takes the locks of Node's platform.
const STACK_BYTES: u64 = 64 << 10;
/// Function in which Node's platform threads (`PlatformWorkerThread` in `src/node_platform.cc`) and
/// libuv's pool (`worker` in `src/threadpool.c`) wait for work.
const IDLE_IN: [&str; 1] = ["uv_cond_wait"];
/// Function that runs the event loop of an isolate's thread.
const LOOPS_IN: [&str; 1] = ["uv_run"];
/// Library with these functions, in builds that do not contain libuv.
const FILES: [&str; 1] = ["libuv.so"];

/// Returns the calls, one for each isolate.
///
/// # Errors
/// Why there is no call, as a sentence.
pub fn notification(
    context: &Context<'_>,
    program: &Program,
    layout: &Layout,
    heaps: &Heaps,
    claimed: &Claimed,
    forecasts: &Forecasts,
) -> Result<Notification, String> {
    if program.memory_pressure.is_empty() {
        return Err(format!("{} does not export V8's MemoryPressureNotification()", program.path));
    }
    let mut mappings = context.space.mappings().iter();
    let code = mappings.find(|mapping| mapping.name == program.path && mapping.permissions.execute);
    let object = code.map(|mapping| mapping.start).ok_or("V8's code is not mapped")?;
    let is_exact = |isolate: &Isolate| has_operand(&program.memory_pressure, isolate.heap - isolate.address);
    if !heaps.isolates.iter().all(is_exact) {
        return Err("V8's MemoryPressureNotification() does not use the heap of the isolate that strandline found, so it \
                    is not called"
            .to_owned());
    }
    let calls: Vec<NotifyCall> = heaps
        .isolates
        .iter()
        .map(|isolate| NotifyCall {
            owner: program.current_isolate.and_then(|current| current.owner(context, isolate.address)),
            least_bytes: remedies::least_bytes(heaps, claimed, forecasts, isolate),
            ..call(layout, isolate)
        })
        .collect();
    if calls.iter().all(|call| call.owner.is_none()) {
        return Err(
            "the thread that owns V8's isolate was not found, so V8's function is not called".to_owned()
        );
    }
    Ok(Notification {
        remedy: MEMORY_PRESSURE,
        object,
        function: locate::MEMORY_PRESSURE,
        idle_in: &IDLE_IN,
        loops_in: &LOOPS_IN,
        files: &FILES,
        stack_bytes: STACK_BYTES,
        calls,
    })
}

/// Whether `code` has an instruction with `distance` as its operand: `lea 0xdea0(%rbx),%rdi` or
/// `add $0xf3c0,%r14` in the versions tried.
fn has_operand(code: &[u8], distance: u64) -> bool {
    let Ok(distance) = u32::try_from(distance) else { return false };
    code.windows(4).any(|bytes| bytes == distance.to_le_bytes())
}

/// Returns the call for an isolate, without its owner and prediction.
fn call(layout: &Layout, isolate: &Isolate) -> NotifyCall {
    let Isolate { address, heap, old_space: SpaceAddress { number, address: space } } = *isolate;
    // Memory was read at these addresses, so no sum overflows.
    let at = |offset: u64| heap.wrapping_add(offset);
    NotifyCall {
        arguments: [address, CRITICAL],
        owner: None,
        least_bytes: 0,
        identity: vec![
            Word::whole(at(layout.heap_isolate), address),
            Word::whole(at(layout.heap_spaces).wrapping_add(8 * number as u64), space),
            Word::whole(space.wrapping_add(SPACE_HEAP), heap),
            Word::half(space.wrapping_add(SPACE_ID), number as u32),
        ],
        idle: vec![Word::half(at(layout.heap_state), NOT_IN_GC), Word::half(at(layout.heap_pressure), 0)],
    }
}
