//! Browsers: cookie sessions, requests of other sites, security headers, and the files of the console.

use std::borrow::Cow;

use axum::http::{HeaderMap, Method};
use cynode_api::{BrowserAccess, ConsoleFiles, document::path_operations};
use cynode_core::roles::UserRole;
use cynode_testkit::{Client, Reply, TestApp};
use serde_json::{Value, json};

const PASSWORD: &str = "long enough!";
const HOST: &str = "localhost:12080";
const ORIGIN: &str = "http://localhost:12080";

fn https() -> BrowserAccess {
    BrowserAccess::from_public_url(Some(&"https://cynode.example/".parse().unwrap()))
}

/// A page of the console in a browser on this machine.
fn page(client: &Client) -> Client {
    client
        .with_header("host", HOST)
        .with_header("origin", ORIGIN)
        .with_header("sec-fetch-site", "same-origin")
        .with_header("content-type", "application/json")
}

/// A page of the console at its public address.
fn public_page(client: &Client) -> Client {
    page(client)
        .with_header("host", "cynode.example")
        .with_header("origin", "https://cynode.example")
}

async fn add_ada(app: &TestApp) {
    let body =
        json!({ "handle": "ada", "display_name": "Ada", "password": PASSWORD, "role": "admin" });
    let admin = app.user("root", Some(UserRole::Admin)).await;
    admin.post("/v1/users", body).await.expect(201);
}

fn credentials() -> Value {
    json!({ "handle": "ada", "password": PASSWORD })
}

fn set_cookie(reply: &Reply) -> String {
    reply.headers["set-cookie"].to_str().unwrap().to_owned()
}

/// Logs a page in. Returns it with its cookie, as the browser sends it.
async fn logged_in(page: &Client) -> Client {
    let reply = page.post("/v1/sessions", credentials()).await.expect(200);
    let cookie = set_cookie(&reply);
    page.with_header("cookie", cookie.split(';').next().unwrap())
}

#[tokio::test]
async fn a_browser_gets_its_session_as_a_cookie_that_scripts_cannot_read() {
    let app = TestApp::new().await;
    add_ada(&app).await;
    let reply = page(&app.anonymous()).post("/v1/sessions", credentials()).await.expect(200);
    let cookie = set_cookie(&reply);
    let (name, rest) = cookie.split_once('=').unwrap();
    let (token, attributes) = rest.split_once("; ").unwrap();
    assert_eq!(name, "cynode-12080");
    assert!(token.starts_with("cyn_ses_"));
    let mut attributes: Vec<&str> = attributes.split("; ").collect();
    attributes.sort_unstable();
    assert_eq!(attributes, ["HttpOnly", "Max-Age=43200", "Path=/", "SameSite=Lax"]);
    assert!(!String::from_utf8_lossy(&reply.body).contains("cyn_ses_"));

    let own = page(&app.with_browsers(https(), ConsoleFiles::default()));
    let public = public_page(&own).post("/v1/sessions", credentials()).await.expect(200);
    let cookie = set_cookie(&public);
    assert!(
        cookie.starts_with("__Host-cynode=cyn_ses_") && cookie.contains("; Secure"),
        "{cookie}"
    );
    assert!(!cookie.contains("Domain"));

    // A program has no cookie and gets the token.
    let program = app.anonymous().post("/v1/sessions", credentials()).await.expect(201);
    assert!(
        program.text("token").starts_with("cyn_ses_")
            && !program.headers.contains_key("set-cookie")
    );
}

#[tokio::test]
async fn a_browser_without_tls_from_elsewhere_gets_no_session() {
    let app = TestApp::new().await;
    add_ada(&app).await;
    let here = page(&app.anonymous());
    let elsewhere = here.at_address("192.0.2.7");
    let named = here.with_header("host", "cynode.lan").with_header("sec-fetch-site", "same-origin");
    let problem = elsewhere.post("/v1/sessions", credentials()).await.expect(403);
    assert_eq!(problem.text("code"), "insecure_transport");
    assert!(problem.text("fix").contains("server.public_url"));
    let problem = named.post("/v1/sessions", credentials()).await.expect(403);
    assert_eq!(problem.text("code"), "cross_site_request", "the origin is not the host");
    // A cookie of this machine is worth nothing from elsewhere.
    let cookie = logged_in(&here).await;
    cookie.get("/v1/me").await.expect(200);
    cookie.at_address("192.0.2.7").get("/v1/me").await.expect(401);
    cookie.with_header("host", "localhost:9999").get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn a_cookie_ends_with_its_session_as_a_bearer_token_does() {
    let app = TestApp::new().await;
    add_ada(&app).await;
    let browser = logged_in(&page(&app.anonymous())).await;
    let other = logged_in(&page(&app.anonymous())).await;
    assert_eq!(browser.get("/v1/me").await.expect(200).json()["user"]["handle"], "ada");
    let reply = browser.delete("/v1/sessions/current").await.expect(204);
    assert!(
        set_cookie(&reply).starts_with("cynode-12080=; ")
            && set_cookie(&reply).contains("Max-Age=0")
    );
    browser.get("/v1/me").await.expect(401);
    // Revoked by an admin: the next request is refused, on another replica too.
    let me =
        other.get("/v1/me").await.expect(200).json()["user"]["id"].as_str().unwrap().to_owned();
    let admin = app.user("second", Some(UserRole::Admin)).await;
    let replica = page(&app.replica()).with_header("cookie", other.header("cookie").unwrap());
    replica.get("/v1/me").await.expect(200);
    admin.patch(&format!("/v1/users/{me}"), json!({ "active": false })).await.expect(200);
    other.get("/v1/me").await.expect(401);
    replica.get("/v1/me").await.expect(401);
    page(&app.anonymous()).post("/v1/sessions", credentials()).await.expect(401);
}

#[tokio::test]
async fn a_cookie_expires_with_its_session() {
    let app = TestApp::new().await;
    add_ada(&app).await;
    let browser = logged_in(&page(&app.anonymous())).await;
    app.clock.advance(time::Duration::hours(13));
    browser.get("/v1/me").await.expect(401);
}

#[tokio::test]
async fn no_other_site_can_use_the_cookie() {
    let app = TestApp::new().await;
    add_ada(&app).await;
    let browser = logged_in(&page(&app.anonymous())).await;
    let project = json!({ "slug": "web", "title": "Web" });
    let without = |names: &[&str]| {
        let mut client = app.anonymous().with_header("host", HOST);
        for name in ["origin", "sec-fetch-site", "content-type", "cookie"] {
            if !names.contains(&name) {
                client = client.with_header(name, browser.header(name).unwrap());
            }
        }
        client
    };
    for site in ["cross-site", "same-site"] {
        let foreign = browser.with_header("sec-fetch-site", site);
        assert_eq!(foreign.get("/v1/me").await.expect(403).text("code"), "cross_site_request");
        foreign.post("/v1/projects", project.clone()).await.expect(403);
        foreign.post("/v1/sessions", credentials()).await.expect(403);
    }
    for origin in ["https://evil.example", "null", "https://localhost:12080", "http://localhost:1"]
    {
        let foreign = browser.with_header("origin", origin);
        foreign.post("/v1/projects", project.clone()).await.expect(403);
        foreign.post("/v1/sessions", credentials()).await.expect(403);
    }
    // A request that does not say where it comes from changes nothing.
    without(&["origin", "sec-fetch-site"]).post("/v1/projects", project.clone()).await.expect(403);
    // What a form of another site can send is not JSON, with and without a body.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let form = browser.with_header("content-type", kind);
        form.post("/v1/projects", project.clone()).await.expect(415);
        form.delete("/v1/sessions/current").await.expect(415);
    }
    without(&["content-type"]).delete("/v1/sessions/current").await.expect(415);
    // A repository is uploaded as it is; a form cannot send its media type, and JSON is not replaced by it.
    let bundle = browser.with_header("content-type", "application/x-git-bundle");
    bundle.put("/v1/projects/none/repository", json!({})).await.expect(404);
    bundle.post("/v1/projects", project.clone()).await.expect(415);
    let foreign = bundle.with_header("sec-fetch-site", "cross-site");
    foreign.put("/v1/projects/none/repository", json!({})).await.expect(403);
    assert_eq!(app.db.texts("SELECT slug FROM projects").await, [""; 0]);
    // Either header alone is enough from this origin.
    without(&["origin"]).post("/v1/projects", project).await.expect(201);
    let second = json!({ "slug": "api", "title": "Api" });
    without(&["sec-fetch-site"]).post("/v1/projects", second).await.expect(201);
}

#[tokio::test]
async fn a_cookie_is_a_session_of_people_only_and_a_bearer_token_goes_first() {
    let app = TestApp::new().await;
    add_ada(&app).await;
    let browser = logged_in(&page(&app.anonymous())).await;
    // Both: the bearer token alone counts.
    browser.with_token("cyn_ses_wrong").get("/v1/me").await.expect(401);
    let other = app.user("other", None).await;
    let both = browser.with_token(&other.token().unwrap());
    assert_eq!(both.get("/v1/me").await.expect(200).json()["user"]["handle"], "other");
    // Two cookies of one name, an API key, and a cookie of another server are none.
    let cookie = browser.header("cookie").unwrap().to_owned();
    browser.with_header("cookie", &format!("{cookie}; {cookie}")).get("/v1/me").await.expect(401);
    let key = other.post("/v1/api-keys", json!({ "name": "ci" })).await.expect(201).text("token");
    let keyed = browser.with_header("cookie", &format!("cynode-12080={key}"));
    keyed.get("/v1/me").await.expect(401);
    let (_, token) = cookie.split_once('=').unwrap();
    for name in ["cynode", "cynode-12081", "__Host-cynode"] {
        let named = browser.with_header("cookie", &format!("{name}={token}"));
        named.get("/v1/me").await.expect(401);
    }
    // The internal port knows no cookies, and models are asked with one on the port of people.
    let mut internal = page(&app.at_internal_port());
    internal = internal.with_header("cookie", &cookie);
    internal.get("/v1/models").await.expect(401);
    browser.get("/v1/models").await.expect(200);
    let foreign = browser.with_header("sec-fetch-site", "cross-site");
    foreign.get("/v1/models").await.expect(403);
}

fn console() -> ConsoleFiles {
    let files: [(&str, &[u8]); 7] = [
        ("index.html", b"<!doctype html><title>Console</title>"),
        ("assets/app-1a2b.js", b"let plain"),
        ("assets/app-1a2b.js.br", b"let br"),
        ("assets/app-1a2b.js.gz", b"let gz"),
        ("assets/app-1a2b.css", b"a{}"),
        ("favicon.svg", b"<svg/>"),
        ("sw.js", b"self.x"),
    ];
    ConsoleFiles::from_files(files.map(|(path, data)| (path.to_owned(), Cow::Borrowed(data))))
}

fn value<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn the_console_is_served_compressed_and_cached_by_what_its_names_promise() {
    let app = TestApp::new().await;
    let browser = app.with_browsers(BrowserAccess::Loopback, console());
    for (offer, encoding, body) in [
        ("gzip, deflate, br", "br", "let br"),
        ("gzip", "gzip", "let gz"),
        ("br;q=0, gzip;q=0.5", "gzip", "let gz"),
        ("identity", "", "let plain"),
    ] {
        let asking = browser.with_header("accept-encoding", offer);
        let reply = asking.get("/assets/app-1a2b.js").await.expect(200);
        assert_eq!(value(&reply.headers, "content-encoding"), encoding, "{offer}");
        assert_eq!(reply.body, body, "{offer}");
        assert_eq!(value(&reply.headers, "content-type"), "text/javascript; charset=utf-8");
        assert_eq!(value(&reply.headers, "vary"), "accept-encoding");
        let caching = value(&reply.headers, "cache-control");
        assert_eq!(caching, "public, max-age=31536000, immutable");
    }
    let index = browser.get("/").await.expect(200);
    assert_eq!(value(&index.headers, "cache-control"), "no-cache");
    assert_eq!(value(&index.headers, "content-type"), "text/html; charset=utf-8");
    let policy = value(&index.headers, "content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
    let known = browser.with_header("if-none-match", value(&index.headers, "etag"));
    let again = known.get("/").await.expect(304);
    assert!(again.body.is_empty());
    let build = value(&index.headers, "x-cynode-console");
    assert_eq!(value(&browser.get("/healthz").await.headers, "x-cynode-console"), build);
    assert_eq!(value(&index.headers, "etag"), format!("\"{build}\""));
}

#[tokio::test]
async fn the_service_worker_is_checked_at_every_use_and_loads_from_this_server_only() {
    let app = TestApp::new().await;
    let browser = app.with_browsers(BrowserAccess::Loopback, console());
    let worker = browser.with_header("service-worker", "script").get("/sw.js").await.expect(200);
    // At the root, its scope is the whole console without a `Service-Worker-Allowed`.
    for (name, expected) in [
        ("cache-control", "no-cache"),
        ("content-type", "text/javascript; charset=utf-8"),
        ("service-worker-allowed", ""),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(value(&worker.headers, name), expected, "{name}");
    }
    let policy = value(&worker.headers, "content-security-policy");
    assert!(policy.contains("connect-src 'self'") && policy.contains("worker-src 'self'"));
    // A server without a console has no worker either: a browser that has one removes it.
    app.anonymous().with_header("accept", "*/*").get("/sw.js").await.expect(404);
}

#[tokio::test]
async fn a_page_of_the_console_is_the_console_and_an_api_path_never_is() {
    let app = TestApp::new().await;
    let browser = app.with_browsers(BrowserAccess::Loopback, console());
    let browser = browser.with_header("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    for path in ["/tasks/tsk_1", "/tools/web.fetch", "/settings", "/inbox?kind=plan"] {
        let page = browser.get(path).await.expect(200);
        assert!(page.body.starts_with(b"<!doctype html><title>Console"), "{path}");
    }
    for path in [
        "/v1/nothing",
        "/v1",
        "/mcp",
        "/.well-known/x",
        "/assets/gone.js",
        "/assets/app-1a2b.js.br",
    ] {
        let problem = browser.get(path).await.expect(404);
        assert_eq!(problem.text("code"), "path_not_found", "{path}");
    }
    assert_eq!(
        browser.post("/tasks/x", json!({})).await.expect(404).text("code"),
        "path_not_found"
    );
    // A program that asks for a page gets the problem, not the page.
    let program = app.with_browsers(BrowserAccess::Loopback, console());
    program.get("/tasks/tsk_1").await.expect(404);
    // Without a console, a page says how to get one, and the setup link works either way.
    let without = app.anonymous().with_header("accept", "text/html");
    let page = without.get("/tasks/tsk_1").await.expect(404);
    assert!(String::from_utf8_lossy(&page.body).contains("npm run build"));
    for client in [&without, &browser] {
        let setup = client.get("/setup").await.expect(200);
        assert!(String::from_utf8_lossy(&setup.body).contains("id=\"setup\""));
    }
}

#[tokio::test]
async fn every_answer_of_the_port_has_the_security_headers() {
    let app = TestApp::new().await;
    let plain = app.with_browsers(BrowserAccess::Loopback, console());
    let tls = app.with_browsers(https(), console());
    let mut paths = vec![
        ("get", "/".to_owned()),
        ("get", "/setup".to_owned()),
        ("get", "/favicon.svg".to_owned()),
        ("get", "/assets/app-1a2b.css".to_owned()),
        ("get", "/nothing".to_owned()),
        ("get", "/v1/models".to_owned()),
        ("post", "/v1/chat/completions".to_owned()),
    ];
    let mut document = cynode_api::public_openapi();
    for (path, item) in &mut document.paths.paths {
        paths.extend(
            path_operations(item)
                .into_iter()
                .map(|(method, _)| (method, path.replace(['{', '}'], ""))),
        );
    }
    for (method, path) in paths {
        let method: Method = method.to_uppercase().parse().unwrap();
        for (client, hsts) in [(&plain, ""), (&tls, "max-age=31536000")] {
            let reply = client.raw(method.clone(), &path, None).await;
            let headers = reply.headers();
            for (name, expected) in [
                ("x-content-type-options", "nosniff"),
                ("referrer-policy", "no-referrer"),
                ("cross-origin-opener-policy", "same-origin"),
                ("cross-origin-resource-policy", "same-origin"),
                ("strict-transport-security", hsts),
            ] {
                assert_eq!(value(headers, name), expected, "{name} of {method} {path}");
            }
            let policy = value(headers, "content-security-policy");
            assert!(policy.starts_with("default-src 'none'; "), "{method} {path}: {policy}");
            for word in ["base-uri 'none'", "frame-ancestors 'none'"] {
                assert!(policy.contains(word), "{method} {path}: {policy}");
            }
            assert!(!policy.contains("unsafe"), "{method} {path}: {policy}");
            assert!(value(headers, "permissions-policy").contains("camera=()"), "{method} {path}");
            assert!(headers.contains_key("cache-control"), "{method} {path}");
        }
    }
}
