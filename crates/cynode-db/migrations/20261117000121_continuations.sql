-- Tasks that go on from what an earlier task left: they begin with its best commit, and are measured from where that work began.
CREATE TABLE task_continuations (
    task_id    uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    earlier_id uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    commit     text NOT NULL CHECK (commit ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    base       text NOT NULL CHECK (base ~ '^[0-9a-f]{40}([0-9a-f]{24})?$')
);
CREATE INDEX task_continuations_of ON task_continuations (earlier_id);
