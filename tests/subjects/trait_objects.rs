//! Holds objects of three types as trait objects, in `Box` and in `Arc`. Prints the number of each,
//! as JSON, and waits.

use std::io::{Read, Write};
use std::sync::Arc;

const EACH: u64 = 20_000;

trait Shape {
    fn area(&self) -> f64;
    fn name(&self) -> &str;
}

/// A type without drop glue.
struct Round {
    radius: f64,
    _more: [u64; 8],
}

struct Labelled {
    label: String,
    _more: [f64; 4],
}

struct Common {
    points: Vec<u64>,
    _tags: [u8; 100],
}

impl Shape for Round {
    fn area(&self) -> f64 {
        self.radius * self.radius
    }
    fn name(&self) -> &str {
        "round"
    }
}

impl Shape for Labelled {
    fn area(&self) -> f64 {
        2.0
    }
    fn name(&self) -> &str {
        &self.label
    }
}

impl Shape for Common {
    fn area(&self) -> f64 {
        self.points.len() as f64
    }
    fn name(&self) -> &str {
        "common"
    }
}

fn main() -> std::io::Result<()> {
    let mut boxes: Vec<Box<dyn Shape>> = Vec::new();
    let mut common: Vec<Arc<dyn Shape>> = Vec::new();
    for number in 0..EACH {
        boxes.push(Box::new(Round { radius: number as f64, _more: [number; 8] }));
        boxes.push(Box::new(Labelled { label: format!("label {number}"), _more: [0.0; 4] }));
        common.push(Arc::new(Common { points: vec![number], _tags: [7; 100] }));
    }
    let area: f64 = boxes.iter().map(|shape| shape.area()).sum();
    let bytes: usize = common.iter().map(|shape| shape.name().len()).sum();
    println!("{{\"each\": {EACH}, \"area\": {area}, \"bytes\": {bytes}}}");
    std::io::stdout().flush()?;
    std::io::stdin().read_exact(&mut [0])?;
    drop((boxes, common));
    Ok(())
}
