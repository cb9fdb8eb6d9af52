//! Takes COUNT buffers of 1 MiB: `buffers macro|resize|capacity|boxed_slice|boxed_array|collect COUNT`. Marks `before`
//! and `taken` (through `strandline mark`, there is no probe in Rust); prints one line of JSON: wanted_bytes, and the
//! sum of one byte of each buffer (which keeps them in use until then).

use std::hint::black_box;
use std::process::{exit, Command};

const BUFFER_BYTES: usize = 1 << 20;

/// Without strandline a mark is nothing, as with the probes.
fn mark(name: &str) {
    let _ = Command::new("strandline").args(["mark", name]).status();
}

fn run<Buffer>(wanted: usize, take: fn() -> Buffer, byte: fn(&Buffer) -> u8) {
    let mut buffers = Vec::with_capacity(wanted);
    mark("before");
    for _ in 0..wanted {
        buffers.push(black_box(take()));
    }
    mark("taken");
    let sum: u64 = buffers.iter().map(|buffer| u64::from(byte(buffer))).sum();
    println!("{{\"wanted_bytes\": {}, \"sum\": {sum}}}", wanted * BUFFER_BYTES);
}

fn resize() -> Vec<u8> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    buffer.resize(BUFFER_BYTES, 0);
    buffer
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, idiom, count] = arguments.as_slice() else { exit(2) };
    let Ok(wanted) = count.parse() else { exit(2) };
    match idiom.as_str() {
        "macro" => run(wanted, || vec![0u8; BUFFER_BYTES], |buffer| buffer[5000]),
        "resize" => run(wanted, resize, |buffer| buffer[5000]),
        "capacity" => run(wanted, || Vec::<u8>::with_capacity(BUFFER_BYTES), |buffer| buffer.len() as u8),
        "boxed_slice" => run(wanted, || vec![0u8; BUFFER_BYTES].into_boxed_slice(), |buffer| buffer[5000]),
        "boxed_array" => run(wanted, || Box::new([0u8; BUFFER_BYTES]), |buffer| buffer[5000]),
        "collect" => {
            run(wanted, || (0..BUFFER_BYTES).map(|_| 0u8).collect::<Vec<u8>>(), |buffer| buffer[5000])
        }
        _ => exit(2),
    }
}
