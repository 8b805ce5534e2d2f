-- Models, their providers and routes.

-- One row. Whoever changes what calls are routed by raises the number in the same transaction; every call compares it.
CREATE TABLE models_state (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch    bigint NOT NULL
);
INSERT INTO models_state (epoch) VALUES (1);

-- Where models are. `place` holds what is not secret: an address, a script, a name of cassettes.
CREATE TABLE model_providers (
    provider_id uuid PRIMARY KEY,
    name        text NOT NULL CONSTRAINT model_providers_name_taken UNIQUE CHECK (name ~ '^[a-z][a-z0-9-]{0,30}$'),
    kind        text NOT NULL CHECK (kind IN ('compatible', 'openai', 'anthropic', 'scripted', 'record', 'replay')),
    dialect     text NOT NULL CHECK (dialect IN ('chat', 'responses', 'messages')),
    place       jsonb NOT NULL CHECK (jsonb_typeof(place) = 'object'),
    local       boolean NOT NULL,            -- nothing leaves what the person owns
    enabled     boolean NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- Keys of providers, sealed; none can be read back. A key whose quota is used up rests for everybody until `parked_until`.
CREATE TABLE provider_keys (
    key_id        uuid PRIMARY KEY,
    provider_id   uuid NOT NULL REFERENCES model_providers ON DELETE CASCADE,
    label         text NOT NULL CHECK (char_length(label) BETWEEN 1 AND 100),
    sealed        bytea NOT NULL,
    parked_until  timestamptz,
    parked_reason text,
    created_by    uuid NOT NULL REFERENCES users,
    created_at    timestamptz NOT NULL,
    CONSTRAINT provider_keys_label_taken UNIQUE (provider_id, label)
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
    project_id        uuid REFERENCES projects ON DELETE CASCADE,  -- null: for every project
    -- How long it may take for one answer, if not as long as the setting says.
    think_seconds     integer CHECK (think_seconds BETWEEN 1 AND 3600)
);

-- Ways to a model, in order. Prices are in millionths of the currency for a million tokens.
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
