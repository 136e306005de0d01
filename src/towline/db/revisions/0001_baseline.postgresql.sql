-- An index entry of PostgreSQL has no room for a long title.
CREATE INDEX towline_prs_sought ON towline_prs (repo, state, since_us, number);

-- Bodies are compressed before they come here.
ALTER TABLE towline_deliveries ALTER COLUMN body SET STORAGE EXTERNAL;

-- By default PostgreSQL vacuums when a fifth of a table is dead. With ten million events a day and
-- a week's retention, that is more than a day's worth.
ALTER TABLE towline_deliveries SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE towline_requests SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE towline_prs SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE towline_pr_events SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE towline_parked SET (autovacuum_vacuum_scale_factor = 0.02);

-- Claims walk over the dead entries of the queue's index, and only a vacuum of all indexes clears
-- them: so jobs are vacuumed after a fixed number, with their indexes each time.
ALTER TABLE towline_jobs SET (
    autovacuum_vacuum_scale_factor = 0.002,
    autovacuum_vacuum_threshold = 10000,
    vacuum_index_cleanup = on
);
