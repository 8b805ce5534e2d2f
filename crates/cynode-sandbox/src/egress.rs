//! Egress of a sandbox through a proxy, by an allowlist of host names. SSRF guard: only globally routable addresses are connected to,
//! and exactly those that were checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use cynode_net::ssrf::{is_host_name, retain_public_addresses};
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Empty};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpStream, lookup_host},
    sync::Semaphore,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::socket_server::{SocketBody, SocketBodyError, SocketHandler, error_response, full_body};

/// Port of the proxy inside the sandbox.
pub const EGRESS_PORT: u16 = 4003;

/// Maximum number of concurrent tunnels.
const MAX_OPEN_TUNNELS: usize = 32;

/// Timeout of a connection to a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of uses that are reported individually.
const MAX_EGRESS_NOTES: u32 = 500;

/// Receives a sentence about each use of the proxy.
pub type EgressReporter = Arc<dyn Fn(String) + Send + Sync>;

/// Resolver of host names.
pub type HostResolver =
    Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Connector of checked addresses.
pub type AddressConnector =
    Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> + Send + Sync>;

/// The way of the proxy to the network: the system's own, unless a test replaces it. What the resolver finds is checked in any case.
#[derive(Clone)]
pub struct EgressDialer {
    /// Resolves names.
    pub resolve: HostResolver,
    /// Connects to addresses.
    pub connect: AddressConnector,
}

impl Default for EgressDialer {
    fn default() -> Self {
        Self {
            resolve: Arc::new(|host, port| {
                Box::pin(async move { lookup_host((host, port)).await.map(Iterator::collect) })
            }),
            connect: Arc::new(|address| Box::pin(TcpStream::connect(address))),
        }
    }
}

impl fmt::Debug for EgressDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressDialer").finish_non_exhaustive()
    }
}

/// Owner of an allowlist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EgressOwner {
    Job,
    ToolServer,
}

impl EgressOwner {
    /// Returns the type of the proxy's error responses.
    const fn error_kind(self) -> &'static str {
        match self {
            Self::Job => "cynode_node",
            Self::ToolServer => "cynode_gateway",
        }
    }

    const fn allowlist_name(self) -> &'static str {
        match self {
            Self::Job => "the hosts that this job and this node allow",
            Self::ToolServer => "the `network_hosts` of this tool server",
        }
    }

    const fn overload_message(self) -> &'static str {
        match self {
            Self::Job => "this job has too many ways open at once",
            Self::ToolServer => "this tool server has too many connections open at once",
        }
    }
}

/// Allowlist of hosts.
#[derive(Clone, Debug)]
pub struct EgressAllowlist {
    hosts: BTreeSet<String>,
    owner: EgressOwner,
    dialer: EgressDialer,
}

impl EgressAllowlist {
    /// Returns the hosts that both the job and the node allow; `None` if there are none.
    pub fn intersect_hosts(job: &[String], node: &[String]) -> Option<Self> {
        let node: BTreeSet<_> = node.iter().map(|host| host.to_ascii_lowercase()).collect();
        let job = job.iter().map(|host| host.to_ascii_lowercase());
        let hosts: BTreeSet<_> =
            job.filter(|host| node.contains(host) && is_host_name(host)).collect();
        let (owner, dialer) = (EgressOwner::Job, EgressDialer::default());
        (!hosts.is_empty()).then_some(Self { hosts, owner, dialer })
    }

    /// Returns the hosts of a tool server; `None` if there are none.
    pub fn for_tool_server(hosts: &[String], dialer: EgressDialer) -> Option<Self> {
        let hosts: BTreeSet<_> = hosts
            .iter()
            .map(|host| host.to_ascii_lowercase())
            .filter(|host| is_host_name(host))
            .collect();
        (!hosts.is_empty()).then_some(Self { hosts, owner: EgressOwner::ToolServer, dialer })
    }

    /// Resolves a host if it is allowlisted.
    async fn resolve_host(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let host = host.to_ascii_lowercase();
        if !is_host_name(&host) {
            return Err(format!("`{host}` is no host name; addresses are not let out"));
        }
        if !self.hosts.contains(&host) {
            return Err(format!("`{host}` is not among {}", self.owner.allowlist_name()));
        }
        let found = timeout(CONNECT_TIMEOUT, (self.dialer.resolve)(host.clone(), port)).await;
        let found = found.map_err(|_| format!("`{host}` was not found in time"))?;
        let found = found.map_err(|error| format!("`{host}` was not found: {error}"))?;
        let open = retain_public_addresses(found);
        if open.is_empty() { Err(format!("`{host}` leads to no public address")) } else { Ok(open) }
    }
}

/// Returns the environment by which programs find the proxy.
pub fn proxy_environment() -> BTreeMap<String, String> {
    let proxy = format!("http://127.0.0.1:{EGRESS_PORT}");
    let mut env = BTreeMap::new();
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        env.insert(name.to_owned(), proxy.clone());
    }
    for name in ["NO_PROXY", "no_proxy"] {
        env.insert(name.to_owned(), "127.0.0.1,localhost".to_owned());
    }
    env
}

/// Proxy for CONNECT to port 443 and for plain GET and HEAD to port 80 of the allowlisted hosts.
pub struct EgressProxy {
    allowed: EgressAllowlist,
    tell: EgressReporter,
    told: AtomicU32,
    tasks: TaskTracker,
    stop: CancellationToken,
    room: Arc<Semaphore>,
}

impl EgressProxy {
    /// Creates the proxy. Its connections end with `stop`.
    pub fn new(
        allowed: EgressAllowlist,
        tell: EgressReporter,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let room = Arc::new(Semaphore::new(MAX_OPEN_TUNNELS));
        Self { allowed, tell, told: AtomicU32::new(0), tasks, stop, room }
    }

    fn record_use(&self, text: String) {
        match self.told.fetch_add(1, Ordering::Relaxed) {
            before if before < MAX_EGRESS_NOTES => (self.tell)(text),
            MAX_EGRESS_NOTES => {
                let text = "network: further uses are not told one by one".to_owned();
                (self.tell)(text);
            }
            _ => {}
        }
    }

    async fn connect_host(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let addresses = self.allowed.resolve_host(host, port).await?;
        let mut last = String::new();
        for to in addresses {
            match timeout(CONNECT_TIMEOUT, (self.allowed.dialer.connect)(to)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => "it did not answer in time".clone_into(&mut last),
            }
        }
        Err(format!("`{host}` cannot be reached: {last}"))
    }

    /// Opens a tunnel for TLS (CONNECT).
    async fn open_tunnel(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<SocketBody>, String> {
        let authority = request.uri().authority().ok_or("no host was named")?;
        let (host, port) = (authority.host().to_owned(), authority.port_u16().unwrap_or(443));
        if port != 443 {
            return Err(format!("only port 443 is let out this way, not {port}"));
        }
        let place = Arc::clone(&self.room).try_acquire_owned();
        let place = place.map_err(|_| self.allowed.owner.overload_message().to_owned())?;
        let mut outside = self.connect_host(&host, port).await?;
        self.record_use(format!("network: connected to {host}:{port}"));
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let _place = place;
            let pass = async {
                let upgraded = hyper::upgrade::on(request).await.map_err(io::Error::other)?;
                let mut inside = TokioIo::new(upgraded);
                tokio::io::copy_bidirectional(&mut inside, &mut outside).await
            };
            tokio::select! {
                () = stop.cancelled() => {}
                passed = pass => if let Err(error) = passed {
                    tracing::debug!(event = "egress.closed", %error, "an egress connection ended");
                }
            }
        });
        Ok(Response::new(full_body("")))
    }

    /// Forwards a plain HTTP request.
    async fn forward_plain_request(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<SocketBody>, String> {
        let uri = request.uri();
        let authority = uri.authority().ok_or("no host was named")?;
        let (host, port) = (authority.host().to_owned(), authority.port_u16().unwrap_or(80));
        if port != 80 || uri.scheme_str() != Some("http") {
            return Err("only http on port 80 is let out this way".to_owned());
        }
        let place = Arc::clone(&self.room).try_acquire_owned();
        let place = place.map_err(|_| self.allowed.owner.overload_message().to_owned())?;
        let stream = self.connect_host(&host, port).await?;
        self.record_use(format!("network: {} http://{host}{}", request.method(), uri.path()));
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut onward = Request::builder().method(request.method()).uri(path);
        onward = onward.header(header::HOST, &host);
        for name in [
            header::ACCEPT,
            header::USER_AGENT,
            header::RANGE,
            header::IF_NONE_MATCH,
            header::IF_MODIFIED_SINCE,
        ] {
            if let Some(value) = request.headers().get(&name) {
                onward = onward.header(name, value);
            }
        }
        let onward =
            onward.body(Empty::<bytes::Bytes>::new()).map_err(|error| error.to_string())?;
        let talk = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = talk.map_err(|error| error.to_string())?;
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let _place = place;
            tokio::select! {
                () = stop.cancelled() => {}
                _ = connection => {}
            }
        });
        let answer = timeout(CONNECT_TIMEOUT * 3, sender.send_request(onward)).await;
        let answer = answer.map_err(|_| format!("`{host}` did not answer in time"))?;
        let (mut parts, body) = answer.map_err(|error| error.to_string())?.into_parts();
        for name in
            [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::SET_COOKIE]
        {
            parts.headers.remove(name);
        }
        Ok(Response::from_parts(parts, body.map_err(SocketBodyError::from_cause).boxed_unsync()))
    }
}

impl SocketHandler for EgressProxy {
    async fn handle_request(self: Arc<Self>, request: Request<Incoming>) -> Response<SocketBody> {
        let what = format!("{} {}", request.method(), request.uri());
        let answered = match *request.method() {
            Method::CONNECT => Arc::clone(&self).open_tunnel(request).await,
            Method::GET | Method::HEAD => Arc::clone(&self).forward_plain_request(request).await,
            _ => Err("only CONNECT, GET and HEAD are let out this way".to_owned()),
        };
        answered.unwrap_or_else(|reason| {
            let shown: String = what.chars().take(200).collect();
            self.record_use(format!("network: refused `{shown}`: {reason}"));
            error_response(self.allowed.owner.error_kind(), StatusCode::FORBIDDEN, &reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(job: &[&str], node: &[&str]) -> Option<EgressAllowlist> {
        let owned =
            |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>();
        EgressAllowlist::intersect_hosts(&owned(job), &owned(node))
    }

    #[test]
    fn a_host_must_be_named_by_the_job_and_by_the_node() {
        assert!(allowed(&["crates.io"], &[]).is_none());
        assert!(allowed(&[], &["crates.io"]).is_none());
        assert!(allowed(&["crates.io"], &["io"]).is_none());
        let both = allowed(&["Crates.io", "pypi.org"], &["crates.io"]).unwrap();
        assert_eq!(both.hosts, BTreeSet::from(["crates.io".to_owned()]));
    }

    #[tokio::test]
    async fn a_name_that_leads_inside_is_refused() {
        let mut both = allowed(&["crates.io"], &["crates.io"]).unwrap();
        both.dialer.resolve = Arc::new(|_, port| {
            Box::pin(async move { Ok(vec![SocketAddr::from(([169, 254, 169, 254], port))]) })
        });
        let refused = both.resolve_host("crates.io", 443).await;
        assert_eq!(refused, Err("`crates.io` leads to no public address".to_owned()));
        both.dialer.resolve = Arc::new(|_, port| {
            let ips = [[10, 0, 0, 1], [93, 184, 216, 34]];
            Box::pin(async move { Ok(ips.map(|ip| SocketAddr::from((ip, port))).to_vec()) })
        });
        let open = both.resolve_host("CRATES.io", 443).await;
        assert_eq!(open, Ok(vec![SocketAddr::from(([93, 184, 216, 34], 443))]));
    }
}
