-- Why a person or a policy took what a job brought though something speaks against it: what is odd about it is not held against the task again.
ALTER TABLE jobs ADD COLUMN taken text CHECK (char_length(taken) BETWEEN 1 AND 500);
