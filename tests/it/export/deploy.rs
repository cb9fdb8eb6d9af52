//! `deploy/`: rules and dashboard name existing metrics, files name existing paths and arguments,
//! promtool and systemd-analyze accept them, and a Prometheus that scrapes an exporter alerts on a
//! process with stranded memory. scripts/check-deploy checks the manifests of Kubernetes.

#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::exporter::{Exporter, SOON};
use crate::support::waiting::{PATIENCE, until};
use crate::support::{Folder, Outcome, Result, Subject, here, skipped};

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("strandline_")).map(str::to_owned).collect()
}

#[test]
fn documents_rules_and_dashboard_name_existing_metrics() -> Outcome {
    let subject = Subject::idle()?;
    let page = Exporter::start(&["--pid", &subject.pid_text()])?.page()?;
    let families = page.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let families: BTreeSet<String> = families.map(str::to_owned).collect();
    let read = std::fs::read_to_string;
    let documented = metrics_in(&read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md"))?);
    assert_eq!(documented, families);
    let dashboard = read(deploy("grafana/strandline.json"))?;
    let parsed: Value = serde_json::from_str(&dashboard)?;
    assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() >= 8));
    for text in [
        dashboard,
        read(deploy("prometheus/strandline.rules.yml"))?,
        read(deploy("prometheus/strandline.rules.test.yml"))?,
        read(deploy("prometheus/strandline.kubernetes.rules.yml"))?,
        read(deploy("prometheus/strandline.kubernetes.rules.test.yml"))?,
    ] {
        let named = metrics_in(&text);
        assert!(
            !named.is_empty() && named.is_subset(&families),
            "{:?}",
            named.difference(&families).collect::<Vec<_>>()
        );
    }
    Ok(())
}

#[test]
fn promtool_accepts_the_rules() -> Outcome {
    if !has("promtool") {
        skipped(here!(), "no promtool here (make deps)");
        return Ok(());
    }
    for arguments in [
        ["check", "rules", "strandline.rules.yml"],
        ["test", "rules", "strandline.rules.test.yml"],
        ["check", "rules", "strandline.kubernetes.rules.yml"],
        ["test", "rules", "strandline.kubernetes.rules.test.yml"],
        ["check", "config", "prometheus.yml"],
    ] {
        let output = Command::new("promtool").args(arguments).current_dir(deploy("prometheus")).output()?;
        let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{arguments:?}: {output_text}");
    }
    Ok(())
}

#[test]
fn files_name_the_path_that_packages_install() -> Outcome {
    let read = |name: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name));
    let path = "/usr/bin/strandline";
    let image = read("deploy/Dockerfile")?;
    assert!(image.contains(&format!("COPY strandline-static {path}\n")));
    assert!(image.contains(&format!("ENTRYPOINT [\"{path}\"]")));
    assert!(read("scripts/dist")?.contains(&format!("cp \"$2\" \"$1{path}\"")));
    assert!(read("scripts/dist-image")?.contains(&format!("'Entrypoint': ['{path}']")));
    let service = read("deploy/systemd/strandline-export.service")?;
    assert!(service.contains(&format!("\nExecStart={path} export ")));
    // Where the .deb has the service.
    let units = "usr/lib/systemd/system";
    assert!(read("scripts/dist")?.contains(&format!("\nunits={units}\n")));
    for text in [service, read("deploy/README.md")?] {
        assert!(text.contains(&format!("/{units}")), "{text}");
    }
    // The image has the program as its entry point; the manifest has only arguments.
    let manifest = read("deploy/kubernetes/base/daemonset.yaml")?;
    assert!(manifest.contains("args: [export, ") && !manifest.contains("command:"));
    Ok(())
}

#[test]
fn files_have_arguments_that_export_accepts() -> Outcome {
    let unit = std::fs::read_to_string(deploy("systemd/strandline-export.service"))?;
    let manifest = std::fs::read_to_string(deploy("kubernetes/base/daemonset.yaml"))?;
    let from_unit = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/strandline "));
    let from_manifest = manifest.lines().find_map(|line| line.trim().strip_prefix("args: [export, "));
    let from_manifest = from_manifest.and_then(|rest| rest.strip_suffix(']')).ok_or("no arguments")?;
    for arguments in [from_unit.ok_or("no ExecStart")?.to_owned(), format!("export, {from_manifest}")] {
        let words: Vec<&str> = arguments.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        // The exporter of a test has its own address.
        let ["export", options @ .., "--listen", "127.0.0.1:9756"] = &words[..] else {
            return Err(format!("{words:?}: not export … --listen 127.0.0.1:9756").into());
        };
        let page = Exporter::start(&[&["--no-ledgers"], options].concat())?.page()?;
        assert!(page.own("strandline_exporter_info").is_some(), "{words:?}");
    }
    Ok(())
}

#[test]
fn systemd_accepts_the_unit() -> Outcome {
    if !has("systemd-analyze") {
        skipped(here!(), "no systemd-analyze here (systemd)");
        return Ok(());
    }
    let folder = Folder::new("unit")?;
    // The program of a unit must exist: the test replaces strandline's path by that of the built
    // one.
    let unit = std::fs::read_to_string(deploy("systemd/strandline-export.service"))?;
    let unit = unit.replace("/usr/bin/strandline", env!("CARGO_BIN_EXE_strandline"));
    let path = folder.0.join("strandline-export.service");
    std::fs::write(&path, unit)?;
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output()?;
    let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && output_text.is_empty(), "{output_text}");
    Ok(())
}

/// Returns the port of the listening socket among the files of process `pid`; `None` until it
/// listens.
fn listening_port(pid: u32) -> Option<u16> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets: BTreeSet<String> = files
        .filter_map(|file| {
            let name = std::fs::read_link(file.path()).ok()?.into_os_string().into_string().ok()?;
            Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let list = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    list.lines().find_map(|line| {
        // SLOT OWN OTHER STATE QUEUES TIMER RETRANSMITS USER TIMEOUT INODE; 0A is TCP_LISTEN.
        let words: Vec<&str> = line.split_whitespace().collect();
        let listens = words.get(3) == Some(&"0A") && sockets.contains(*words.get(9)?);
        let (_, port) = words.get(1)?.rsplit_once(':')?;
        if listens { u16::from_str_radix(port, 16).ok() } else { None }
    })
}

/// A Prometheus started by a test.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    /// Scrapes `exporter` each second, with the project's rules and their waiting time shortened to
    /// two seconds.
    fn start(exporter: &Exporter, folder: &Path) -> Result<Self> {
        let rules = std::fs::read_to_string(deploy("prometheus/strandline.rules.yml"))?;
        std::fs::write(folder.join("rules.yml"), rules.replace("for: 1h", "for: 2s"))?;
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yml]\nscrape_configs:\n\
             - {{job_name: strandline, static_configs: [{{targets: ['{}']}}]}}\n",
            exporter.address
        );
        std::fs::write(folder.join("prometheus.yml"), config)?;
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg("--web.listen-address=127.0.0.1:0");
        let child = command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut prometheus = Self { child, port: 0 };
        let id = prometheus.child.id();
        prometheus.port = until("Prometheus to listen", || match prometheus.child.try_wait()? {
            Some(status) => Err(format!("Prometheus ended with {status}").into()),
            None => Ok(listening_port(id)),
        })?;
        Ok(prometheus)
    }

    fn ask(&self, path: &str) -> Result<Value> {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // With HTTP/1.0 the answer is not chunked and ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no body")?;
        Ok(serde_json::from_str(body)?)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Prometheus may already have ended and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn prometheus_alerts_on_stranded_memory() -> Outcome {
    if !has("prometheus") {
        skipped(here!(), "no prometheus here (make deps)");
        return Ok(());
    }
    // 600,000 blocks of 200 bytes, one in 500 kept: more than 100 MiB are stranded.
    let stranded = Subject::start("fragmented", &["600000", "200", "500"])?;
    let small = Subject::start("fragmented", &["100000", "200", "500"])?;
    let exporter =
        Exporter::start(&[&["--pid", &stranded.pid_text(), &small.pid_text()][..], &SOON].concat())?;
    let folder = Folder::new("prometheus")?;
    let prometheus = Prometheus::start(&exporter, &folder.0)?;
    let mut last = Value::Null;
    let firing = until("an alert", || {
        // Prometheus accepts connections before it has loaded its rules; the answer is then an
        // error.
        let Ok(answer) = prometheus.ask("/api/v1/alerts") else { return Ok(None) };
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing: Vec<Value> = alerts.into_iter().filter(|alert| alert["state"] == "firing").collect();
        last = answer;
        Ok((!firing.is_empty()).then_some(firing))
    });
    let firing = match firing {
        Ok(firing) => firing,
        Err(error) => return Err(format!("{error}: {last}; {}", exporter.page()?.text).into()),
    };
    let [alert] = &firing[..] else {
        return Err(format!("the small one must not raise an alert: {firing:?}").into());
    };
    assert_eq!(alert["labels"]["alertname"], "StrandlineStranded");
    assert_eq!(alert["labels"]["process"], "fragmented");
    assert_eq!(alert["labels"]["pid"].as_str(), Some(stranded.pid_text().as_str()));
    // Prometheus requests OpenMetrics and accepts any format; a single scrape may exceed its
    // timeout.
    until("a scrape that succeeded", || {
        let up = prometheus.ask("/api/v1/query?query=up")?;
        Ok((up["data"]["result"][0]["value"][1] == "1").then_some(()))
    })
}
