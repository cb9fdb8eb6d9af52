//! Recordings of real runtimes: the type that grew is named, and followed through the ledgers.

use crate::support::recording::{Place, has};
use crate::support::strandline::run;
use crate::support::{Outcome, Result, here};

/// A program that makes 20,000 objects of a type, sends a mark, makes 40,000 more and sends
/// another: interpreter, arguments and name of the type.
const PROGRAMS: [(&str, &[&str], &str); 3] = [
    (
        "python3",
        &[
            "-c",
            "
import os
class Session:
    def __init__(self): self.number = 1
def mark(name):
    mark_fd = int(os.environ['STRANDLINE_MARK_FD'])
    os.write(mark_fd, name.encode() + b'\\n')
    os.read(mark_fd, 1)
keep = [Session() for _ in range(20000)]
mark('few')
keep += [Session() for _ in range(40000)]
mark('many')",
        ],
        "__main__.Session",
    ),
    (
        "perl",
        &[
            "-e",
            "
open(my $marks, '+<&=', $ENV{STRANDLINE_MARK_FD}) or die;
sub mark { syswrite $marks, \"$_[0]\\n\"; sysread $marks, my $byte, 1 }
my @keep = map { { number => 1 } } 1 .. 20000;
mark 'few';
push @keep, map { { number => 1 } } 1 .. 40000;
mark 'many';",
        ],
        "PVHV",
    ),
    (
        "sbcl",
        &[
            "--noinform",
            "--no-sysinit",
            "--no-userinit",
            "--non-interactive",
            "--eval",
            "
(progn
  (defstruct session a b c)
  (defvar *keep* nil)
  (defvar *marks* (sb-sys:make-fd-stream (parse-integer (sb-ext:posix-getenv \"STRANDLINE_MARK_FD\"))
                                         :input t :output t :buffering :full))
  (defun grow (count) (dotimes (i count) (push (make-session) *keep*)))
  (defun mark (name) (write-line name *marks*) (finish-output *marks*) (read-char *marks*))
  (grow 20000) (mark \"few\") (grow 40000) (mark \"many\"))",
        ],
        "SESSION",
    ),
];

/// The text of a report, in one line.
fn words(flags: &[&str], place: &Place) -> Result<String> {
    let file = place.file.display().to_string();
    let text = run(&[&["report", file.as_str()], flags].concat())?.stdout;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Objects of a type in each ledger, from table rows of mark, time, RSS, count, bytes.
fn counts(report: &str) -> Vec<u64> {
    let table = report.split("objects of the type").nth(1).unwrap_or_default();
    let words: Vec<&str> = table.split(' ').collect();
    let rows = words.windows(9).filter(|row| row[0] == "mark");
    rows.filter_map(|row| row[6].replace(',', "").parse().ok()).collect()
}

#[test]
fn the_type_that_grew_is_named_and_followed() -> Outcome {
    for (program, arguments, name) in PROGRAMS {
        if !has(here!(), program) {
            continue;
        }
        let place = Place::new()?;
        let ended = place.run(&["--ledger", "marks"], &[&[program], arguments].concat())?;
        assert_eq!(ended.how(), 0, "{program}: {}", ended.complaint());
        let report = words(&[], &place)?;
        let grew =
            report.split("types that grew most").nth(1).ok_or_else(|| format!("{program}: {report}"))?;
        assert!(grew.contains(&format!("{name} by ")), "{program}: {grew}");
        let table = words(&["--type", name], &place)?;
        let [few, many] = counts(&table)[..] else { return Err(format!("{program}: {table}").into()) };
        assert_eq!(many - few, 40_000, "{program}: {table}");
        assert!(few >= 20_000, "{program}: {table}");
    }
    Ok(())
}
