-- What agents were given beside their question.

-- One row for each claim of a handoff or a job for which memory was searched, or that was given a skill. Records of memory and skills are
-- named by id, so that a record that is forgotten leaves no text here. A later claim of a handoff is given the same records: with others in
-- its prompts it could not use the decisions that are recorded.
CREATE TABLE given_context (
    given_no        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    handoff_id      uuid REFERENCES handoffs ON DELETE CASCADE,
    job_id          uuid REFERENCES jobs ON DELETE CASCADE,
    fencing_token   bigint NOT NULL,         -- of the claim under which it was given
    profile         text NOT NULL CHECK (char_length(profile) BETWEEN 1 AND 63),
    profile_version integer NOT NULL CHECK (profile_version >= 0), -- 0 when the profile is not there any more
    memories        jsonb NOT NULL CHECK (jsonb_typeof(memories) = 'array'), -- of {memory_id, score}
    skills          jsonb NOT NULL CHECK (jsonb_typeof(skills) = 'array'),   -- of {skill_id, name, version}
    failure         text,                    -- why memory could not be searched
    given_at        timestamptz NOT NULL,
    CHECK ((handoff_id IS NULL) <> (job_id IS NULL))
);
CREATE UNIQUE INDEX given_context_of_handoff ON given_context (handoff_id, fencing_token) WHERE handoff_id IS NOT NULL;
CREATE UNIQUE INDEX given_context_of_job ON given_context (job_id, fencing_token) WHERE job_id IS NOT NULL;
