SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA golden_schema;
CREATE FUNCTION golden_schema.words_of_message(content jsonb) RETURNS tsvector
    LANGUAGE sql IMMUTABLE
    AS $_$
    SELECT to_tsvector('simple', regexp_replace(string_agg(text #>> '{}', ' '), '[!-/:-@[-`{-~]+', ' ', 'g'))
    FROM jsonb_path_query(content, '$.content[*] ? (@.type == "text").text') AS text
$_$;
CREATE FUNCTION golden_schema.words_of_title(title text) RETURNS tsvector
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT to_tsvector('simple',
        regexp_replace(regexp_replace(title, '\\(u[0-9a-fA-F]{4}|.)', ' ', 'g'), '[!-/:-@[-`{-~]+', ' ', 'g'))
$$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE golden_schema.approvals (
    conversation bigint NOT NULL,
    tool_use text NOT NULL,
    place integer NOT NULL,
    content text NOT NULL,
    reason text NOT NULL,
    on_expiry text,
    survives boolean NOT NULL,
    since timestamp with time zone NOT NULL,
    expires timestamp with time zone
);
CREATE TABLE golden_schema.conversations (
    key bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    created timestamp with time zone NOT NULL,
    updated timestamp with time zone NOT NULL,
    title text,
    state text NOT NULL,
    head bigint,
    epoch bigint NOT NULL,
    owner text,
    owner_address text,
    expires timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    lasts interval,
    mark text,
    mark_version bigint,
    next_node bigint
)
WITH (fillfactor='70');
ALTER TABLE golden_schema.conversations ALTER COLUMN key ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME golden_schema.conversations_key_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE golden_schema.cursors (
    conversation bigint NOT NULL,
    node bigint NOT NULL,
    child bigint NOT NULL
);
CREATE TABLE golden_schema.kept_usage (
    labels jsonb NOT NULL,
    hour bigint NOT NULL,
    model text NOT NULL,
    requests bigint NOT NULL,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write bigint NOT NULL,
    output bigint NOT NULL,
    reasoning bigint NOT NULL,
    cost double precision
);
CREATE TABLE golden_schema.labels (
    conversation bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE golden_schema.migrations (
    version integer NOT NULL,
    applied timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE golden_schema.nodes (
    conversation bigint NOT NULL,
    version bigint NOT NULL,
    place integer NOT NULL,
    id bigint NOT NULL,
    parent bigint,
    message text NOT NULL,
    content jsonb GENERATED ALWAYS AS (
CASE
    WHEN ((strpos(message, '\u0000'::text) = 0) AND (octet_length(message) <= 262144)) THEN (message)::jsonb
    ELSE NULL::jsonb
END) STORED,
    usage text
);
CREATE TABLE golden_schema.pending (
    conversation bigint NOT NULL,
    place integer NOT NULL,
    slot integer NOT NULL,
    content text NOT NULL
);
CREATE TABLE golden_schema.runs (
    conversation bigint NOT NULL,
    version bigint NOT NULL,
    turn text,
    ending text NOT NULL,
    prompts text
);
CREATE TABLE golden_schema.turns (
    conversation bigint NOT NULL,
    turn text NOT NULL,
    lives integer NOT NULL,
    orderly boolean NOT NULL,
    format integer NOT NULL,
    core text NOT NULL,
    head bigint,
    branch text,
    spent interval NOT NULL,
    prompts text NOT NULL,
    since timestamp with time zone NOT NULL,
    recorded timestamp with time zone NOT NULL,
    waits boolean NOT NULL
);
CREATE TABLE golden_schema.usage (
    conversation bigint NOT NULL,
    version bigint NOT NULL,
    place integer NOT NULL,
    purpose text NOT NULL,
    turn text,
    step bigint,
    message text,
    at bigint NOT NULL,
    model text,
    input bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write bigint NOT NULL,
    output bigint NOT NULL,
    reasoning bigint NOT NULL,
    cost double precision,
    ending text NOT NULL
);
CREATE TABLE golden_schema.writes (
    conversation bigint NOT NULL,
    version bigint NOT NULL,
    write bytea NOT NULL
);
INSERT INTO golden_schema.approvals VALUES (4, '"call 1"', 0, '{"id":"call 1","name":"send","input":{"to":"ann"}}', '{"why":"money"}', '"execute"', true, '2026-11-24 10:11:35.032+00', '2026-11-24 10:12:35.032+00');
INSERT INTO golden_schema.approvals VALUES (4, '"call 3"', 1, '{"id":"call 3","name":"send","input":{"to":"ann"}}', 'null', '{"reject":"The approval was not given in time."}', false, '2026-11-24 10:11:35.032+00', NULL);
INSERT INTO golden_schema.conversations OVERRIDING SYSTEM VALUE VALUES (1, 'empty', 412028004134, '2026-11-24 10:11:34.995+00', '2026-11-24 10:11:34.997+00', NULL, '{}', NULL, 412028004133, NULL, NULL, '-infinity', NULL, NULL, NULL, NULL);
INSERT INTO golden_schema.conversations OVERRIDING SYSTEM VALUE VALUES (2, 'talk', 615484751126, '2026-11-24 10:11:35.004+00', '2026-11-24 10:11:35.005+00', '"A talk 😀"', '{"model":"anthropic:claude-sonnet-4-6","system":"Be brief.\nÄh\u0000","options":{"max_tokens":2000,"temperature":0.7,"thinking":{"effort":"low"},"cache":"long","extra":{"seed":7}}}', 6, 618939518078, 'ann', 'host a', '2026-11-24 10:12:05.012013+00', '00:00:30', NULL, NULL, NULL);
INSERT INTO golden_schema.conversations OVERRIDING SYSTEM VALUE VALUES (3, 'full', 344426115257, '2026-11-24 10:11:35.012+00', '2026-11-24 10:11:35.015+00', '"Full"', '{}', 2, 344426115253, NULL, NULL, '-infinity', NULL, NULL, NULL, 5);
INSERT INTO golden_schema.conversations OVERRIDING SYSTEM VALUE VALUES (4, 'flight', 790525015569, '2026-11-24 10:11:35.019+00', '2026-11-24 10:11:35.02+00', NULL, '{}', 2, 790525015567, NULL, NULL, '-infinity', NULL, '7-11', 790525015569, NULL);
INSERT INTO golden_schema.conversations OVERRIDING SYSTEM VALUE VALUES (5, 'known', 837243275312, '2026-11-24 10:11:35.033+00', '2026-11-24 10:11:35.033+00', NULL, '{}', NULL, 837243275311, NULL, NULL, '-infinity', NULL, '7-12', 837243275312, NULL);
INSERT INTO golden_schema.cursors VALUES (2, 3, 4);
INSERT INTO golden_schema.kept_usage VALUES ('{}', 0, '"of the deleted"', 1, 70, 0, 0, 0, 0, 1e+290);
INSERT INTO golden_schema.labels VALUES (3, 'kind', 'Ünïcode');
INSERT INTO golden_schema.labels VALUES (3, 'tenant', 'acme');
INSERT INTO golden_schema.migrations VALUES (1, '2026-11-24 10:11:34.937741+00');
INSERT INTO golden_schema.migrations VALUES (2, '2026-11-24 10:11:34.937741+00');
INSERT INTO golden_schema.migrations VALUES (3, '2026-11-24 10:11:34.937741+00');
INSERT INTO golden_schema.nodes VALUES (2, 615484751126, 1, 1, NULL, '{"role":"user","content":[{"type":"text","text":"Look: 👨‍👩"},{"type":"attachment","source":{"type":"base64","data":"iVBORw0KGgo="},"media_type":"image/png","name":"a.png","metadata":{"width":3}},{"type":"attachment","source":{"type":"url","url":"https://example.com/"},"media_type":"text/html"}],"timestamp":1763769600000}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (2, 615484751126, 2, 2, 1, '{"role":"assistant","content":[{"type":"thinking","text":"hm","signature":"c2ln"},{"type":"thinking","text":"","redacted":"ZW5j"},{"type":"text","text":"Wait.\u0000","signature":"dGV4"},{"type":"tool_use","id":"toolu_1","name":"search","input":{"zebra":1,"apple":[1.0,5e-324,18446744073709551615,null]}},{"type":"tool_use","id":"toolu_2","name":"search","input":{},"malformed":"{\"a\":"},{"type":"provider_item","format":"openai","data":{"type":"reasoning","id":null}}],"timestamp":1763769600000,"provider_data":{"anthropic":{"container":"c1"}}}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (2, 615484751126, 3, 3, 2, '{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","name":"search","content":[{"type":"attachment","source":{"type":"base64","data":"iVBORw0KGgo="},"media_type":"image/png","name":"a.png","metadata":{"width":3}}],"is_error":false},{"type":"tool_result","tool_use_id":"toolu_2","name":"search","content":[{"type":"text","text":"no JSON"}],"is_error":true}],"timestamp":1763769600000}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (2, 615484751126, 4, 4, 3, '{"role":"assistant","content":[{"type":"text","text":"Done."}],"timestamp":1763769600000}', DEFAULT, '{"input":7,"cache_read":1,"cache_write":2,"output":9,"reasoning":3,"cost":0.00125}');
INSERT INTO golden_schema.nodes VALUES (2, 615484751126, 5, 5, 3, '{"role":"assistant","content":[{"type":"text","text":"Done otherwise."}],"timestamp":1763769600000}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (2, 615484751126, 6, 6, NULL, '{"role":"user","content":[{"type":"text","text":"A new root"}],"timestamp":1763769600000}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (3, 344426115254, 1, 1, NULL, '{"role":"user","content":[{"type":"text","text":"secret?"}],"timestamp":1}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (3, 344426115254, 2, 2, 1, '{"role":"assistant","content":[{"type":"text","text":"answer"}],"timestamp":2}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (4, 790525015568, 1, 1, NULL, '{"role":"user","content":[{"type":"text","text":"Why?"}],"timestamp":1,"id":"a prompt","app_data":{"from":"web"}}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (4, 790525015568, 2, 2, 1, '{"role":"assistant","content":[{"type":"text","text":"Because."}],"timestamp":2,"id":"a message"}', DEFAULT, NULL);
INSERT INTO golden_schema.pending VALUES (4, 0, -1, '{"role":"user","content":[{"type":"text","text":"A pending message"}],"timestamp":9}');
INSERT INTO golden_schema.pending VALUES (4, 0, 1, '{"slot":1,"reviewed":true,"result":{"tool_use_id":"call 2","name":"send","content":[{"type":"text","text":"sent"}],"is_error":false}}');
INSERT INTO golden_schema.runs VALUES (3, 344426115257, '00112233445566778899aabbccddeeff', '{"outcome":"cancelled","turn":"00112233445566778899aabbccddeeff","unanswered":[{"role":"user","content":[{"type":"text","text":"Anyone?"}],"timestamp":9}]}', NULL);
INSERT INTO golden_schema.runs VALUES (5, 837243275312, NULL, '{"outcome":"discarded"}', '[{"id":"p3","state":{"state":"ended","outcome":{"outcome":"abandoned"}},"through":2}]');
INSERT INTO golden_schema.turns VALUES (4, '00112233445566778899aabbccddeeff', 2, true, 1, '{"phase":"paused"}', 2, '{"base":1,"answers":1}', '00:00:01.5', '[{"id":"p1","state":{"state":"ended","outcome":{"outcome":"abandoned"}},"through":2},{"id":"p2","state":{"state":"in_flight"}}]', '2026-11-24 10:11:35.032+00', '2026-11-24 10:11:35.032+00', false);
INSERT INTO golden_schema.usage VALUES (2, 615484751126, 1, 'answer', NULL, NULL, NULL, 1763769600000, NULL, 7, 1, 2, 9, 3, 0.00125, 'answered');
INSERT INTO golden_schema.usage VALUES (3, 344426115254, 1, 'answer', NULL, NULL, NULL, 1763769600000, '"a model"', 7, 0, 0, 3, 0, 0.25, 'answered');
INSERT INTO golden_schema.usage VALUES (3, 344426115255, 1, 'title', NULL, NULL, NULL, 1763769700000, '"a model"', 7, 0, 0, 3, 0, 0.25, 'interrupted');
INSERT INTO golden_schema.usage VALUES (3, 344426115257, 1, 'answer', NULL, NULL, NULL, 1763779600000, '"a model"', 7, 0, 0, 3, 0, 0.25, 'cancelled');
INSERT INTO golden_schema.usage VALUES (4, 790525015568, 1, 'answer', '00112233445566778899aabbccddeeff', 2, '"a message"', 1763769600000, '"a model"', 7, 0, 0, 0, 0, 0.25, 'void');
INSERT INTO golden_schema.writes VALUES (1, 412028004133, '\x496b5fb101c4da8fd9d0be779d6eaff3');
INSERT INTO golden_schema.writes VALUES (1, 412028004134, '\x67f5ba3a52fa3ad0bd036d23ae97f732');
INSERT INTO golden_schema.writes VALUES (2, 615484751125, '\x9876b7cdfb89de80d4d25bcac903579e');
INSERT INTO golden_schema.writes VALUES (2, 615484751126, '\xb2b2ea7891ceb954e9b438956464d41b');
INSERT INTO golden_schema.writes VALUES (3, 344426115253, '\xa461130403ce18cd54c83d509f5074ef');
INSERT INTO golden_schema.writes VALUES (3, 344426115254, '\x9e757114bf7dc11e2e607ad6cd2a39dd');
INSERT INTO golden_schema.writes VALUES (3, 344426115255, '\xc941dd27ddb32435017e8957f4edf10a');
INSERT INTO golden_schema.writes VALUES (3, 344426115256, '\xa58714c5241e0c1a2652481b8017550a');
INSERT INTO golden_schema.writes VALUES (3, 344426115257, '\x95c4e24ec59c0a5190ab17ca5170492e');
INSERT INTO golden_schema.writes VALUES (4, 790525015567, '\x296f208ff196111a7c31390f086c2f29');
INSERT INTO golden_schema.writes VALUES (4, 790525015568, '\x4c2d79a1e37fb08327fe6be50e5794d8');
INSERT INTO golden_schema.writes VALUES (4, 790525015569, '\xd3c90db7230fe52f5ea83c5441c2745f');
INSERT INTO golden_schema.writes VALUES (5, 837243275311, '\xa31d7cc51808157e60136dfe9eb036ef');
INSERT INTO golden_schema.writes VALUES (5, 837243275312, '\x1ef3ba6c5ae933c47e325ea57eb264d8');
SELECT pg_catalog.setval('golden_schema.conversations_key_seq', 6, true);
ALTER TABLE ONLY golden_schema.approvals
    ADD CONSTRAINT approvals_pkey PRIMARY KEY (conversation, tool_use);
ALTER TABLE ONLY golden_schema.conversations
    ADD CONSTRAINT conversations_id_key UNIQUE (id);
ALTER TABLE ONLY golden_schema.conversations
    ADD CONSTRAINT conversations_pkey PRIMARY KEY (key);
ALTER TABLE ONLY golden_schema.cursors
    ADD CONSTRAINT cursors_pkey PRIMARY KEY (conversation, node);
ALTER TABLE ONLY golden_schema.kept_usage
    ADD CONSTRAINT kept_usage_pkey PRIMARY KEY (labels, hour, model);
ALTER TABLE ONLY golden_schema.labels
    ADD CONSTRAINT labels_pkey PRIMARY KEY (conversation, name);
ALTER TABLE ONLY golden_schema.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY golden_schema.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (conversation, version, place);
ALTER TABLE ONLY golden_schema.pending
    ADD CONSTRAINT pending_pkey PRIMARY KEY (conversation, place, slot);
ALTER TABLE ONLY golden_schema.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (conversation);
ALTER TABLE ONLY golden_schema.turns
    ADD CONSTRAINT turns_pkey PRIMARY KEY (conversation);
ALTER TABLE ONLY golden_schema.usage
    ADD CONSTRAINT usage_pkey PRIMARY KEY (conversation, version, place);
ALTER TABLE ONLY golden_schema.writes
    ADD CONSTRAINT writes_pkey PRIMARY KEY (conversation, version);
CREATE INDEX approvals_by_age ON golden_schema.approvals USING btree (since, conversation);
CREATE INDEX approvals_by_expiry ON golden_schema.approvals USING btree (expires) WHERE (expires IS NOT NULL);
CREATE INDEX conversations_by_update ON golden_schema.conversations USING btree (updated DESC, id);
CREATE INDEX labels_by_value ON golden_schema.labels USING btree (name, value, conversation);
CREATE INDEX turns_at_work ON golden_schema.turns USING btree (since) WHERE (NOT waits);
ALTER TABLE ONLY golden_schema.approvals
    ADD CONSTRAINT approvals_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.turns(conversation) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.cursors
    ADD CONSTRAINT cursors_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.labels
    ADD CONSTRAINT labels_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.nodes
    ADD CONSTRAINT nodes_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.pending
    ADD CONSTRAINT pending_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.turns(conversation) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.runs
    ADD CONSTRAINT runs_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.turns
    ADD CONSTRAINT turns_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.usage
    ADD CONSTRAINT usage_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.writes
    ADD CONSTRAINT writes_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
