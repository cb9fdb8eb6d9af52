//! The arguments of `export`, with the help that people see.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use strandline_export::budget::StopBudget;
use strandline_recorder::plan;

use super::arguments_reading::{QuietFor, SnapshotChoice};
use super::arguments_selection::ProcessSelection;

/// Default address for scrapes.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9756));

/// Arguments of `export`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline export --name '^my-service$'
  strandline export --unit my-service --listen 127.0.0.1:9756
  strandline export --pid 4711 4712 --no-children
  strandline export --cgroup /sys/fs/cgroup/system.slice --stop-budget 50ms/5m
  strandline export --pods --stop-budget 200ms/10m
  strandline export --all --top 100 --no-ledgers
  strandline export --all --textfile /var/lib/prometheus/node-exporter
  curl -s http://127.0.0.1:9756/metrics | promtool check metrics

What it may cost:
  --stop-budget  all ledgers together stop a process for at most this time in
                 any such period. The first ledger is taken at once; later ones
                 pay for it, and for stops that the kernel makes longer. A
                 process that needs more has
                 strandline_process_error{reason=\"stop_budget\"}
  --cpu-budget   after the first ledger, the exporter takes no other while it
                 has used more than this share of one processor

If nothing has scraped for ten minutes, no process is stopped.

Encryption and passwords are not built in: it listens on the loopback interface only, and a proxy (nginx, Caddy, Envoy, \
kube-rbac-proxy) or the collector on the same machine does both. Nothing is pushed: an OpenTelemetry collector scrapes it by its \
prometheus receiver.

docs/metrics.md defines each metric; deploy/ has rules for alerts, a unit for systemd, manifests for Kubernetes and a dashboard.")]
pub struct Export {
    #[command(flatten)]
    pub chosen: ProcessSelection,
    /// All processes
    #[arg(long)]
    pub all: bool,
    /// Address for scrapes; by default 127.0.0.1:9756, or none with --textfile
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// Allow an address that other machines reach; they can then read the names of processes
    #[arg(long)]
    pub allow_remote: bool,
    /// Write DIR/strandline.prom, for node_exporter's textfile collector
    #[arg(long, value_name = "DIR")]
    pub textfile: Option<PathBuf>,
    /// Time between two writes of the text file
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = interval)]
    pub interval: Duration,
    /// Maximum time that ledgers may stop a process
    #[arg(long, value_name = "TIME/PERIOD", default_value = "20ms/min", value_parser = stop_budget)]
    pub stop_budget: StopBudget,
    /// Maximum share of one processor for the exporter
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share)]
    pub cpu_budget: f64,
    /// Minimum time between two ledgers of a process
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = interval)]
    pub ledger_interval: Duration,
    /// Take no ledgers: only the kernel's figures, which stop nothing
    #[arg(long)]
    pub no_ledgers: bool,
    /// When to take ledgers from a snapshot (see explain)
    #[arg(long, alias = "photograph", value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "try", default_missing_value = "always")]
    pub snapshot: SnapshotChoice,
    #[command(flatten)]
    pub quiet: QuietFor,
    /// Export the N processes with most RSS individually; sum the rest as `other`
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub top: u32,
    /// Rows below this share of their ledger are summed as `other`
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share)]
    pub row_share: f64,
}

impl Export {
    /// The first conflict between flags.
    pub fn conflict(&self) -> Option<&'static str> {
        if !self.all && self.chosen.is_empty() {
            return Some("no process is chosen: give --pid, --name, --cgroup, --unit, --pods or --all");
        }
        if self.listen.is_some_and(|address| !address.ip().is_loopback()) && !self.allow_remote {
            return Some(
                "--listen is not on the loopback interface: everyone who reaches it could list the processes of this machine; put a \
                 proxy with encryption and passwords before it, or give --allow-remote",
            );
        }
        None
    }
}

/// Parses an address with its port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let address = text.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    address.ok_or_else(|| format!("use an address and a port, such as {DEFAULT_LISTEN} or [::1]:9756"))
}

/// Parses a time of a second or more.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let interval = plan::duration(text)?;
    if interval < Duration::from_secs(1) {
        return Err(format!("{text} is too short: use 1s or more"));
    }
    Ok(interval)
}

/// Parses a stopped time and its period.
pub(super) fn stop_budget(text: &str) -> Result<StopBudget, String> {
    StopBudget::parse(text, plan::duration)
}

/// Parses a share: a percentage or a fraction.
fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let share = percent.map(|percent| percent / 100.0).or_else(|| text.parse().ok());
    let share = share.filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "use a share above 0 and up to 100%, such as 1% or 0.01".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_addresses_are_checked() {
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5"), Ok(0.5));
        for wrong in ["0", "0%", "101%", "nan", "-1%", "x"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        assert!(address("127.0.0.1:0").is_ok_and(|address| address.ip().is_loopback()));
        assert!(address("9100").is_err() && address("").is_err());
        assert!(interval("500ms").is_err() && stop_budget("20ms/min").is_ok());
    }
}
