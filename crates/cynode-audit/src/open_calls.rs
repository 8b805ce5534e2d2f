//! The calls that have a decision and no outcome yet.

use std::collections::HashMap;

use uuid::Uuid;

use crate::{Entry, Phase};

/// Why an entry does not fit to what was said about its call before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    AlreadyOpen,
    NotOpen,
}

/// The decisions of the calls that are under way.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls(HashMap<Uuid, Entry>);

impl OpenCalls {
    pub(crate) fn fits(&self, entry: &Entry) -> Result<(), Unfit> {
        match (entry.phase, self.0.contains_key(&entry.call)) {
            (Phase::Decision, true) => Err(Unfit::AlreadyOpen),
            (Phase::Outcome, false) => Err(Unfit::NotOpen),
            (Phase::Decision, false) | (Phase::Outcome, true) => Ok(()),
        }
    }

    /// Takes note of an entry that was written.
    pub(crate) fn note(&mut self, entry: &Entry) {
        if entry.opens() {
            self.0.insert(entry.call, entry.clone());
        } else {
            self.0.remove(&entry.call);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The decisions, oldest first.
    pub(crate) fn decisions(&self) -> Vec<Entry> {
        let mut decisions: Vec<_> = self.0.values().cloned().collect();
        decisions.sort_by_key(|entry| (entry.at, entry.call));
        decisions
    }
}
