//! Nothing of a job leaves the node but the names of packages, versions and files.

use std::collections::BTreeSet;

use cynode_core::environments::PackageSource;
use cynode_testkit::package_registry::{PackageRegistry, PublishedVersion, RegistryReply};
use hyper::Request;

use crate::support::{Scene, Setup};

#[tokio::test]
async fn uploads_logins_searches_and_other_hosts_never_reach_a_registry() {
    let scene = Scene::start(Setup::default()).await;
    for (method, path) in [
        ("POST", "/pypi/legacy/"),
        ("PUT", "/npm/demo"),
        ("PUT", "/npm/-/user/org.couchdb.user:x"),
        ("DELETE", "/npm/demo/-rev/1"),
        ("PUT", "/crates/api/v1/crates/new"),
        ("POST", "/npm/-/npm/v1/security/audits/quick"),
        ("GET", "/npm/-/whoami"),
        ("GET", "/npm/-/v1/search"),
        ("GET", "/npm/-/npm/v1/security/advisories/bulk"),
        ("GET", "/crates/api/v1/crates"),
        ("GET", "/pypi/search"),
        ("GET", "/pypi/pypi/demo/json"),
        ("GET", "/debian/0/../../secret"),
        ("GET", "/debian/0/project/x"),
        ("GET", "/debian/7/dists/stable/InRelease"),
        ("GET", "/npm/demo?leak=secret"),
        ("GET", "/elsewhere/x"),
        ("GET", "http://elsewhere.example/npm/demo"),
        ("CONNECT", "elsewhere.example:443"),
        ("OPTIONS", "/npm/demo"),
        ("TRACE", "/npm/demo"),
    ] {
        let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:3129");
        let reply = scene.send(request).await;
        assert_eq!(reply.status, 403, "{method} {path}");
    }
    assert_eq!(scene.registry.requests(), Vec::new());
}

#[tokio::test]
async fn headers_of_a_job_stay_in_the_node() {
    let scene = Scene::start(Setup::default()).await;
    scene.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", b"x")]);
    let request = Request::get("/npm/demo/-/demo-1.0.0.tgz")
        .header("host", "leak.example")
        .header("authorization", "Bearer leak")
        .header("cookie", "leak")
        .header("user-agent", "leak")
        .header("x-leak", "leak")
        .header("referer", "leak");
    assert_eq!(scene.send(request).await.status, 200);
    let sent: BTreeSet<_> =
        scene.registry.requests().into_iter().flat_map(|it| it.headers).collect();
    assert_eq!(sent, ["accept", "host", "user-agent"].map(str::to_owned).into());
}

#[tokio::test]
async fn a_redirect_or_an_index_that_names_another_host_is_refused() {
    let other = PackageRegistry::start().await;
    let scene = Scene::start(Setup::default()).await;
    let target = other.url("/demo-1.0.0.tgz");
    scene.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", b"x")]);
    let path = "/npm/demo/-/demo-1.0.0.tgz";
    scene.registry.put_reply(path, RegistryReply::Redirect(target.clone()));
    let (status, reason) = scene.get(path).await.refusal();
    assert_eq!(status, 403);
    assert!(reason.contains("is no host of this registry"), "{reason}");

    let index = format!(
        r#"{{"files":[{{"filename":"demo-1.0.0.tar.gz","url":"{target}","hashes":{{"sha256":"{}"}}}}]}}"#,
        "a".repeat(64)
    );
    let reply = RegistryReply::Body("application/vnd.pypi.simple.v1+json", index.into_bytes());
    scene.registry.put_reply("/simple/demo/", reply);
    assert_eq!(scene.get("/pypi/files/demo/demo-1.0.0.tar.gz").await.status, 403);
    assert_eq!(other.requests(), Vec::new());
}

#[tokio::test]
async fn a_redirect_within_the_hosts_of_the_registry_is_followed() {
    let files = PackageRegistry::start().await;
    let overrides = vec![("npm_files", files.address.to_string())];
    let scene = Scene::start(Setup { overrides, ..Setup::default() }).await;
    scene.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", b"x")]);
    let path = "/npm/demo/-/demo-1.0.0.tgz";
    scene.registry.put_reply(path, RegistryReply::Redirect(files.url("/x.tgz")));
    files.put_reply("/x.tgz", RegistryReply::Body("application/gzip", b"x".to_vec()));
    assert_eq!(scene.get(path).await.text(), "x");
}

#[tokio::test]
async fn only_the_sources_of_the_environment_answer() {
    let sources = Some(vec![PackageSource::Pypi]);
    let scene = Scene::start(Setup { sources, ..Setup::default() }).await;
    assert_eq!(
        scene.get("/npm/demo").await.refusal(),
        (
            403,
            "the environment does not have the package source `npm`: add it to `package_sources`"
                .to_owned()
        )
    );
    assert_eq!(scene.registry.requests(), Vec::new());
}

#[tokio::test]
async fn credentials_go_to_the_host_of_the_registry_and_to_no_other() {
    let files = PackageRegistry::start().await;
    let registry = PackageRegistry::start().await;
    let overrides = vec![
        ("npm", format!("http://user:hush@{}/npm/", registry.address)),
        ("npm_files", files.address.to_string()),
    ];
    registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", b"x")]);
    let path = "/npm/demo/-/demo-1.0.0.tgz";
    registry.put_reply(path, RegistryReply::Redirect(files.url("/x.tgz")));
    files.put_reply("/x.tgz", RegistryReply::Body("application/gzip", b"x".to_vec()));
    let scene = Scene::start(Setup { overrides, ..Setup::default() }).await;
    assert_eq!(scene.get(path).await.text(), "x");
    let with_credentials = |registry: &PackageRegistry| {
        let has = |headers: &Vec<String>| headers.contains(&"authorization".to_owned());
        registry.requests().iter().filter(|it| has(&it.headers)).count()
    };
    assert_eq!((with_credentials(&registry), with_credentials(&files)), (2, 0));
    let shown = scene.get("/npm/demo").await;
    assert!(
        !shown.text().contains("hush") && !shown.text().contains(&registry.address.to_string())
    );
}

#[tokio::test]
async fn debian_files_pass_and_by_hash_files_have_their_hash() {
    let scene = Scene::start(Setup::default()).await;
    let hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let put = |path: &str, body: &str| {
        let reply = RegistryReply::Body("text/plain", body.as_bytes().to_vec());
        scene.registry.put_reply(&format!("/debian{path}"), reply);
    };
    let wrong = hello.replace("2c", "3c");
    let release = format!("SHA256:\n {hello} 5 main/x\n {wrong} 5 main/y\n");
    let index = |digest: &str| format!("/dists/stable/main/binary-amd64/by-hash/SHA256/{digest}");
    put("/dists/stable/InRelease", &release);
    put(&index(hello), "hello");
    put("/pool/main/d/demo/demo_1.0+b1_amd64.deb", "deb");
    let mut bodies = Vec::new();
    for path in [
        "/dists/stable/InRelease".to_owned(),
        index(hello),
        "/pool/main/d/demo/demo_1.0%2bb1_amd64.deb".to_owned(),
    ] {
        bodies.push(scene.get(&format!("/debian/0{path}")).await.text().to_owned());
    }
    assert_eq!(bodies, [release.as_str(), "hello", "deb"]);
    let reports = scene.take_reports();
    assert_eq!(
        reports.iter().map(|it| (it.package.as_str(), it.version.as_str())).collect::<Vec<_>>(),
        [("demo", "1.0+b1")]
    );
    put(&index(&wrong), "hello");
    assert_eq!(scene.get(&format!("/debian/0{}", index(&wrong))).await.status, 403);
    let unnamed = "f".repeat(64);
    assert_eq!(scene.get(&format!("/debian/0{}", index(&unnamed))).await.status, 404);
    assert_eq!(scene.registry.count_requests(&format!("/debian{}", index(&unnamed))), 0);
}
