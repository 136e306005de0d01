-- Holds all that a filter of the dashboard asks for, so that a search reads only the records that
-- it shows. The expressions are those of `dashboard/queries.py`.
CREATE INDEX towline_prs_sought ON towline_prs (repo, state, since_us, number,
    (CASE WHEN json_valid(diagnosis) AND state NOT IN ('MERGED', 'CLOSED')
          THEN json_extract(diagnosis, '$.rule') END),
    (lower(substr(title, 1, 300) || ' ' || substr(coalesce(head_ref, ''), 1, 300) || ' '
          || repo || '#' || number)));
