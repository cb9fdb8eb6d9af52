//! Which of V8's objects are reachable, and the paths to them: weak references, internal fields,
//! long lists, and contexts of the module `vm`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::outside::start;
use crate::support::subject::number;
use crate::support::waiting::until;
use crate::support::{Outcome, Result, Subject, for_any, here, nodes, strandline};

fn v8(document: &Value) -> Result<&Value> {
    let all = document["runtimes"].as_array().ok_or("no runtimes")?;
    let v8 = all.iter().find(|runtime| runtime["name"] == "v8");
    Ok(&v8.ok_or_else(|| format!("no v8: {:?}", strandline::caveats(document)))?["v8"])
}

/// The numbers of objects of each type that certain roots reach, of the types with most bytes.
fn reachable(document: &Value) -> Result<BTreeMap<String, u64>> {
    let types = v8(document)?["reachable"]["types"].as_array().ok_or("not traced")?;
    let one = |of: &Value| -> Result<_> {
        Ok((of["name"].as_str().ok_or("no name")?.to_owned(), number(of, "instances")?))
    };
    types.iter().map(one).collect()
}

/// Compares with the numbers that the program printed; of the classes that are not among these,
/// none may be reachable. Classes with few objects may be left out of the types.
fn check(subject: &Subject, dropped: &[&str]) -> Outcome {
    let arguments = ["explain", &subject.pid_text(), "--json", "--snapshot=always"];
    let found = reachable(&strandline::complete(|| strandline::json(&arguments))?)?;
    for (class, expected) in subject.ready.as_object().ok_or("no numbers")? {
        let number = found.get(class).copied();
        if number != expected.as_u64() && (expected.as_u64() > Some(40) || number.is_some()) {
            return Err(format!("{class}: {number:?} of {expected}").into());
        }
    }
    match dropped.iter().find(|class| found.contains_key(**class)) {
        Some(class) => Err(format!("{class}: {:?} are reachable", found.get(*class)).into()),
        None => Ok(()),
    }
}

/// A `FinalizationRegistry` keeps the values that it passes to its callback, and not its targets.
#[test]
fn weak_references_hold_nothing() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let subject = start(&node.path, "weak.js")?;
        check(&subject, &["DroppedTarget", "DroppedToken", "DroppedReferent", "DroppedValue"])
    })
}

/// Steps of a path as `type.slot`. On a busy machine strandline may lack the time for a path, or
/// for the names on it.
fn path(subject: &Subject, class: &str) -> Result<Vec<String>> {
    let arguments = ["explain", &subject.pid_text(), "--json", "--path-to", class];
    until("time for a path with names", || {
        let document = strandline::complete(|| strandline::json(&arguments))?;
        let v8 = v8(&document)?;
        let text = |step: &Value, field: &str| step[field].as_str().unwrap_or_default().to_owned();
        let steps = v8["path"]["steps"].as_array().into_iter().flatten();
        let steps: Vec<String> = steps.map(|step| text(step, "type") + &text(step, "slot")).collect();
        let why = v8["no_path"].as_str().unwrap_or_default();
        if steps.is_empty() && !why.contains("no time") {
            return Err(format!("no path to {class}: {why}").into());
        }
        let is_late = steps.is_empty() || steps.iter().any(|step| step.contains("no time"));
        Ok((!is_late).then_some(steps))
    })
}

/// The variable that holds the objects of each class, and a part of the path to one of them.
const PATHS: [(&str, &str); 11] = [
    ("Bound", "Function(bound this)"),
    ("BoundArgument", "Function(bound arguments)"),
    ("Shielded", "Proxy(target)"),
    ("Trap", "Proxy(handler)"),
    ("Got", "system / AccessorPair(getter)"),
    ("Private", "Safe.#secret"),
    ("Symbolic", "Object[Symbol(markedKey)]"),
    ("Local", "steps(variables)"),
    ("HeldValue", "system / WeakCell(held value)"),
    ("Last", "Node.next"),
    ("MapValue", "system / EphemeronHashTable(an entry)"),
];

#[test]
fn paths_name_the_fields_of_bound_functions_proxies_and_generators() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let subject = start(&node.path, "weak.js")?;
        for (class, part) in PATHS {
            let path = path(&subject, class)?;
            let is_right =
                path.last().map(String::as_str) == Some(class) && path.iter().any(|step| step == part);
            if !is_right {
                return Err(format!("{class}: {path:?}").into());
            }
        }
        Ok(())
    })
}

/// V8's list of contexts is weak: the path to a context's objects names the variable that keeps it.
#[test]
fn contexts_are_held_by_sandboxes_and_functions() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let subject = start(&node.path, "contexts.js")?;
        check(&subject, &["Dropped"])?;
        for (class, variable) in [("Kept", ".sandboxes"), ("Leaked", ".handlers")] {
            let path = path(&subject, class)?;
            if !path.iter().any(|step| step.ends_with(variable)) {
                return Err(format!("{class}: {path:?}").into());
            }
        }
        Ok(())
    })
}
