//! Whether a local port has a listener, from the kernel's socket tables: connecting to it could
//! take the only connection that a server accepts.

use std::io::Read;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// The kernel's socket tables of this network namespace, which started commands share.
const SOCKET_TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// Maximum size read from a table, at 150 bytes per socket: listeners come first
/// (net/ipv4/tcp_ipv4.c, tcp_get_idx).
const MAX_TABLE_BYTES: u64 = 64 << 20;
/// State of a listening socket (TCP_LISTEN of include/net/tcp_states.h).
const TCP_LISTEN: &str = "0A";
/// Time limit of a connection to this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether there is a listener at `port`. If the tables cannot be read, whether a connection is
/// accepted.
pub fn is_open(port: u16) -> bool {
    let lists: Vec<String> = SOCKET_TABLES.iter().filter_map(|path| read(path)).collect();
    if lists.is_empty() { accepts(port) } else { lists.iter().any(|list| has_listener(list, port)) }
}

fn read(path: &str) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_TABLE_BYTES).read_to_string(&mut text).ok()?;
    (!text.is_empty()).then_some(text)
}

/// Whether a table has a listener: its lines are `SLOT: ADDRESS:PORT ADDRESS:PORT STATE …` in
/// hexadecimal.
fn has_listener(list: &str, port: u16) -> bool {
    list.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local_address = words.next().and_then(|word| word.rsplit_once(':'));
        let local_port = local_address.and_then(|(_, digits)| u16::from_str_radix(digits, 16).ok());
        local_port == Some(port) && words.nth(1) == Some(TCP_LISTEN)
    })
}

fn accepts(port: u16) -> bool {
    let addresses = [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    addresses.iter().any(|address| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).is_ok())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_recognised_and_not_disturbed() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // IPv6 may be unavailable.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            assert!(is_open(port));
            listener.set_nonblocking(true).unwrap();
            assert!(listener.accept().is_err(), "nothing connected to {address}");
            assert!(accepts(port));
            // The local port of a connection is in the tables too, and cannot be listened on while
            // the connection exists.
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let client_port = client.local_addr().unwrap().port();
            assert!(!is_open(client_port) && !accepts(client_port));
        }
    }

    #[test]
    fn only_listeners_of_that_port_count() {
        let list = "  sl  local_address rem_address   st\n   0: 00000000:1F90 00000000:0000 0A 0\n   1: \
                    0100007F:0050 0100007F:952F 01 0\n   2: short\n   3: 0:zz 0:0 0A\n";
        assert!(has_listener(list, 8080) && !has_listener(list, 80) && !has_listener(list, 0));
        assert!(!has_listener("", 80));
    }
}
