//! Orders the parts of a stream, so that one part is open at a time.

use std::collections::{BTreeMap, VecDeque};

use crate::dialect::canonical::CanonicalEvent;

/// Holds back events until the parts before theirs are complete.
///
/// A provider may write several tool calls at once; Messages supports one open block at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct PartSequencer {
    open: Option<usize>,
    waiting: VecDeque<usize>,
    held: BTreeMap<usize, Vec<CanonicalEvent>>,
}

impl PartSequencer {
    /// Takes an event and returns the events that may be sent now.
    pub(super) fn push_event(&mut self, event: CanonicalEvent) -> Vec<CanonicalEvent> {
        let Some(index) = event.part_index() else {
            // At the end, all events that were held back are sent.
            let ended = matches!(event, CanonicalEvent::Ended { .. });
            let mut events = if ended { self.flush_waiting() } else { Vec::new() };
            events.push(event);
            return events;
        };
        match self.open {
            Some(open) if open == index => {
                let ends = matches!(event, CanonicalEvent::PartEnded { .. });
                let mut events = vec![event];
                if ends {
                    self.open = None;
                    self.release_waiting(&mut events);
                }
                events
            }
            Some(_) => {
                if !self.held.contains_key(&index) {
                    self.waiting.push_back(index);
                }
                self.held.entry(index).or_default().push(event);
                Vec::new()
            }
            None => {
                if matches!(event, CanonicalEvent::PartStarted { .. }) {
                    self.open = Some(index);
                }
                vec![event]
            }
        }
    }

    /// Releases the parts that wait, up to the first that is not complete.
    fn release_waiting(&mut self, events: &mut Vec<CanonicalEvent>) {
        while let Some(index) = self.waiting.pop_front() {
            let held = self.held.remove(&index).unwrap_or_default();
            let complete = matches!(held.last(), Some(CanonicalEvent::PartEnded { .. }));
            events.extend(held);
            if !complete {
                self.open = Some(index);
                return;
            }
        }
    }

    fn flush_waiting(&mut self) -> Vec<CanonicalEvent> {
        let mut events = Vec::new();
        if let Some(index) = self.open.take() {
            events.push(CanonicalEvent::PartEnded { index });
        }
        while let Some(index) = self.waiting.pop_front() {
            let held = self.held.remove(&index).unwrap_or_default();
            let complete = matches!(held.last(), Some(CanonicalEvent::PartEnded { .. }));
            events.extend(held);
            if !complete {
                events.push(CanonicalEvent::PartEnded { index });
            }
        }
        events
    }
}
