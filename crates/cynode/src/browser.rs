//! The console in the browser of the person who started an installation.
//!
//! The command line of a browser can be read by every user of the machine, so it names no secret: it names an address that
//! this process serves once, on loopback. The kernel says which user has made a connection. If it is the person's own,
//! the browser is redirected with the session or the setup link; everybody else is redirected to the console alone.
//! Cookies are shared between the ports of a host, so the console has the session.

use std::{
    convert::Infallible,
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use cynode_app::AppEnvironment;
use data_encoding::HEXLOWER;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CACHE_CONTROL, HeaderValue, LOCATION, REFERRER_POLICY, SET_COOKIE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::config;

/// Time in which a browser has to ask for the one-time address.
const HANDOVER_TIMEOUT: Duration = Duration::from_mins(2);

/// Timeout of one connection of a browser.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The sockets of this machine, each with its user.
const SOCKET_TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// Whose browser is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrowserOwner {
    /// The user of this process.
    ProcessUser,
    /// The person who started this process with `sudo`.
    SudoCaller { user: u32, group: u32 },
    /// Nobody but root is known.
    Root,
}

impl BrowserOwner {
    fn user_id(self) -> u32 {
        match self {
            Self::ProcessUser | Self::Root => rustix::process::geteuid().as_raw(),
            Self::SudoCaller { user, .. } => user,
        }
    }
}

/// What decides whether a browser can be opened for the person at the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DesktopSession {
    pub(crate) has_display: bool,
    pub(crate) is_ssh: bool,
    pub(crate) owner: BrowserOwner,
}

impl DesktopSession {
    /// Returns the session of this process.
    pub(crate) fn from_process() -> Self {
        Self {
            has_display: config::has_display(),
            is_ssh: config::is_ssh_session(),
            owner: match config::sudo_caller() {
                _ if !rustix::process::geteuid().is_root() => BrowserOwner::ProcessUser,
                Some((user, group)) => BrowserOwner::SudoCaller { user, group },
                None => BrowserOwner::Root,
            },
        }
    }

    /// Returns why no browser is opened, if so.
    pub(crate) const fn find_obstacle(self) -> Option<&'static str> {
        if self.is_ssh {
            Some("over SSH it would open on this machine, not on yours")
        } else if !self.has_display {
            Some("there is no desktop: neither DISPLAY nor WAYLAND_DISPLAY is set")
        } else if matches!(self.owner, BrowserOwner::Root) {
            Some("a browser does not run as root")
        } else {
            None
        }
    }
}

/// What a browser is to open.
#[derive(Clone, Debug)]
pub(crate) struct ConsoleLink {
    /// Address of the console, without a secret; it ends with `/`.
    pub(crate) console: String,
    /// Address that the browser is redirected to; it may contain a secret.
    pub(crate) destination: String,
    /// `Set-Cookie` header of a session.
    pub(crate) cookie: Option<HeaderValue>,
}

impl ConsoleLink {
    /// Returns a link that is open to everybody who knows the address.
    pub(crate) fn without_secret(console: String) -> Self {
        Self { destination: console.clone(), console, cookie: None }
    }

    fn has_secret(&self) -> bool {
        self.cookie.is_some() || self.destination != self.console
    }
}

/// Opens the console in the person's browser. Returns why it was not opened, if so.
pub(crate) async fn open_console(
    link: ConsoleLink,
    desktop: DesktopSession,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<(), String> {
    if let Some(obstacle) = desktop.find_obstacle() {
        return Err(obstacle.to_owned());
    }
    let address = if link.has_secret() {
        let handover = Handover::bind_loopback(link, desktop.owner).await;
        let handover = handover.map_err(|error| format!("{error:#}"))?;
        let address = handover.one_time_address();
        tasks.spawn(handover.serve_once(stop.clone()));
        address
    } else {
        link.console
    };
    // It waits for a moment to see whether the browser starts.
    match tokio::task::spawn_blocking(move || start_browser(&address, desktop.owner)).await {
        Ok(Ok(())) => Ok(()),
        // The text of an error may name the one-time address.
        Ok(Err(_)) | Err(_) => Err("neither `xdg-open` nor its like could start one".to_owned()),
    }
}

/// Starts the browser that the desktop has chosen.
fn start_browser(address: &str, owner: BrowserOwner) -> std::io::Result<()> {
    match owner {
        BrowserOwner::ProcessUser | BrowserOwner::Root => open::that_detached(address),
        BrowserOwner::SudoCaller { user, group } => {
            let launchers = open::commands(address);
            let installed = launchers.into_iter().find(is_installed);
            let launcher = installed.ok_or(std::io::ErrorKind::NotFound)?;
            let status = run_as_user(&launcher, user, group).status()?;
            if status.success() { Ok(()) } else { Err(std::io::ErrorKind::Other.into()) }
        }
    }
}

fn is_installed(launcher: &Command) -> bool {
    config::search_path().iter().any(|dir| dir.join(launcher.get_program()).is_file())
}

/// Returns a command that runs a launcher as a user with their own environment and desktop, detached from our terminal.
fn run_as_user(launcher: &Command, user: u32, group: u32) -> Command {
    let mut command = Command::new("setsid");
    command
        .args(["--fork", "setpriv"])
        .arg(format!("--reuid={user}"))
        .arg(format!("--regid={group}"))
        .args(["--init-groups", "--reset-env", "--", "env"])
        .arg(format!("XDG_RUNTIME_DIR=/run/user/{user}"))
        .arg(format!("DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/{user}/bus"));
    for (name, value) in config::display_variables() {
        let mut assignment = OsString::from(name);
        assignment.push("=");
        assignment.push(value);
        command.arg(assignment);
    }
    command.arg(launcher.get_program()).args(launcher.get_args());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns what a person reads about the browser: what was opened, or what to open and why.
pub(crate) fn describe_opening(
    console: &str,
    account: &str,
    desktop: DesktopSession,
    opened: &Result<(), String>,
) -> Vec<String> {
    let Err(reason) = opened else {
        return vec![format!("{console} is open in your browser")];
    };
    let mut lines = vec![format!("no browser was opened: {reason}"), format!("open {console}")];
    if !account.is_empty() {
        lines.push(account.to_owned());
    }
    let port = console.parse::<url::Url>().ok().and_then(|url| url.port());
    if let Some(port) = port.filter(|_| desktop.is_ssh) {
        lines.push(format!("first, on your machine: ssh -L {port}:127.0.0.1:{port} HOST"));
    }
    lines
}

/// An address on loopback that redirects the user's browser to a destination, once.
struct Handover {
    listener: TcpListener,
    address: SocketAddrV4,
    owner: BrowserOwner,
    answers: Arc<HandoverAnswers>,
}

/// The answers of a handover.
struct HandoverAnswers {
    /// Path of the one-time address.
    path: String,
    link: ConsoleLink,
    used: AtomicBool,
    done: CancellationToken,
}

impl Handover {
    async fn bind_loopback(link: ConsoleLink, owner: BrowserOwner) -> anyhow::Result<Self> {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = bound.context("there is no free port on loopback")?;
        let port = listener.local_addr()?.port();
        let token = HEXLOWER.encode(&AppEnvironment::from_system().random_bytes::<32>());
        let answers = HandoverAnswers {
            path: format!("/{token}"),
            link,
            used: AtomicBool::new(false),
            done: CancellationToken::new(),
        };
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        Ok(Self { listener, address, owner, answers: Arc::new(answers) })
    }

    fn one_time_address(&self) -> String {
        format!("http://{}{}", self.address, self.answers.path)
    }

    /// Serves until the address was used, its time is over, or `stop`.
    async fn serve_once(self, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let done = self.answers.done.clone();
        let accept = async {
            while let Ok((stream, peer)) = self.listener.accept().await {
                let own = is_connection_of(self.owner.user_id(), peer, self.address);
                connections.spawn(serve_connection(stream, own, Arc::clone(&self.answers)));
            }
        };
        tokio::select! {
            () = accept => {}
            () = done.cancelled() => {}
            () = stop.cancelled() => {}
            _ = tokio::time::timeout(HANDOVER_TIMEOUT, std::future::pending::<()>()) => {}
        }
        connections.close();
        connections.wait().await;
    }
}

async fn serve_connection(stream: TcpStream, own: bool, answers: Arc<HandoverAnswers>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answers.answer_request(request.method(), request.uri().path(), own);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A browser opens connections that it does not use.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

impl HandoverAnswers {
    fn answer_request(&self, method: &Method, path: &str, own: bool) -> Response<String> {
        let mut response = Response::new(String::new());
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        if method != Method::GET || path != self.path {
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        }
        let first = own && !self.used.swap(true, Ordering::Relaxed);
        let location = if first { &self.link.destination } else { &self.link.console };
        let Ok(location) = HeaderValue::from_str(location) else {
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        };
        *response.status_mut() = StatusCode::SEE_OTHER;
        let headers = response.headers_mut();
        headers.insert(LOCATION, location);
        if first {
            if let Some(cookie) = &self.link.cookie {
                headers.insert(SET_COOKIE, cookie.clone());
            }
            self.done.cancel();
        }
        response
    }
}

/// Returns whether a user has made a connection over loopback. What cannot be known is refused.
fn is_connection_of(user: u32, peer: SocketAddr, local: SocketAddrV4) -> bool {
    let SocketAddr::V4(peer) = peer else { return false };
    SOCKET_TABLES.iter().any(|path| {
        let table = std::fs::read_to_string(path).unwrap_or_default();
        socket_owner(&table, peer, local) == Some(user)
    })
}

/// Finds the user of the socket with these two ends in a table of the kernel.
fn socket_owner(table: &str, own: SocketAddrV4, remote: SocketAddrV4) -> Option<u32> {
    // An address is written as the number that is in memory; in the table of IPv6 zeros and `FFFF` precede it.
    let written = |end: SocketAddrV4| {
        format!("{:08X}:{:04X}", u32::from_ne_bytes(end.ip().octets()), end.port())
    };
    let (own, remote) = (written(own), written(remote));
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ends = fields.get(1)?.ends_with(&own) && fields.get(2)?.ends_with(&remote);
        if ends { fields.get(7)?.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESKTOP: DesktopSession =
        DesktopSession { has_display: true, is_ssh: false, owner: BrowserOwner::ProcessUser };

    const SUDO_CALLER: BrowserOwner = BrowserOwner::SudoCaller { user: 1000, group: 100 };

    fn link_with_session() -> ConsoleLink {
        ConsoleLink {
            console: "http://127.0.0.1:12080/".to_owned(),
            destination: "http://127.0.0.1:12080/".to_owned(),
            cookie: Some(HeaderValue::from_static("cynode-12080=secret; HttpOnly")),
        }
    }

    fn answers_of(link: ConsoleLink) -> HandoverAnswers {
        let (used, done) = (AtomicBool::new(false), CancellationToken::new());
        HandoverAnswers { path: "/one".to_owned(), link, used, done }
    }

    /// Status, destination and cookie of an answer.
    fn parts_of(response: &Response<String>) -> (u16, Option<&str>, Option<&str>) {
        let text = |name| response.headers().get(name).map(|value| value.to_str().unwrap());
        (response.status().as_u16(), text(LOCATION), text(SET_COOKIE))
    }

    #[test]
    fn a_browser_is_opened_at_a_desktop_only_and_never_over_ssh_or_as_root() {
        assert_eq!(DESKTOP.find_obstacle(), None);
        assert_eq!(DesktopSession { owner: SUDO_CALLER, ..DESKTOP }.find_obstacle(), None);
        for (session, word) in [
            (DesktopSession { has_display: false, ..DESKTOP }, "DISPLAY"),
            (DesktopSession { is_ssh: true, ..DESKTOP }, "SSH"),
            (DesktopSession { is_ssh: true, has_display: false, ..DESKTOP }, "SSH"),
            (DesktopSession { owner: BrowserOwner::Root, ..DESKTOP }, "root"),
        ] {
            let obstacle = session.find_obstacle();
            assert!(obstacle.is_some_and(|text| text.contains(word)), "{session:?}: {obstacle:?}");
        }
    }

    #[tokio::test]
    async fn an_obstacle_opens_nothing_and_is_the_reason() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let session = DesktopSession { has_display: false, ..DESKTOP };
        let opened = open_console(link_with_session(), session, &tasks, &stop).await;
        assert_eq!(opened, Err(session.find_obstacle().unwrap().to_owned()));
        assert_eq!(tasks.len(), 0);
    }

    #[test]
    fn what_is_printed_says_what_was_opened_or_what_to_open_and_why() {
        let console = "http://127.0.0.1:12080/";
        let account = "log in as `demo`";
        assert_eq!(
            describe_opening(console, account, DESKTOP, &Ok(())),
            ["http://127.0.0.1:12080/ is open in your browser"]
        );
        let refused = Err("because".to_owned());
        assert_eq!(
            describe_opening(console, account, DESKTOP, &refused),
            ["no browser was opened: because", "open http://127.0.0.1:12080/", "log in as `demo`"]
        );
        let remote = DesktopSession { is_ssh: true, ..DESKTOP };
        assert_eq!(
            describe_opening(console, "", remote, &refused),
            [
                "no browser was opened: because",
                "open http://127.0.0.1:12080/",
                "first, on your machine: ssh -L 12080:127.0.0.1:12080 HOST"
            ]
        );
    }

    #[test]
    fn the_session_is_given_once_and_to_this_user_only() {
        let answers = answers_of(link_with_session());
        let console = Some("http://127.0.0.1:12080/");
        let ask = |path: &str, own: bool| answers.answer_request(&Method::GET, path, own);
        assert_eq!(parts_of(&ask("/", true)), (404, None, None));
        assert_eq!(parts_of(&ask("/one", false)), (303, console, None));
        assert!(!answers.done.is_cancelled());
        let first = ask("/one", true);
        assert_eq!(parts_of(&first), (303, console, Some("cynode-12080=secret; HttpOnly")));
        assert!(answers.done.is_cancelled());
        assert_eq!(parts_of(&ask("/one", true)), (303, console, None));
    }

    #[test]
    fn the_setup_link_is_given_to_this_user_only() {
        let console = "http://127.0.0.1:12080/".to_owned();
        let destination = format!("{console}setup#bootstrap=cyn_boot_x");
        let answers = answers_of(ConsoleLink { console, destination, cookie: None });
        let ask = |method: &Method, own: bool| answers.answer_request(method, "/one", own);
        assert_eq!(parts_of(&ask(&Method::POST, true)), (404, None, None));
        assert_eq!(
            parts_of(&ask(&Method::GET, false)),
            (303, Some("http://127.0.0.1:12080/"), None)
        );
        assert_eq!(
            parts_of(&ask(&Method::GET, true)),
            (303, Some("http://127.0.0.1:12080/setup#bootstrap=cyn_boot_x"), None)
        );
    }

    #[tokio::test]
    async fn the_one_time_address_ends_when_it_was_used() {
        let handover =
            Handover::bind_loopback(link_with_session(), BrowserOwner::ProcessUser).await.unwrap();
        let address = handover.one_time_address();
        let tasks = TaskTracker::new();
        let serving = tasks.spawn(handover.serve_once(CancellationToken::new()));
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        let response = client.get(&address).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 303);
        assert_eq!(response.headers()["set-cookie"], "cynode-12080=secret; HttpOnly");
        serving.await.unwrap();
        assert!(client.get(&address).send().await.unwrap_err().is_connect());
    }

    #[tokio::test]
    async fn the_kernel_says_whose_connection_it_is() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let SocketAddr::V4(local) = listener.local_addr().unwrap() else { panic!("not IPv4") };
        let _client = TcpStream::connect(local).await.unwrap();
        let (_stream, peer) = listener.accept().await.unwrap();
        let user = BrowserOwner::ProcessUser.user_id();
        assert!(is_connection_of(user, peer, local));
        assert!(!is_connection_of(user + 1, peer, local));
        let elsewhere = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
        assert!(!is_connection_of(user, elsewhere.into(), local));
    }

    #[test]
    fn after_sudo_the_browser_is_the_callers_own_with_their_environment() {
        let mut launcher = Command::new("xdg-open");
        launcher.arg("http://127.0.0.1:1/one");
        let command = run_as_user(&launcher, 1000, 100);
        let words: Vec<_> = command.get_args().filter_map(|word| word.to_str()).collect();
        let fixed = [
            "--fork",
            "setpriv",
            "--reuid=1000",
            "--regid=100",
            "--init-groups",
            "--reset-env",
            "--",
            "env",
            "XDG_RUNTIME_DIR=/run/user/1000",
            "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus",
        ];
        assert_eq!(command.get_program(), "setsid");
        assert_eq!(words[..fixed.len()], fixed);
        assert_eq!(words[words.len() - 2..], ["xdg-open", "http://127.0.0.1:1/one"]);
    }

    #[test]
    fn the_owner_of_a_socket_is_read_from_both_tables() {
        let own = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0xA0B1);
        let remote = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0x2F30);
        let number = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
        let rest = "01 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 20 4 30 10 -1";
        let table = format!(
            "  sl  local_address rem_address\n   0: {number}:2F30 {number}:A0B1 {}\n   1: {number}:A0B1 {number}:2F30 {rest}\n",
            rest.replace("  1000", "  33"),
        );
        assert_eq!(socket_owner(&table, own, remote), Some(1000));
        assert_eq!(socket_owner(&table, remote, own), Some(33));
        let mapped = table.replace(&number, &format!("0000000000000000FFFF0000{number}"));
        assert_eq!(socket_owner(&mapped, own, remote), Some(1000));
        assert_eq!(socket_owner("", own, remote), None);
    }
}
