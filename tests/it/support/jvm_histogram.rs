//! Objects of a JVM according to `jcmd PID GC.class_histogram -all`, dead ones too.

use std::collections::BTreeMap;
use std::process::Command;

use crate::support::{Result, skipped};

/// Instances and bytes by class name.
pub type Classes = BTreeMap<String, [u64; 2]>;

/// Classes of the objects with which the JVM fills the ends of threads' buffers, so that the heap
/// can be walked. Counting the objects makes the JVM fill more ends.
const FILLERS: [&str; 4] =
    ["[I", "java.lang.Object", "[Ljdk.internal.vm.FillerElement;", "jdk.internal.vm.FillerObject"];
/// Allowed number of new objects of a class: a request makes the JVM create some.
const MAX_NEW_OBJECTS: u64 = 64;
/// Classes of which the JVM creates no objects meanwhile.
const CONSTANT_CLASSES: [&str; 2] = ["java.util.ArrayList", "java.lang.Integer"];

/// Whether `jcmd` is installed; reports the test as skipped if not.
pub fn has_jcmd(test: &str) -> bool {
    let is_here = Command::new("jcmd").arg("-h").output().is_ok_and(|output| output.status.success());
    if !is_here {
        skipped(test, "no jcmd here (make deps)");
    }
    is_here
}

/// Returns the histogram that `jcmd` prints.
pub fn of_jcmd(pid: i32) -> Result<Classes> {
    let output = Command::new("jcmd").args([&pid.to_string(), "GC.class_histogram", "-all"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut classes = Classes::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // A number with a colon, instances, bytes, the name, its module. Classes of several loaders
        // may share a name.
        let [number, instances, bytes, name, ..] = words[..] else { continue };
        if number.ends_with(':') {
            let [class_instances, class_bytes] = classes.entry(name.to_owned()).or_default();
            *class_instances += instances.parse::<u64>()?;
            *class_bytes += bytes.parse::<u64>()?;
        }
    }
    // Every JVM has more classes.
    if classes.len() < 100 { Err(format!("no histogram: {text}").into()) } else { Ok(classes) }
}

/// Differences between the objects found in an idle JVM and its own histogram a moment later.
pub fn differences(found: &Classes, expected: &Classes) -> Vec<String> {
    let (mut wrong, mut exact) = (Vec::new(), 0);
    for name in expected.keys().chain(found.keys().filter(|name| !expected.contains_key(*name))) {
        let figures = |classes: &Classes| classes.get(name).copied().unwrap_or_default();
        let (ours, theirs) = (figures(found), figures(expected));
        exact += usize::from(ours == theirs);
        let is_constant = name.contains("Subject") || CONSTANT_CLASSES.contains(&name.as_str());
        let is_near = ours[0].abs_diff(theirs[0]) <= MAX_NEW_OBJECTS || FILLERS.contains(&name.as_str());
        if ours != theirs && (is_constant || !is_near) {
            wrong.push(format!("{name}: found {ours:?}, expected {theirs:?}"));
        }
    }
    if expected.get("Subject$Held").is_none_or(|held| held[0] < 6000) {
        wrong.push("the subject's own objects are missing".to_owned());
    }
    if exact * 100 < expected.len() * 95 {
        wrong.push(format!("only {exact} of {} classes are exact", expected.len()));
    }
    wrong
}
