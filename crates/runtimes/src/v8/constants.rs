//! Which strings are constants of the program's code. Keys of an object that is used as a table are
//! data and are not shown; a key that the code has is a name.

use std::collections::HashSet;
use std::time::Instant;

use super::layout::PAGE_ALIGNMENT;
use super::objects::Heap;
use super::references::References;
use super::shapes::{HEAD_BYTES, Shapes};
use crate::bits::Bitmap;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::word_at;

/// Largest array of a function's constants that is searched for names; the keys in a larger one
/// count as data.
const MAX_CONSTANTS_BYTES: u64 = 1 << 20;

/// Returns those of `keys` that are constants of the program's code: constants of compiled
/// functions, or names of variables. `None` at the deadline.
pub fn keys_in_code(
    heap: &Heap<'_>,
    marks: &Bitmap,
    shapes: &mut Shapes<'_>,
    keys: &HashSet<u64>,
) -> Option<HashSet<u64>> {
    let mut buffer = ReadBuffer::new(PAGE_ALIGNMENT as usize);
    let mut keys_in_code = HashSet::new();
    let mut constants = Vec::new();
    for indexed in heap.index.pages.iter().filter(|indexed| !indexed.is_large) {
        heap.each_live(shapes, indexed, marks, &mut buffer, &mut |shapes, object| {
            match shapes.types().name(object.shape.instance_type).unwrap_or_default() {
                "BytecodeArray" => {
                    object.shape.references.each(0, object.bytes, &mut |_, target| constants.push(target))
                }
                "ScopeInfo" | "ObjectBoilerplateDescription" | "SharedFunctionInfo" => {
                    add_words(object.bytes, keys, &mut keys_in_code);
                }
                _ => {}
            }
            true
        })?;
    }
    constants.sort_unstable();
    constants.dedup();
    for address in constants {
        if Instant::now() >= heap.context.deadline {
            return None;
        }
        // An array that cannot be read names nothing: its keys count as data.
        let mut head = [0; HEAD_BYTES];
        let head = shapes.cache.read(address, &mut head).ok().and_then(|()| shapes.head(&head));
        let head =
            head.filter(|head| head.shape.references == References::All && head.size <= MAX_CONSTANTS_BYTES);
        let Some(head) = head else { continue };
        buffer.resize(head.size as usize);
        if shapes.cache.read(address, &mut buffer).is_ok() {
            add_words(&buffer, keys, &mut keys_in_code);
        }
    }
    Some(keys_in_code)
}

/// Adds the words that are among `keys`.
fn add_words(bytes: &[u8], keys: &HashSet<u64>, keys_in_code: &mut HashSet<u64>) {
    let words = (0..bytes.len()).step_by(8).filter_map(|at| word_at(bytes, at));
    keys_in_code.extend(words.filter(|word| keys.contains(word)));
}
