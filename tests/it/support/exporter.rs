//! Shared by the tests of `export`: an exporter that is killed on drop, and its parsed page.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::support::waiting::{PATIENCE, until};
use crate::support::{Result, strandline};

/// Pause between two scrapes: each takes processor time that the exporter needs for its ledgers.
const SCRAPE_PAUSE: Duration = Duration::from_millis(25);

/// A budget large enough that no test waits for it.
pub const SOON: [&str; 4] = ["--stop-budget", "900ms/s", "--cpu-budget", "100%"];

/// A running exporter.
#[derive(Debug)]
pub struct Exporter {
    pub child: Child,
    /// Address at which it listens.
    pub address: SocketAddr,
    /// Its messages after that of its address.
    messages: Arc<Mutex<String>>,
}

/// One line of a page.
#[derive(Clone, Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// A parsed page.
#[derive(Clone, Debug)]
pub struct Page {
    pub text: String,
    /// Its samples.
    pub samples: Vec<Sample>,
}

impl Exporter {
    /// Starts an exporter on a free port and waits until it listens.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = strandline::command(&[&["export", "--listen", "127.0.0.1:0"], arguments].concat());
        Self::start_command(&mut command)
    }

    /// Starts an exporter by a command that ends in running it.
    pub fn start_command(command: &mut std::process::Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().ok_or("no pipe")?);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let messages = Arc::new(Mutex::new(String::new()));
        // Reads the rest of its output, so that the exporter never blocks.
        let kept = Arc::clone(&messages);
        std::thread::spawn(move || {
            for line in lines.lines().map_while(std::result::Result::ok) {
                let mut text = kept.lock().unwrap_or_else(PoisonError::into_inner);
                *text += &(line + "\n");
            }
        });
        let address = line.trim().strip_prefix("strandline: listening on http://");
        match address.and_then(|rest| rest.strip_suffix("/metrics")?.parse().ok()) {
            Some(address) => Ok(Self { child, address, messages }),
            None => {
                // The process may already have ended.
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("the exporter does not listen: {line:?}").into())
            }
        }
    }

    /// Its messages so far, without that of its address.
    pub fn messages(&self) -> String {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request and returns the whole answer.
    pub fn ask(&self, request: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8(answer)?)
    }

    /// Requests the page.
    pub fn page(&self) -> Result<Page> {
        let answer = self.ask("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no end of the headers")?;
        if !head.starts_with("HTTP/1.1 200 OK\r\n")
            || !head.contains(&format!("Content-Length: {}", body.len()))
        {
            return Err(format!("{head:?}").into());
        }
        Page::parse(body)
    }

    /// Returns the first page for which `condition` holds, which messages call `what`.
    pub fn page_when(&self, what: &str, mut condition: impl FnMut(&Page) -> bool) -> Result<Page> {
        let mut last_text = String::new();
        let found = until(what, || {
            let page = self.page()?;
            if condition(&page) {
                return Ok(Some(page));
            }
            last_text = page.text;
            std::thread::sleep(SCRAPE_PAUSE);
            Ok(None)
        });
        found.map_err(|error| format!("{error}; the last page:\n{last_text}").into())
    }

    /// Sends the exporter this signal, waits for its end, and returns its exit status.
    pub fn end(mut self, signal: nix::sys::signal::Signal) -> Result<Option<i32>> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id())?);
        nix::sys::signal::kill(pid, signal)?;
        Ok(self.child.wait()?.code())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // The process may already have ended and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Page {
    /// Parses a page by the format's definition.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let samples = lines.map(|line| parse_sample(line).ok_or_else(|| format!("no sample: {line:?}")));
        Ok(Self { text: text.to_owned(), samples: samples.collect::<std::result::Result<_, _>>()? })
    }

    /// The samples of a metric for a process.
    pub fn of(&self, name: &str, pid: i32) -> Vec<&Sample> {
        let pid = pid.to_string();
        let is_of_process = |sample: &&Sample| sample.name == name && sample.labels.get("pid") == Some(&pid);
        self.samples.iter().filter(is_of_process).collect()
    }

    /// The value of a process's only sample of a metric.
    pub fn value(&self, name: &str, pid: i32) -> Option<f64> {
        match self.of(name, pid)[..] {
            [sample] => Some(sample.value),
            _ => None,
        }
    }

    /// The value of a process's sample with this label.
    pub fn labelled(&self, name: &str, pid: i32, label: (&str, &str)) -> Option<f64> {
        let (key, value) = label;
        let has_label = |sample: &&Sample| sample.labels.get(key).is_some_and(|found| found == value);
        self.of(name, pid).into_iter().find(has_label).map(|sample| sample.value)
    }

    /// The value of a metric of the exporter itself.
    pub fn own(&self, name: &str) -> Option<f64> {
        self.samples.iter().find(|sample| sample.name == name).map(|sample| sample.value)
    }
}

/// Parses `name{label="value",…} number`.
fn parse_sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list;
        while !rest.starts_with('}') {
            let (label, quoted) = rest.trim_start_matches(',').split_once("=\"")?;
            let (value, behind) = unquote(quoted)?;
            labels.insert(label.to_owned(), value);
            rest = behind;
        }
        rest = rest.strip_prefix('}')?;
    }
    Some(Sample { name: name.to_owned(), labels, value: rest.trim().parse().ok()? })
}

/// Returns a label's value without its escapes, and the text behind its closing quote.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                escaped => escaped,
            }),
            c => value.push(c),
        }
    }
}
