-- Settling what is in doubt without a person, where the provider allows it: a resolver holds an item in doubt for a while, asks or
-- repeats, and writes down what it found; and what providers tell us about a call without being asked.
-- Safe beside running workers: one column without a value, two new tables, one trigger that an item which goes well never meets.

-- Where an item went instead of the run's own account, because that one provably did not send it.
alter table execution.channel_outbox add column moved_to_account_id uuid;

-- One row per item that is in doubt, for as long as it is: who looks after it, when to look again, and what was found so far.
create table execution.doubts (
    outbox_id     uuid        not null,
    tenant_id     uuid        not null references tenancy.tenants (id),
    account_id    uuid        not null,
    provider      text        not null,
    looks         integer     not null default 0,
    next_look_at  timestamptz not null default now(),
    held_by       text,
    held_until    timestamptz,
    repeated_at   timestamptz,
    is_for_person boolean     not null default false,
    note          text,
    primary key (tenant_id, outbox_id)
) with (fillfactor = 70);
create index doubts_due on execution.doubts (provider, next_look_at) where not is_for_person;
select tenancy.protect('execution.doubts');

create function execution.follow_doubt()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if new.in_doubt_since is null then
        delete from execution.doubts where tenant_id = new.tenant_id and outbox_id = new.id;
    else
        insert into execution.doubts (outbox_id, tenant_id, account_id, provider)
        select new.id, new.tenant_id, account.id, account.provider
          from execution.campaign_runs as run
               join tenancy.provider_accounts as account
                 on account.tenant_id = run.tenant_id
                and account.id = coalesce(new.moved_to_account_id, run.provider_account_id)
         where run.id = new.run_id
            on conflict do nothing;
    end if;
    return null;
end
$$;
create trigger channel_outbox_doubts_are_followed
    after update on execution.channel_outbox
    for each row
    when (old.in_doubt_since is distinct from new.in_doubt_since)
    execute function execution.follow_doubt();

insert into execution.doubts (outbox_id, tenant_id, account_id, provider)
select item.id, item.tenant_id, account.id, account.provider
  from execution.channel_outbox as item
       join execution.campaign_runs as run on run.id = item.run_id
       join tenancy.provider_accounts as account
         on account.tenant_id = run.tenant_id and account.id = run.provider_account_id
 where item.in_doubt_since is not null;

-- What providers told us about their calls, each thing once. Evidence: nothing is ever changed here.
create table execution.provider_callbacks (
    tenant_id       uuid        not null references tenancy.tenants (id),
    account_id      uuid        not null,
    idempotency_key text        not null,
    message_id      text        not null,
    status          text        not null,
    proves_action   boolean     not null,
    received_at     timestamptz not null default now(),
    primary key (tenant_id, account_id, idempotency_key, message_id, status),
    constraint provider_callbacks_are_short
        check (octet_length(idempotency_key) <= 64 and octet_length(message_id) <= 500 and octet_length(status) <= 64)
);
select tenancy.protect('execution.provider_callbacks');
create trigger provider_callbacks_are_facts
    before update or delete on execution.provider_callbacks
    for each row
    execute function tenancy.refuse_change('what a provider said stays as it was said');

-- Settles an item in doubt by evidence: as `sent` (the channel's word for success is used) or as `failed`. That it was
-- done may be shown at any time; that it was not, only when the quiet time is over and nothing can arrive any more.
create function execution.settle_in_doubt(
    p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_item record;
    v_status text;
begin
    if coalesce(p_as, '') not in ('sent', 'failed') then
        raise exception 'an item is resolved as sent or as failed, not as %', coalesce(p_as, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(btrim(p_note), '') = '' or coalesce(btrim(p_actor), '') = '' then
        raise exception 'a resolution needs a note that says how it is known, and who says so'
            using errcode = 'invalid_parameter_value';
    end if;
    -- The job before its item, as everybody does; and so the later of two that settle its last items sees both.
    perform
       from execution.job_queue as job
      where job.id = (select item.job_id
                        from execution.channel_outbox as item
                       where item.tenant_id = p_tenant_id
                         and item.id = p_outbox_id)
        for no key update;
    select item.*, run.quiet_time, job.status as job_status,
           execution.doubted_since(item, job.status, job.locked_by, job.locked_at, job.attempts) as since
      into v_item
      from execution.channel_outbox as item
           join execution.job_queue as job on job.id = item.job_id
           join execution.campaign_runs as run on run.id = item.run_id
     where item.tenant_id = p_tenant_id
       and item.id = p_outbox_id
       for no key update of item;
    if not found then
        raise exception 'there is no item %', p_outbox_id
            using errcode = 'no_data_found', hint = '`postrider in-doubt list` shows what is in doubt.';
    end if;
    if v_item.status <> 'queued' then
        raise exception 'item % is % already', p_outbox_id, v_item.status
            using errcode = 'invalid_parameter_value',
                  hint = 'An item that has ended is never reopened; `postrider trace` shows its story.';
    end if;
    if v_item.since is null then
        raise exception 'item % is not in doubt: its worker is at work', p_outbox_id
            using errcode = 'invalid_parameter_value', hint = 'Look again in a minute.';
    end if;
    if p_as = 'failed' and now() < v_item.since + v_item.quiet_time then
        raise exception 'item % may still arrive until %', p_outbox_id,
                        to_char((v_item.since + v_item.quiet_time) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
            using errcode = 'invalid_parameter_value',
                  hint = 'That it was not sent counts only after the quiet time. That it was sent counts at once.';
    end if;

    v_status := case p_as when 'sent' then execution.success_of(v_item.channel) else 'failed' end;
    update execution.channel_outbox
       set status = v_status,
           provider_message_id = left(p_provider_message_id, 500),
           error = case when p_as = 'failed' then left(p_note, 2000) end,
           finalized_at = now(),
           in_doubt_since = null
     where id = p_outbox_id;
    perform execution.audit(p_tenant_id, null, null, v_item.run_id, v_item.job_id, p_outbox_id, p_actor,
                            'item.resolved_as_' || v_status, left(p_note, 2000));
    -- Its job waits for nothing else any more: it may complete now.
    if v_item.job_status = 'failed'
       and not exists (select
                         from execution.channel_outbox as item
                        where item.job_id = v_item.job_id
                          and item.status = 'queued')
    then
        update execution.job_queue
           set run_after = least(run_after, now())
         where id = v_item.job_id
           and status = 'failed';
    end if;
    return v_status;
end
$$;

-- Settles an item in doubt of the tenant of the context, by a person.
create or replace function execution.resolve_in_doubt(
    p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    return execution.settle_in_doubt(tenancy.required_tenant_id(), p_outbox_id, p_as, p_provider_message_id, p_note, p_actor);
end
$$;

-- Raises unless this resolver holds this doubt under this look.
create function execution.require_held_doubt(p_tenant_id uuid, p_outbox_id uuid, p_resolver_id text, p_look integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform
       from execution.doubts as doubt
      where doubt.tenant_id = p_tenant_id
        and doubt.outbox_id = p_outbox_id
        and doubt.held_by = p_resolver_id
        and doubt.looks = p_look
        for no key update;
    if not found then
        raise exception 'the doubt about % is not held by % under look %', p_outbox_id, coalesce(p_resolver_id, 'null'),
                        coalesce(p_look::text, 'null')
            using errcode = 'PR001',
                  hint = 'Its lease was over and somebody else looks after it, or it has been settled.';
    end if;
end
$$;

-- Settles an item that this resolver holds, with its evidence.
create function execution.settle_doubt(
    p_resolver_id text, p_tenant_id uuid, p_outbox_id uuid, p_look integer, p_as text, p_provider_message_id text,
    p_evidence text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    -- Job, item, doubt: in the order of everybody else.
    perform
       from execution.job_queue as job
      where job.id = (select item.job_id
                        from execution.channel_outbox as item
                       where item.tenant_id = p_tenant_id
                         and item.id = p_outbox_id)
        for no key update;
    perform from execution.channel_outbox as item
      where item.tenant_id = p_tenant_id
        and item.id = p_outbox_id
        for no key update;
    perform execution.require_held_doubt(p_tenant_id, p_outbox_id, p_resolver_id, p_look);
    return execution.settle_in_doubt(p_tenant_id, p_outbox_id, p_as, p_provider_message_id, p_evidence, p_resolver_id);
end
$$;

-- Lets go of an item that could not be settled yet: it is looked at again after a while, or waits for a person.
create function execution.put_off_doubt(
    p_resolver_id text, p_tenant_id uuid, p_outbox_id uuid, p_look integer, p_next_look_at timestamptz, p_is_for_person boolean,
    p_note text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    perform execution.require_held_doubt(p_tenant_id, p_outbox_id, p_resolver_id, p_look);
    update execution.doubts as doubt
       set held_by = null,
           held_until = null,
           next_look_at = coalesce(p_next_look_at, doubt.next_look_at),
           is_for_person = p_is_for_person,
           note = left(p_note, 2000)
     where doubt.tenant_id = p_tenant_id
       and doubt.outbox_id = p_outbox_id;
    if p_is_for_person then
        insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
        select item.tenant_id, item.run_id, item.job_id, item.id, p_resolver_id, 'item.left_to_a_person', left(p_note, 2000)
          from execution.channel_outbox as item
         where item.tenant_id = p_tenant_id
           and item.id = p_outbox_id;
    end if;
end
$$;

-- Writes down what a provider said about a call of this account, in the tenant of the context. What proves that it acted
-- settles an item that is in doubt, at once. Answers `settled`, `recorded`, `contradicted` when somebody had decided that it
-- was not done, or `unknown` when no item of this account has this key.
create function execution.record_callback(
    p_account_id uuid, p_idempotency_key text, p_message_id text, p_status text, p_proves_action boolean)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_item record;
    v_is_new boolean;
begin
    select item.id, item.run_id, item.job_id, account.provider
      into v_item
      from tenancy.provider_accounts as account
           join execution.channel_outbox as item
             on item.tenant_id = account.tenant_id
            and item.workspace_id = account.workspace_id
            and item.idempotency_key = p_idempotency_key
           join execution.campaign_runs as run on run.id = item.run_id
     where account.tenant_id = v_tenant_id
       and account.id = p_account_id
       and account.id = coalesce(item.moved_to_account_id, run.provider_account_id);
    if not found then
        return 'unknown';
    end if;
    insert into execution.provider_callbacks (tenant_id, account_id, idempotency_key, message_id, status, proves_action)
    values (v_tenant_id, p_account_id, p_idempotency_key, p_message_id, p_status, p_proves_action)
        on conflict do nothing;
    v_is_new := found;
    if not p_proves_action then
        return 'recorded';
    end if;
    perform from execution.job_queue as job where job.id = v_item.job_id for no key update;
    perform
       from execution.channel_outbox as item
      where item.id = v_item.id
        and item.status = 'queued'
        and item.in_doubt_since is not null
        for no key update;
    if found then
        perform execution.settle_in_doubt(
            v_tenant_id, v_item.id, 'sent', p_message_id,
            v_item.provider || ' called back: ' || p_message_id || ' is ' || p_status, 'callback-' || v_item.provider);
        return 'settled';
    end if;
    if v_is_new and exists (select
                              from execution.channel_outbox as item
                             where item.id = v_item.id
                               and item.status = 'failed')
    then
        perform execution.audit(v_tenant_id, null, null, v_item.run_id, v_item.job_id, v_item.id,
                                'callback-' || v_item.provider, 'item.contradicted',
                                'the provider called back: ' || p_message_id || ' is ' || p_status);
        return 'contradicted';
    end if;
    return 'recorded';
end
$$;

-- An account by its id alone, for a request that comes from a provider and names nothing else. The secret is sealed: whoever
-- verifies the request has the master key.
create function tenancy.account_of_callback(p_account_id uuid)
returns table (tenant_id uuid, provider text, settings jsonb, sealed_secret bytea)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select account.tenant_id, account.provider, account.settings, account.sealed_secret
      from tenancy.provider_accounts as account
     where account.id = p_account_id
$$;
create index provider_accounts_by_id on tenancy.provider_accounts (id);

grant select on execution.doubts, execution.provider_callbacks to postrider_app, postrider_worker, postrider_read;
revoke all on all functions in schema execution from public;
revoke all on function tenancy.account_of_callback(uuid) from public;
grant execute on function
    execution.settle_doubt(text, uuid, uuid, integer, text, text, text),
    execution.put_off_doubt(text, uuid, uuid, integer, timestamptz, boolean, text)
    to postrider_worker;
grant execute on function
    execution.record_callback(uuid, text, text, text, boolean),
    tenancy.account_of_callback(uuid)
    to postrider_app;
