-- The profile that tasks, schedules, chats and handoffs name, and the one that a job was given. No row refers to `profiles`: shipped profiles
-- are not stored, and what names a profile that is gone is refused where it is used.

ALTER TABLE tasks ADD COLUMN profile text
    CONSTRAINT tasks_profile_form CHECK (profile ~ '^[a-z][a-z0-9-]{0,62}$');
ALTER TABLE schedules ADD COLUMN profile text
    CONSTRAINT schedules_profile_form CHECK (profile ~ '^[a-z][a-z0-9-]{0,62}$');
ALTER TABLE chat_threads ADD COLUMN profile text
    CONSTRAINT chat_threads_profile_form CHECK (profile ~ '^[a-z][a-z0-9-]{0,62}$');
-- A handoff of a chat takes the profile of its thread, one of a task that of its task. This is for those that have neither.
ALTER TABLE handoffs ADD COLUMN profile text
    CONSTRAINT handoffs_profile_form CHECK (profile ~ '^[a-z][a-z0-9-]{0,62}$');

-- What the job was assigned with. A change of the profile does not reach a job that was assigned before.
ALTER TABLE jobs
    ADD COLUMN profile         text CONSTRAINT jobs_profile_form CHECK (profile ~ '^[a-z][a-z0-9-]{0,62}$'),
    ADD COLUMN profile_version integer CONSTRAINT jobs_profile_version CHECK (profile_version >= 1),
    ADD CONSTRAINT jobs_profile_whole CHECK ((profile IS NULL) = (profile_version IS NULL));
