-- SQLite has no sequences: the writer of the file counts fencing tokens in one row.
CREATE TABLE once_epoch (value BIGINT NOT NULL);
INSERT INTO once_epoch VALUES (0);
