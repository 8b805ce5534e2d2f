//! Open calls: calls that have a decision and no outcome yet.

use std::collections::HashMap;

use uuid::Uuid;

use crate::{AuditEntry, Phase};

/// Reason why an entry does not fit the earlier records of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStateError {
    AlreadyOpen,
    NotOpen,
}

/// Decisions of the open calls, by call id.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls(HashMap<Uuid, AuditEntry>);

impl OpenCalls {
    pub(crate) fn check_entry(&self, entry: &AuditEntry) -> Result<(), CallStateError> {
        match (entry.phase, self.0.contains_key(&entry.call)) {
            (Phase::Decision, true) => Err(CallStateError::AlreadyOpen),
            (Phase::Outcome, false) => Err(CallStateError::NotOpen),
            (Phase::Decision, false) | (Phase::Outcome, true) => Ok(()),
        }
    }

    /// Updates the open calls after an entry was written.
    pub(crate) fn apply_entry(&mut self, entry: &AuditEntry) {
        if entry.expects_outcome() {
            self.0.insert(entry.call, entry.clone());
        } else {
            self.0.remove(&entry.call);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the decisions, oldest first.
    pub(crate) fn open_decisions(&self) -> Vec<AuditEntry> {
        let mut decisions: Vec<_> = self.0.values().cloned().collect();
        decisions.sort_by_key(|entry| (entry.at, entry.call));
        decisions
    }
}
