-- The placeholder in braces is replaced by the quoted name of the schema.

-- The duration of the lease. After the clock was set back, it reveals a lease that would end much too late. Null for
-- leases that were acquired before this migration.
ALTER TABLE {schema}.conversations ADD COLUMN lasts interval;
