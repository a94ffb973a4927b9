-- Single messages: messages outside a campaign, which the worker groups into runs.

create table execution.messages (
    id                  uuid        not null,
    tenant_id           uuid        not null,
    workspace_id        uuid        not null,
    -- The key of the caller; null after an erasure, because it may name the person.
    key                 text,
    -- SHA-256 of the key. It stays for ever, so the key is never used for another message.
    key_hash            bytea       not null,
    -- SHA-256 of the request, by which a repeat is recognised; null after an erasure.
    request_hash        bytea,
    channel             text        not null,
    provider_account_id uuid        not null,
    provider            text        not null,
    -- An e-mail address or a phone number. A post has none, and an erased message has none.
    recipient           text,
    -- Either the version of an asset, or content of its own.
    asset_id            uuid,
    content             jsonb,
    variables           jsonb       not null default '{}',
    -- The message is not sent before this time.
    send_after          timestamptz not null default now(),
    created_at          timestamptz not null default now(),
    actor               text        not null,
    -- The run that sends the message; null while the message waits.
    run_id              uuid,
    -- The end of a message whose item is not there: retention deleted the item, or the person was erased before the message was sent.
    ended_as            text,
    ended_at            timestamptz,
    constraint messages_one_per_key unique (key_hash, tenant_id, workspace_id),
    constraint messages_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint messages_send_an_asset
        foreign key (tenant_id, asset_id) references execution.assets (tenant_id, id),
    constraint messages_keys_are_sha256 check (octet_length(key_hash) = 32 and octet_length(request_hash) = 32),
    constraint messages_channel_check check (channel in ('email', 'voice', 'social')),
    constraint messages_address_fits_in_a_header
        check (octet_length(recipient) <= 320 and recipient !~ '[[:cntrl:]]'),
    constraint messages_have_one_content check (asset_id is null or content is null),
    constraint messages_variables_are_an_object check (jsonb_typeof(variables) = 'object'),
    constraint messages_ended_as_check check (ended_as in ('sent', 'called', 'posted', 'failed', 'skipped')),
    constraint messages_end_at_a_time check ((ended_as is null) = (ended_at is null))
);
alter table execution.messages alter column tenant_id set statistics 0; -- as for leads
comment on table execution.messages is
    'Single messages, one row per key of the caller. The worker groups messages that are due into runs, and their items have keys '
    'that follow from the ids of the messages, so a message is called once whatever run it is in. Rows are deleted only with '
    'their tenant: retention and erasure remove what they say.';

-- For the choice of tenants with due messages, and then for the due messages of one tenant.
create index messages_waiting on execution.messages (tenant_id, send_after, id) where run_id is null and ended_as is null;
-- For the messages to one person. The address is the first column, as in leads_suppressed_by_email.
create index messages_by_recipient on execution.messages (lower(recipient), tenant_id, created_at) where recipient is not null;
-- For the list of messages, newest first, page by page.
create index messages_by_age on execution.messages (tenant_id, created_at, id);
-- The newest index: among indexes of equal cost, as on an empty table, the planner takes the newest.
alter table execution.messages add primary key (tenant_id, id);
