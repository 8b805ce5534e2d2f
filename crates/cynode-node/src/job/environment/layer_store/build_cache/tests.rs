use std::collections::BTreeSet;

use cynode_core::{environments::EnvironmentRef, ids::ProjectId};
use uuid::Uuid;

use super::*;
use crate::{job::environment::layer_store::LayerParts, store::NodeStore};

const MAX_BYTES: u64 = 1 << 30;

struct Scene {
    dir: tempfile::TempDir,
    layers: Arc<LayerStore>,
}

impl Scene {
    /// A node with one layer that has the files `target/a` and `target/b`.
    fn new() -> (Self, LayerLease) {
        let dir = tempfile::tempdir().unwrap();
        let store = NodeStore::open_state_dir(&dir.path().join("state")).unwrap();
        let scene = Self { layers: Arc::new(LayerStore::new(store)), dir };
        let layer = scene.add_layer("one");
        (scene, layer)
    }

    fn add_layer(&self, key: &str) -> LayerLease {
        let [work, home] = ["made-work", "made-home"].map(|name| self.dir.path().join(name));
        fs::create_dir_all(work.join("target")).unwrap();
        fs::create_dir_all(&home).unwrap();
        for name in ["a", "b"] {
            fs::write(work.join("target").join(name), "layer").unwrap();
        }
        let dir = self.layers.layer_dir(ProjectId::from_uuid(Uuid::from_u128(1)), key);
        self.layers.add_layer(&dir, &LayerParts { work, home, root: None }, record()).unwrap()
    }

    /// The directories of a job after a check that left files with those texts.
    fn checked(&self, files: &[(&str, &str)]) -> CachedDirs {
        let top = self.dir.path().join(format!("{:08x}", rand::random::<u32>()));
        for (name, text) in files {
            fs::create_dir_all(top.join(name).parent().unwrap()).unwrap();
            fs::write(top.join(name), text).unwrap();
        }
        CachedDirs {
            work: top.join("work"),
            work_dirs: vec!["target".to_owned()],
            home: top.join("home"),
        }
    }

    fn take(&self, scope: &CacheScope, dirs: &CachedDirs) -> Option<BuildResults> {
        self.layers.take_build_results(scope, dirs, 7, MAX_BYTES).unwrap()
    }

    fn store(
        &self,
        scope: &CacheScope,
        dirs: &CachedDirs,
        layer: &LayerLease,
        earlier: Option<LayerLease>,
    ) -> LayerLease {
        let generation = NewGeneration {
            scope: scope.clone(),
            results: self.take(scope, dirs).unwrap(),
            layer: layer.lease_again().unwrap().unwrap(),
            earlier,
            record: record(),
            max_bytes: MAX_BYTES,
        };
        assert!(self.layers.add_generation(generation).unwrap().is_some());
        self.layers.lease_newest_generation(scope).unwrap()
    }
}

fn record() -> LayerRecord {
    LayerRecord {
        environment: EnvironmentRef { version: 1, digest: "ab".repeat(32) },
        base_commit: None,
        is_trusted: true,
        source_seconds: 7,
        exclude: Vec::new(),
        has_root: false,
        created_seconds: 8,
        setup_milliseconds: 0,
        bytes: 0,
        entries: 0,
        policy: String::new(),
        packages: BTreeSet::new(),
        cache: None,
    }
}

/// The plain files of a generation with their texts.
fn texts(generation: &LayerLease, names: &[&str]) -> Vec<Option<String>> {
    names.iter().map(|name| fs::read_to_string(generation.dir.join(name)).ok()).collect()
}

#[test]
fn the_next_generation_is_what_the_check_saw() {
    let (scene, layer) = Scene::new();
    let scope = CacheScope::new(&layer, DEFAULT_BRANCH);
    let dirs = scene.checked(&[
        ("work/target/c", "1"),
        ("work/target/same", "1"),
        ("work/target/old", "1"),
        ("work/other", "1"),
        ("home/.cache/ccache/x", "1"),
        ("home/.profile", "1"),
    ]);
    create_whiteout(&dirs.work.join("target/a")).unwrap();
    let first = scene.store(&scope, &dirs, &layer, None);
    let names = ["work/target/c", "work/target/b", "home/.cache/ccache/x", "work/other"];
    let one = || Some("1".to_owned());
    assert_eq!(texts(&first, &names), [one(), None, one(), None]);
    let hidden = |generation: &LayerLease| find_hidden_paths(&generation.work_dir()).unwrap();
    let deleted = BTreeSet::from([PathBuf::from("target/a")]);
    let expected = HiddenPaths { deleted, opaque: BTreeSet::new() };
    assert_eq!(hidden(&first), expected);

    let dirs = scene.checked(&[("work/target/c", "2")]);
    create_whiteout(&dirs.work.join("target/old")).unwrap();
    let earlier = first.lease_again().unwrap();
    let second = scene.store(&scope, &dirs, &layer, earlier);
    let names = ["work/target/c", "work/target/same", "work/target/old", "home/.cache/ccache/x"];
    assert_eq!(texts(&second, &names), [Some("2".to_owned()), one(), None, one()]);
    assert_eq!(hidden(&second), expected);
    // The first is still used; the file that both have is there once.
    assert_eq!(texts(&first, &names[..1]), [one()]);
    assert_eq!(fs::metadata(second.dir.join("work/target/same")).unwrap().nlink(), 2);
    let gone = first.dir.clone();
    drop(first);
    let dirs = scene.checked(&[("work/target/d", "3")]);
    let third = scene.store(&scope, &dirs, &layer, second.lease_again().unwrap());
    assert!(!gone.exists() && third.dir > second.dir);
}

#[test]
fn a_directory_that_was_made_anew_hides_the_one_of_before() {
    let (scene, layer) = Scene::new();
    let scope = CacheScope::new(&layer, DEFAULT_BRANCH);
    let dirs = scene.checked(&[("work/target/b", "1"), ("work/target/sub/x", "1")]);
    let first = scene.store(&scope, &dirs, &layer, None);
    let mut hidden = HiddenPaths::default();
    hidden.opaque.insert("target".into());
    let dirs = scene.checked(&[("work/target/b", "2")]);
    assert_eq!(link_missing_files(&first.work_dir(), &dirs.work, &mut hidden).unwrap(), (0, 0));
    mark_hidden_files(&layer.work_dir(), &dirs.work, hidden).unwrap();
    assert!(!dirs.work.join("target/sub").exists());
    let deleted = BTreeSet::from([PathBuf::from("target/a")]);
    assert_eq!(find_hidden_paths(&dirs.work).unwrap().deleted, deleted);
}

#[test]
fn killed_before_the_rename_the_generation_of_before_stays() {
    let (scene, layer) = Scene::new();
    let scope = CacheScope::new(&layer, DEFAULT_BRANCH);
    let first = scene.store(&scope, &scene.checked(&[("work/target/c", "1")]), &layer, None);
    let results = scene.take(&scope, &scene.checked(&[("work/target/c", "2")])).unwrap();
    let partial = results.partial.clone();
    // A kill runs no destructor.
    std::mem::forget(results);
    complete_generation(&partial, &layer, Some(&first)).unwrap();
    let newest = scene.layers.lease_newest_generation(&scope).unwrap();
    assert_eq!(texts(&newest, &["work/target/c"]), [Some("1".to_owned())]);
    scene.layers.remove_partial_layers();
    assert!(!partial.exists() && newest.dir.exists());
    let results = scene.take(&scope, &scene.checked(&[("work/target/c", "3")])).unwrap();
    let partial = results.partial.clone();
    drop(results);
    assert!(!partial.exists());
}

#[test]
fn a_cache_belongs_to_its_branch_and_its_layer_and_is_no_environment() {
    let (scene, layer) = Scene::new();
    let scope = CacheScope::new(&layer, DEFAULT_BRANCH);
    let dirs = scene.checked(&[("work/target/c", "1")]);
    let stored = scene.store(&scope, &dirs, &layer, None);
    let other_layer = scene.add_layer("two");
    let others = [CacheScope::new(&layer, "task"), CacheScope::new(&other_layer, DEFAULT_BRANCH)];
    let found = others.map(|scope| scene.layers.lease_newest_generation(&scope).is_some());
    assert_eq!(found, [false, false]);
    let name = stored.dir_name();
    assert!(scene.layers.lease_generation(&layer, &name).is_some());
    let odd = [layer.dir_name(), format!("../{name}"), format!("cache-/../{name}")];
    let found = odd.map(|name| scene.layers.lease_generation(&layer, &name).is_some());
    assert_eq!(found, [false; 3]);
}

#[test]
fn links_are_not_followed_and_what_is_too_large_is_not_kept() {
    let (scene, layer) = Scene::new();
    let scope = CacheScope::new(&layer, DEFAULT_BRANCH);
    let outside = scene.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let dirs = scene.checked(&[("work/file", "1"), ("home/file", "1")]);
    symlink(&outside, dirs.work.join("target")).unwrap();
    symlink(&outside, dirs.home.join(".cache")).unwrap();
    assert!(scene.take(&scope, &dirs).is_none());
    let dirs = scene.checked(&[("work/target/c", "1"), ("work/target/d", "1")]);
    let taken = scene.layers.take_build_results(&scope, &dirs, 7, 4096).unwrap();
    assert!(taken.is_none());

    let first = scene.store(&scope, &scene.checked(&[("work/target/c", "1")]), &layer, None);
    let grown = NewGeneration {
        scope: scope.clone(),
        results: scene.take(&scope, &scene.checked(&[("work/target/d", "1")])).unwrap(),
        layer: layer.lease_again().unwrap().unwrap(),
        earlier: Some(first),
        record: record(),
        max_bytes: 1,
    };
    assert_eq!(scene.layers.add_generation(grown).unwrap(), None);
    assert!(scene.layers.lease_newest_generation(&scope).is_none());
}
