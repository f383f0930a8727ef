-- The schema's quoted name is put in where it belongs.

-- How long the lease lasts, to tell one that a clock set back would make last for long. Null for those of before.
ALTER TABLE {schema}.conversations ADD COLUMN lasts interval;
