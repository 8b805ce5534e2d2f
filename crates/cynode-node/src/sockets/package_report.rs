//! Report of fetched packages: events in small batches.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    sync::{Arc, Mutex},
};

use cynode_core::{environments::PackageFetch, nodes::JobEventData, sync::lock_unpoisoned};

/// Maximum number of fetches in one event.
const MAX_EVENT_FETCHES: usize = 50;

/// Maximum number of different fetches that are reported. No set of packages is as large, and a job decides how often it asks.
const MAX_REPORTED_FETCHES: usize = 20_000;

/// Collects the fetches of a job and reports each once, in batches; the rest when it is dropped.
pub(crate) struct PackageReport {
    push_event: Arc<dyn Fn(JobEventData) + Send + Sync>,
    pending: Mutex<Vec<PackageFetch>>,
    /// What was reported.
    known: Mutex<HashSet<String>>,
    /// Versions of packages that were fetched.
    packages: Mutex<BTreeSet<String>>,
}

impl PackageReport {
    /// Creates a report that gives its events to a function.
    pub(crate) fn new(push_event: Arc<dyn Fn(JobEventData) + Send + Sync>) -> Self {
        Self {
            push_event,
            pending: Mutex::default(),
            known: Mutex::default(),
            packages: Mutex::default(),
        }
    }

    /// Returns the function that takes fetches. It does not keep the report alive: a fetch after its end is an event of its own.
    pub(crate) fn to_sink(self: &Arc<Self>) -> Arc<dyn Fn(PackageFetch) + Send + Sync> {
        let (report, push_event) = (Arc::downgrade(self), Arc::clone(&self.push_event));
        Arc::new(move |fetch| match report.upgrade() {
            Some(report) => report.add_fetch(fetch),
            None => push_event(JobEventData::Packages { fetches: vec![fetch] }),
        })
    }

    fn add_fetch(&self, fetch: PackageFetch) {
        if !self.is_new(&fetch) {
            return;
        }
        if fetch.refused.is_none() && !fetch.version.is_empty() {
            let PackageFetch { source, package, version, .. } = &fetch;
            let entry = format!("{}:{package}=={version}", source.as_str());
            lock_unpoisoned(&self.packages).insert(entry);
        }
        // A refusal is reported at once: the job may fail by it.
        let is_due = {
            let mut pending = lock_unpoisoned(&self.pending);
            let refused = fetch.refused.is_some();
            pending.push(fetch);
            refused || pending.len() >= MAX_EVENT_FETCHES
        };
        if is_due {
            self.flush_fetches();
        }
    }

    /// Returns whether a fetch was not reported yet. Events of packages do not count against the events of a job.
    fn is_new(&self, fetch: &PackageFetch) -> bool {
        let PackageFetch { source, package, version, sha256, refused, .. } = fetch;
        let refused = refused.as_deref().unwrap_or_default();
        let key = format!("{} {package} {version} {sha256} {refused}", source.as_str());
        let mut known = lock_unpoisoned(&self.known);
        known.len() < MAX_REPORTED_FETCHES && known.insert(key)
    }

    /// Returns the versions of packages that were fetched, as `SOURCE:PACKAGE==VERSION`.
    pub(crate) fn list_packages(&self) -> BTreeSet<String> {
        lock_unpoisoned(&self.packages).clone()
    }

    /// Reports the fetches that are pending.
    pub(crate) fn flush_fetches(&self) {
        let fetches = std::mem::take(&mut *lock_unpoisoned(&self.pending));
        if !fetches.is_empty() {
            (self.push_event)(JobEventData::Packages { fetches });
        }
    }
}

impl fmt::Debug for PackageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackageReport").finish_non_exhaustive()
    }
}

impl Drop for PackageReport {
    fn drop(&mut self) {
        self.flush_fetches();
    }
}

#[cfg(test)]
mod tests {
    use cynode_core::environments::PackageSource;

    use super::*;

    fn fetch(package: &str, refused: Option<&str>) -> PackageFetch {
        PackageFetch {
            source: PackageSource::Npm,
            package: package.to_owned(),
            version: "1.0.0".to_owned(),
            sha256: String::new(),
            bytes: 1,
            cached: false,
            refused: refused.map(str::to_owned),
        }
    }

    #[test]
    fn fetches_are_reported_in_batches_refusals_at_once_and_the_rest_at_the_end() {
        let events: Arc<Mutex<Vec<usize>>> = Arc::default();
        let seen = Arc::clone(&events);
        let report = Arc::new(PackageReport::new(Arc::new(move |event| {
            if let JobEventData::Packages { fetches } = event {
                lock_unpoisoned(&seen).push(fetches.len());
            }
        })));
        let sink = report.to_sink();
        for number in 0..51 {
            sink(fetch(&format!("p{number}"), None));
        }
        sink(fetch("p7", None));
        sink(fetch("bad", Some("it is too young")));
        sink(fetch("last", None));
        let packages = report.list_packages();
        let entries = ["npm:p0==1.0.0", "npm:last==1.0.0", "npm:bad==1.0.0"];
        assert_eq!(packages.len(), 52);
        assert_eq!(entries.map(|entry| packages.contains(entry)), [true, true, false]);
        drop(report);
        sink(fetch("late", None));
        assert_eq!(*lock_unpoisoned(&events), [50, 2, 1, 1]);
    }
}
