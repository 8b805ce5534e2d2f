-- Models, their providers and routes.

-- One row. Every change of the model registry raises the epoch in the same transaction; every call compares it.
CREATE TABLE routing_epoch (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch    bigint NOT NULL
);
INSERT INTO routing_epoch (epoch) VALUES (1);

-- Providers of models. `endpoint` holds no secret: an address, a script, or a name of cassettes.
CREATE TABLE model_providers (
    provider_id uuid PRIMARY KEY,
    name        text NOT NULL CONSTRAINT model_providers_name_unique UNIQUE CHECK (name ~ '^[a-z][a-z0-9-]{0,30}$'),
    kind        text NOT NULL CHECK (kind IN ('compatible', 'openai', 'anthropic', 'scripted', 'record', 'replay')),
    dialect     text NOT NULL CHECK (dialect IN ('chat', 'responses', 'messages')),
    endpoint    jsonb NOT NULL CHECK (jsonb_typeof(endpoint) = 'object'),
    local       boolean NOT NULL,            -- prompts do not leave the user's machines
    enabled     boolean NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- Keys of providers, sealed. A key whose quota is exhausted is not used until `parked_until`.
CREATE TABLE provider_keys (
    key_id        uuid PRIMARY KEY,
    provider_id   uuid NOT NULL REFERENCES model_providers ON DELETE CASCADE,
    label         text NOT NULL CHECK (char_length(label) BETWEEN 1 AND 100),
    sealed_key    bytea NOT NULL,
    parked_until  timestamptz,
    parked_reason text,
    created_by    uuid NOT NULL REFERENCES users,
    created_at    timestamptz NOT NULL,
    CONSTRAINT provider_keys_label_unique UNIQUE (provider_id, label)
);

-- Models by the id that clients use.
CREATE TABLE models (
    model_id          text PRIMARY KEY CHECK (model_id ~ '^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$'
                          AND lower(model_id) NOT LIKE 'cynodeai.%'),
    title             text NOT NULL CHECK (char_length(title) BETWEEN 1 AND 200),
    tier              text CHECK (tier IN ('fast', 'standard', 'deep')),
    context_tokens    bigint NOT NULL CHECK (context_tokens BETWEEN 1 AND 100000000),
    max_output_tokens bigint NOT NULL CHECK (max_output_tokens BETWEEN 1 AND 10000000),
    tools             boolean NOT NULL,
    images            boolean NOT NULL,
    json_schema       boolean NOT NULL,
    skills            boolean NOT NULL,
    enabled           boolean NOT NULL,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    project_id        uuid REFERENCES projects ON DELETE CASCADE, -- null: for every project
    -- The timeout of one answer; null: the setting applies.
    think_seconds     integer CHECK (think_seconds BETWEEN 1 AND 3600)
);

-- Routes of a model, in order. Prices are in millionths of the currency for a million tokens.
CREATE TABLE model_routes (
    model_id          text NOT NULL REFERENCES models ON DELETE CASCADE,
    position          integer NOT NULL CHECK (position BETWEEN 0 AND 31),
    provider_id       uuid NOT NULL REFERENCES model_providers ON DELETE CASCADE,
    upstream          text NOT NULL CHECK (char_length(upstream) BETWEEN 1 AND 200),
    input_price       bigint NOT NULL CHECK (input_price BETWEEN 0 AND 1000000000000),
    cached_price      bigint NOT NULL CHECK (cached_price BETWEEN 0 AND 1000000000000),
    cache_write_price bigint NOT NULL CHECK (cache_write_price BETWEEN 0 AND 1000000000000),
    output_price      bigint NOT NULL CHECK (output_price BETWEEN 0 AND 1000000000000),
    PRIMARY KEY (model_id, position)
);
