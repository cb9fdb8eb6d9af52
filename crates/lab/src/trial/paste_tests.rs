//! Reads the output back, with the shell itself and with parsers written from the documentation of
//! each form.

use std::process::Command;

use super::super::catalogue::Thp;
use super::*;

const HOSTILE: &[&str] = &[
    "plain",
    "",
    " two  words ",
    "it's \"quoted\" \\ back\\",
    "$HOME ${A:-x} $(echo no) `echo no` !!",
    "100 % %n %% %{",
    "line\nbreak\ttab\rreturn",
    "\u{1b}[31mred\u{7}",
    "é 漢 😀 \u{202e}turned \u{feff}",
    "# no comment; & | < > * ? [a] ~",
    "\\n \\x41 \\101",
    "'\\''",
    "\u{e0041}tag",
    "- a: b, {c} [d] null yes",
];

fn applied(value: &str) -> AppliedSetting {
    let variable = Variable { name: "STRANDLINE_X".into(), value: value.into(), added: value.into() };
    AppliedSetting { variables: vec![variable], ..AppliedSetting::default() }
}

fn command() -> Vec<String> {
    vec!["printenv".to_owned(), "STRANDLINE_X".to_owned()]
}

fn visible(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || !is_unsafe(c))
}

#[test]
fn a_shell_reads_what_was_written() {
    for value in HOSTILE {
        let line = paste(&applied(value), &command(), None).shell;
        assert!(visible(&line) && !line.contains('\n'), "{line}");
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, format!("{value}\n"), "{line}");
        if !value.chars().any(is_unsafe) {
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{value}\n"), "{line}");
        }
    }
}

#[test]
fn options_are_appended_to_existing_values() {
    let variable =
        Variable { name: "NODE_OPTIONS".into(), value: "--secret --x=1".into(), added: "--x=1".into() };
    let applied = AppliedSetting { variables: vec![variable], ..AppliedSetting::default() };
    let paste = paste(&applied, &["printenv".to_owned(), "NODE_OPTIONS".to_owned()], None);
    let output = Command::new("sh")
        .args(["-c", &paste.shell])
        .env("NODE_OPTIONS", "--require 'a b'")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "--require 'a b' --x=1\n", "{}", paste.shell);
    for text in [&paste.shell, &paste.systemd, &paste.docker, &paste.kubernetes] {
        assert!(!text.contains("secret"), "{text}");
    }
    assert!(paste.systemd.contains("# add what NODE_OPTIONS holds"));
}

/// Parses a quoted word as systemd does: C escapes, then `%%`, then `$$` in command lines.
fn read_unit_word(word: &str, in_command: bool) -> String {
    let inside = word.strip_prefix('"').unwrap().strip_suffix('"').unwrap();
    let mut bytes = Vec::new();
    let mut source = inside.bytes();
    while let Some(byte) = source.next() {
        if byte != b'\\' {
            assert!(byte != b'"' && byte != b'\n', "{word}");
            bytes.push(byte);
            continue;
        }
        match source.next().unwrap() {
            b'x' => {
                let digits = [source.next().unwrap(), source.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            byte => bytes.push(byte),
        }
    }
    let text = String::from_utf8(bytes).unwrap();
    assert!(!text.replace("%%", "").contains('%'), "{word}");
    let text = text.replace("%%", "%");
    if in_command { text.replace("$$", "$") } else { text }
}

#[test]
fn a_unit_file_reads_what_was_written() {
    for value in HOSTILE {
        let text = paste(&applied(value), &command(), None).systemd;
        assert!(visible(&text), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["# systemctl edit NAME.service", "[Service]"]);
        let word = lines[2].strip_prefix("Environment=").unwrap();
        assert_eq!(read_unit_word(word, false), format!("STRANDLINE_X={value}"));
        assert_eq!(lines.len(), 3);
        assert_eq!(read_unit_word(&unit_argument(value), true), *value);
    }
}

#[test]
fn yaml_reads_what_was_written() {
    for value in HOSTILE {
        assert_eq!(serde_json::from_str::<String>(&json_string(value)).unwrap(), *value);
        // Except for the YAML escape above U+FFFF, such a string is valid JSON.
        let as_json = |text: &str| text.replace("\\U000e0041", "\\udb40\\udc41");
        assert_eq!(serde_json::from_str::<String>(&as_json(&yaml_string(value))).unwrap(), *value);
        let text = paste(&applied(value), &command(), None).kubernetes;
        assert!(visible(&text), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["env:", "  - name: \"STRANDLINE_X\""]);
        let read: String =
            serde_json::from_str(&as_json(lines[2].strip_prefix("    value: ").unwrap())).unwrap();
        assert_eq!(read.replace("$$", "$"), *value);
        assert!(!read.replace("$$", "").contains('$'));
    }
}

#[test]
fn a_dockerfile_reads_back_the_value_or_refuses_it() {
    for value in HOSTILE {
        let text = paste(&applied(value), &command(), None).docker;
        assert!(visible(&text), "{text}");
        let Some(quoted) = text.strip_prefix("ENV STRANDLINE_X=") else {
            assert!(text.starts_with("# ") && value.chars().any(is_unsafe), "{text}");
            continue;
        };
        let inside = quoted.strip_prefix('"').unwrap().strip_suffix('"').unwrap();
        let mut read = String::new();
        let mut characters = inside.chars();
        while let Some(c) = characters.next() {
            read.push(if c == '\\' { characters.next().unwrap() } else { c });
        }
        assert_eq!(read, *value);
    }
}

#[test]
fn packages_words_and_huge_pages_are_written_too() {
    let mut applied = applied("1");
    applied.packages.push("libjemalloc2".into());
    applied.arguments.push("--DRT-gcopt=a b".into());
    let command = vec!["./thing".to_owned(), "$x".to_owned()];
    let text = paste(&applied, &command, None);
    assert_eq!(text.shell, "env STRANDLINE_X=1 ./thing '--DRT-gcopt=a b' '$x'");
    let words = "\"--DRT-gcopt=a b\" \"$$x\"";
    assert!(text.systemd.ends_with(&format!("ExecStart=\nExecStart=\"/WHOLE/PATH/TO/thing\" {words}")));
    let systemd = paste(&applied, &command, Some(Path::new("/opt/it/thing"))).systemd;
    assert!(systemd.ends_with(&format!("\nExecStart=\"/opt/it/thing\" {words}")), "{systemd}");
    assert!(text.docker.contains("ENTRYPOINT"));
    assert!(text.docker.contains("install -y --no-install-recommends libjemalloc2 "));
    assert!(text.docker.ends_with("CMD [\"./thing\", \"--DRT-gcopt=a b\", \"$x\"]"));
    assert!(text.kubernetes.contains("command:\n  - \"./thing\"\n"));
    let applied = AppliedSetting { thp: Some(Thp::Never), ..AppliedSetting::default() };
    let unit = paste(&applied, &["x/y".into()], Some(Path::new("/x/y"))).systemd;
    assert!(
        unit.contains("\nExecStart=\"/usr/bin/perl\" \"-e\"") && unit.ends_with("\"--\" \"/x/y\""),
        "{unit}"
    );
    let shell =
        paste(&applied, &["grep".into(), "THP_enabled".into(), "/proc/self/status".into()], None).shell;
    assert!(shell.starts_with("perl -e "));
    let output = Command::new("sh").args(["-c", &shell]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    if output.status.success() {
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["THP_enabled:", "0"]);
    } else {
        let name = std::any::type_name_of_val(&packages_words_and_huge_pages_are_written_too);
        eprintln!("skipped: {name}: no perl, or a kernel without THP_enabled");
    }
}
