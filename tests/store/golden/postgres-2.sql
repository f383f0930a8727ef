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
SET default_tablespace = '';
SET default_table_access_method = heap;
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
    lasts interval
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
CREATE TABLE golden_schema.writes (
    conversation bigint NOT NULL,
    version bigint NOT NULL,
    write bytea NOT NULL
);
INSERT INTO golden_schema.conversations OVERRIDING SYSTEM VALUE VALUES (1, 'empty', 412872689184, '2026-11-22 14:31:29.555+00', '2026-11-22 14:31:29.558+00', NULL, '{}', NULL, 412872689183, NULL, NULL, '-infinity', NULL);
INSERT INTO golden_schema.conversations OVERRIDING SYSTEM VALUE VALUES (2, 'talk', 757331296562, '2026-11-22 14:31:29.56+00', '2026-11-22 14:31:29.561+00', '"A talk 😀"', '{"model":"anthropic:claude-sonnet-4-6","system":"Be brief.\nÄh\u0000","options":{"max_tokens":2000,"temperature":0.7,"thinking":{"effort":"low"},"cache":"long","extra":{"seed":7}}}', 6, 760216904065, 'ann', 'host a', '2026-11-22 14:31:59.56363+00', '00:00:30');
INSERT INTO golden_schema.cursors VALUES (2, 3, 4);
INSERT INTO golden_schema.migrations VALUES (1, '2026-11-22 14:31:29.540284+00');
INSERT INTO golden_schema.migrations VALUES (2, '2026-11-22 14:31:29.540284+00');
INSERT INTO golden_schema.nodes VALUES (2, 757331296562, 1, 1, NULL, '{"role":"user","content":[{"type":"text","text":"Look: 👨‍👩"},{"type":"attachment","source":{"type":"base64","data":"iVBORw0KGgo="},"media_type":"image/png","name":"a.png","metadata":{"width":3}},{"type":"attachment","source":{"type":"url","url":"https://example.com/"},"media_type":"text/html"}],"timestamp":1763769600000}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (2, 757331296562, 2, 2, 1, '{"role":"assistant","content":[{"type":"thinking","text":"hm","signature":"c2ln"},{"type":"thinking","text":"","redacted":"ZW5j"},{"type":"text","text":"Wait.\u0000","signature":"dGV4"},{"type":"tool_use","id":"toolu_1","name":"search","input":{"zebra":1,"apple":[1.0,5e-324,18446744073709551615,null]}},{"type":"tool_use","id":"toolu_2","name":"search","input":{},"malformed":"{\"a\":"},{"type":"provider_item","format":"openai","data":{"type":"reasoning","id":null}}],"timestamp":1763769600000,"provider_data":{"anthropic":{"container":"c1"}}}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (2, 757331296562, 3, 3, 2, '{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","name":"search","content":[{"type":"attachment","source":{"type":"base64","data":"iVBORw0KGgo="},"media_type":"image/png","name":"a.png","metadata":{"width":3}}],"is_error":false},{"type":"tool_result","tool_use_id":"toolu_2","name":"search","content":[{"type":"text","text":"no JSON"}],"is_error":true}],"timestamp":1763769600000}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (2, 757331296562, 4, 4, 3, '{"role":"assistant","content":[{"type":"text","text":"Done."}],"timestamp":1763769600000}', DEFAULT, '{"input":7,"cache_read":1,"cache_write":2,"output":9,"reasoning":3,"cost":0.00125}');
INSERT INTO golden_schema.nodes VALUES (2, 757331296562, 5, 5, 3, '{"role":"assistant","content":[{"type":"text","text":"Done otherwise."}],"timestamp":1763769600000}', DEFAULT, NULL);
INSERT INTO golden_schema.nodes VALUES (2, 757331296562, 6, 6, NULL, '{"role":"user","content":[{"type":"text","text":"A new root"}],"timestamp":1763769600000}', DEFAULT, NULL);
INSERT INTO golden_schema.writes VALUES (1, 412872689183, '\x496b5fb101c4da8fd9d0be779d6eaff3');
INSERT INTO golden_schema.writes VALUES (1, 412872689184, '\x5bb837c15664d016348862c78b90cb3a');
INSERT INTO golden_schema.writes VALUES (2, 757331296561, '\x9876b7cdfb89de80d4d25bcac903579e');
INSERT INTO golden_schema.writes VALUES (2, 757331296562, '\x713e94ce33517d9584beea86836b33ea');
SELECT pg_catalog.setval('golden_schema.conversations_key_seq', 2, true);
ALTER TABLE ONLY golden_schema.conversations
    ADD CONSTRAINT conversations_id_key UNIQUE (id);
ALTER TABLE ONLY golden_schema.conversations
    ADD CONSTRAINT conversations_pkey PRIMARY KEY (key);
ALTER TABLE ONLY golden_schema.cursors
    ADD CONSTRAINT cursors_pkey PRIMARY KEY (conversation, node);
ALTER TABLE ONLY golden_schema.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY golden_schema.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (conversation, version, place);
ALTER TABLE ONLY golden_schema.writes
    ADD CONSTRAINT writes_pkey PRIMARY KEY (conversation, version);
CREATE INDEX conversations_by_update ON golden_schema.conversations USING btree (updated DESC, id);
ALTER TABLE ONLY golden_schema.cursors
    ADD CONSTRAINT cursors_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.nodes
    ADD CONSTRAINT nodes_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
ALTER TABLE ONLY golden_schema.writes
    ADD CONSTRAINT writes_conversation_fkey FOREIGN KEY (conversation) REFERENCES golden_schema.conversations(key) ON DELETE CASCADE;
