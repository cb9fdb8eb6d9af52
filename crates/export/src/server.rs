//! Answers clients: one thread waits for all of them at once and never blocks on one. A client that
//! sends nothing, or does not read, is dropped after a time limit. HTTP libraries that were
//! considered use a thread per client and have no time limit.
//!
//! The server never reads a process: if the last survey is too old it requests another, and
//! answers with the old one if that does not arrive.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use strandline_process::target::hold;

use crate::exchange::SurveyExchange;
use crate::exposition::Format;
use crate::http::{self, MAX_REQUEST_BYTES, Request, Resource};
use crate::page::Pages;

/// Maximum number of clients; others wait in the kernel's queue until one is done, or has had
/// `MIN_TIME`.
const MAX_CLIENTS: usize = 200;
const MIN_TIME: Duration = Duration::from_secs(1);
/// Time limits for the request, for the survey, for sending the answer, and for the client to hang
/// up.
const REQUEST_TIME: Duration = Duration::from_secs(5);
const SURVEY_TIME: Duration = Duration::from_secs(5);
const ANSWER_TIME: Duration = Duration::from_secs(20);
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// A page is made again after this: ages grow while the survey stays the same.
const PAGE_TIME: Duration = Duration::from_secs(1);
/// Time until the next attempt if the kernel has no descriptor for another client.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
const SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGTSTP];
const ROOT: &str = "strandline export: see /metrics\n";

/// Blocks the signals that end the exporter. Must be called before there is a second thread.
///
/// # Errors
/// One line if the kernel refuses.
pub fn hold_signals() -> Result<SignalFd, String> {
    let failed = |error: std::io::Error| format!("signals cannot be taken over: {error}");
    let set: SigSet = SIGNALS.into_iter().collect();
    set.thread_block().map_err(|errno| failed(errno.into()))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    SignalFd::with_flags(&set, flags).map_err(|errno| failed(errno.into()))
}

/// State of a client.
enum Step {
    /// It sends its request, of which these bytes were read.
    Reading(Vec<u8>),
    /// It waits for a survey.
    Waiting { format: Format, is_head: bool },
    /// It receives its answer, of which `sent` bytes were sent.
    Writing { head: Vec<u8>, body: Arc<Vec<u8>>, sent: usize },
    /// It was answered.
    Closing,
}

struct Client {
    stream: TcpStream,
    step: Step,
    since: Instant,
}

/// The last page in each format.
#[derive(Default)]
struct PageCache {
    plain: Option<CachedPage>,
    open_metrics: Option<CachedPage>,
}

struct CachedPage {
    made_at: Instant,
    text: Arc<Vec<u8>>,
}

struct Server<'a> {
    exchange: &'a SurveyExchange,
    pages: &'a Pages,
    cache: PageCache,
}

/// Answers until a signal arrives.
///
/// # Errors
/// One line if the kernel does not let it wait.
pub fn serve(
    listener: Option<TcpListener>,
    signals: &SignalFd,
    exchange: &SurveyExchange,
    pages: &Pages,
) -> Result<(), String> {
    let mut server = Server { exchange, pages, cache: PageCache::default() };
    let mut clients: Vec<Client> = Vec::new();
    let mut pauses_accepting = false;
    loop {
        let open_listener = listener.as_ref().filter(|_| !pauses_accepting && has_room(&clients));
        let ready = wait(signals, exchange, open_listener, &clients, pauses_accepting)?;
        pauses_accepting = false;
        if ready.signal
            && let Ok(Some(signal)) = signals.read_signal()
        {
            if signal.ssi_signo.cast_signed() != Signal::SIGTSTP as i32 {
                return Ok(());
            }
            // Ctrl-Z takes effect when no process is held: a stopped exporter releases none.
            hold::while_nothing_is_held(strandline_sys::signal::stop_own_process);
        }
        if ready.delivered {
            let _ = exchange.delivered().read();
        }
        for (client, _) in clients.iter_mut().zip(&ready.clients).filter(|(_, ready)| **ready) {
            server.step(client);
        }
        for client in clients.iter_mut().filter(|client| ready.delivered || client.has_timed_out()) {
            server.answer_waiting(client);
        }
        let before = clients.len();
        clients.retain(|client| !client.has_timed_out());
        pages.dropped.fetch_add((before - clients.len()) as u64, Ordering::Relaxed);
        clients.retain(|client| !client.is_done());
        if let Some(listener) = open_listener.filter(|_| ready.listener) {
            pauses_accepting = !server.accept(listener, &mut clients);
        }
    }
}

/// What has events.
struct Ready {
    signal: bool,
    delivered: bool,
    listener: bool,
    clients: Vec<bool>,
}

fn has_room(clients: &[Client]) -> bool {
    clients.len() < MAX_CLIENTS || clients.iter().any(|client| client.since.elapsed() >= MIN_TIME)
}

fn wait(
    signals: &SignalFd,
    exchange: &SurveyExchange,
    listener: Option<&TcpListener>,
    clients: &[Client],
    pauses_accepting: bool,
) -> Result<Ready, String> {
    let mut fds = vec![
        PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        PollFd::new(exchange.delivered().as_fd(), PollFlags::POLLIN),
    ];
    fds.extend(clients.iter().map(|client| PollFd::new(client.stream.as_fd(), client.step.awaits())));
    fds.extend(listener.map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
    let next_deadline =
        clients.iter().map(|client| client.deadline().saturating_duration_since(Instant::now())).min();
    let retries_accepting = pauses_accepting || (listener.is_none() && !clients.is_empty());
    let time = next_deadline.into_iter().chain(retries_accepting.then_some(ACCEPT_RETRY)).min();
    // Rounded up, so that the time is over at wake-up.
    let timeout = time.map_or(PollTimeout::NONE, |time| {
        PollTimeout::try_from(time + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(errno) => return Err(format!("waiting for clients: {errno}")),
    }
    let is_ready = |fd: &PollFd<'_>| fd.revents().is_none_or(|events| !events.is_empty());
    let mut ready = fds.iter().map(is_ready);
    let (signal, delivered) = (ready.next() == Some(true), ready.next() == Some(true));
    let clients = ready.by_ref().take(clients.len()).collect();
    Ok(Ready { signal, delivered, clients, listener: ready.next() == Some(true) })
}

impl Step {
    fn awaits(&self) -> PollFlags {
        match self {
            Self::Reading(_) | Self::Closing => PollFlags::POLLIN,
            Self::Writing { .. } => PollFlags::POLLOUT,
            // Errors and hang-ups are always reported.
            Self::Waiting { .. } => PollFlags::empty(),
        }
    }
}

impl Client {
    fn deadline(&self) -> Instant {
        let time = match self.step {
            Step::Reading(_) => REQUEST_TIME,
            Step::Waiting { .. } => SURVEY_TIME,
            Step::Writing { .. } => ANSWER_TIME,
            Step::Closing => CLOSE_TIME,
        };
        self.since + time
    }

    fn waits(&self) -> bool {
        matches!(self.step, Step::Waiting { .. })
    }

    /// Whether its time was over before it was answered.
    fn has_timed_out(&self) -> bool {
        !matches!(self.step, Step::Closing) && Instant::now() >= self.deadline()
    }

    /// Whether it was answered, and has left or had the time to leave.
    fn is_done(&self) -> bool {
        matches!(self.step, Step::Closing) && Instant::now() >= self.deadline()
    }

    fn set_step(&mut self, step: Step) {
        (self.step, self.since) = (step, Instant::now());
    }

    /// Marks a client that is gone or must be dropped.
    fn leave(&mut self) {
        self.step = Step::Closing;
        self.since = Instant::now().checked_sub(CLOSE_TIME).unwrap_or(self.since);
    }

    fn answer(&mut self, status: u16, content_type: &str, body: Arc<Vec<u8>>, is_head: bool) {
        let head = http::head(status, content_type, body.len()).into_bytes();
        let body = if is_head { Arc::default() } else { body };
        self.set_step(Step::Writing { head, body, sent: 0 });
    }

    fn refuse(&mut self, status: u16, why: &str) {
        self.answer(status, "text/plain; charset=utf-8", Arc::new(format!("{why}\n").into_bytes()), false);
    }

    /// Sends as much as the socket takes now.
    fn send(&mut self) {
        loop {
            let Step::Writing { head, body, sent } = &mut self.step else { return };
            let unsent = head.get(*sent..).filter(|unsent| !unsent.is_empty());
            let unsent = unsent.or_else(|| body.get(sent.saturating_sub(head.len())..)).unwrap_or_default();
            if unsent.is_empty() {
                // If the socket were closed now, data that the client has sent meanwhile would make
                // the kernel discard the answer.
                let _ = self.stream.shutdown(Shutdown::Write);
                return self.set_step(Step::Closing);
            }
            match self.stream.write(unsent) {
                Ok(0) => return self.leave(),
                Ok(count) => *sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.leave(),
            }
        }
    }
}

impl Server<'_> {
    /// Accepts new clients; false if the kernel has no descriptor for another.
    fn accept(&self, listener: &TcpListener, clients: &mut Vec<Client>) -> bool {
        while has_room(clients) {
            match listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    // Drops the slowest client, which has had `MIN_TIME`. A client that waits for a
                    // survey is not slow.
                    let slowness = |index: &usize| (clients[*index].waits(), clients[*index].since);
                    if clients.len() >= MAX_CLIENTS
                        && let Some(slowest) = (0..clients.len()).min_by_key(slowness)
                    {
                        clients.swap_remove(slowest);
                        self.pages.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                    clients.push(Client { stream, step: Step::Reading(Vec::new()), since: Instant::now() });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                // It has hung up already.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Handles a client whose socket is ready.
    fn step(&mut self, client: &mut Client) {
        let mut buffer = [0; 4096];
        match &mut client.step {
            Step::Writing { .. } => client.send(),
            Step::Waiting { .. } => client.leave(),
            Step::Closing => match client.stream.read(&mut buffer) {
                Ok(0) => client.leave(),
                Err(error) if error.kind() != ErrorKind::WouldBlock => client.leave(),
                Ok(_) | Err(_) => {}
            },
            Step::Reading(request) => match client.stream.read(&mut buffer) {
                Ok(0) => client.leave(),
                Ok(count) => {
                    request.extend_from_slice(&buffer[..count]);
                    request.truncate(MAX_REQUEST_BYTES);
                    let is_loopback =
                        client.stream.local_addr().is_ok_and(|own| own.ip().to_canonical().is_loopback());
                    if let Some(request) = http::parse(request, is_loopback) {
                        self.handle_request(client, request);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => client.leave(),
            },
        }
    }

    fn handle_request(&mut self, client: &mut Client, request: Request) {
        match request.resource {
            Resource::Refused { status, reason } => client.refuse(status, reason),
            Resource::Root => {
                let body = Arc::new(ROOT.as_bytes().to_vec());
                client.answer(200, "text/plain; charset=utf-8", body, request.is_head);
            }
            Resource::Metrics(format) => {
                self.pages.scrapes.fetch_add(1, Ordering::Relaxed);
                self.exchange.note_reader();
                client.set_step(Step::Waiting { format, is_head: request.is_head });
                if self.exchange.survey().is_some_and(|survey| survey.is_valid(Instant::now())) {
                    self.answer_waiting(client);
                } else {
                    self.exchange.request();
                }
            }
        }
        client.send();
    }

    /// Answers a waiting client with the last survey, whatever its age: the page contains the age.
    fn answer_waiting(&mut self, client: &mut Client) {
        let Step::Waiting { format, is_head } = client.step else { return };
        match self.page(format) {
            Some(page) => client.answer(200, format.content_type(), page, is_head),
            None => client.refuse(503, "The first figures are not there yet."),
        }
        client.send();
    }

    fn page(&mut self, format: Format) -> Option<Arc<Vec<u8>>> {
        let survey = self.exchange.survey()?;
        let cached = match format {
            Format::Plain => &mut self.cache.plain,
            Format::OpenMetrics => &mut self.cache.open_metrics,
        };
        let is_current = |made_at: Instant| made_at >= survey.at && made_at.elapsed() < PAGE_TIME;
        if let Some(page) = cached.as_ref().filter(|page| is_current(page.made_at)) {
            return Some(Arc::clone(&page.text));
        }
        let made_at = Instant::now();
        let text = Arc::new(self.pages.page(&survey, format).into_bytes());
        *cached = Some(CachedPage { made_at, text: Arc::clone(&text) });
        Some(text)
    }
}
