-- SQLite has no sequences: the writer of the file counts fencing tokens in one row.
CREATE TABLE towline_epoch (value BIGINT NOT NULL);
INSERT INTO towline_epoch VALUES (0);

-- Holds all that a filter of the dashboard asks for, so that a search reads only the records that
-- it shows. The expressions are those of `store/dashboard_find.py`.
CREATE INDEX towline_prs_sought ON towline_prs (repo, state, since_us, number,
    (CASE WHEN json_valid(diagnosis) AND state NOT IN ('MERGED', 'CLOSED')
          THEN json_extract(diagnosis, '$.rule') END),
    (lower(substr(title, 1, 300) || ' ' || substr(coalesce(head_ref, ''), 1, 300) || ' '
          || repo || '#' || number)));
