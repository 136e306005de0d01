-- {key} is text that is looked up. PostgreSQL compares it byte by byte; without that it would
-- consult the locale at each comparison. {bytes} is binary data.

-- ------------------------------------------------------------------ jobs, deliveries, requests

CREATE TABLE towline_jobs (
    id               {key} PRIMARY KEY,
    queue            {key} NOT NULL,
    kind             TEXT NOT NULL,
    repo             {key},
    subject          {key},
    priority         BIGINT NOT NULL,
    state            TEXT NOT NULL,
    slot             BIGINT,
    held             BIGINT NOT NULL,
    passengers       BIGINT NOT NULL,
    run_at_us        BIGINT NOT NULL,
    created_us       BIGINT NOT NULL,
    updated_us       BIGINT NOT NULL,
    finished_us      BIGINT,
    attempts         BIGINT NOT NULL,
    max_attempts     BIGINT NOT NULL,
    owner            TEXT,
    token            BIGINT NOT NULL,
    lease_expires_us BIGINT,
    published_us     BIGINT NOT NULL,
    trace            TEXT,
    params           TEXT,
    result           TEXT,
    error            TEXT,
    reason           TEXT,
    sha256           TEXT,
    hmac             TEXT
);
CREATE INDEX towline_jobs_due ON towline_jobs (queue, priority DESC, run_at_us, id)
    WHERE state = 'queued';
CREATE INDEX towline_jobs_subject ON towline_jobs (subject)
    WHERE state = 'queued' AND attempts = 0 AND subject IS NOT NULL;
CREATE INDEX towline_jobs_held ON towline_jobs (repo, priority DESC, id)
    WHERE state = 'queued' AND held = 1;
CREATE UNIQUE INDEX towline_jobs_slots ON towline_jobs (repo, slot)
    WHERE state = 'running' AND slot IS NOT NULL;
CREATE INDEX towline_jobs_leases ON towline_jobs (lease_expires_us) WHERE state = 'running';
-- The retention job deletes done and dead jobs at different ages, so each kind has its own index.
CREATE INDEX towline_jobs_done ON towline_jobs (finished_us) WHERE state = 'done';
CREATE INDEX towline_jobs_died ON towline_jobs (finished_us) WHERE state = 'dead';
CREATE INDEX towline_jobs_dead ON towline_jobs (id) WHERE state = 'dead';

CREATE TABLE towline_deliveries (
    delivery_id  {key} NOT NULL,
    key          {key} NOT NULL,
    source       TEXT NOT NULL,
    event_name   TEXT NOT NULL,
    repo         TEXT,
    body         {bytes} NOT NULL,
    job_id       {key} NOT NULL,
    throttled    BIGINT NOT NULL,
    copies       BIGINT NOT NULL,
    received_us  BIGINT NOT NULL,
    last_seen_us BIGINT NOT NULL
);
-- In the order of time, where the id holds one: the expression is that of `inbox/store.py`.
CREATE UNIQUE INDEX towline_deliveries_known ON towline_deliveries ((CASE
    WHEN length(delivery_id) = 36 AND substr(delivery_id, 15, 1) = '1'
    THEN substr(delivery_id, 15, 4) || substr(delivery_id, 10, 4) || substr(delivery_id, 1, 9)
         || substr(delivery_id, 20) ELSE delivery_id END), key);
CREATE INDEX towline_deliveries_job ON towline_deliveries (job_id);
CREATE INDEX towline_deliveries_received ON towline_deliveries (received_us);

CREATE TABLE towline_requests (
    request_id   {key} PRIMARY KEY,
    client       {key} NOT NULL,
    key          {key},
    payload_hash TEXT NOT NULL,
    job_id       {key} NOT NULL,
    created_us   BIGINT NOT NULL,
    last_seen_us BIGINT NOT NULL
);
CREATE UNIQUE INDEX towline_requests_key ON towline_requests (client, key) WHERE key IS NOT NULL;
CREATE INDEX towline_requests_job ON towline_requests (job_id);

CREATE TABLE towline_schedules (
    name        {key} PRIMARY KEY,
    cron        TEXT NOT NULL,
    next_run_us BIGINT NOT NULL
);

CREATE TABLE towline_api_keys (
    prefix     {key} PRIMARY KEY,
    digest     TEXT NOT NULL,
    name       TEXT NOT NULL,
    scopes     TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    revoked_us BIGINT
);

CREATE TABLE towline_hook_hours (
    hook      {key} NOT NULL,
    hour_us   BIGINT NOT NULL,
    delivered BIGINT NOT NULL,
    received  BIGINT NOT NULL,
    recovered BIGINT NOT NULL,
    PRIMARY KEY (hook, hour_us)
);

-- ------------------------------------------------------------------ pull requests

CREATE TABLE towline_prs (
    repo                {key} NOT NULL,
    number              BIGINT NOT NULL,
    forge               TEXT NOT NULL,
    url                 TEXT,
    title               TEXT NOT NULL,
    author              TEXT,
    head_ref            {key},
    base_ref            TEXT,
    head_sha            {key},
    vulnerability_id    {key},
    state               {key} NOT NULL,
    substatus           TEXT,
    since_us            BIGINT NOT NULL,
    created_us          BIGINT NOT NULL,
    updated_us          BIGINT NOT NULL,
    counts              TEXT NOT NULL,
    lifetime            TEXT NOT NULL,
    path                TEXT NOT NULL,
    facts               TEXT NOT NULL,
    intent              TEXT,
    verify_by_us        BIGINT,
    last_remediation_us BIGINT,
    remediation_action  TEXT,
    diagnosis           TEXT,
    replaces            BIGINT,
    replaced_by         BIGINT,
    expires_us          BIGINT,
    version             BIGINT NOT NULL,
    last_event          BIGINT NOT NULL,
    PRIMARY KEY (repo, number)
);
CREATE INDEX towline_prs_stale ON towline_prs (state, since_us, repo, number);
CREATE INDEX towline_prs_head ON towline_prs (head_sha) WHERE head_sha IS NOT NULL;
CREATE INDEX towline_prs_alive_for ON towline_prs (vulnerability_id)
    WHERE vulnerability_id IS NOT NULL AND expires_us IS NULL;
CREATE INDEX towline_prs_unverified ON towline_prs (verify_by_us) WHERE verify_by_us IS NOT NULL;
CREATE INDEX towline_prs_expired ON towline_prs (expires_us) WHERE expires_us IS NOT NULL;

CREATE TABLE towline_pr_events (
    repo       {key} NOT NULL,
    number     BIGINT NOT NULL,
    id         BIGINT NOT NULL,
    key        {key} NOT NULL,
    event_type TEXT NOT NULL,
    source     TEXT NOT NULL,
    at_us      BIGINT NOT NULL,
    payload    TEXT NOT NULL,
    PRIMARY KEY (repo, number, id)
);
CREATE UNIQUE INDEX towline_pr_events_key ON towline_pr_events (repo, number, key);

CREATE TABLE towline_reopened (
    vulnerability_id {key} NOT NULL,
    key              {key} NOT NULL,
    at_us            BIGINT NOT NULL,
    PRIMARY KEY (vulnerability_id, key)
);

CREATE TABLE towline_repos (
    repo  {key} PRIMARY KEY,
    name  {key} NOT NULL,
    forge TEXT NOT NULL
);
CREATE INDEX towline_repos_name ON towline_repos (name);

-- Events that came before their pull request was recorded, or before its head moved to them.
-- `number` is 0 and `repo` is empty where the event does not say.
CREATE TABLE towline_parked (
    delivery_key {key} NOT NULL,
    place        BIGINT NOT NULL,
    number       BIGINT NOT NULL,
    repo         {key} NOT NULL,
    head_sha     {key},
    delivery_id  {key} NOT NULL,
    source       {key} NOT NULL,
    kind         {key} NOT NULL,
    event        TEXT NOT NULL,
    at_us        BIGINT NOT NULL,
    received_us  BIGINT NOT NULL,
    parked_us    BIGINT NOT NULL,
    PRIMARY KEY (delivery_key, place, number)
);
CREATE INDEX towline_parked_by_pull ON towline_parked (repo, number);
CREATE INDEX towline_parked_by_head ON towline_parked (head_sha);
CREATE INDEX towline_parked_by_time ON towline_parked (parked_us);

-- ------------------------------------------------------------------ fix runs

-- One for each failure event, with every stage that ended.
CREATE TABLE towline_runs (
    run_key            {key} PRIMARY KEY,
    event_id           {key} NOT NULL,
    run_id             {key} NOT NULL,
    subject            {key} NOT NULL,
    repo               {key} NOT NULL,
    errand             TEXT NOT NULL,
    state              {key} NOT NULL,
    attempt_count      BIGINT NOT NULL,
    blocked_reason     TEXT,
    branch             TEXT NOT NULL,
    last_pr_url        TEXT,
    last_pr_number     BIGINT,
    last_pr_created_us BIGINT,
    last_attempt_us    BIGINT,
    last_job           TEXT,
    unblocked_by       TEXT,
    created_us         BIGINT NOT NULL,
    updated_us         BIGINT NOT NULL,
    token              BIGINT NOT NULL,
    starts_us          BIGINT
);
CREATE UNIQUE INDEX towline_runs_event ON towline_runs (event_id);
CREATE UNIQUE INDEX towline_runs_newest ON towline_runs (run_id);
CREATE INDEX towline_runs_of_repo ON towline_runs (repo, run_id);
CREATE INDEX towline_runs_by_state ON towline_runs (state, run_id);
CREATE INDEX towline_runs_about ON towline_runs (subject, last_pr_created_us)
    WHERE last_pr_created_us IS NOT NULL;
CREATE INDEX towline_runs_ended ON towline_runs (updated_us)
    WHERE state IN ('blocked', 'done');
CREATE INDEX towline_runs_live ON towline_runs (updated_us)
    WHERE state IN ('waiting', 'running');

CREATE TABLE towline_run_stages (
    run_key      {key} NOT NULL,
    stage        {key} NOT NULL,
    attempt      BIGINT NOT NULL,
    outcome      TEXT NOT NULL,
    input_digest TEXT NOT NULL,
    reason       TEXT NOT NULL,
    output       TEXT NOT NULL,
    log          TEXT NOT NULL,
    started_us   BIGINT NOT NULL,
    took_us      BIGINT NOT NULL,
    PRIMARY KEY (run_key, stage, attempt)
);

-- Fix runs that wait for their turn under the rate.
CREATE TABLE towline_starts (
    run_key   {key} PRIMARY KEY,
    starts_us BIGINT NOT NULL
);
CREATE INDEX towline_starts_by_time ON towline_starts (starts_us);

-- ------------------------------------------------------------------ the dashboard

-- Counts pull requests whose records were deleted, by the hour in which they ended.
CREATE TABLE towline_ended (
    hour_us BIGINT NOT NULL,
    what    {key} NOT NULL,
    bucket  BIGINT NOT NULL,
    times   BIGINT NOT NULL,
    PRIMARY KEY (hour_us, what, bucket)
);

CREATE TABLE towline_sessions (
    id         {key} NOT NULL PRIMARY KEY,
    digest     TEXT NOT NULL,
    principal  {key} NOT NULL,
    binding    TEXT NOT NULL,
    address    TEXT NOT NULL,
    agent      TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    seen_us    BIGINT NOT NULL,
    expires_us BIGINT NOT NULL,
    ended_us   BIGINT
);
CREATE INDEX towline_sessions_of ON towline_sessions (principal, created_us);
CREATE INDEX towline_sessions_expiry ON towline_sessions (expires_us);
