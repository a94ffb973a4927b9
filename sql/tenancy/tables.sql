-- Tables of tenants, their API keys, sessions and provider accounts, the audit log, answered requests, and the installation's own
-- keys and epochs. Row-level security, triggers and grants of these tables are in functions/guards.sql.

create table tenancy.tenants (
    id             uuid        primary key,
    name           text        not null,
    created_at     timestamptz not null default now(),
    -- The tenant is being removed since then: its rows may be deleted.
    removing_since timestamptz,
    constraint tenants_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    -- The server itself acts under this id while no tenant is known (tenancy.acts_for_server), so no row belongs to it.
    constraint tenants_id_is_not_the_servers check (id <> '00000000-0000-0000-0000-000000000000'),
    constraint tenants_one_per_name unique (name)
);
comment on table tenancy.tenants is
    'The tenants of this installation. Every row of a tenant table belongs to one of them. Tenant `system` owns the rows '
    'that belong to no customer, such as events that were published without a tenant.';
-- The system tenant: tenancy.system_tenant_id returns the same id.
insert into tenancy.tenants (id, name) values ('00000000-0000-0000-0000-000000000001', 'system');

create table tenancy.workspaces (
    id         uuid        not null,
    tenant_id  uuid        not null references tenancy.tenants (id),
    name       text        not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint workspaces_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint workspaces_one_per_name unique (tenant_id, name)
);
-- As for api_keys.
alter table tenancy.workspaces alter column tenant_id set statistics 0;
comment on table tenancy.workspaces is
    'The workspaces of a tenant. Each tenant gets one called `default` when it is created.';

create table tenancy.api_keys (
    id           uuid        not null,
    tenant_id    uuid        not null references tenancy.tenants (id),
    name         text        not null,
    role         text        not null,
    hint         text        not null,
    key_hash     bytea       not null,
    created_at   timestamptz not null default now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    primary key (tenant_id, id),
    -- The system tenant cannot sign in.
    constraint api_keys_are_not_the_systems check (tenant_id <> '00000000-0000-0000-0000-000000000001'),
    constraint api_keys_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint api_keys_role_check check (role in ('viewer', 'operator', 'admin')),
    constraint api_keys_hash_is_sha256 check (octet_length(key_hash) = 32),
    constraint api_keys_one_row_per_key unique (tenant_id, key_hash)
);
-- As for channels.channel_messages: with statistics, a tenant that is missing in the last sample counts as empty, and a
-- lookup by key may read all rows of the tenant through another index.
alter table tenancy.api_keys alter column tenant_id set statistics 0;
comment on table tenancy.api_keys is
    'API keys of tenants. Only the SHA-256 of a key is stored. A revoked key never changes again.';

create table tenancy.sessions (
    id           uuid        not null,
    tenant_id    uuid        not null,
    key_id       uuid        not null,
    token_hash   bytea       not null,
    -- The name that the person gave at sign-in; the server does not verify it.
    name         text,
    created_at   timestamptz not null default now(),
    -- Time of the last request, to the minute.
    last_seen_at timestamptz not null default now(),
    -- The session also ends when no request came for this long.
    idle_for     interval    not null,
    expires_at   timestamptz not null,
    primary key (tenant_id, id),
    constraint sessions_belong_to_a_key
        foreign key (tenant_id, key_id) references tenancy.api_keys (tenant_id, id),
    constraint sessions_name_is_short check (btrim(name) <> '' and char_length(name) <= 64),
    constraint sessions_hash_is_sha256 check (octet_length(token_hash) = 32),
    constraint sessions_may_be_idle_for_a_while check (idle_for > interval '0'),
    constraint sessions_one_row_per_token unique (tenant_id, token_hash)
);
create index sessions_by_key on tenancy.sessions (tenant_id, key_id, last_seen_at);
create index sessions_by_expiry on tenancy.sessions (tenant_id, expires_at);
-- As for api_keys.
alter table tenancy.sessions alter column tenant_id set statistics 0;
comment on table tenancy.sessions is
    'Sessions of the dashboard. A session acts for the API key with which it was opened, and ends with it. Only the '
    'SHA-256 of the token is stored. A session that was ended or revoked has no row; retention removes expired ones.';

create table tenancy.login_codes (
    tenant_id  uuid        not null,
    code_hash  bytea       not null,
    key_id     uuid        not null,
    -- The name of the session that the code opens, unless the person gives another one.
    name       text,
    expires_at timestamptz not null,
    primary key (tenant_id, code_hash),
    constraint login_codes_belong_to_a_key
        foreign key (tenant_id, key_id) references tenancy.api_keys (tenant_id, id),
    constraint login_codes_name_is_short check (btrim(name) <> '' and char_length(name) <= 64),
    constraint login_codes_hash_is_sha256 check (octet_length(code_hash) = 32)
);
create index login_codes_by_expiry on tenancy.login_codes (tenant_id, expires_at);
-- As for api_keys.
alter table tenancy.login_codes alter column tenant_id set statistics 0;
comment on table tenancy.login_codes is
    'Codes with which the dashboard can be entered once, within a minute. Only the SHA-256 of a code is stored. '
    'Using a code deletes its row; retention removes expired ones.';

create table tenancy.audit_log (
    id        bigint      generated always as identity,
    -- The system tenant for an action that concerns the whole installation.
    tenant_id uuid        not null references tenancy.tenants (id),
    at        timestamptz not null default now(),
    actor     text        not null,
    action    text        not null,
    subject   text        not null,
    note      text,
    primary key (tenant_id, id),
    constraint audit_log_actor_is_named check (btrim(actor) <> '')
);
create index audit_log_by_subject on tenancy.audit_log (tenant_id, subject, id);
-- As for api_keys.
alter table tenancy.audit_log alter column tenant_id set statistics 0;
comment on table tenancy.audit_log is
    'One row per administrative action: actor, action and subject. The function that acts adds the row in the same '
    'transaction. Rows never change.';

create table tenancy.provider_accounts (
    id            uuid        not null,
    tenant_id     uuid        not null,
    workspace_id  uuid        not null,
    name          text        not null,
    provider      text        not null,
    settings      jsonb       not null default '{}',
    sealed_secret bytea       not null,
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    -- Read by postrider_model::limits.
    limits        jsonb       not null default '{}',
    -- Time of the last change of the secret; null if the secret never changed.
    secret_set_at timestamptz,
    -- Number of the settings. New calls use these; provider_account_versions has the earlier ones.
    version       integer     not null default 1,
    -- No new run uses the account since then.
    retired_at    timestamptz,
    primary key (tenant_id, id),
    constraint provider_accounts_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint provider_accounts_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint provider_accounts_provider_is_given check (provider ~ '^[a-z][a-z0-9_]{0,62}$'),
    constraint provider_accounts_settings_are_an_object check (jsonb_typeof(settings) = 'object'),
    constraint provider_accounts_limits_are_an_object check (jsonb_typeof(limits) = 'object'),
    constraint provider_accounts_one_per_name unique (tenant_id, workspace_id, name)
);
-- As for api_keys.
alter table tenancy.provider_accounts alter column tenant_id set statistics 0;
comment on table tenancy.provider_accounts is
    'Accounts of tenants at providers. The server seals the secret before it stores it; a sealed secret is bound to '
    'its tenant and row.';

create table tenancy.provider_account_versions (
    tenant_id     uuid        not null,
    account_id    uuid        not null,
    version       integer     not null,
    settings      jsonb       not null,
    sealed_secret bytea       not null,
    -- As in provider_accounts.
    secret_set_at timestamptz,
    replaced_at   timestamptz not null default now(),
    primary key (tenant_id, account_id, version),
    constraint provider_account_versions_belong_to_an_account
        foreign key (tenant_id, account_id) references tenancy.provider_accounts (tenant_id, id) on delete cascade,
    constraint provider_account_versions_count_from_one check (version >= 1)
);
comment on table tenancy.provider_account_versions is
    'Earlier settings of provider accounts. Items that were called under them, and callbacks about these, still use them. '
    'The settings never change; a new secret replaces the one that several versions share.';

create table tenancy.requests (
    tenant_id       uuid        not null references tenancy.tenants (id),
    idempotency_key text        not null,
    fingerprint     bytea       not null,
    created_at      timestamptz not null default now(),
    status          smallint,
    -- The URL of the created resource, and the response body. Bodies that contain a secret or are very large are not
    -- kept.
    location        text,
    body            text,
    constraint requests_one_row_per_key primary key (tenant_id, idempotency_key),
    constraint requests_key_is_printable check (idempotency_key ~ '^[ -~]{1,255}$'),
    constraint requests_fingerprint_is_sha256 check (octet_length(fingerprint) = 32),
    constraint requests_answers_are_bounded check (octet_length(body) <= 65536 and octet_length(location) <= 1024)
);
create index requests_by_age on tenancy.requests (tenant_id, created_at);
-- As for api_keys.
alter table tenancy.requests alter column tenant_id set statistics 0;
comment on table tenancy.requests is
    'Responses to requests with an `Idempotency-Key`, kept for a day. The transaction that does the work writes the '
    'row and its response, so a committed row is a request that was carried out, and a failed request leaves no row.';

create table tenancy.epochs (
    number            integer     not null,
    id                uuid        not null default gen_random_uuid(),
    installation_id   uuid        not null,
    cause             text        not null,
    system_identifier text        not null,
    database_oid      bigint      not null,
    database_name     text        not null,
    table_oid         bigint      not null,
    timeline          integer,
    began_at          timestamptz not null default now(),
    actor             text        not null,
    reason            text,
    -- Lower bound of the time at which the copy was taken: an action that the copy lacks cannot have happened before
    -- it.
    copied_after      timestamptz,
    items_in_doubt    bigint      not null default 0,
    replies_in_doubt  bigint      not null default 0,
    firings_skipped   bigint      not null default 0,
    campaigns_stopped bigint      not null default 0,
    -- Set when a process finds that the database lacks a row which that process saw committed.
    suspected_at      timestamptz,
    suspicion         text,
    primary key (number),
    constraint epochs_one_per_id unique (id),
    constraint epochs_cause_check check (cause in ('enrolled', 'adopted', 'moved')),
    constraint epochs_actor_is_named check (btrim(actor) <> ''),
    constraint epochs_suspicions_have_a_reason check ((suspected_at is null) = (suspicion is null))
);
comment on table tenancy.epochs is
    'One row per epoch; the newest one counts. The first epoch begins when a process with a sending role first starts '
    'on the database, and each adoption begins another one. A row names the cluster, database and table in which it '
    'was written; a mismatch shows that the database is a restored copy.';

create table tenancy.process_marks (
    witness_id uuid        not null,
    epoch_id   uuid        not null,
    process    text        not null,
    mark       bigint      not null default 1,
    -- The newest timeline on which the process found nothing missing.
    timeline   integer,
    marked_at  timestamptz not null default clock_timestamp(),
    stopped_at timestamptz,
    primary key (witness_id),
    constraint process_marks_belong_to_an_epoch foreign key (epoch_id) references tenancy.epochs (id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
comment on table tenancy.process_marks is
    'One row per witness. A process with sending roles increments its mark every second and keeps the last committed '
    'mark outside the database, so that it can detect a restored copy.';

create table tenancy.context_keys (
    id         integer     generated always as identity primary key,
    key        bytea       not null,
    -- The two padded blocks of HMAC-SHA256, so that a signature takes two calls of sha256.
    inner_pad  bytea       not null,
    outer_pad  bytea       not null,
    created_at timestamptz not null default now(),
    constraint context_keys_have_the_sizes_of_sha256
        check (octet_length(key) = 32 and octet_length(inner_pad) = 64 and octet_length(outer_pad) = 64)
);
comment on table tenancy.context_keys is
    'HMAC-SHA256 keys with which the server signs the tenant of a transaction. Signatures under the newest two keys '
    'are valid. Only the owner role reads this table.';

create table tenancy.master_key (
    is_the_only_row boolean     primary key default true,
    sealed_check    bytea       not null,
    changed_at      timestamptz not null default now(),
    constraint master_key_is_the_only_row check (is_the_only_row)
);
comment on table tenancy.master_key is
    'A known value sealed with the master key of this installation, in one row. It identifies the key under which all '
    'secrets are sealed. Only the owner role reads or writes this table.';
