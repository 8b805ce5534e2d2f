//! Attacks of strangers on a port, over real connections.

use std::{fmt::Write as _, net::Ipv4Addr};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::StatusCode;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};

use super::*;

/// Longer than anything that a test waits for takes.
const LONG: Duration = Duration::from_secs(20);

/// A server that answers with the source of a request and the length of its body.
struct RunningServer {
    address: SocketAddr,
    stop: CancellationToken,
    ended: JoinHandle<()>,
}

impl RunningServer {
    async fn start(options: ServerOptions) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let server = LimitedServer::new(options);
        let (tasks, until) = (TaskTracker::new(), stop.clone());
        let service = tower::service_fn(describe_request);
        let ended =
            tasks.spawn(async move { server.serve_listener(listener, service, until).await });
        Self { address, stop, ended }
    }

    /// Opens a connection and sends these bytes.
    async fn send(&self, bytes: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        stream
    }

    /// Makes a request as an innocent client does. Returns its answer.
    async fn request(&self) -> String {
        let request = "GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";
        read_to_end(self.send(request).await).await
    }
}

async fn describe_request(
    request: Request<PacedBody>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut text = String::new();
    let _ = write!(text, "{:?}", request.extensions().get::<ClientSource>());
    let status = match request.into_body().collect().await {
        Ok(body) => {
            let _ = write!(text, " {}", body.to_bytes().len());
            StatusCode::OK
        }
        Err(error) => {
            let _ = write!(text, " {error}");
            StatusCode::REQUEST_TIMEOUT
        }
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    Ok(response)
}

/// Reads until the server closes the connection. A connection that is cut off gives what came before.
async fn read_to_end(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = timeout(LONG, stream.read_to_end(&mut bytes)).await;
    let _ = read.expect("the server closes the connection");
    String::from_utf8(bytes).unwrap()
}

fn status_of(answer: &str) -> &str {
    answer.lines().next().unwrap_or_default()
}

#[tokio::test]
async fn half_a_header_holds_no_connection_and_keeps_nobody_out() {
    let header_timeout = Duration::from_millis(300);
    let server =
        RunningServer::start(ServerOptions { header_timeout, ..ServerOptions::default() }).await;
    let mut slow = Vec::new();
    for _ in 0..100 {
        slow.push(server.send("GET / HTTP/1.1\r\nhost: here\r\nx-slow: ").await);
    }
    // Those who send nothing at all are no better off.
    slow.push(server.send("").await);
    assert_eq!(status_of(&server.request().await), "HTTP/1.1 200 OK");
    for stream in slow {
        assert_eq!(read_to_end(stream).await, "", "a slow one was answered");
    }
    assert_eq!(status_of(&server.request().await), "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_connection_that_stays_idle_after_a_request_is_closed() {
    let keep_alive_timeout = Duration::from_millis(300);
    let options = ServerOptions { keep_alive_timeout, ..ServerOptions::default() };
    let server = RunningServer::start(options).await;
    let stream = server.send("GET / HTTP/1.1\r\nhost: here\r\n\r\nGET / HT").await;
    assert_eq!(status_of(&read_to_end(stream).await), "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn connections_above_the_limit_are_refused_at_once_and_a_free_place_is_used_again() {
    let options = ServerOptions { max_connections: 4, ..ServerOptions::default() };
    let server = RunningServer::start(options).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(server.send("GET / HTTP/1.1\r\n").await);
    }
    let refused = read_to_end(TcpStream::connect(server.address).await.unwrap()).await;
    assert_eq!(refused.as_bytes(), TOO_MANY_CONNECTIONS_RESPONSE);
    drop(held.pop());
    let served = async {
        while status_of(&server.request().await) != "HTTP/1.1 200 OK" {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, served).await.expect("the place is free again");
}

#[test]
fn one_source_takes_its_own_places_and_no_stranger_takes_those_of_this_machine() {
    let options = ServerOptions {
        max_connections: 10,
        max_connections_per_source: 4,
        ..ServerOptions::default()
    };
    let server = LimitedServer::new(options.clone());
    let admit = |peer: &str| server.shared.admit_connection(peer.parse().unwrap());
    let first: Vec<_> =
        (0..4).map(|port| admit(&format!("192.0.2.7:{}", 4000 + port)).unwrap()).collect();
    let attacker: SocketAddr = "192.0.2.7:5000".parse().unwrap();
    let own = ConnectionScope::Source(ClientSource::from_address(attacker.ip()));
    assert_eq!(admit("192.0.2.7:5000").unwrap_err(), own);
    assert!(server.shared.is_crowded(attacker), "its connections end with their response");
    let innocent = admit("192.0.2.8:5000").unwrap();
    assert!(!server.shared.is_crowded("192.0.2.8:5000".parse().unwrap()));
    let rest: Vec<_> =
        (0..5).map(|host| admit(&format!("198.51.100.{host}:80")).unwrap()).collect();
    assert_eq!(admit("203.0.113.1:80").unwrap_err(), ConnectionScope::Remote);
    let local = admit("127.0.0.1:80").unwrap();
    drop((first, innocent, rest, local));
    admit("192.0.2.7:5000").unwrap();

    // A trusted proxy brings the connections of many people.
    let trusted_proxies = vec!["192.0.2.7".parse().unwrap()];
    let server = LimitedServer::new(ServerOptions { trusted_proxies, ..options });
    let admit = |peer: &str| server.shared.admit_connection(peer.parse().unwrap());
    let many: Vec<_> = (0..10).map(|_| admit("192.0.2.7:80").unwrap()).collect();
    assert_eq!(admit("192.0.2.7:80").unwrap_err(), ConnectionScope::Remote);
    drop(many);
}

#[tokio::test]
async fn a_body_that_trickles_in_is_given_up_and_a_steady_one_is_not() {
    let body_pace =
        BodyPace { grace: Duration::from_millis(300), min_bytes_per_second: 1024 * 1024 };
    let server =
        RunningServer::start(ServerOptions { body_pace, ..ServerOptions::default() }).await;
    let head = "POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut slow = server.send(head).await;
    // Each byte comes in time for an idle timeout; all of them together are too slow.
    let mut turn = tokio::time::interval(Duration::from_millis(50));
    let trickle = async {
        loop {
            turn.tick().await;
            if slow.write_all(b"1\r\nx\r\n").await.is_err() {
                return;
            }
            let mut answer = [0; 32];
            let read = timeout(Duration::from_millis(1), slow.read(&mut answer)).await;
            if let Ok(Ok(length)) = read {
                let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
                assert_eq!(status_of(&answer), "HTTP/1.1 408 Request Timeout");
                return;
            }
        }
    };
    timeout(LONG, trickle).await.expect("the trickle is given up");
    let body = "x".repeat(100_000);
    let steady = format!(
        "POST / HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = read_to_end(server.send(&steady).await).await;
    assert!(answer.ends_with(" 100000"), "{answer}");
}

#[tokio::test]
async fn a_request_carries_the_source_that_a_trusted_proxy_names() {
    let request =
        "GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\nx-forwarded-for: 192.0.2.7\r\n\r\n";
    let trusting = ServerOptions {
        trusted_proxies: vec!["127.0.0.1".parse().unwrap()],
        ..ServerOptions::default()
    };
    for (options, address) in [(trusting, "192.0.2.7"), (ServerOptions::default(), "127.0.0.1")] {
        let server = RunningServer::start(options).await;
        let source = ClientSource::from_address(address.parse().unwrap());
        let answer = read_to_end(server.send(request).await).await;
        assert!(answer.ends_with(&format!("{:?} 0", Some(source))), "{answer}");
    }
}

#[tokio::test]
async fn a_server_that_is_stopped_closes_idle_connections_and_ends() {
    let server = RunningServer::start(ServerOptions::default()).await;
    let mut idle = server.send("GET / HTTP/1.1\r\nhost: here\r\n\r\n").await;
    let mut answer = [0; 15];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    server.stop.cancel();
    timeout(LONG, server.ended).await.expect("the server ends").unwrap();
    read_to_end(idle).await;
}

#[test]
fn behind_a_proxy_only_this_machine_and_the_proxy_may_connect() {
    let server = LimitedServer::new(ServerOptions {
        trusted_proxies: vec!["10.0.0.1".parse().unwrap()],
        only_trusted_peers: true,
        ..ServerOptions::default()
    });
    let admitted = |peer: &str| server.shared.admit_connection(peer.parse().unwrap()).is_ok();
    assert!(admitted("10.0.0.1:5") && admitted("127.0.0.1:5"));
    assert!(!admitted("10.0.0.2:5") && !admitted("[2001:db8::1]:5"));
}
