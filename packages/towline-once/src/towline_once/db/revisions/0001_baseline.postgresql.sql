CREATE SEQUENCE once_epoch;

-- A result is written beside its claim, on the same page, if it fits: claims fill two fifths of a
-- page, so that the results of all of them fit as well.
ALTER TABLE once_records SET (fillfactor = 40);

-- By default PostgreSQL vacuums when a fifth of a table is dead. With ten million keys a day, that
-- is more than a day's worth.
ALTER TABLE once_records SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE once_seen SET (autovacuum_vacuum_scale_factor = 0.02);
