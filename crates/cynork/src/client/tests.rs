use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

#[test]
fn values_take_their_places_and_are_written_so_that_they_stay_one_word() {
    let call = ApiRequest::with_path_params(operations::SET_MODEL, ["qwen/0.5 b"])
        .with_query("project", Some("a&b"))
        .with_query("state", None::<&str>);
    assert_eq!(call.request_target(), "/v1/model-registry/qwen%2F0.5%20b?project=a%26b");
}

#[test]
fn a_server_more_than_one_release_away_is_named_with_what_to_install() {
    let fits = |release: &str| {
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert(RELEASE_HEADER, release.parse().unwrap());
        ensure_release_fits(&headers)
    };
    assert_eq!(ensure_release_fits(&reqwest::header::HeaderMap::new()), Ok(()));
    assert_eq!(fits(&Release::current().to_string()), Ok(()));
    let refused = fits("99.0.0").unwrap_err();
    assert_eq!(refused.kind, CliErrorKind::Conflict);
    assert_eq!(refused.fix.as_deref(), Some("install `cynork` 99.0.0"));
    assert!(fits("next").is_err());
}

#[test]
fn whoever_is_not_let_in_is_told_what_of_it_was_wrong() {
    let problem = serde_json::json!({ "type": "urn:cynode:problem:unauthenticated", "title": "Unauthorized",
        "status": 401, "code": "unauthenticated", "detail": "credentials are missing, expired, revoked or wrong",
        "fix": "log in, or send a valid API key as `Authorization: Bearer …`" });
    let told = |tried: Operation, has_token: bool| {
        let said = CliError::from_response(401, problem.to_string().as_bytes());
        let failure = unauthenticated_error(said, tried, has_token);
        assert_eq!(
            (failure.kind, failure.code.as_deref()),
            (CliErrorKind::Refused, Some("unauthenticated"))
        );
        (failure.detail, failure.fix)
    };
    let again = Some("log in with `cynork login`".to_owned());
    let wrong = "the name or the password is wrong".to_owned();
    assert_eq!(told(operations::LOGIN, false), (wrong.clone(), None));
    // Whoever logs in anew still has what ran out.
    assert_eq!(told(operations::LOGIN, true), (wrong, None));
    assert!(told(operations::BOOTSTRAP, false).0.starts_with("this link was used"));
    assert_eq!(
        told(operations::LIST_TASKS, false),
        ("you are not logged in".to_owned(), again.clone())
    );
    assert_eq!(
        told(operations::LIST_TASKS, true),
        ("your session or API key has run out, was revoked or is wrong".to_owned(), again)
    );
}

#[test]
fn a_wrong_address_is_answered_with_the_right_one() {
    let why = "received corrupt message of type InvalidContentType";
    let told = no_answer_error("https://127.0.0.1:12080", why);
    assert_eq!(
        (told.detail.as_str(), told.fix.as_deref()),
        (
            "no answer from https://127.0.0.1:12080: what is there does not speak TLS",
            Some("try http://127.0.0.1:12080")
        )
    );
    let told = no_answer_error("http://127.0.0.1:1", "Connection refused");
    assert!(told.fix.unwrap().starts_with("start it with `cynode up`"));
    let client = ApiClient::new("http://127.0.0.1:12082").unwrap();
    let problem = serde_json::json!({ "type": "urn:cynode:problem:path_not_found", "title": "Not Found", "status": 404,
        "code": "path_not_found", "detail": "there is nothing at this path", "fix": "`/v1/openapi.json` lists every path" });
    let told = client.refusal_error(
        &ApiRequest::for_operation(operations::LIST_TASKS),
        404,
        problem.to_string().as_bytes(),
    );
    assert!(told.fix.unwrap().starts_with("is this the port for people"));
    let told = client.refusal_error(&ApiRequest::for_operation(operations::HEALTHZ), 404, b"no");
    assert_eq!(
        told.fix.as_deref(),
        Some(
            "is this the address of a CyNode server? Name another with `--url` or `cynork login URL`"
        )
    );
}

#[tokio::test]
async fn a_stream_of_which_nothing_comes_any_more_has_broken() {
    let peer = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = ApiClient::new(&format!("http://{}", peer.local_addr().unwrap())).unwrap();
    // It says one thing, and then nothing, though it stays.
    let answering = async {
        let (mut stream, _) = peer.accept().await.unwrap();
        let read = stream.read(&mut [0; 1024]).await.unwrap();
        assert!(read > 0, "it was asked");
        let said =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nid: 1.1\ndata: a\n\n";
        stream.write_all(said).await.unwrap();
        stream
    };
    let call = ApiRequest::for_operation(operations::FOLLOW_EVENTS);
    let (events, _stream) = tokio::join!(client.open_event_stream(&call), answering);
    let mut events = events.unwrap();
    assert_eq!(events.next().await.unwrap().data, "a");
    let mut events = events.with_idle_timeout(Duration::from_millis(1));
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn a_stream_that_a_failure_ended_says_which() {
    let peer = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = ApiClient::new(&format!("http://{}", peer.local_addr().unwrap())).unwrap();
    let answering = async {
        let (mut stream, _) = peer.accept().await.unwrap();
        assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0, "it was asked");
        let said = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\nid: 1.1\ndata: a\n\n\
            event: stream.failed\ndata: {\"type\":\"urn:cynode:problem:unavailable\",\"title\":\"Service Unavailable\",\"status\":503,\
            \"code\":\"unavailable\",\"detail\":\"the database cannot be reached\"}\n\n";
        stream.write_all(said.as_bytes()).await.unwrap();
        stream
    };
    let call = ApiRequest::for_operation(operations::FOLLOW_EVENTS);
    let (events, _stream) = tokio::join!(client.open_event_stream(&call), answering);
    let mut events = events.unwrap();
    assert_eq!(events.next().await.unwrap().data, "a");
    assert_eq!(events.take_error(), None);
    assert_eq!(events.next().await, None);
    let failure = events.take_error().unwrap();
    assert_eq!((failure.kind, failure.status), (CliErrorKind::Unreachable, Some(503)));
    assert_eq!(failure.detail, "the database cannot be reached");
    assert!(failure.is_transient());
}

#[test]
fn an_event_keeps_its_id_its_name_and_its_data() {
    let bytes = b": hello\n\nid: 1.2\nevent: task.created\ndata: {\"a\":1}\ndata: 2\n\nid: 3";
    let mut events = Vec::new();
    SseEventParser::new(MAX_EVENT_BYTES).push_raw_bytes(bytes, &mut events).unwrap();
    let events: Vec<_> = events.into_iter().map(ServerSentEvent::from).collect();
    let wanted = ServerSentEvent {
        id: "1.2".into(),
        event: "task.created".into(),
        data: "{\"a\":1}\n2".into(),
    };
    assert_eq!(events, [wanted]);
}

#[test]
fn a_session_goes_over_an_open_line_only_on_this_machine() {
    for base in ["http://cynode.example:12080", "http://10.0.0.7", "http://127.0.0.1.example"] {
        let refused = ApiClient::new(base).unwrap_err();
        assert_eq!(refused.kind, CliErrorKind::Refused, "{base}");
        assert!(refused.detail.contains("is not encrypted"), "{}", refused.detail);
        let allowed = ClientTransport { insecure: true, ..ClientTransport::default() };
        assert!(ApiClient::with_transport(base, allowed).is_ok(), "{base}");
    }
    for base in ["http://127.0.0.1:12080", "http://localhost:12080", "https://cynode.example"] {
        assert!(ApiClient::new(base).is_ok(), "{base}");
    }
    let local = ApiClient::new("http://127.0.0.1:12080").unwrap();
    assert!(local.for_base_url("http://cynode.example").is_err(), "another installation too");
}

#[test]
fn a_file_without_a_certificate_is_not_trusted() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("ca.pem");
    std::fs::write(&path, "hunter2").unwrap();
    let transport = ClientTransport { ca_file: Some(path), insecure: false };
    let refused = ApiClient::with_transport("https://cynode.example", transport).unwrap_err();
    assert_eq!(refused.kind, CliErrorKind::Usage);
}
