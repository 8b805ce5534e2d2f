//! What is fetched once, kept, exported, imported and removed.

use std::sync::{Arc, atomic::Ordering};

use cynode_testkit::package_registry::{PublishedVersion, RegistryReply};
use futures::future::join_all;

use crate::support::{Scene, Setup};

const PATH: &str = "/npm/demo/-/demo-1.0.0.tgz";

#[tokio::test]
async fn parallel_requests_for_a_file_lead_to_one_fetch() {
    let scene = Scene::start(Setup::default()).await;
    let file = vec![5; 100_000];
    scene.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", &file)]);
    scene.registry.put_reply(PATH, RegistryReply::Held(file.clone()));
    let all = join_all((0..16).map(|_| scene.get(PATH)));
    let release = async {
        scene.registry.wait_requested(PATH).await;
        scene.registry.release_held();
    };
    let (replies, ()) = tokio::join!(all, release);
    assert!(replies.iter().all(|reply| reply.body == file));
    assert_eq!(
        (scene.registry.count_requests(PATH), scene.registry.count_requests("/npm/demo")),
        (1, 1)
    );
    let cached = scene.take_reports().iter().filter(|it| it.cached).count();
    assert_eq!(cached, 15);
}

#[tokio::test]
async fn an_index_is_fresh_for_a_while_and_used_when_the_registry_fails() {
    let scene = Scene::start(Setup::default()).await;
    scene.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", b"x")]);
    for _ in 0..3 {
        assert_eq!(scene.get("/npm/demo").await.status, 200);
    }
    assert_eq!(scene.registry.count_requests("/npm/demo"), 1);
    scene.clock.fetch_add(301, Ordering::Relaxed);
    scene.registry.put_reply("/npm/demo", RegistryReply::Status(500));
    assert_eq!(scene.get("/npm/demo").await.status, 200);
    assert_eq!(scene.registry.count_requests("/npm/demo"), 2);
    scene.registry.put_reply("/npm/demo", RegistryReply::Status(404));
    assert_eq!(scene.get("/npm/demo").await.status, 404);
}

#[tokio::test]
async fn an_exported_cache_serves_offline_after_it_was_imported() {
    let first = Scene::start(Setup::default()).await;
    first.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", b"the file")]);
    assert_eq!(first.get(PATH).await.text(), "the file");
    let archive = first.folder.path().join("cache.tar");
    first.proxy.export_cache(&archive).unwrap();

    let registry = Arc::clone(&first.registry);
    let second = Scene::over(registry, Setup { offline: true, ..Setup::default() });
    let reply = second.get(PATH).await;
    assert_eq!(reply.status, 503);
    second.proxy.import_cache(&archive).unwrap();
    let asked = first.registry.requests().len();
    assert_eq!(second.get(PATH).await.text(), "the file");
    assert_eq!(first.registry.requests().len(), asked);
}

#[tokio::test]
async fn of_an_archive_with_one_wrong_byte_nothing_is_imported() {
    let first = Scene::start(Setup::default()).await;
    first.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", b"the marked file")]);
    first.get(PATH).await;
    let archive = first.folder.path().join("cache.tar");
    first.proxy.export_cache(&archive).unwrap();
    let mut bytes = std::fs::read(&archive).unwrap();
    let at = bytes.windows(6).position(|it| it == b"marked").unwrap();
    bytes[at] = b'M';
    std::fs::write(&archive, bytes).unwrap();

    let second = Scene::start(Setup::default()).await;
    let error = second.proxy.import_cache(&archive).unwrap_err().to_string();
    assert!(error.starts_with("nothing was imported: "), "{error}");
    assert_eq!(second.cached_files(), (0, 0));
}

#[tokio::test]
async fn a_cache_that_is_too_large_loses_what_was_not_used_for_longest() {
    let scene = Scene::start(Setup { max_cache_bytes: Some(250_000), ..Setup::default() }).await;
    let versions = ["1.0.0", "1.1.0", "1.2.0"].map(|version| {
        let file = vec![version.as_bytes()[2]; 100_000];
        PublishedVersion::new("demo", version, &file)
    });
    scene.registry.publish_crates(&versions);
    for version in ["1.0.0", "1.1.0", "1.0.0", "1.2.0"] {
        assert_eq!(scene.get(&format!("/crates/dl/demo/{version}")).await.status, 200);
    }
    scene.proxy.prune().unwrap();
    assert!(scene.proxy.stats().cached_bytes <= 250_000);
    for version in ["1.0.0", "1.1.0"] {
        assert_eq!(scene.get(&format!("/crates/dl/demo/{version}")).await.status, 200);
    }
    let count =
        |version| scene.registry.count_requests(&format!("/crates/dl/demo-{version}.crate"));
    assert_eq!((count("1.0.0"), count("1.1.0")), (1, 2));
}

#[tokio::test]
async fn what_a_killed_process_left_half_written_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    std::fs::create_dir_all(cache.join("tmp")).unwrap();
    std::fs::write(cache.join("tmp/half"), "half").unwrap();
    let scene = Scene::start(Setup { cache: Some(cache.clone()), ..Setup::default() }).await;
    assert_eq!(std::fs::read_dir(cache.join("tmp")).unwrap().count(), 0);
    drop(scene);
}

#[tokio::test]
async fn a_second_process_that_opens_the_cache_leaves_the_downloads_of_the_first_alone() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let first = Scene::start(Setup { cache: Some(cache.clone()), ..Setup::default() }).await;
    let file = vec![3; 100_000];
    first.registry.publish_npm(&[PublishedVersion::new("demo", "1.0.0", &file)]);
    first.registry.put_reply(PATH, RegistryReply::Held(file.clone()));
    let second = async {
        first.registry.wait_requested(PATH).await;
        drop(Scene::start(Setup { cache: Some(cache.clone()), ..Setup::default() }).await);
        first.registry.release_held();
    };
    let (reply, ()) = tokio::join!(first.get(PATH), second);
    assert_eq!((reply.status.as_u16(), reply.body.len()), (200, file.len()));
}
