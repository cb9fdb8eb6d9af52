//! Parses requests and writes response headers: as much of HTTP/1.1 as a scrape needs. Every
//! response closes its connection.

use std::net::{Ipv4Addr, SocketAddr};

use crate::exposition::Format;

/// Maximum length of a request.
pub const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;

/// A request that was received whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is requested.
    pub resource: Resource,
    /// Whether the body of the response is left out (HEAD).
    pub is_head: bool,
}

/// What a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The page, in this format.
    Metrics(Format),
    /// A line with the location of the page.
    Root,
    /// Something that is refused.
    Refused {
        /// Status code of the answer.
        status: u16,
        /// A line with the reason.
        reason: &'static str,
    },
}

/// Parses what was received so far; `None` if more is needed. `is_loopback` is whether it was sent
/// to a loopback address.
pub fn parse(bytes: &[u8], is_loopback: bool) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(bytes);
    // The method is known even if what follows it is not a request.
    let is_head = request.method == Some("HEAD");
    let refused = |status, reason| Some(Request { resource: Resource::Refused { status, reason }, is_head });
    match parsed {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MAX_REQUEST_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return refused(431, "The request is too long.");
        }
        Err(_) => return refused(400, "This is not a request of HTTP/1."),
    }
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return refused(405, "Only GET and HEAD are answered.");
    }
    let path = request.path.unwrap_or_default();
    let resource = match path.split('?').next() {
        _ if is_loopback && !is_this_machine(request.headers) => Resource::Refused {
            status: 421,
            reason: "Over the loopback address only localhost, an IP address, or a name without a dot is answered.",
        },
        Some("/metrics") => Resource::Metrics(accepted_format(request.headers)),
        Some("/") => Resource::Root,
        _ => Resource::Refused { status: 404, reason: "There is only /metrics." },
    };
    Some(Request { resource, is_head })
}

/// Whether the requested host may be this machine: an address, or a name without a dot. With DNS
/// rebinding, a web page requests its own name, which has a dot and resolves to 127.0.0.1.
fn is_this_machine(headers: &[httparse::Header<'_>]) -> bool {
    let mut hosts = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    hosts.all(|host| {
        let host = std::str::from_utf8(host.value).unwrap_or(".").trim();
        let is_address = || host.parse::<SocketAddr>().is_ok() || host.parse::<Ipv4Addr>().is_ok();
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        host.starts_with('[') || !name.contains('.') || name.ends_with(".localhost") || is_address()
    })
}

/// The format of the page: OpenMetrics if the client accepts it by name.
fn accepted_format(headers: &[httparse::Header<'_>]) -> Format {
    let accept_headers = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let mut values = accept_headers.filter_map(|header| std::str::from_utf8(header.value).ok());
    let accepts_open_metrics = |text: &str| {
        text.split(',').any(|part| {
            let part = part.trim().to_ascii_lowercase();
            part.starts_with("application/openmetrics-text") && !part.replace(' ', "").ends_with(";q=0")
        })
    };
    if values.any(accepts_open_metrics) { Format::OpenMetrics } else { Format::Plain }
}

/// Status line and headers of a response with a body of `body_bytes`.
pub fn head(status: u16, content_type: &str, body_bytes: usize) -> String {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {body_bytes}\r\n{allow}\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn resource(text: &str) -> Resource {
        parse(text.as_bytes(), true).unwrap().resource
    }

    fn refused_status(text: &str) -> Option<u16> {
        match resource(text) {
            Resource::Refused { status, .. } => Some(status),
            _ => None,
        }
    }

    #[test]
    fn requests_are_parsed() {
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: x\r\n", true), None);
        let plain = Resource::Metrics(Format::Plain);
        assert_eq!(resource("GET /metrics HTTP/1.0\r\n\r\n"), plain);
        assert_eq!(resource("GET /metrics?a=b HTTP/1.1\r\nAccept: */*\r\n\r\n"), plain);
        let open_metrics = "GET /metrics HTTP/1.1\r\naccept: text/plain;q=0.1, application/openmetrics-text;version=1.0.0,*/*\r\n\r\n";
        assert_eq!(resource(open_metrics), Resource::Metrics(Format::OpenMetrics));
        assert_eq!(resource("GET / HTTP/1.1\r\n\r\n"), Resource::Root);
        assert_eq!(refused_status("GET /etc HTTP/1.1\r\n\r\n"), Some(404));
        assert_eq!(refused_status("POST /metrics HTTP/1.1\r\n\r\n"), Some(405));
        assert_eq!(refused_status("\x16\x03\x01\r\n\r\n"), Some(400));
        assert_eq!(refused_status(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(9000))), Some(431));
        for path in ["/metrics", "/etc"] {
            assert!(parse(format!("HEAD {path} HTTP/1.1\r\n\r\n").as_bytes(), true).unwrap().is_head);
        }
        let too_long = format!("HEAD /{}", "a".repeat(9000));
        for (text, status) in [(too_long.as_str(), 431), ("HEAD / XTTP/1.1\r\n\r\n", 400)] {
            assert!(parse(text.as_bytes(), true).unwrap().is_head);
            assert_eq!(refused_status(text), Some(status));
        }
        assert!(head(200, "text/plain", 7).contains("Content-Length: 7\r\n"));
    }

    #[test]
    fn host_names_with_dots_are_refused_on_loopback() {
        let text = |host: &str| format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for host in [
            "localhost",
            "localhost:9464",
            "127.0.0.1:9464",
            "127.0.0.1",
            "[::1]:9464",
            "node7",
            "a.localhost:1",
        ] {
            assert_eq!(resource(&text(host)), Resource::Metrics(Format::Plain), "{host}");
        }
        for host in ["evil.example", "evil.example:9464", "127.0.0.1.evil.example"] {
            assert_eq!(refused_status(&text(host)), Some(421), "{host}");
            let remote = parse(text(host).as_bytes(), false).unwrap();
            assert_eq!(remote.resource, Resource::Metrics(Format::Plain), "{host}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..10_000)) {
            let _ = parse(&bytes, true);
        }
    }
}
