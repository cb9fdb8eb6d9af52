//! Answers clients: one thread waits for all of them at once and never blocks on one. A client that
//! sends nothing, or does not read, is dropped after a time limit. A thread for each client, or a
//! client without a time limit, would let many slow clients take all memory or descriptors.
//!
//! The server never reads a process: if the last survey is too old it requests another, and
//! answers with the old one if the new one does not arrive.

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

/// Maximum number of clients; others wait in the kernel's queue until one is done, or may be
/// replaced.
const MAX_CLIENTS: usize = 200;
/// A client that has taken this long for a step may be replaced by another.
const MIN_STEP_TIME: Duration = Duration::from_secs(1);
/// Time limit for receiving a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the survey that a client waits for.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for sending an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a client to hang up after its answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// A page is made again after this: ages grow while the survey stays the same.
const MAX_PAGE_AGE: Duration = Duration::from_secs(1);
/// Time until the next attempt if the kernel has no descriptor for another client.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Bytes read from a client at once.
const READ_BYTES: usize = 4096;
/// Media type of answers other than a page.
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
/// Signals that end or stop the exporter.
const SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGTSTP];
/// Body of the answer to a request for `/`.
const ROOT_BODY: &str = "strandline export: see /metrics\n";

/// Blocks [`SIGNALS`] and reads them from a descriptor instead. Must be called before there is a
/// second thread.
///
/// # Errors
/// One line, if the kernel refuses.
pub fn take_over_signals() -> Result<SignalFd, String> {
    let failed = |error: std::io::Error| format!("signals cannot be taken over: {error}");
    let set: SigSet = SIGNALS.into_iter().collect();
    set.thread_block().map_err(|errno| failed(errno.into()))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    SignalFd::with_flags(&set, flags).map_err(|errno| failed(errno.into()))
}

/// State of a client.
enum Step {
    /// The server reads its request, of which it has these bytes.
    Reading(Vec<u8>),
    /// The client waits for a survey.
    Waiting { format: Format, is_head: bool },
    /// The server writes the answer: `sent_bytes` of head and body together were sent.
    Writing { head: Vec<u8>, body: Arc<Vec<u8>>, sent_bytes: usize },
    /// The answer was sent; the server waits until the client hangs up.
    Closing,
}

/// A connected client.
struct Client {
    stream: TcpStream,
    step: Step,
    /// When the step began.
    step_started_at: Instant,
}

/// The last page in each format.
#[derive(Default)]
struct PageCache {
    plain: Option<CachedPage>,
    open_metrics: Option<CachedPage>,
}

/// A page that was made for a client.
struct CachedPage {
    made_at: Instant,
    text: Arc<Vec<u8>>,
}

/// What answers are made from.
struct Server<'a> {
    exchange: &'a SurveyExchange,
    pages: &'a Pages,
    cache: PageCache,
}

/// Answers until a signal arrives.
///
/// # Errors
/// One line, if the kernel cannot wait for clients, or no survey will be delivered any more.
pub fn serve(
    listener: Option<TcpListener>,
    signals: &SignalFd,
    exchange: &SurveyExchange,
    pages: &Pages,
) -> Result<(), String> {
    let mut server = Server { exchange, pages, cache: PageCache::default() };
    let mut clients: Vec<Client> = Vec::new();
    let mut is_accepting_paused = false;
    loop {
        let open_listener = listener.as_ref().filter(|_| !is_accepting_paused && can_accept(&clients));
        let ready = wait(signals, exchange, open_listener, &clients, is_accepting_paused)?;
        is_accepting_paused = false;
        if ready.has_signal
            && let Ok(Some(signal)) = signals.read_signal()
        {
            if signal.ssi_signo.cast_signed() != Signal::SIGTSTP as i32 {
                return Ok(());
            }
            // Ctrl-Z takes effect when no process is held: a stopped exporter releases none.
            hold::while_nothing_is_held(strandline_sys::signal::stop_own_process);
        }
        if ready.has_survey {
            // Without a value it was read already.
            let _ = exchange.delivered().read();
            if exchange.has_failed() {
                return Err("the thread that reads the kernel's figures has failed".to_owned());
            }
        }
        for (client, _) in clients.iter_mut().zip(&ready.are_clients_ready).filter(|(_, is_ready)| **is_ready)
        {
            server.handle_ready(client);
        }
        for client in clients.iter_mut().filter(|client| ready.has_survey || client.has_timed_out()) {
            server.answer_waiting(client);
        }
        let count_before = clients.len();
        clients.retain(|client| !client.has_timed_out());
        pages.dropped.fetch_add((count_before - clients.len()) as u64, Ordering::Relaxed);
        clients.retain(|client| !client.is_done());
        if let Some(listener) = open_listener.filter(|_| ready.has_new_client) {
            is_accepting_paused = !server.accept(listener, &mut clients);
        }
    }
}

/// Which sources have events.
struct ReadySources {
    /// A signal arrived.
    has_signal: bool,
    /// A survey was delivered.
    has_survey: bool,
    /// A new client can be accepted.
    has_new_client: bool,
    /// Which clients can be read from or written to, in order.
    are_clients_ready: Vec<bool>,
}

/// Whether there may be another client, possibly in the place of a slow one.
fn can_accept(clients: &[Client]) -> bool {
    clients.len() < MAX_CLIENTS
        || clients.iter().any(|client| client.step_started_at.elapsed() >= MIN_STEP_TIME)
}

/// Waits for events, at most until the next time limit.
fn wait(
    signals: &SignalFd,
    exchange: &SurveyExchange,
    listener: Option<&TcpListener>,
    clients: &[Client],
    is_accepting_paused: bool,
) -> Result<ReadySources, String> {
    let mut fds = vec![
        PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        PollFd::new(exchange.delivered().as_fd(), PollFlags::POLLIN),
    ];
    fds.extend(clients.iter().map(|client| PollFd::new(client.stream.as_fd(), client.step.poll_flags())));
    fds.extend(listener.map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
    let next_deadline =
        clients.iter().map(|client| client.deadline().saturating_duration_since(Instant::now())).min();
    let must_retry_accepting = is_accepting_paused || (listener.is_none() && !clients.is_empty());
    let timeout = next_deadline.into_iter().chain(must_retry_accepting.then_some(ACCEPT_RETRY)).min();
    // Rounded up, so that the time is over at wake-up.
    let poll_timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
        PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut fds, poll_timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(errno) => return Err(format!("waiting for clients: {errno}")),
    }
    let is_ready = |fd: &PollFd<'_>| fd.revents().is_none_or(|events| !events.is_empty());
    let mut ready = fds.iter().map(is_ready);
    let (has_signal, has_survey) = (ready.next() == Some(true), ready.next() == Some(true));
    let are_clients_ready = ready.by_ref().take(clients.len()).collect();
    Ok(ReadySources { has_signal, has_survey, are_clients_ready, has_new_client: ready.next() == Some(true) })
}

impl Step {
    /// Events of the socket that the step waits for.
    fn poll_flags(&self) -> PollFlags {
        match self {
            Self::Reading(_) | Self::Closing => PollFlags::POLLIN,
            Self::Writing { .. } => PollFlags::POLLOUT,
            // Errors and hang-ups are always reported.
            Self::Waiting { .. } => PollFlags::empty(),
        }
    }
}

impl Client {
    /// When the time limit of the step is over.
    fn deadline(&self) -> Instant {
        let timeout = match self.step {
            Step::Reading(_) => REQUEST_TIMEOUT,
            Step::Waiting { .. } => SURVEY_TIMEOUT,
            Step::Writing { .. } => ANSWER_TIMEOUT,
            Step::Closing => CLOSE_TIMEOUT,
        };
        self.step_started_at + timeout
    }

    /// Whether it waits for a survey.
    fn is_waiting_for_survey(&self) -> bool {
        matches!(self.step, Step::Waiting { .. })
    }

    /// Whether its time was over before it was answered.
    fn has_timed_out(&self) -> bool {
        !matches!(self.step, Step::Closing) && Instant::now() >= self.deadline()
    }

    /// Whether it was answered and its time to hang up is over, or [`Client::set_done`] was called.
    fn is_done(&self) -> bool {
        matches!(self.step, Step::Closing) && Instant::now() >= self.deadline()
    }

    /// Begins a step.
    fn set_step(&mut self, step: Step) {
        (self.step, self.step_started_at) = (step, Instant::now());
    }

    /// Lets a client that is gone be removed at once: see [`Client::is_done`].
    fn set_done(&mut self) {
        self.step = Step::Closing;
        self.step_started_at = Instant::now().checked_sub(CLOSE_TIMEOUT).unwrap_or(self.step_started_at);
    }

    /// Begins an answer; one to HEAD has no body.
    fn answer(&mut self, status: u16, content_type: &str, body: Arc<Vec<u8>>, is_head: bool) {
        let head = http::head(status, content_type, body.len()).into_bytes();
        let body = if is_head { Arc::default() } else { body };
        self.set_step(Step::Writing { head, body, sent_bytes: 0 });
    }

    /// Begins an answer with an error.
    fn refuse(&mut self, status: u16, reason: &str, is_head: bool) {
        self.answer(status, PLAIN_TEXT, Arc::new(format!("{reason}\n").into_bytes()), is_head);
    }

    /// Sends as much as the socket takes now.
    fn send(&mut self) {
        loop {
            let Step::Writing { head, body, sent_bytes } = &mut self.step else { return };
            let unsent_head = head.get(*sent_bytes..).filter(|unsent| !unsent.is_empty());
            let unsent_body = || body.get(sent_bytes.saturating_sub(head.len())..);
            let unsent = unsent_head.or_else(unsent_body).unwrap_or_default();
            if unsent.is_empty() {
                // If the socket were closed now, data that the client has sent meanwhile would make
                // the kernel discard the answer.
                let _ = self.stream.shutdown(Shutdown::Write);
                return self.set_step(Step::Closing);
            }
            match self.stream.write(unsent) {
                Ok(0) => return self.set_done(),
                Ok(count) => *sent_bytes += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.set_done(),
            }
        }
    }
}

impl Server<'_> {
    /// Accepts new clients; false if the kernel has no descriptor for another.
    fn accept(&self, listener: &TcpListener, clients: &mut Vec<Client>) -> bool {
        while can_accept(clients) {
            match listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    // Drops the slowest client, which has had `MIN_STEP_TIME`. A client that waits
                    // for a survey is not slow.
                    let slowness = |index: &usize| {
                        (clients[*index].is_waiting_for_survey(), clients[*index].step_started_at)
                    };
                    if clients.len() >= MAX_CLIENTS
                        && let Some(slowest) = (0..clients.len()).min_by_key(slowness)
                    {
                        clients.swap_remove(slowest);
                        self.pages.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                    clients.push(Client {
                        stream,
                        step: Step::Reading(Vec::new()),
                        step_started_at: Instant::now(),
                    });
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
    fn handle_ready(&mut self, client: &mut Client) {
        let mut buffer = [0; READ_BYTES];
        match &mut client.step {
            Step::Writing { .. } => client.send(),
            Step::Waiting { .. } => client.set_done(),
            Step::Closing => match client.stream.read(&mut buffer) {
                Ok(0) => client.set_done(),
                Err(error) if error.kind() != ErrorKind::WouldBlock => client.set_done(),
                Ok(_) | Err(_) => {}
            },
            Step::Reading(request) => match client.stream.read(&mut buffer) {
                Ok(0) => client.set_done(),
                Ok(count) => {
                    request.extend_from_slice(&buffer[..count]);
                    request.truncate(MAX_REQUEST_BYTES);
                    // An unknown address counts as loopback, where fewer requests are answered.
                    let is_loopback = client
                        .stream
                        .local_addr()
                        .map_or(true, |address| address.ip().to_canonical().is_loopback());
                    if let Some(request) = http::parse(request, is_loopback) {
                        self.handle_request(client, request);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => client.set_done(),
            },
        }
    }

    /// Answers a request, or has the client wait for a survey.
    fn handle_request(&mut self, client: &mut Client, request: Request) {
        match request.resource {
            Resource::Refused { status, reason } => client.refuse(status, reason, request.is_head),
            Resource::Root => {
                let body = Arc::new(ROOT_BODY.as_bytes().to_vec());
                client.answer(200, PLAIN_TEXT, body, request.is_head);
            }
            Resource::Metrics(format) => {
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
        self.pages.scrapes.fetch_add(1, Ordering::Relaxed);
        match self.page(format) {
            Some(page) => client.answer(200, format.content_type(), page, is_head),
            None => client.refuse(503, "The first figures are not there yet.", is_head),
        }
        client.send();
    }

    /// The page of the last survey; `None` before the first survey.
    fn page(&mut self, format: Format) -> Option<Arc<Vec<u8>>> {
        let survey = self.exchange.survey()?;
        let cached = match format {
            Format::Plain => &mut self.cache.plain,
            Format::OpenMetrics => &mut self.cache.open_metrics,
        };
        let is_current = |made_at: Instant| made_at >= survey.at && made_at.elapsed() < MAX_PAGE_AGE;
        if let Some(page) = cached.as_ref().filter(|page| is_current(page.made_at)) {
            return Some(Arc::clone(&page.text));
        }
        let made_at = Instant::now();
        let text = Arc::new(self.pages.page(&survey, format).into_bytes());
        *cached = Some(CachedPage { made_at, text: Arc::clone(&text) });
        Some(text)
    }
}
