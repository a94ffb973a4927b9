-- Tables of the scheduler and the job runner: functions, schedules, job runs, firings, dead letters, alerts, decision
-- cards and notifications. functions/base.sql comes first, because column defaults call jobs.new_id(). Row-level
-- security, triggers and grants of these tables are in functions/guards.sql.

create table jobs.functions (
    id                 uuid             not null,
    tenant_id          uuid             not null references tenancy.tenants (id),
    name               text             not null,
    kind               text             not null,
    target             text             not null,
    grain              text             not null default 'day',
    timeout_seconds    integer          not null default 60,
    max_retries        integer          not null default 3,
    initial_delay_ms   integer          not null default 1000,
    backoff_multiplier double precision not null default 5,
    max_delay_ms       integer          not null default 30000,
    sealed_secret      bytea,
    created_at         timestamptz      not null default now(),
    updated_at         timestamptz      not null default now(),
    primary key (tenant_id, id),
    constraint functions_one_per_name unique (tenant_id, name),
    -- No colon: lock keys contain the name and separate their parts with colons.
    constraint functions_name_is_plain check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'),
    constraint functions_kind_check check (kind in ('http', 'sql', 'builtin')),
    constraint functions_target_is_given check (btrim(target) <> '' and octet_length(target) <= 2048),
    constraint functions_requests_are_signed check ((kind = 'http') = (sealed_secret is not null)),
    constraint functions_grain_check check (grain in ('day', 'hour', '5min')),
    constraint functions_timeout_is_bounded check (timeout_seconds between 1 and 900),
    constraint functions_retries_are_bounded
        check (max_retries between 0 and 100 and initial_delay_ms between 0 and 86400000
               and backoff_multiplier between 1 and 100 and max_delay_ms between 0 and 86400000)
);
-- As for channels.channel_messages: with statistics, a tenant that is missing in the last sample counts as empty, and a
-- lookup by key may read all rows of the tenant through another index. So it is for every table of this area.
alter table jobs.functions alter column tenant_id set statistics 0;
comment on table jobs.functions is
    'Functions that a tenant can run, with their retry policy. A function of kind http has a secret, sealed to its '
    'row; the runner signs its requests with it.';
comment on column jobs.functions.target is
    'URL (http), name of a function in the database (sql), or name of a Rust function (builtin).';
comment on column jobs.functions.grain is
    'Period in which one lock key completes at most once: a day, an hour or five minutes of UTC.';

create table jobs.provided_functions (
    name       text        not null,
    runner     text        not null,
    expires_at timestamptz not null,
    primary key (name, runner),
    -- A function of kind builtin has such a name as its target.
    constraint provided_functions_name_is_plain check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'),
    constraint provided_functions_runner_is_given check (btrim(runner) <> '' and octet_length(runner) <= 255)
);
comment on table jobs.provided_functions is
    'Rust functions of applications that running processes provide, one row per process and name. They belong to the '
    'installation, not to a tenant. A function of kind builtin can be set to a name that is here and has not expired.';
comment on column jobs.provided_functions.runner is
    'Name of the runner. It is new at every start of a process.';
comment on column jobs.provided_functions.expires_at is
    'Time at which the process counts as dead unless it renews the row.';

create table jobs.schedules (
    id            uuid        not null,
    tenant_id     uuid        not null references tenancy.tenants (id),
    function_name text        not null,
    cron          text        not null,
    timezone      text        not null,
    grain         text,
    input         jsonb,
    entities      json,
    entity_hash   text,
    depends_on    text[]      not null default '{}',
    misfire       text        not null default 'once',
    enabled       boolean     not null default true,
    next_fire_at  timestamptz,
    last_fire_at  timestamptz,
    version       integer     not null default 1,
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint schedules_run_a_function
        foreign key (tenant_id, function_name) references jobs.functions (tenant_id, name),
    constraint schedules_cron_is_given check (btrim(cron) <> '' and octet_length(cron) <= 255),
    constraint schedules_timezone_is_given check (btrim(timezone) <> '' and octet_length(timezone) <= 255),
    constraint schedules_grain_check check (grain in ('day', 'hour', '5min')),
    constraint schedules_misfire_check check (misfire in ('skip', 'once', 'all')),
    constraint schedules_input_is_bounded check (pg_column_size(input) <= 1048576),
    constraint schedules_entities_have_their_hash
        check ((entities is null) = (entity_hash is null) and octet_length(entities::text) <= 65536),
    constraint schedules_dependencies_are_few check (cardinality(depends_on) <= 20)
);
create index schedules_due on jobs.schedules (next_fire_at) where enabled;
create index schedules_by_function on jobs.schedules (tenant_id, function_name);
alter table jobs.schedules alter column tenant_id set statistics 0;
comment on table jobs.schedules is
    'Times at which a function runs by itself. A scheduler that fires a schedule advances next_fire_at in the same '
    'transaction, so any number of schedulers can run.';
comment on column jobs.schedules.grain is
    'Grain of the runs of this schedule; null means the grain of the function.';
comment on column jobs.schedules.depends_on is
    'Names of functions that must have a completed run in an overlapping grain before a firing starts its run.';
comment on column jobs.schedules.version is
    'Increases with every change by a person. A scheduler names the version from which it planned its firing.';

create table jobs.job_runs (
    id            uuid        not null default jobs.new_id(),
    tenant_id     uuid        not null references tenancy.tenants (id),
    function_name text        not null,
    lock_key      text        not null,
    status        text        not null default 'running',
    input_params  jsonb,
    result        jsonb,
    error_message text,
    retry_count   integer     not null default 0,
    started_at    timestamptz not null default now(),
    completed_at  timestamptz,
    created_at    timestamptz not null default now(),
    duration_ms   integer     generated always as (
        case when completed_at is not null
             then least(extract(epoch from (completed_at - started_at)) * 1000, 2147483647)::integer
        end) stored,
    retry_at      timestamptz,
    heartbeat_at  timestamptz,
    schedule_id   uuid,
    scheduled_for timestamptz,
    grain         text        not null,
    grain_start   timestamptz not null,
    is_forced     boolean     not null default false,
    locked_by     text,
    claims        integer     not null default 0,
    constraint job_runs_status_check check (status in ('running', 'completed', 'failed', 'cancelled')),
    constraint job_runs_grain_check check (grain in ('day', 'hour', '5min')),
    constraint job_runs_only_running_has_no_end check ((status = 'running') = (completed_at is null)),
    constraint job_runs_only_running_is_held check (locked_by is null or status = 'running'),
    constraint job_runs_held_has_a_heartbeat check ((locked_by is null) = (heartbeat_at is null)),
    constraint job_runs_only_failed_is_retried check (retry_at is null or status = 'failed'),
    constraint job_runs_only_completed_has_a_result check (result is null or status = 'completed'),
    constraint job_runs_retries_are_counted check (retry_count >= 0 and claims >= 0),
    -- The API accepts 64 KiB of text; jsonb can need far more space for the same numbers.
    constraint job_runs_input_is_bounded check (pg_column_size(input_params) <= 1048576),
    constraint job_runs_result_is_bounded check (pg_column_size(result) <= 1048576)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);
-- Among indexes of equal cost the planner takes the newest, and keeps that plan in a session that began while the table
-- was empty. So the order of these indexes matters: first those that answer for a whole tenant, then the primary key,
-- then those of few rows.
create index idx_job_runs_tenant_function on jobs.job_runs (tenant_id, function_name, created_at desc);
-- For prune_runs, job_conditions, measure_jobs and the health view.
create index job_runs_by_age on jobs.job_runs (tenant_id, created_at);
-- For are_dependencies_met and unmet_dependencies.
create index job_runs_completed on jobs.job_runs (tenant_id, function_name, grain_start) where status = 'completed';
alter table jobs.job_runs add primary key (tenant_id, id);
create index idx_job_runs_status on jobs.job_runs (status) where status = 'running';
-- One active run per lock key: running, or waiting for its retry.
create unique index idx_job_runs_lock_active
    on jobs.job_runs (lock_key, tenant_id)
    where status = 'running' or retry_at is not null;
-- One run per lock key and grain. Running and completed runs share the index, so the key is never free between the
-- two states.
create unique index job_runs_once_per_grain
    on jobs.job_runs (lock_key, tenant_id)
    where not is_forced and (status in ('running', 'completed') or retry_at is not null);
-- For tenants_with_due_runs and claim_runs: runs that wait for a runner, by tenant and due time.
create index job_runs_waiting
    on jobs.job_runs (tenant_id, (coalesce(retry_at, started_at)))
    where (status = 'running' and locked_by is null) or retry_at is not null;
-- For tenants_with_stale_runs and recover_runs. It holds the claimed runs alone.
create index job_runs_heartbeats on jobs.job_runs (heartbeat_at, tenant_id) where heartbeat_at is not null;
alter table jobs.job_runs alter column tenant_id set statistics 0;
comment on table jobs.job_runs is
    'Runs of functions, each under a lock key. At most one run per lock key is active, and at most one that is not '
    'forced completes per grain.';
comment on column jobs.job_runs.status is
    'running without locked_by: waits for a runner. running with locked_by: a runner holds it and heartbeat_at '
    'shows that it lives. failed with retry_at: waits for its retry. failed without retry_at: failed for good, and '
    'sync_errors has a row about it.';
comment on column jobs.job_runs.claims is
    'Number of claims, used as a fencing token: only the runner that names the newest claim can end the run.';
comment on column jobs.job_runs.is_forced is
    'The caller ran the function again although the lock key had a completed run in this grain.';

create table jobs.schedule_firings (
    tenant_id   uuid        not null,
    schedule_id uuid        not null,
    fire_at     timestamptz not null,
    outcome     text        not null,
    job_run_id  uuid,
    reason      text,
    created_at  timestamptz not null default now(),
    looked_at   timestamptz not null default now(),
    decided_at  timestamptz,
    -- One row per firing, for any number of schedulers.
    primary key (tenant_id, schedule_id, fire_at),
    constraint schedule_firings_are_of_a_schedule
        foreign key (tenant_id, schedule_id) references jobs.schedules (tenant_id, id) on delete cascade,
    constraint schedule_firings_outcome_check check (outcome in ('started', 'waiting', 'skipped')),
    constraint schedule_firings_started_have_a_run check (outcome <> 'started' or job_run_id is not null),
    constraint schedule_firings_waiting_are_not_decided check ((outcome = 'waiting') = (decided_at is null))
);
-- For tenants_with_waiting_firings.
create index schedule_firings_waiting on jobs.schedule_firings (looked_at) where outcome = 'waiting';
-- For fire_waiting.
create index schedule_firings_waiting_by_tenant on jobs.schedule_firings (tenant_id, looked_at) where outcome = 'waiting';
-- For prune_runs.
create index schedule_firings_by_age on jobs.schedule_firings (tenant_id, fire_at) where outcome <> 'waiting';
alter table jobs.schedule_firings alter column tenant_id set statistics 0;
comment on table jobs.schedule_firings is
    'Firings of schedules and their outcomes: started (a run exists), waiting (for functions it depends on), '
    'skipped (reason says why).';
comment on column jobs.schedule_firings.looked_at is
    'Time at which a scheduler last checked a waiting firing. fire_waiting checks the oldest first.';

create table jobs.sync_errors (
    id                 uuid        not null default jobs.new_id(),
    tenant_id          uuid        not null references tenancy.tenants (id),
    error_type         text        not null,
    error_code         text        not null,
    error_message      text        not null,
    error_details      jsonb       not null default '{}',
    source_entity_type text        not null,
    source_entity_id   uuid        not null,
    is_resolved        boolean     not null default false,
    resolved_at        timestamptz,
    resolved_by        text,
    resolution_note    text,
    created_at         timestamptz not null default now(),
    updated_at         timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint sync_errors_code_check check (error_code in ('MAX_RETRIES_EXCEEDED', 'EXECUTION_ERROR')),
    constraint sync_errors_details_are_an_object check (jsonb_typeof(error_details) = 'object'),
    constraint sync_errors_resolved_say_by_whom
        check (is_resolved = (resolved_at is not null) and is_resolved = (resolved_by is not null))
);
create index sync_errors_by_id on jobs.sync_errors (tenant_id, is_resolved, id desc);
-- One open dead letter per run: a run that fails for good again updates its row.
create unique index sync_errors_one_open_per_source
    on jobs.sync_errors (tenant_id, source_entity_type, source_entity_id) where not is_resolved;
create index sync_errors_by_age on jobs.sync_errors (tenant_id, resolved_at) where is_resolved;
alter table jobs.sync_errors alter column tenant_id set statistics 0;
comment on table jobs.sync_errors is
    'Dead letters: job runs that failed for good and that a person must resolve.';

create table jobs.alert_instances (
    id                 uuid        not null default jobs.new_id(),
    tenant_id          uuid        not null references tenancy.tenants (id),
    alert_config_id    text        not null,
    external_object_id text,
    title              text        not null,
    severity           text        not null default 'warning',
    status             text        not null default 'active',
    evidence           jsonb       not null default '{}',
    created_at         timestamptz not null default now(),
    updated_at         timestamptz not null default now(),
    resolved_at        timestamptz,
    primary key (tenant_id, id),
    constraint alert_instances_names_are_given
        check (btrim(alert_config_id) <> '' and octet_length(alert_config_id) <= 255
               and octet_length(external_object_id) <= 255
               and btrim(title) <> '' and octet_length(title) <= 1000),
    constraint alert_instances_severity_check check (severity in ('info', 'warning', 'critical')),
    constraint alert_instances_status_check check (status in ('active', 'open', 'triggered', 'resolved')),
    constraint alert_instances_only_resolved_have_their_time check ((status = 'resolved') = (resolved_at is not null)),
    constraint alert_instances_evidence_is_an_object
        check (jsonb_typeof(evidence) = 'object' and pg_column_size(evidence) <= 65536)
);
create unique index unique_alert_instance
    on jobs.alert_instances
        (tenant_id, alert_config_id, coalesce(external_object_id, ''), ((created_at at time zone 'UTC')::date))
    nulls not distinct
    where status in ('active', 'open', 'triggered');
create index alert_instances_by_age on jobs.alert_instances (tenant_id, resolved_at) where status = 'resolved';
alter table jobs.alert_instances alter column tenant_id set statistics 0;
comment on table jobs.alert_instances is
    'Alerts about conditions that a person should know. At most one alert per day is open for one configuration and '
    'object.';

create table jobs.decision_cards (
    id                uuid        not null default jobs.new_id(),
    tenant_id         uuid        not null,
    alert_instance_id uuid        not null,
    metric_code       text        not null,
    period_start      date        not null,
    status            text        not null default 'OPEN',
    title             text        not null,
    recommendation    text        not null,
    evidence          jsonb       not null default '{}',
    note              text,
    decided_by        text,
    created_at        timestamptz not null default now(),
    updated_at        timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint decision_cards_are_about_an_alert
        foreign key (tenant_id, alert_instance_id) references jobs.alert_instances (tenant_id, id) on delete cascade,
    constraint decision_cards_status_check check (status in ('OPEN', 'IN_PROGRESS', 'RESOLVED', 'DISMISSED')),
    constraint decision_cards_decided_say_by_whom check (status = 'OPEN' or decided_by is not null)
);
create unique index unique_decision_card
    on jobs.decision_cards (tenant_id, alert_instance_id, metric_code, period_start)
    nulls not distinct
    where status in ('OPEN', 'IN_PROGRESS');
create index decision_cards_by_alert on jobs.decision_cards (tenant_id, alert_instance_id);
alter table jobs.decision_cards alter column tenant_id set statistics 0;
comment on table jobs.decision_cards is
    'Cards that ask a person to decide about an alert, with a recommendation.';

create table jobs.alert_notifications (
    id                  uuid        not null default jobs.new_id(),
    tenant_id           uuid        not null,
    alert_instance_id   uuid        not null,
    account_id          uuid        not null,
    recipient           text        not null,
    about               text        not null,
    subject             text        not null,
    body                text        not null,
    status              text        not null default 'queued',
    attempts            integer     not null default 0,
    claims              integer     not null default 0,
    first_called_at     timestamptz,
    called_at           timestamptz,
    in_doubt_since      timestamptz,
    provider_message_id text,
    last_error          text,
    created_at          timestamptz not null default now(),
    updated_at          timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint alert_notifications_are_about_an_alert
        foreign key (tenant_id, alert_instance_id) references jobs.alert_instances (tenant_id, id) on delete cascade,
    constraint alert_notifications_one_each unique (tenant_id, alert_instance_id, account_id, recipient, about),
    constraint alert_notifications_about_check check (about in ('raised', 'resolved')),
    constraint alert_notifications_status_check check (status in ('queued', 'sent', 'failed')),
    constraint alert_notifications_recipient_is_bounded
        check (btrim(recipient) <> '' and octet_length(recipient) <= 255)
);
create index alert_notifications_open on jobs.alert_notifications (tenant_id, created_at) where status = 'queued';
alter table jobs.alert_notifications alter column tenant_id set statistics 0;
comment on table jobs.alert_notifications is
    'Messages that tell a recipient that an alert was raised or resolved. Each has one row and one idempotency key, '
    'so that a recipient gets it once.';
comment on column jobs.alert_notifications.called_at is
    'Time from which the provider may have been called under the newest claim. A queued row with called_at is in '
    'doubt until its result is known.';
