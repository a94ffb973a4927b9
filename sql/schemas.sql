-- The schemas of Postrider, besides schema `postrider`, which roles.sql creates. The migrator refuses a database that has
-- a schema of one of these names that is not its own.

create schema tenancy;
comment on schema tenancy is
    'Tenants, workspaces, API keys, provider accounts, the audit log, answered requests, and the installation itself.';

create schema m10_recovery;
comment on schema m10_recovery is
    'Domain events: the table and the three functions of the M10 contract, and nothing else.';

create schema events;
comment on schema events is
    'Domain events: the sinks of the relay, deliveries, and the functions of the relay and of operators.';

create schema execution;
comment on schema execution is
    'Campaigns: audience, phases, runs, send jobs, items and their idempotency keys.';

create schema channels;
comment on schema channels is
    'Chat: messages, links of senders, executors and replies.';

create schema jobs;
comment on schema jobs is
    'Scheduled jobs: functions, schedules, job runs, dead letters, alerts and notifications.';
