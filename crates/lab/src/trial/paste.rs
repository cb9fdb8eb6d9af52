//! Formats a setting for the places that start programs: a shell, a systemd unit, a Dockerfile, a
//! Kubernetes manifest.
//!
//! Every form must be read back as the same setting, whatever the values contain, and contains no
//! terminal control characters. A form that cannot express it contains a comment instead.

use std::path::Path;

use super::applies::{AppliedSetting, Variable};
use super::setting::{MergeRule, merge_rule};
use strandline_process::shell::{is_unsafe, shell_value, shell_word};

/// The setting in each form.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Paste {
    /// A command line.
    pub shell: String,
    /// A drop-in for `systemctl edit`.
    pub systemd: String,
    /// Lines of a Dockerfile.
    pub docker: String,
    /// Part of a container spec in a manifest.
    pub kubernetes: String,
}

/// Starts a program without transparent huge pages (prctl 41 is `PR_SET_THP_DISABLE`, system call
/// 157 is prctl on x86-64): no variable does that, and most machines have perl.
const WITHOUT_THP: &[&str] =
    &["perl", "-e", "syscall(157,41,1,0,0,0)==0 or die qq(prctl: $!\\n); exec @ARGV or die qq($!\\n)", "--"];

/// Prefix for a program with unknown path, where a full path is required.
const UNKNOWN_PROGRAM: &str = "/WHOLE/PATH/TO/";

/// Formats what `applied` sets for `command`; `program` is the full path of its program, if known.
pub fn paste(applied: &AppliedSetting, command: &[String], program: Option<&Path>) -> Paste {
    let mut words = applied.command(command);
    if applied.thp.is_some() {
        words.splice(0..0, WITHOUT_THP.iter().map(|word| (*word).to_owned()));
    }
    let is_command_changed = applied.thp.is_some() || !applied.arguments.is_empty();
    let command = is_command_changed.then_some(words.as_slice());
    Paste {
        shell: shell(applied, &words),
        systemd: systemd(applied, command, program),
        docker: docker(applied, command),
        kubernetes: kubernetes(applied, command),
    }
}

/// `env NAME=VALUE … COMMAND` in one line.
fn shell(applied: &AppliedSetting, command: &[String]) -> String {
    let mut words = Vec::new();
    if !applied.variables.is_empty() {
        words.push("env".to_owned());
    }
    for variable in &applied.variables {
        words.push(if extends_previous(variable) {
            // The existing value may be private, so it is referenced and not repeated.
            format!("\"{0}=${0} \"{1}", variable.name, shell_value(&variable.added))
        } else {
            format!("{}={}", variable.name, shell_value(&variable.value))
        });
    }
    words.extend(command.iter().map(|word| shell_word(word)));
    words.join(" ")
}

/// Whether options are appended to a previous value of the variable.
fn extends_previous(variable: &Variable) -> bool {
    merge_rule(&variable.name) == MergeRule::Words && variable.value != variable.added
}

/// A note for each variable whose previous value the form cannot reference.
fn notes(applied: &AppliedSetting) -> Vec<String> {
    applied
        .variables
        .iter()
        .filter(|variable| extends_previous(variable))
        .map(|variable| format!("# add what {} holds already in front of it", variable.name))
        .collect()
}

/// The value to write: only the addition for options, the merged value for lists.
fn pasted_value(variable: &Variable) -> &str {
    if merge_rule(&variable.name) == MergeRule::Words { &variable.added } else { &variable.value }
}

/// The command line for a unit file, which must begin with a full path.
fn unit_command(applied: &AppliedSetting, command: &[String], program: Option<&Path>) -> Vec<String> {
    let mut words = command.to_vec();
    let program_index = if applied.thp.is_some() { WITHOUT_THP.len() } else { 0 };
    if let Some(name) = words.get_mut(program_index).filter(|name| !name.starts_with('/')) {
        *name = match program.and_then(Path::to_str) {
            Some(path) => path.to_owned(),
            None => format!("{UNKNOWN_PROGRAM}{}", name.rsplit('/').next().unwrap_or_default()),
        };
    }
    if let Some(perl) = words.first_mut().filter(|_| program_index > 0) {
        *perl = format!("/usr/bin/{perl}");
    }
    words
}

fn systemd(applied: &AppliedSetting, command: Option<&[String]>, program: Option<&Path>) -> String {
    let mut lines = vec!["# systemctl edit NAME.service".to_owned()];
    lines.extend(notes(applied));
    lines.push("[Service]".to_owned());
    for variable in &applied.variables {
        let assignment = format!("{}={}", variable.name, pasted_value(variable));
        lines.push(format!("Environment={}", unit_word(&assignment)));
    }
    if let Some(command) = command {
        let words = unit_command(applied, command, program);
        let words: Vec<String> = words.iter().map(|word| unit_argument(word)).collect();
        lines.push("# as it was tried: put the unit's own command here, with what is added to it".to_owned());
        lines.push("# (relative paths of files start at WorkingDirectory=)".to_owned());
        lines.push("ExecStart=".to_owned());
        lines.push(format!("ExecStart={}", words.join(" ")));
    }
    lines.join("\n")
}

/// Quotes a word of a command line in a unit file: `$` is doubled too (systemd.service(5)).
fn unit_argument(word: &str) -> String {
    unit_word(&word.replace('$', "$$"))
}

/// Quotes a word for a unit file (systemd.syntax(7)): C escapes in quotes, `%` doubled.
fn unit_word(word: &str) -> String {
    quoted(word, |c| match c {
        '"' | '\\' => Some(format!("\\{c}")),
        '%' => Some("%%".to_owned()),
        c if is_unsafe(c) => Some(c.to_string().bytes().map(|byte| format!("\\x{byte:02x}")).collect()),
        _ => None,
    })
}

fn docker(applied: &AppliedSetting, command: Option<&[String]>) -> String {
    let mut lines = Vec::new();
    if !applied.packages.is_empty() {
        lines.push(format!(
            "RUN apt-get update && apt-get install -y --no-install-recommends {} && rm -rf /var/lib/apt/lists/*",
            applied.packages.join(" ")
        ));
    }
    lines.extend(notes(applied));
    for variable in &applied.variables {
        lines.push(match docker_value(pasted_value(variable)) {
            Some(value) => format!("ENV {}={value}", variable.name),
            None => {
                format!(
                    "# {}: a Dockerfile cannot hold its control characters; use docker run --env-file",
                    variable.name
                )
            }
        });
    }
    if let Some(command) = command {
        let words: Vec<String> = command.iter().map(|word| json_string(word)).collect();
        lines.push(
            "# where the image has an ENTRYPOINT, add the words there: CMD is only handed to it".to_owned(),
        );
        lines.push(format!("CMD [{}]", words.join(", ")));
    }
    lines.join("\n")
}

/// Quotes a value for `ENV`; `None` if it contains characters that a Dockerfile cannot escape.
fn docker_value(value: &str) -> Option<String> {
    let escape = |c| matches!(c, '"' | '\\' | '$').then(|| format!("\\{c}"));
    (!value.chars().any(is_unsafe)).then(|| quoted(value, escape))
}

fn kubernetes(applied: &AppliedSetting, command: Option<&[String]>) -> String {
    let mut lines = notes(applied);
    if !applied.packages.is_empty() {
        lines.push(format!("# the image needs {}", applied.packages.join(" ")));
    }
    // Kubernetes expands $(NAME), and replaces `$$` by `$`.
    let escaped = |text: &str| yaml_string(&text.replace('$', "$$"));
    if !applied.variables.is_empty() {
        lines.push("env:".to_owned());
    }
    for variable in &applied.variables {
        lines.push(format!("  - name: {}", yaml_string(&variable.name)));
        lines.push(format!("    value: {}", escaped(pasted_value(variable))));
    }
    if let Some(command) = command {
        lines.push("command:".to_owned());
        lines.extend(command.iter().map(|word| format!("  - {}", escaped(word))));
    }
    lines.join("\n")
}

/// A double-quoted YAML string.
fn yaml_string(text: &str) -> String {
    // YAML has its own escape above U+FFFF, and its readers reject the surrogate pairs of JSON.
    double_quoted(text, |c| format!("\\U{:08x}", u32::from(c)))
}

/// A JSON string without terminal control characters.
fn json_string(text: &str) -> String {
    double_quoted(text, |c| {
        let mut units = [0u16; 2];
        c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
    })
}

/// A double-quoted string with escapes; `escape_high` gives those of characters above U+FFFF.
fn double_quoted(text: &str, escape_high: impl Fn(char) -> String) -> String {
    quoted(text, |c| match c {
        '"' | '\\' => Some(format!("\\{c}")),
        c if is_unsafe(c) && u32::from(c) <= 0xFFFF => Some(format!("\\u{:04x}", u32::from(c))),
        c if is_unsafe(c) => Some(escape_high(c)),
        _ => None,
    })
}

/// `text` in double quotes; `escape` gives what replaces a character, or `None` to keep it.
fn quoted(text: &str, escape: impl Fn(char) -> Option<String>) -> String {
    let characters = text.chars().map(|c| escape(c).unwrap_or_else(|| c.to_string()));
    format!("\"{}\"", characters.collect::<String>())
}

#[cfg(test)]
#[path = "paste_tests.rs"]
mod tests;
