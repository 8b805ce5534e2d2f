//! What policy refuses is neither in the index nor served.

use cynode_core::environments::PackagePolicy;
use cynode_testkit::package_registry::PublishedVersion;

use crate::support::{Scene, Setup};

const OLD: &str = "2026-01-01T00:00:00Z";
const YOUNG: &str = "2027-01-13T08:00:00Z";

fn version(version: &str, published: &str) -> PublishedVersion {
    let file = format!("file {version}");
    PublishedVersion {
        published: Some(published.to_owned()),
        ..PublishedVersion::new("demo", version, file.as_bytes())
    }
}

#[tokio::test]
async fn a_yanked_version_is_hidden_and_refused() {
    let scene = Scene::start(Setup::default()).await;
    let yanked = PublishedVersion { yanked: true, ..version("1.1.0", OLD) };
    let versions = [version("1.0.0", OLD), yanked];
    scene.registry.publish_crates(&versions);
    scene.registry.publish_python(&versions);
    for (index, file, name) in [
        ("/crates/de/mo/demo", "/crates/dl/demo/1.1.0", "crates"),
        ("/pypi/simple/demo/", "/pypi/files/demo/demo-1.1.0.tar.gz", "pypi"),
    ] {
        let reply = scene.get(index).await;
        assert!(reply.text().contains("1.0.0") && !reply.text().contains("1.1.0"), "{reply:?}");
        let reason = format!("`{name}:demo 1.1.0` was yanked: choose another version");
        assert_eq!(scene.get(file).await.refusal(), (403, reason.clone()));
        let reports = scene.take_reports();
        assert_eq!(reports.iter().map(|it| it.refused.clone()).collect::<Vec<_>>(), [Some(reason)]);
    }
}

#[tokio::test]
async fn a_version_that_is_too_young_is_hidden_refused_and_reported_once() {
    let policy = PackagePolicy { min_age_days: 7, ..PackagePolicy::default() };
    let scene = Scene::start(Setup { policy, ..Setup::default() }).await;
    let versions = [version("1.0.0", OLD), version("1.1.0", YOUNG)];
    scene.registry.publish_crates(&versions);
    scene.registry.publish_python(&versions);
    scene.registry.publish_npm(&versions);
    for (index, good, bad, name) in [
        ("/crates/de/mo/demo", "/crates/dl/demo/1.0.0", "/crates/dl/demo/1.1.0", "crates"),
        (
            "/pypi/simple/demo/",
            "/pypi/files/demo/demo-1.0.0.tar.gz",
            "/pypi/files/demo/demo-1.1.0.tar.gz",
            "pypi",
        ),
        ("/npm/demo", "/npm/demo/-/demo-1.0.0.tgz", "/npm/demo/-/demo-1.1.0.tgz", "npm"),
    ] {
        for _ in 0..2 {
            let reply = scene.get(index).await;
            assert!(reply.text().contains("1.0.0") && !reply.text().contains("1.1.0"), "{reply:?}");
        }
        let reason = format!("`{name}:demo 1.1.0` is 2 days old, and policy wants at least 7");
        assert_eq!(scene.get(bad).await.refusal(), (403, reason.clone()));
        let reports = scene.take_reports();
        assert_eq!(reports.iter().map(|it| it.refused.clone()).collect::<Vec<_>>(), [Some(reason)]);
        assert_eq!(scene.get(good).await.text(), "file 1.0.0");
        scene.take_reports();
    }
    let packument: serde_json::Value =
        serde_json::from_slice(&scene.get("/npm/demo").await.body).unwrap();
    assert_eq!(packument["dist-tags"]["latest"], "1.0.0");
    assert_eq!(
        packument["versions"]["1.0.0"]["dist"]["tarball"],
        "http://127.0.0.1:3129/npm/demo/-/demo-1.0.0.tgz"
    );
}

#[tokio::test]
async fn a_forbidden_package_or_licence_or_advisory_is_refused_with_the_reason() {
    let policy = PackagePolicy {
        forbidden: vec!["npm:demo".to_owned(), "crates:demo==1.0.0".to_owned()],
        forbidden_licences: vec!["GPL-3.0-only".to_owned()],
        ..PackagePolicy::default()
    };
    let advisories = r#"[{"id":"OSV-1","affected":[{"package":{"ecosystem":"PyPI","name":"Demo"},"versions":["1.1.0"]}]}]"#;
    let scene =
        Scene::start(Setup { policy, advisories: Some(advisories.to_owned()), ..Setup::default() })
            .await;
    let copyleft =
        PublishedVersion { licence: Some("GPL-3.0-only".to_owned()), ..version("1.0.0", OLD) };
    let versions = [copyleft, version("1.1.0", OLD)];
    scene.registry.publish_crates(&versions);
    scene.registry.publish_python(&versions);
    scene.registry.publish_npm(&versions);
    for (path, reason) in [
        ("/npm/demo", "policy forbids the package `npm:demo`"),
        ("/npm/demo/-/demo-1.1.0.tgz", "policy forbids the package `npm:demo`"),
        ("/crates/dl/demo/1.0.0", "policy forbids the version `crates:demo 1.0.0`"),
        (
            "/pypi/files/demo/demo-1.0.0.tar.gz",
            "policy forbids the licence `GPL-3.0-only` of `pypi:demo 1.0.0`",
        ),
        ("/pypi/files/demo/demo-1.1.0.tar.gz", "`pypi:demo 1.1.0` has the advisory OSV-1"),
    ] {
        assert_eq!(scene.get(path).await.refusal(), (403, reason.to_owned()), "{path}");
    }
    assert_eq!(scene.get("/crates/dl/demo/1.1.0").await.status, 200);
    // What was fetched before the advisory came is refused when it is looked at again.
    let fetched = ["pypi:demo==1.0.0", "npm:demo==1.1.0", "pypi:Demo==1.1.0"].map(str::to_owned);
    assert_eq!(scene.proxy.find_advisory(&fetched[..2]), None);
    let reason = "`pypi:Demo 1.1.0` has the advisory OSV-1".to_owned();
    assert_eq!(scene.proxy.find_advisory(&fetched), Some(reason));
}
