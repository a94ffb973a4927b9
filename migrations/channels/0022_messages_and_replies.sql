-- Chat: what people write, who they are, what executes it, and the replies on their way.
-- Safe beside running workers: it adds a schema and touches no other.

create schema channels;
grant usage on schema channels to postrider_app, postrider_worker, postrider_read;

-- Who a sender is, at one account: the same name at another account may be somebody else.
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
select tenancy.protect('channels.channel_links');

-- What executes the messages of an account, or of every account that has none of its own. A secret is sealed to the row.
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
select tenancy.protect('channels.channel_executors');

-- What came in. `executions` fences: whoever executes names it, and only the newest may end the message.
-- `leased_until` is when somebody else takes it up: the end of an execution's time, or after a failure the time for another try.
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
    executions          integer     not null default 0,
    is_executing        boolean     not null default false,
    leased_until        timestamptz,
    created_at          timestamptz not null default now(),
    updated_at          timestamptz not null default now(),
    primary key (id),
    constraint channel_messages_by_tenant unique (tenant_id, id),
    constraint channel_messages_one_per_delivery unique (tenant_id, account_id, provider_message_id),
    constraint channel_messages_status_check
        check (status in ('accepted', 'executed', 'denied_unlinked', 'denied_rbac', 'denied_sentinel', 'dispatch_failed')),
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
-- For lists, and for the rate of a sender.
create index channel_messages_by_status on channels.channel_messages (tenant_id, status, id);
create index channel_messages_by_sender on channels.channel_messages (tenant_id, account_id, sender_id, created_at);
create index channel_messages_leases on channels.channel_messages (leased_until) where leased_until is not null;
create index channel_messages_by_age on channels.channel_messages (created_at);
select tenancy.protect('channels.channel_messages');

-- Replies. `next_attempt_at` alone decides when one may be tried. `claims` fences: whoever claimed names it, and only the
-- newest claim may record a result. `in_doubt_since`: an attempt may have arrived and nobody knows. A row that is not `sent`
-- and has a `provider_message_id` is proven to have arrived: the dispatcher ends it without a call.
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
    claims              integer     not null default 0,
    in_doubt_since      timestamptz,
    provider_message_id text,
    delivery_status     text,
    delivery_status_at  timestamptz,
    delivery_error      text,
    correlation_id      uuid        not null,
    sent_at             timestamptz,
    created_at          timestamptz not null default now(),
    updated_at          timestamptz not null default now(),
    primary key (id),
    constraint channel_outbox_answers_a_message
        foreign key (tenant_id, channel_message_id) references channels.channel_messages (tenant_id, id) on delete cascade,
    -- One reply to each message, whoever is told to enqueue it, however often.
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
-- For lists.
create index channel_outbox_by_tenant on channels.channel_outbox (tenant_id, id);
-- Work, account by account: so one account's backlog is never in the way of another's.
create index channel_outbox_active
    on channels.channel_outbox (tenant_id, account_id, next_attempt_at, id)
    where status in ('pending', 'sending');
create index channel_outbox_locks on channels.channel_outbox (locked_at) where status = 'sending';
create index channel_outbox_dead on channels.channel_outbox (tenant_id, updated_at) where status = 'dead';
select tenancy.protect('channels.channel_outbox');

create trigger channel_messages_change_as_they_may
    before update of status on channels.channel_messages
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (
        ('accepted', 'executed'), ('accepted', 'denied_unlinked'), ('accepted', 'denied_rbac'),
        ('accepted', 'denied_sentinel'), ('accepted', 'dispatch_failed'),
        ('dispatch_failed', 'executed'), ('dispatch_failed', 'denied_unlinked'), ('dispatch_failed', 'denied_rbac'),
        ('dispatch_failed', 'denied_sentinel')))
    execute function tenancy.refuse_change('a message that was executed or denied stays so, and none is accepted twice');
create trigger channel_messages_are_facts
    before update of id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, thread, text,
                     correlation_id, created_at
    on channels.channel_messages
    for each row
    execute function tenancy.refuse_change('what somebody wrote stays as it was written');
create trigger channel_messages_open_ones_are_kept
    before delete on channels.channel_messages
    for each row
    when (old.status = 'accepted' or old.leased_until is not null)
    execute function tenancy.refuse_change('a message that is being executed cannot be removed');
create trigger channel_messages_are_never_emptied
    before truncate on channels.channel_messages
    for each statement
    execute function tenancy.refuse_change('messages are removed by prune_messages, once they are over');

-- `executed` and the reply, or neither.
create function channels.require_reply()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from channels.channel_outbox as reply
                    where reply.tenant_id = new.tenant_id and reply.channel_message_id = new.id) then
        raise exception 'channels.channel_messages: a message is executed once its reply is in the outbox'
            using errcode = 'check_violation', constraint = tg_name;
    end if;
    return new;
end
$$;
create trigger channel_messages_executed_have_a_reply
    before insert or update of status on channels.channel_messages
    for each row
    when (new.status = 'executed')
    execute function channels.require_reply();

create trigger channel_outbox_changes_as_it_may
    before update of status on channels.channel_outbox
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (
        ('pending', 'sending'), ('sending', 'sent'), ('sending', 'pending'), ('sending', 'dead'), ('dead', 'pending')))
    execute function tenancy.refuse_change('a reply goes from pending to sending, and from there to sent, pending or dead; what was sent stays sent');
create trigger channel_outbox_replies_are_facts
    before update of id, tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id, created_at
    on channels.channel_outbox
    for each row
    execute function tenancy.refuse_change('a reply stays as it was made');
create trigger channel_outbox_nothing_accepted_is_lost
    before delete on channels.channel_outbox
    for each row
    when (old.status in ('pending', 'sending'))
    execute function tenancy.refuse_change('a reply that is on its way cannot be removed');
create trigger channel_outbox_is_never_emptied
    before truncate on channels.channel_outbox
    for each statement
    execute function tenancy.refuse_change('replies are removed by prune_messages, once they are over');

grant select on channels.channel_links, channels.channel_messages, channels.channel_outbox
    to postrider_app, postrider_worker, postrider_read;
-- Everything but the secret, which only `channels.executor_of` gives away, and sealed.
grant select (id, tenant_id, account_id, kind, url, timeout_seconds, required_role, sentinel, created_at)
    on channels.channel_executors to postrider_app, postrider_worker, postrider_read;
revoke all on all functions in schema channels from public;
