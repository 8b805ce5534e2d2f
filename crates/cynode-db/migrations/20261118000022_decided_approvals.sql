-- Decided approvals are listed newest first.
CREATE INDEX approvals_newest_decided ON approvals (decided_at DESC, approval_id) WHERE state <> 'asked';
