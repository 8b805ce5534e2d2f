//! Files have the digest of the index, or they are not served.

use cynode_core::environments::{PackageFetch, PackageSource};
use cynode_testkit::package_registry::{PublishedVersion, RegistryReply};

use crate::support::{Scene, Setup};

const PATHS: [&str; 3] =
    ["/crates/dl/demo/1.0.0", "/pypi/files/demo/demo-1.0.0.tar.gz", "/npm/demo/-/demo-1.0.0.tgz"];

fn publish_everywhere(scene: &Scene, version: &PublishedVersion) {
    let versions = std::slice::from_ref(version);
    scene.registry.publish_crates(versions);
    scene.registry.publish_python(versions);
    scene.registry.publish_npm(versions);
}

#[tokio::test]
async fn a_package_is_served_checked_and_reported_and_then_comes_from_the_cache() {
    let scene = Scene::start(Setup::default()).await;
    for (path, source) in
        PATHS.into_iter().zip([PackageSource::Crates, PackageSource::Pypi, PackageSource::Npm])
    {
        let file = format!("the file of {}", source.as_str());
        publish_everywhere(&scene, &PublishedVersion::new("demo", "1.0.0", file.as_bytes()));
        for cached in [false, true] {
            let reply = scene.get(path).await;
            assert_eq!((reply.status.as_u16(), reply.text()), (200, file.as_str()), "{path}");
            let sha256 = reply.headers["etag"].to_str().unwrap().trim_matches('"').to_owned();
            let expected = PackageFetch {
                source,
                package: "demo".to_owned(),
                version: "1.0.0".to_owned(),
                sha256,
                bytes: file.len() as u64,
                cached,
                refused: None,
            };
            assert_eq!(scene.take_reports(), [expected]);
        }
    }
}

#[tokio::test]
async fn a_file_with_a_wrong_digest_is_refused_with_the_reason_and_not_kept() {
    let scene = Scene::start(Setup::default()).await;
    let version = PublishedVersion {
        digest_of: Some(b"what the author published".to_vec()),
        ..PublishedVersion::new("demo", "1.0.0", b"something else")
    };
    publish_everywhere(&scene, &version);
    for path in PATHS {
        let before = scene.cached_files().0;
        let (status, reason) = scene.get(path).await.refusal();
        assert_eq!(status, 403, "{path}");
        assert!(reason.starts_with("the file has a wrong digest and was not kept: "), "{reason}");
        let reports = scene.take_reports();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].refused, Some(reason));
        // Only documents of the index were added.
        assert!(scene.cached_files().0 <= before + 2, "{path}");
    }
    assert_eq!(scene.cached_files().1, 0);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_never_served_and_the_next_try_is_whole() {
    let scene = Scene::start(Setup::default()).await;
    let file = vec![7; 200_000];
    scene.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", &file)]);
    let upstream = "/npm/demo/-/demo-1.0.0.tgz";
    scene.registry.put_reply(upstream, RegistryReply::Truncated(file.clone()));
    let reply = scene.get(upstream).await;
    assert_eq!(reply.refusal(), (502, "the registry's answer broke off".to_owned()));
    assert_eq!(scene.cached_files().1, 0);
    scene.registry.put_reply(upstream, RegistryReply::Body("application/gzip", file.clone()));
    assert_eq!(scene.get(upstream).await.body, file);
}

#[tokio::test]
async fn a_request_that_is_dropped_in_the_middle_leaves_nothing_behind() {
    let scene = Scene::start(Setup::default()).await;
    let file = vec![9; 200_000];
    scene.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", &file)]);
    let upstream = "/npm/demo/-/demo-1.0.0.tgz";
    scene.registry.put_reply(upstream, RegistryReply::Held(file.clone()));
    tokio::select! {
        _ = scene.get(upstream) => unreachable!("the body is held"),
        () = scene.registry.wait_requested(upstream) => {}
    }
    scene.registry.release_held();
    assert_eq!(scene.get(upstream).await.body, file);
    assert_eq!(scene.cached_files(), (2, 0));
}

#[tokio::test]
async fn a_part_of_a_file_comes_from_the_cache() {
    let scene = Scene::start(Setup::default()).await;
    scene.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", b"0123456789")]);
    let path = "/npm/demo/-/demo-1.0.0.tgz";
    let request = |range: &str| hyper::Request::get(path).header("range", range);
    let reply = scene.send(request("bytes=2-4")).await;
    assert_eq!((reply.status.as_u16(), reply.text()), (206, "234"));
    assert_eq!(reply.headers["content-range"], "bytes 2-4/10");
    let reply = scene.send(hyper::Request::head(path)).await;
    assert_eq!((reply.status.as_u16(), reply.text()), (200, ""));
    assert_eq!(reply.headers["content-length"], "10");
    assert_eq!(scene.registry.count_requests(path), 1);
}
