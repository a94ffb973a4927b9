-- Tables of chat: linked senders, executors, messages, and replies.
-- Row-level security, triggers and grants of these tables are in functions/guards.sql.

create table channels.channel_links (
    id         uuid        not null,
    tenant_id  uuid        not null references tenancy.tenants (id),
    account_id uuid        not null,
    sender_id  text        not null,
    user_id    text        not null,
    role       text        not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint channel_links_are_of_an_account
        foreign key (tenant_id, account_id) references tenancy.provider_accounts (tenant_id, id) on delete cascade,
    constraint channel_links_role_check check (role in ('viewer', 'operator', 'admin')),
    constraint channel_links_names_are_given
        check (btrim(sender_id) <> '' and octet_length(sender_id) <= 255
               and btrim(user_id) <> '' and octet_length(user_id) <= 255),
    constraint channel_links_one_per_sender unique (tenant_id, account_id, sender_id)
);
-- As for channel_messages.
alter table channels.channel_links alter column tenant_id set statistics 0;
comment on table channels.channel_links is
    'The user and role of a sender at one account. The same sender id at another account may be a different person.';

create table channels.channel_executors (
    id              uuid        not null,
    tenant_id       uuid        not null references tenancy.tenants (id),
    account_id      uuid,
    kind            text        not null,
    url             text,
    timeout_seconds integer     not null,
    sealed_secret   bytea,
    required_role   text        not null,
    sentinel        jsonb       not null default '{}',
    created_at      timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint channel_executors_are_of_an_account
        foreign key (tenant_id, account_id) references tenancy.provider_accounts (tenant_id, id) on delete cascade,
    constraint channel_executors_kind_check check (kind in ('echo', 'http')),
    constraint channel_executors_http_has_an_address check ((kind = 'http') = (url is not null)),
    constraint channel_executors_requests_are_signed
        check (sealed_secret is not null or (kind = 'echo' and not sentinel ? 'url')),
    constraint channel_executors_timeout_is_bounded check (timeout_seconds between 1 and 60),
    constraint channel_executors_role_check check (required_role in ('viewer', 'operator', 'admin')),
    constraint channel_executors_sentinel_is_an_object check (jsonb_typeof(sentinel) = 'object'),
    constraint channel_executors_one_per_account unique nulls not distinct (tenant_id, account_id)
);
-- As for channel_messages.
alter table channels.channel_executors alter column tenant_id set statistics 0;
comment on table channels.channel_executors is
    'The executor of an account''s messages, or with a null account the executor of all accounts without one of their '
    'own. The secret is sealed to the row.';

create table channels.channel_messages (
    id                  uuid        not null default gen_random_uuid(),
    tenant_id           uuid        not null references tenancy.tenants (id) on delete cascade,
    account_id          uuid        not null,
    provider            text        not null,
    provider_message_id text        not null,
    sender_id           text        not null,
    recipient_id        text        not null,
    thread              text,
    text                text        not null,
    status              text        not null default 'accepted',
    user_id             text,
    role                text,
    reply               jsonb,
    last_error          text,
    correlation_id      uuid        not null,
    deliveries          integer     not null default 1,
    -- Fencing token: an execution names its number, and only the newest execution may end the message.
    executions          integer     not null default 0,
    is_executing        boolean     not null default false,
    -- The sweeper takes the message up after this time: the end of an execution's lease, or after a failure the time of
    -- the retry.
    leased_until        timestamptz,
    created_at          timestamptz not null default now(),
    updated_at          timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint channel_messages_one_per_delivery unique (tenant_id, account_id, provider_message_id),
    constraint channel_messages_status_check
        check (status in ('accepted', 'executed', 'denied_unlinked', 'denied_rbac', 'denied_sentinel',
                          'dispatch_failed')),
    constraint channel_messages_names_are_given
        check (btrim(provider_message_id) <> '' and octet_length(provider_message_id) <= 512
               and btrim(sender_id) <> '' and octet_length(sender_id) <= 255
               and btrim(recipient_id) <> '' and octet_length(recipient_id) <= 255
               and octet_length(thread) <= 512),
    constraint channel_messages_text_is_bounded check (octet_length(text) <= 65536),
    constraint channel_messages_only_open_ones_are_leased
        check (leased_until is null or status in ('accepted', 'dispatch_failed')),
    constraint channel_messages_executions_are_leased check (not is_executing or leased_until is not null),
    constraint channel_messages_only_failures_keep_a_reply check (reply is null or status = 'dispatch_failed')
) with (fillfactor = 70);
-- For lists.
create index channel_messages_by_status on channels.channel_messages (tenant_id, status, id);
-- For the message rate of a sender.
create index channel_messages_by_sender on channels.channel_messages (tenant_id, account_id, sender_id, created_at);
create index channel_messages_leases
    on channels.channel_messages (tenant_id, leased_until)
    where leased_until is not null;
-- For retention.
create index channel_messages_by_age on channels.channel_messages (tenant_id, created_at);
-- Without statistics, Postgres takes each tenant for one of 200 of the same size. With them, a tenant that is missing in
-- the last sample counts as empty, and a lookup by tenant and id may read all rows of the tenant through another index.
alter table channels.channel_messages alter column tenant_id set statistics 0;
comment on table channels.channel_messages is
    'Messages that providers delivered, one row per provider message id. A message is executed if and only if its '
    'reply is in channels.channel_outbox. A reply that could not be enqueued is kept in `reply`.';

create table channels.channel_outbox (
    id                  uuid        not null default gen_random_uuid(),
    tenant_id           uuid        not null references tenancy.tenants (id) on delete cascade,
    channel_message_id  uuid        not null,
    account_id          uuid        not null,
    provider            text        not null,
    recipient_id        text        not null,
    payload             jsonb       not null,
    status              text        not null default 'pending',
    attempt_count       integer     not null default 0,
    max_attempts        integer     not null default 5,
    next_attempt_at     timestamptz not null default now(),
    last_error          text,
    locked_at           timestamptz,
    locked_by           text,
    -- Fencing token: a dispatcher names its claim, and only the newest claim may record a result.
    claims              integer     not null default 0,
    -- The last attempt that may have arrived and whose outcome is unknown.
    in_doubt_since      timestamptz,
    -- A person has sent the dead reply again. After a doubt this decides where look-ups do not.
    requeued_at         timestamptz,
    -- A reply with this id has provably arrived: the dispatcher ends it without a call.
    provider_message_id text,
    delivery_status     text,
    delivery_status_at  timestamptz,
    delivery_error      text,
    correlation_id      uuid        not null,
    sent_at             timestamptz,
    created_at          timestamptz not null default now(),
    updated_at          timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint channel_outbox_answers_a_message
        foreign key (tenant_id, channel_message_id) references channels.channel_messages (tenant_id, id)
        on delete cascade,
    constraint channel_outbox_one_reply_per_message unique (channel_message_id, tenant_id),
    constraint channel_outbox_status_check check (status in ('pending', 'sending', 'sent', 'dead')),
    constraint channel_outbox_attempts_are_counted check (attempt_count >= 0 and max_attempts between 1 and 1000),
    constraint channel_outbox_only_sending_is_locked
        check ((status = 'sending') = (locked_at is not null) and (locked_at is null) = (locked_by is null)),
    constraint channel_outbox_only_sent_has_its_time check ((status = 'sent') = (sent_at is not null)),
    constraint channel_outbox_payload_is_bounded check (pg_column_size(payload) <= 131072)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
create index channel_outbox_by_status on channels.channel_outbox (tenant_id, status, next_attempt_at);
-- For claims, account by account, so that the backlog of one account never delays the replies of another.
create index channel_outbox_active
    on channels.channel_outbox (tenant_id, account_id, next_attempt_at, id)
    where status in ('pending', 'sending');
-- For tenants_with_stale_replies and reclaim_replies, which read the oldest locks alone.
create index channel_outbox_locks on channels.channel_outbox (locked_at, tenant_id) where status = 'sending';
create index channel_outbox_dead on channels.channel_outbox (tenant_id, updated_at) where status = 'dead';
-- As for channel_messages.
alter table channels.channel_outbox alter column tenant_id set statistics 0;
comment on table channels.channel_outbox is
    'Replies to messages, at most one per message, delivered at least once. `next_attempt_at` alone decides when a '
    'reply may be tried.';
