//! Verification of stored records. It finds the first error.

use std::collections::VecDeque;

use uuid::Uuid;

use crate::{
    AuditCheckpoint, AuditRecord, ChainRegistryHead, ChainStart, MerkleTree, PublicKeyring,
    genesis_hash,
};

/// First error of a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainVerifyError {
    /// Records are missing.
    #[error("record {expected} is missing, the next one is {found}")]
    Gap {
        /// Position of the expected record.
        expected: u64,
        /// Position of the record that came instead.
        found: u64,
    },
    /// A record is duplicated or out of order.
    #[error("record {seq} comes twice or out of order")]
    Duplicate {
        /// Position of the record.
        seq: u64,
    },
    /// A record belongs to another chain.
    #[error("record {seq} is of another chain")]
    OtherChain {
        /// Position of the record.
        seq: u64,
    },
    /// A record does not hold the hash of the previous one.
    #[error("record {seq} does not follow the one before it")]
    WrongPrevious {
        /// Position of the record.
        seq: u64,
    },
    /// The content of a record does not match its hash.
    #[error("record {seq} was changed")]
    WrongHash {
        /// Position of the record.
        seq: u64,
    },
    /// A record has content that no writer accepts.
    #[error("record {seq} could not have been written")]
    BadEntry {
        /// Position of the record.
        seq: u64,
    },
    /// A record follows the end of a closed chain.
    #[error("record {seq} stands after the end of the chain")]
    AfterClose {
        /// Position of the record.
        seq: u64,
    },
    /// A checkpoint belongs to another chain.
    #[error("the checkpoint of size {size} is of another chain")]
    OtherCheckpoint {
        /// Size of the checkpoint.
        size: u64,
    },
    /// A checkpoint was changed, or another key signed it.
    #[error("the checkpoint of size {size} was changed or not signed by us")]
    BadSignature {
        /// Size of the checkpoint.
        size: u64,
    },
    /// The records are not those that a checkpoint was made over.
    #[error("the records are not those the checkpoint of size {size} was made over")]
    WrongRoot {
        /// Size of the checkpoint.
        size: u64,
    },
    /// A checkpoint covers records that are missing at the end.
    #[error("a checkpoint covers {size} records and there are {records}")]
    Missing {
        /// Size of the checkpoint.
        size: u64,
        /// Number of records.
        records: u64,
    },
}

/// Result of the verification of a chain without errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedChain {
    /// Id of the chain.
    pub chain: Uuid,
    /// Number of records.
    pub records: u64,
    /// Number of records that a signed checkpoint covers. Only hashes protect the other records, and an attacker who holds the whole chain
    /// could compute new hashes.
    pub covered: u64,
    /// Whether the chain is closed. If so, no record is missing at its end.
    pub closed: bool,
}

/// Verifies the records of one chain as they are read, in order.
#[derive(Debug)]
pub struct ChainCheck {
    chain: Uuid,
    keys: PublicKeyring,
    checkpoints: VecDeque<AuditCheckpoint>,
    tree: MerkleTree,
    head: [u8; 32],
    covered: u64,
    /// Size at which the chain was closed.
    closed: Option<u64>,
}

impl ChainCheck {
    /// Starts with the checkpoints of the chain, in any order. Each must be signed with the key that it names: a chain may have been
    /// written while its key was rotated.
    pub fn new(
        chain: Uuid,
        keys: impl Into<PublicKeyring>,
        checkpoints: impl IntoIterator<Item = AuditCheckpoint>,
    ) -> Result<Self, ChainVerifyError> {
        let mut checkpoints: Vec<_> = checkpoints.into_iter().collect();
        checkpoints.sort_by_key(|checkpoint| checkpoint.size);
        let mut check = Self {
            chain,
            keys: keys.into(),
            checkpoints: VecDeque::new(),
            tree: MerkleTree::new(),
            head: genesis_hash(chain),
            covered: 0,
            closed: None,
        };
        for checkpoint in &checkpoints {
            check.verify_checkpoint(checkpoint)?;
        }
        check.checkpoints = checkpoints.into();
        check.compare_checkpoints()?;
        Ok(check)
    }

    /// Verifies the next record.
    pub fn verify_next_record(&mut self, record: &AuditRecord) -> Result<(), ChainVerifyError> {
        let (seq, expected) = (record.seq, self.tree.leaf_count());
        if record.chain != self.chain {
            return Err(ChainVerifyError::OtherChain { seq });
        }
        if seq > expected {
            return Err(ChainVerifyError::Gap { expected, found: seq });
        }
        if seq < expected {
            return Err(ChainVerifyError::Duplicate { seq });
        }
        if self.closed.is_some() {
            return Err(ChainVerifyError::AfterClose { seq });
        }
        if record.prev != self.head {
            return Err(ChainVerifyError::WrongPrevious { seq });
        }
        if !record.has_valid_hash() {
            return Err(ChainVerifyError::WrongHash { seq });
        }
        if record.entry.validate_fields().is_err() {
            return Err(ChainVerifyError::BadEntry { seq });
        }
        self.head = record.hash;
        self.tree.push(record.hash);
        self.compare_checkpoints()
    }

    /// Returns the result, once all records of the chain were verified.
    pub fn finish_verification(self) -> Result<VerifiedChain, ChainVerifyError> {
        let records = self.tree.leaf_count();
        if let Some(checkpoint) = self.checkpoints.back() {
            return Err(ChainVerifyError::Missing { size: checkpoint.size, records });
        }
        Ok(VerifiedChain {
            chain: self.chain,
            records,
            covered: self.covered,
            closed: self.closed.is_some(),
        })
    }

    fn verify_checkpoint(&self, checkpoint: &AuditCheckpoint) -> Result<(), ChainVerifyError> {
        let size = checkpoint.size;
        if checkpoint.chain != self.chain {
            return Err(ChainVerifyError::OtherCheckpoint { size });
        }
        let verified = self.keys.verify_checkpoint(checkpoint);
        verified.map(drop).map_err(|_| ChainVerifyError::BadSignature { size })
    }

    /// Compares the chain with the checkpoints of its present size.
    fn compare_checkpoints(&mut self) -> Result<(), ChainVerifyError> {
        let size = self.tree.leaf_count();
        while let Some(checkpoint) = self.checkpoints.pop_front_if(|next| next.size == size) {
            if checkpoint.root != self.tree.merkle_root() || checkpoint.head != self.head {
                return Err(ChainVerifyError::WrongRoot { size });
            }
            self.covered = size;
            if checkpoint.closed {
                self.closed = Some(size);
            }
        }
        Ok(())
    }
}

/// First error of the chain registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLink {
    /// A chain is missing before this one, or this chain is out of order.
    #[error("chain {found} comes where {expected} should")]
    Number {
        /// Expected number.
        expected: u64,
        /// Number that came instead.
        found: u64,
    },
    /// A chain does not hold the link hash of the previous one.
    #[error("chain {number} does not follow the one before it")]
    WrongPrevious {
        /// Number of the chain.
        number: u64,
    },
    /// A start was changed, or another key signed it.
    #[error("the start of chain {number} was changed or not signed by us")]
    BadSignature {
        /// Number of the chain.
        number: u64,
    },
}

/// Verifies the starts of all chains of an installation as they are read, in order.
#[derive(Debug)]
pub struct LinkCheck {
    keys: PublicKeyring,
    tip: ChainRegistryHead,
}

impl LinkCheck {
    /// Starts at the first chain of the installation.
    pub fn new(keys: impl Into<PublicKeyring>) -> Self {
        Self { keys: keys.into(), tip: ChainRegistryHead::ORIGIN }
    }

    /// Verifies the next start.
    pub fn verify_next_start(&mut self, start: &ChainStart) -> Result<(), BadLink> {
        let (number, expected) = (start.number, self.tip.number.saturating_add(1));
        if number != expected {
            return Err(BadLink::Number { expected, found: number });
        }
        if start.previous != self.tip.link {
            return Err(BadLink::WrongPrevious { number });
        }
        if self.keys.verify_start(start).is_err() {
            return Err(BadLink::BadSignature { number });
        }
        self.tip = start.registry_head();
        Ok(())
    }

    /// Returns the registry head so far, for comparison with a copy stored elsewhere.
    pub fn registry_head(&self) -> ChainRegistryHead {
        self.tip
    }
}
