//! Prints the ledger of a process: `cargo run --example ledger PID`.

use strandline_inspect::explain::{Options, explain};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pid = std::env::args().nth(1).ok_or("usage: ledger PID")?.parse()?;
    let explanation = explain(pid, &Options::default())?;
    println!("{}\n", explanation.verdict.headline);
    for row in &explanation.rows {
        println!("{:>14}  {:<24} {}", row.bytes, row.id, row.holder);
    }
    println!("{:>14}  RSS, to the byte", explanation.kernel.rss_bytes);
    for caveat in &explanation.caveats {
        println!("caveat: {}: {}", caveat.place, caveat.text);
    }
    Ok(())
}
