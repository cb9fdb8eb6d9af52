//! dev
use strandline_inspect::explain::{Options, explain};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pid = std::env::args().nth(1).ok_or("usage: ledger PID")?.parse()?;
    let explanation = explain(pid, &Options::default())?;
    println!("{}", serde_json::to_string(&explanation)?);
    Ok(())
}
