//! JSON documents for scripts. Each starts with the name of its schema; field names are an
//! interface (`docs/schema.md`). Every string is escaped so that no terminal interprets it.

use std::collections::BTreeMap;

use serde::Serialize;
use strandline_inspect::facts::Explanation;

use super::text::is_unsafe;

/// The version of strandline.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Serialize)]
struct Document<'a, E, T> {
    schema: &'a str,
    version: &'a str,
    environment: E,
    #[serde(flatten)]
    body: &'a T,
}

/// The field `environment`: the machine and, if a process was inspected, the allocators and
/// runtimes in it, and its settings.
#[derive(Serialize)]
struct EnvironmentField<'a, M> {
    #[serde(flatten)]
    machine: &'a M,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocators: Option<Vec<Component<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtimes: Option<Vec<Component<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<&'a BTreeMap<String, String>>,
}

/// An allocator or a runtime.
#[derive(Serialize)]
struct Component<'a> {
    name: &'a str,
    version: Option<&'a str>,
}

fn component<'a>(name: &'a str, version: &'a Option<String>) -> Component<'a> {
    Component { name, version: version.as_deref() }
}

/// Returns the document `schema` with the fields of `body`, as text with a final newline. `machine`
/// is a [`strandline_inspect::environment::Environment`], to which a verb may add fields; `target`
/// is the inspected process, if there is one.
///
/// # Errors
/// A value cannot be written as JSON.
pub fn document<M: Serialize, T: Serialize>(
    schema: &str,
    machine: &M,
    target: Option<&Explanation>,
    body: &T,
) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(&nested_document(schema, VERSION, machine, target, body))?;
    Ok(escape(&text) + "\n")
}

/// Returns such a document as a value to embed in another one; `version` of strandline made it.
pub fn nested_document<'a, M: Serialize, T: Serialize>(
    schema: &'a str,
    version: &'a str,
    machine: &'a M,
    target: Option<&'a Explanation>,
    body: &'a T,
) -> impl Serialize + use<'a, M, T> {
    Document { schema, version, environment: environment(machine, target), body }
}

/// Returns the field `environment` of a document on the process `target`, if there is one.
pub fn environment<'a, M: Serialize>(
    machine: &'a M,
    target: Option<&'a Explanation>,
) -> impl Serialize + use<'a, M> {
    EnvironmentField {
        machine,
        allocators: target.map(|target| {
            target.allocators.iter().map(|reading| component(&reading.name, &reading.version)).collect()
        }),
        runtimes: target.map(|target| {
            target.runtimes.iter().map(|reading| component(&reading.name, &reading.version)).collect()
        }),
        settings: target.map(|target| &target.settings),
    }
}

/// Escapes all characters of a JSON text that a terminal may interpret. serde_json escapes C0
/// controls itself; the others occur only inside strings, where `\uXXXX` means the same.
pub fn escape(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && is_unsafe(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                safe += &format!("\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_inspect::environment::Environment;

    #[test]
    fn a_document_begins_with_its_schema_and_lists_allocators_and_settings() {
        let target = crate::fabricated::service();
        let text = document("strandline/explain/1", &Environment::default(), Some(&target), &target).unwrap();
        assert!(text.starts_with("{\n  \"schema\": \"strandline/explain/1\",\n  \"version\""));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["environment"]["allocators"][0]["name"], "glibc");
        assert_eq!(value["environment"]["settings"]["MALLOC_ARENA_MAX"], "4");
        assert_eq!(value["kernel"]["rss_bytes"], target.kernel.rss_bytes);
    }

    #[test]
    fn escaped_strings_keep_their_value_without_unsafe_characters() {
        let hostile = "\x1b[2J\u{9b}31m\u{202e}\u{e0041}\n";
        let text = escape(&serde_json::to_string(hostile).unwrap());
        assert!(!text.chars().any(is_unsafe), "{text:?}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), hostile);
    }
}
